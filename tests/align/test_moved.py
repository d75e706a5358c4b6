"""One clock of a made-up server moves by 20 us, 2 ms, 30 ms or 3 s: mended within what is said, or left out.

An engine sends a message a step, two workers wait for it, launch a little and meet in collectives; steps last
3 to 9 ms, by a fixed random series. The truth is known: all files were written by one clock.
"""

import itertools
import random

import polars as pl
import pytest

from tests.align.clocks import furthest, moved, shifted
from tests.findings.sheet import frame
from tracelib.align import align
from tracelib.analyses.results import analyse
from tracelib.trace import Trace

US, MS = 1_000, 1_000_000
STEPS = 150
SHIFTS = [20 * US, 2 * MS, -30 * MS, 3_000 * MS]
ENGINE, WORKERS = 200, (100, 101)


def steps(seed=7):
    """Return when the engine sends each step, ns."""
    draw, at, out = random.Random(seed), 1_000 * MS, []
    for _ in range(STEPS):
        out.append(at)
        at += draw.randint(3_000, 9_000) * US
    return out


def source(file, format_, pid, *, slices=(), ops=(), sched=(), samples=(), rank=None):
    """Return the trace of one file, on wall time."""
    rows = [{"source": 0, "thread": 0, "category": "annotation", **row} for row in slices]
    threads = [{"thread": n, "pid": p, "tid": p, "name": f"thread {p}"} for n, p in enumerate(pid)]
    said = {
        "source": 0,
        "file": file,
        "format": format_,
        "clock": "realtime",
        "wall_offset_ns": 0,
        "rank": rank,
    }
    return Trace.of(
        {
            "sources": frame("sources", [said]),
            "threads": frame("threads", threads),
            "slices": frame("slices", rows),
            "gpus": frame("gpus", [{"gpu": 0, "device": rank, "rank": rank}] if ops else []),
            "gpu_ops": frame(
                "gpu_ops", [{"source": 0, "gpu": 0, "stream": 7, "pid": pid[0], **op} for op in ops]
            ),
            "sched": frame("sched", [{"source": 0, **event} for event in sched]),
            "samples": frame("samples", [{"source": 0, "event": "cpu-clock", **each} for each in samples]),
        }
    )


def worker(rank, sent, file=None, *, pid=None, jitter=True):
    """A worker waits for each step's message, then launches; it leaves its collectives with its peer."""
    draw = random.Random(f"{rank} {jitter}")
    done, slices, ops = sent[0] - 2 * MS, [], []
    for at in sent:
        late = draw.choice((15, 30, 60, 400)) if jitter else 30
        took = at + late * US
        slices.append({"name": "shm_broadcast.dequeue", "ts_ns": done, "dur_ns": took - done})
        slices += [
            {"name": "aten::mm", "category": "op", "ts_ns": took + k * 100 * US, "dur_ns": 80 * US}
            for k in range(15)
        ]
        done = took + 1_500 * US
        for k in range(6):
            end = (
                at
                + 500 * US
                + k * 250 * US
                + at // US * 7919 % 11 * 3 * US
                + draw.randint(-500, 500) * jitter
            )
            start = end - draw.randint(12, 90) * US
            ops.append(
                {"ts_ns": start, "dur_ns": end - start, "name": "ncclDevKernel_AllReduce", "kind": "kernel"}
                | {"collective": "all_reduce", "group": "0", "group_size": 2}
            )
    name = file or f"worker{rank}.json"
    return source(name, "torch_profiler", [pid or WORKERS[rank]], slices=slices, ops=ops, rank=rank)


def engine(sent):
    slices = [
        {"name": name, "ts_ns": at + begin * US, "dur_ns": dur * US}
        for at in sent
        for name, begin, dur in (("schedule", -300, 270), ("shm_broadcast.enqueue", -20, 20))
    ]
    return source("engine.json", "torch_profiler", [ENGINE], slices=slices)


def api_server(at, dur=20 * MS):
    slices = [{"name": "tokenize", "ts_ns": at, "dur_ns": dur}]
    return source("api.json", "torch_profiler", [300], slices=slices)


def perf(sent, *, sched, samples=False):
    """The engine runs from its wake-up until it has sent; samples find it there, the workers after that."""
    events, taken, draw = [], [], random.Random(3)
    for at in sent:
        on = {"cpu": 0, "event": "switch"}
        events += [
            {**on, "ts_ns": at - 310 * US, "prev": -1, "next": 0},
            {**on, "ts_ns": at + 8 * US, "prev": 0, "prev_state": "S", "next": -1},
        ]
        taken.append({"thread": 0, "ts_ns": at - draw.randint(0, 300) * US})
        taken += [
            {"thread": thread, "ts_ns": at + draw.randint(60, 1_500) * US}
            for thread in (1, 2)
            for _ in range(2)
        ]
    return source(
        "perf.txt",
        "perf",
        [ENGINE, *WORKERS],
        sched=events if sched else (),
        samples=taken if samples else (),
    )


def off(run, truth, source):
    """Return by how much the source's times are wrong on the timeline, against those of the first source."""
    return furthest(truth, run, source)


def realigned(traces, index, shift, ppm=0):
    """Return source `index`'s row after its declared clock was moved, its error, and what was said of it."""
    run = align([moved(t, shift, ppm) if at == index else t for at, t in enumerate(traces)])
    row = run.sources.row(index, named=True)
    said = run.health.filter(pl.col("source") == index)["message"].to_list()
    return row, off(run, align(traces), index), " ".join(said)


@pytest.mark.parametrize("ppm", [0, 50])
@pytest.mark.parametrize("shift", SHIFTS)
def test_ends_of_collectives_mend_a_rank(shift, ppm):
    row, error, said = realigned([worker(0, steps()), worker(1, steps())], 1, shift, ppm)
    assert (row["tied_by"], row["anchor_kind"]) == ("anchors", "ends of collectives")
    assert error <= 2 * US
    assert "off that of worker0.json" in said


def test_ranks_that_repeat_exactly_are_no_obstacle():
    """Every step lasts 5 ms: any number of steps fits as well, and the declared clocks decide."""
    even = [1_000 * MS + n * 5 * MS for n in range(STEPS)]
    row, error, _ = realigned([worker(0, even, jitter=False), worker(1, even, jitter=False)], 1, 20 * US)
    assert row["tied_by"] == "anchors"
    assert error <= 2 * US


def test_a_rank_that_began_to_record_later_is_mended():
    traces = [worker(0, steps()), worker(1, steps()[40:])]
    row, error, _ = realigned(traces, 1, 30 * MS)
    assert row["tied_by"] == "anchors"
    assert error <= 2 * US


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("shift", SHIFTS[1:])
def test_messages_tell_who_of_three_is_wrong(shift, index):
    row, error, said = realigned([engine(steps()), worker(0, steps()), worker(1, steps())], index, shift)
    assert row["tied_by"] == "anchors"
    assert error <= row["error_ns"] <= 200 * US
    assert f"{abs(shift) / MS:.0f}." in said or f"{abs(shift) / MS - 1:.0f}.9" in said


def test_messages_leave_a_right_clock_alone():
    run = align([engine(steps()), worker(0, steps()), worker(1, steps())])
    assert run.sources["tied_by"].to_list() == ["declared"] * 3
    assert run.health.filter(pl.col("level") != "info").is_empty()


def test_a_reader_that_is_late_for_each_message_is_not_moved():
    """A pipeline's second stage finds its messages there, each 7 ms old."""
    slices = [
        {"name": "shm_broadcast.dequeue", "ts_ns": at + 7 * MS, "dur_ns": late * US}
        for at, late in zip(steps(), itertools.cycle((7, 8, 9)))
    ]
    second = source("stage1.json", "torch_profiler", [WORKERS[1]], slices=slices, rank=1)
    run = align([engine(steps()), worker(0, steps()), second])
    assert run.sources["offset_ns"].to_list() == [0, 0, 0]


def test_replicas_whose_groups_bear_one_name_do_not_mend_each_other():
    """A second replica does the same 300 ms later; each has both its ranks."""
    later = [at + 300 * MS for at in steps()]
    replicas = [
        worker(rank, sent, f"{pid + rank}.json", pid=pid + rank)
        for pid, sent in ((100, steps()), (500, later))
        for rank in (0, 1)
    ]
    run = align(replicas)
    assert run.sources["tied_by"].to_list() == ["declared"] * 4


@pytest.mark.parametrize(("sched", "best"), [(True, 300 * US), (False, 3 * MS)])
@pytest.mark.parametrize("shift", SHIFTS)
def test_perf_without_a_header_is_tied_by_activity(shift, sched, best):
    traces = [
        engine(steps()),
        worker(0, steps()),
        worker(1, steps()),
        perf(steps(), sched=sched, samples=not sched),
    ]
    run = align([*traces[:3], shifted(traces[3], shift, 20)])
    row = run.sources.row(3, named=True)
    assert (row["tied_by"], row["anchor_kind"]) == ("anchors", "activity")
    assert off(run, align(traces), 3) <= row["error_ns"] <= best


@pytest.mark.parametrize("shift", [-30 * MS, 3_000 * MS])
def test_a_declared_clock_of_samples_is_mended(shift):
    traces = [
        engine(steps()),
        worker(0, steps()),
        worker(1, steps()),
        perf(steps(), sched=False, samples=True),
    ]
    row, error, said = realigned(traces, 3, shift)
    assert row["tied_by"] == "anchors"
    assert error <= row["error_ns"] <= 3 * MS
    assert "it is tied by anchors instead" in said


def test_what_shares_no_time_is_left_out_and_what_nothing_checks_is_said():
    traces = [worker(0, steps()), worker(1, steps()), api_server(1_100 * MS)]
    row, _, said = realigned(traces, 2, 0)
    assert row["tied_by"] == "declared"
    assert "it is taken at its word" in said
    run = align([*traces[:2], moved(traces[2], 3_000 * MS)])
    assert run.sources["tied_by"].to_list() == ["declared", "declared", "untied"]
    assert "nothing of it is joined" in " ".join(run.health.filter(pl.col("source") == 2)["message"])


def test_states_within_the_error_of_a_rough_tie_are_unknown():
    """The engine runs for 318 us a step: of that, a clock good to 100 us tells 118 for certain."""
    run = align(
        [engine(steps()), worker(0, steps()), worker(1, steps()), shifted(perf(steps(), sched=True), 2 * MS)]
    )
    error = pl.when(pl.col("source") == 3).then(100 * US).otherwise("error_ns")
    rough = run.replace(sources=run.sources.with_columns(error_ns=error))
    exact, sure = (
        analyse(each)
        .thread_states.filter(pl.col("state").cast(pl.String) == "running")["dur_ns"]
        .to_list()[1:-1]
        for each in (run, rough)
    )
    assert set(exact) == {318 * US}
    assert set(sure) == {118 * US}
