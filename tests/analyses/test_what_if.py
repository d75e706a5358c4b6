"""Replay: a run comes out as it was, and with a change as a run written by hand says that it must."""

import random

import numpy as np
import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.replay import NEVER, SCENARIOS, TOKENIZATION, Change, _longest, load_of, scenarios
from tracelib.analyses.whatif import UNCHANGED, Replay, at_cores, load_words, what_if
from tracelib.errors import BadParameter
from tracelib.sources.request_logs import REQUEST_LOG


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


def test_each_number_of_cores_that_an_estimate_names_is_replayed_once():
    """3 CPUs were seen, a thread waits 3 ms in each step; 2.5 cores are 3, and a mean is left out."""
    rows = [
        ("had", 3.0),
        ("rule", 4.2),
        ("quota", 2.5),
        ("measured demand, mean", 1.5),
        ("article's rule", None),
    ]
    estimates = pl.DataFrame(rows, schema={"estimate": pl.String, "cores": pl.Float64}, orient="row")
    found = at_cores(served(short=3).results(), estimates)
    assert found["cores"].to_list() == [3, 5]
    assert found["gained_ns"].to_list() == pytest.approx([0, 3 * MS], abs=20_000)  # an open load


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


# -------------------- how requests come
def log_of(arrivals, ends):
    rows = [
        {
            "id": str(n),
            "arrived": round(came * MS),
            "first_token": round(came * MS),
            "finished": round(end * MS),
        }
        for n, (came, end) in enumerate(zip(arrivals, ends, strict=True))
    ]
    return pl.DataFrame([dict.fromkeys(REQUEST_LOG) | row for row in rows], schema=REQUEST_LOG)


def test_a_client_that_asks_again_when_it_has_its_answer_is_a_closed_loop():
    """Two clients whose answers take 90 and 110 ms ask 3 ms later: right after an end is 6 % of the time."""
    arrivals = sorted(n * (took + 3.0) for took in (90, 110) for n in range(12))
    ends = [n * (took + 3.0) + took for took in (90, 110) for n in range(12)]
    load = load_of(log_of(arrivals, sorted(ends)))
    assert (load.closed, load.known) == (True, True)
    assert load.why.startswith("clients wait for an answer before they ask again: 80 % of 22 requests came ")


def test_requests_that_come_by_a_clock_of_their_own_are_an_open_load():
    """One every 100 ms, whose answers end at moments spread over the time between two of them."""
    draw = random.Random(3)
    arrivals = [100.0 * n for n in range(40)]
    load = load_of(log_of(arrivals, [came + draw.uniform(50, 350) for came in arrivals]))
    assert (load.closed, load.known) == (False, True)


def test_without_ends_of_answers_nothing_is_known_of_the_load():
    unended = log_of(range(20), range(20)).with_columns(finished=pl.lit(None, pl.Int64))
    for log in (None, unended, log_of([1, 2, 3], [2, 3, 4])):
        load = load_of(log)
        assert (load.closed, load.known) == (False, False)
        assert load.why


def test_a_replay_says_how_requests_come_in_it():
    shown = load_of(log_of(range(0, 1200, 100), range(97, 1297, 100)))
    assert shown.closed
    assert load_words(shown).startswith("Requests follow answers in the replay (clients wait for an answer")
    assert load_words(shown, closed_loop=False).startswith("Requests come at their recorded moments")
    assert "no request log says when answers ended" in load_words(load_of(None))


def test_work_that_is_gone_leaves_the_wait_for_a_cpu_in_it():
    """Of 8 ms of launching in each step the thread lacked a CPU for 3 at its begin."""
    sheet = Sheet()
    worker = sheet.workers[0]
    sheet.kernel(0, 1, call=(-0.02, -0.01))
    sheet.doing(worker, 1, 9, "aten::mm", "op")
    sheet.runs(worker, -1, 1, 0)
    sheet.ready(worker, 1, 4, 0)
    sheet.runs(worker, 4, 30, 0)
    sheet.kernel(9.01, 20, call=(9, 9.005))
    replay = Replay(sheet.results(), closed_loop=True)
    assert replay.gain(Change(gone=("launching",))).gained_ns == pytest.approx(5 * MS, abs=30_000)
    assert replay.gain(Change(gone=("launching", "runnable"))).gained_ns == pytest.approx(8 * MS, abs=30_000)


def test_a_thread_beside_whose_poller_it_waits_gets_the_poller_s_cpu():
    """Another thread polls all the while: where pollers give way, the 3 ms of each step are not waited."""
    sheet = served(short=3)
    poller = sheet.thread("worker", "reader", pid=100)
    sheet.doing(poller, -1, 70, "shm_broadcast.dequeue")
    sheet.runs(poller, -1, 70, 3)
    gain = Replay(sheet.results(), closed_loop=True).gain(Change(apart=("polling",)))
    assert gain.gained_ns == pytest.approx(6 * MS, abs=50_000)
