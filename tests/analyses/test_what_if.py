"""Replay: a run comes out as it was, and with a change as a run written by hand says that it must."""

import random

import numpy as np
import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.replay import NEVER, _longest
from tracelib.analyses.whatif import SCENARIOS, TOKENIZATION, UNCHANGED, Change, Replay, scenarios, what_if
from tracelib.errors import BadParameter


def served(*, short=0.0, tokenizes=5.0, launches=1.0):
    """Two steps of one worker: tokenize, broadcast, launch, compute 20 ms, answer.

    `short`: how long the worker is ready without a CPU before each step's launch.
    """
    sheet = Sheet()
    worker, at = sheet.workers[0], 0.0
    sheet.kernel(0, 1, call=(-0.02, -0.01))  # the window begins here
    for _ in range(2):
        at += 2
        sheet.doing(sheet.api, at, at + tokenizes, "tokenize")
        sent = at + tokenizes + 0.1
        sheet.doing(sheet.api, at + tokenizes, sent, "ipc_send_request")
        sheet.doing(sheet.engine, at - 1, sent, "engine.schedule")
        sheet.doing(sheet.engine, sent, sent + 0.1, "shm_broadcast.enqueue")
        got = sent + 0.2
        sheet.doing(worker, at - 1, got, "shm_broadcast.dequeue")
        begin = got + short
        sheet.doing(worker, got, begin + launches, "aten::mm", "op")
        start = begin + launches
        sheet.kernel(start + 0.01, start + 20, call=(start, start + 0.005))
        sheet.doing(worker, start + 0.01, start + 20.01, "cudaStreamSynchronize", "runtime")
        sheet.doing(worker, start + 20.01, start + 20.1, "ipc_send_output")
        sheet.doing(sheet.engine, sent + 0.1, start + 20.11, "engine.wait_output")
        sheet.runs(worker, at - 1, got, 0)
        if short:
            sheet.ready(worker, got, begin, 0)
        sheet.runs(worker, begin, start + 20.2, 0)
        sheet.runs(sheet.engine, sent, sent + 0.1, 1)
        sheet.runs(sheet.engine, start + 20.1, start + 20.11, 1)
        sheet.runs(sheet.api, at, sent, 2)
        at = start + 20.2
    return sheet


def row(frame, name):
    return frame.row(by_predicate=pl.col("scenario") == name, named=True)


def test_the_unchanged_run_comes_out_as_it_was():
    results = served(short=3).results()
    found = what_if(results, {}, closed_loop=True)
    assert found["scenario"].to_list() == [UNCHANGED]
    assert found["window_ns"].item() == results.window.duration_ns
    useful = 41 * MS - 2 * 0.01 * MS  # 1, and twice 20 less the latency
    assert found["lost_ns"].item() == pytest.approx(results.window.duration_ns - useful, abs=2)


def test_without_the_shortage_each_step_begins_earlier_by_it():
    found = what_if(served(short=3).results(), closed_loop=True)
    healthy = served(short=0).results().window.duration_ns
    assert row(found, "no CPU shortage")["window_ns"] == pytest.approx(healthy, abs=10_000)
    assert row(found, "no CPU shortage")["gained_ns"] == pytest.approx(6 * MS, abs=10_000)


def test_tokenization_elsewhere_lets_the_request_come_earlier_by_it():
    found = what_if(served(tokenizes=5).results(), closed_loop=True)
    assert row(found, "tokenization elsewhere")["gained_ns"] == pytest.approx(10 * MS, abs=20_000)


def test_what_cannot_be_told_has_a_reason_and_no_figure():
    found = what_if(served().results())
    skew = row(found, "no skew")
    assert skew["window_ns"] is None
    assert "no collective" in skew["why_not"]
    assert set(found["scenario"]) == {UNCHANGED, *SCENARIOS}


def test_graphs_leave_one_launch_of_a_step():
    found = what_if(served(launches=4).results(), closed_loop=True)
    assert row(found, "decode by graphs")["gained_ns"] == pytest.approx(8 * MS, abs=100_000)


@pytest.mark.parametrize("late", [0.0, 4.0])
def test_a_collective_ends_as_long_after_its_last_rank_as_recorded(late):
    """Rank 1 waits 4 ms for a CPU; both ranks' collective ends 2 ms after its start."""
    sheet = Sheet(ranks=2)
    for rank, begin in ((0, 4.0), (1, 4.0 + late)):
        worker = sheet.workers[rank]
        sheet.kernel(0, 1, rank=rank, call=(-0.02, -0.01))
        sheet.doing(worker, 1, begin, "aten::mm", "op")
        sheet.runs(worker, 0, 2, rank)
        if late and rank:
            sheet.ready(worker, 2, 2 + late, rank)
        sheet.runs(worker, 2 + late * rank, 20, rank)
    sheet.all_reduce([4.0, 4.0 + late], 6.0 + late, 1)
    for rank in (0, 1):
        call = (4.1 + late * rank, 4.2 + late * rank)
        sheet.kernel(6.001 + late, 10 + late, rank=rank, call=call)
    results = sheet.results()
    found = what_if(results)
    assert row(found, UNCHANGED)["window_ns"] == results.window.duration_ns
    if late:
        assert row(found, "no CPU shortage")["gained_ns"] == pytest.approx(late * MS, abs=20_000)


def test_requests_from_outside_come_when_they_came():
    """With an open load the second request is not there before its time: only what follows it shrinks."""
    results = served(short=3).results()
    found = what_if(results)
    assert row(found, "no CPU shortage")["gained_ns"] == pytest.approx(3 * MS, abs=20_000)


def test_more_cores_take_as_many_threads_off_the_queue():
    """One thread waits 3 ms in each step: one more core is enough for all of it."""
    results = served(short=3).results()
    replay = Replay(results, closed_loop=True)
    had = 3.0  # CPUs 0, 1 and 2
    same, more = (replay.row("x", Change(cores=cores)) for cores in (had, had + 1))
    assert same["gained_ns"] == pytest.approx(0, abs=1_000)
    assert more["gained_ns"] == pytest.approx(6 * MS, abs=20_000)


def test_the_longest_path_is_that_of_a_second_reckoning():
    draw = random.Random(1)
    size = 200
    edges = [
        (
            np.array([draw.randrange(-1, n) if n else -1 for n in range(size)]),
            np.array([draw.randint(0, 9) for _ in range(size)], float),
        )
        for _ in range(3)
    ]
    earliest = np.array([draw.choice([NEVER, float(draw.randint(0, 50))]) for _ in range(size)])
    earliest[0] = 0.0

    def path(node, known={}):  # noqa: B006 (remembers)
        if node not in known:
            ways = [path(before[node]) + length[node] for before, length in edges if before[node] >= 0]
            known[node] = max([earliest[node], *ways])
        return known[node]

    assert [path(n) for n in range(size)] == _longest(edges, earliest).tolist()


def test_what_is_asked_for_is_one_scenario_and_else_each_by_itself():
    assert scenarios() is SCENARIOS
    assert scenarios(8, ["tokenization", "launches"]) == {
        "8 cores, no tokenization, no launches": Change(
            cores=8, gone=(TOKENIZATION,), apart=(TOKENIZATION,), graphs=True
        )
    }
    with pytest.raises(BadParameter, match="shortage, tokenization"):
        scenarios(without=["tokens"])
