"""The two ledgers by hand: each rule of lost GPU time on a few rows, and sums that must come out whatever the input."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelib import schema
from tracelib.analyses.results import analyse
from tracelib.analyses.window import Window
from tracelib.findings import diagnose
from tracelib.findings.verdict import verdict
from tracelib.trace import Trace

WORKER, ENGINE, API, OTHER = 0, 1, 2, 3
ROLES = {
    WORKER: ("worker", 0, 10),
    ENGINE: ("engine", None, 20),
    API: ("api_server", None, 30),
    OTHER: ("worker", 1, 40),
}


def frame(name, rows):
    made = [{**dict.fromkeys(schema.FRAMES[name]), **row} for row in rows]
    return pl.DataFrame(made, schema=schema.FRAMES[name])


def op(ts, end, correlation=None, gpu=0, **more):
    pid = 10 if gpu == 0 else 40
    return {
        "source": 0,
        "gpu": gpu,
        "stream": 7,
        "ts_ns": ts,
        "dur_ns": end - ts,
        "name": "k",
        "kind": "kernel",
        "correlation": correlation,
        "pid": pid,
        **more,
    }


def piece(thread, ts, end, name, category="annotation", correlation=None):
    return {
        "source": 0,
        "thread": thread,
        "ts_ns": ts,
        "dur_ns": end - ts,
        "name": name,
        "category": category,
        "correlation": correlation,
    }


def call(ts, end, correlation, thread=WORKER):
    return piece(thread, ts, end, "cudaLaunchKernel", "runtime", correlation)


def run(ops, slices=(), sched=()):
    threads = [
        {
            "thread": t,
            "host": "h",
            "pid": pid,
            "tid": pid,
            "name": role,
            "process": role,
            "role": role,
            "rank": rank,
        }
        for t, (role, rank, pid) in ROLES.items()
    ]
    gpus = [{"gpu": g, "host": "h", "device": g, "rank": g} for g in sorted({o["gpu"] for o in ops})]
    source = {
        "source": 0,
        "file": "t.json",
        "bytes": 1,
        "format": "torch_profiler",
        "host": "h",
        "clock": "realtime",
        "tied_by": "declared",
        "offset_ns": 0,
    }
    lost = {"lost_declared": 0, "lost_detected": 0, "skipped_bytes": 0, "first_ns": 0, "last_ns": 1}
    trace = Trace.of(
        {
            "gpu_ops": frame("gpu_ops", ops),
            "slices": frame("slices", list(slices)),
            "sched": frame("sched", list(sched)),
            "threads": frame("threads", threads),
            "gpus": frame("gpus", gpus),
            "sources": frame("sources", [{**source, **lost}]),
        }
    )
    return analyse(trace)


def told(results, gpu=0):
    rows = results.lost.filter(pl.col("gpu") == gpu).sort("ts_ns")
    merged = []
    for ts, dur, cause, sub in rows.select("ts_ns", "dur_ns", "cause", "sub_cause").iter_rows():
        if merged and merged[-1][1] == ts and merged[-1][2:] == (cause, sub):
            merged[-1] = (merged[-1][0], ts + dur, cause, sub)
        else:
            merged.append((ts, ts + dur, cause, sub))
    return merged


def test_a_gap_is_cut_at_the_launch_call_and_its_return():
    results = run(
        [op(0, 10, 1), op(100, 200, 2)],
        [call(0, 1, 1), piece(WORKER, 5, 60, "aten::mm", "op"), call(70, 90, 2)],
    )
    assert told(results) == [
        (10, 60, "kernel_launch", "dispatch"),
        (60, 70, "unattributed", None),
        (70, 90, "kernel_launch", "api"),
        (90, 100, "kernel_launch", "latency"),
    ]


def test_a_launch_before_the_gap_leaves_only_its_call_and_latency():
    results = run([op(0, 50, 1), op(100, 200, 2)], [call(0, 1, 1), call(40, 70, 2)])
    assert told(results) == [(50, 70, "kernel_launch", "api"), (70, 100, "kernel_launch", "latency")]


def test_an_operation_without_a_launch_is_unattributed():
    results = run([op(0, 10, 1), op(100, 200)], [call(0, 1, 1)])
    assert told(results) == [(10, 100, "unattributed", "no launch found")]


def test_loading_code_inside_the_call_is_named():
    slices = [call(0, 1, 1), call(20, 90, 2), piece(None, 30, 80, "Lazy Function Loading", "overhead")]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (30, 80, "kernel_launch", "module_load") in told(results)


def test_waits_are_followed_from_worker_to_engine_to_tokenizer():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 0, 20, "engine.update"),
        piece(ENGINE, 20, 80, "wait_for_requests"),
        piece(ENGINE, 80, 88, "shm_broadcast.enqueue"),
        piece(API, 30, 70, "tokenize"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (30, 70, "tokenization", "encode") in told(results)
    assert (80, 88, "ipc", "copy") in told(results)
    assert (70, 80, "no_work", None) in told(results)  # an API server that annotates its work had none


def test_an_engine_that_waits_for_the_other_worker_blames_that_one():
    slices = [
        call(0, 1, 1),
        piece(WORKER, 10, 90, "shm_broadcast.dequeue"),
        call(90, 95, 2),
        piece(ENGINE, 0, 100, "engine.wait_output"),
        piece(OTHER, 20, 60, "aten::mm", "op"),
    ]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (20, 60, "kernel_launch", "dispatch") in told(results)


def test_an_upstream_that_no_source_recorded_proves_nothing():
    slices = [call(0, 1, 1), piece(WORKER, 10, 90, "shm_broadcast.dequeue"), call(90, 95, 2)]
    results = run([op(0, 10, 1), op(100, 200, 2)], slices)
    assert (10, 90, "ipc", "upstream not recorded") in told(results)
    assert verdict(results).state == "insufficient"


COLLECTIVE = {"collective": "all_reduce", "group": "0", "group_size": 2, "elements": 8}


def test_waiting_in_a_collective_is_put_to_the_rank_that_came_last():
    ops = [
        op(0, 10, 1),
        op(0, 30, 1, gpu=1),
        op(20, 110, 2, **COLLECTIVE),
        op(100, 110, 2, gpu=1, **COLLECTIVE),
    ]
    slices = [
        call(0, 1, 1),
        call(15, 18, 2),
        call(0, 1, 1, OTHER),
        piece(OTHER, 20, 90, "aten::mm", "op"),
        call(90, 95, 2, OTHER),
    ]
    results = run(ops, slices)
    waits = [row for row in told(results) if row[0] >= 20]
    # While the late rank's GPU still computed it was imbalance; then what its launching thread did.
    assert waits == [
        (20, 30, "imbalance", None),
        (30, 90, "kernel_launch", "dispatch"),
        (90, 95, "kernel_launch", "api"),
        (95, 100, "kernel_launch", "latency"),
    ]
    state = dict(
        results.gpu_time.filter(pl.col("gpu") == 0).select(pl.col("state").cast(pl.String), "ns").iter_rows()
    )
    assert (state["collective_wait"], state["collective_transfer"], state["compute"], state["idle"]) == (
        80,
        10,
        10,
        10,
    )


def test_one_rank_alone_cannot_tell_waiting_from_transfer():
    results = run([op(0, 10, 1), op(20, 110, 2, **COLLECTIVE)], [call(0, 1, 1), call(15, 18, 2)])
    state = dict(results.gpu_time.select(pl.col("state").cast(pl.String), "ns").iter_rows())
    assert (state["collective"], state["collective_wait"], state["collective_transfer"]) == (90, 0, 0)
    assert (
        diagnose(results)["devices"][0]["useful_share"] == 10 / 110
    )  # what is in the collective stands apart


def test_a_gpu_that_never_waits_is_not_cpu_bound():
    ops = [op(i * 100, i * 100 + 99, i + 1) for i in range(20)]
    results = run(ops, [call(max(0, i * 100 - 50), max(0, i * 100 - 50) + 5, i + 1) for i in range(20)])
    assert verdict(results).state == "not_cpu_bound"
    assert "gpu_bound" in {f["id"] for f in diagnose(results)["findings"]}


def test_an_idle_server_has_no_load():
    slices = [
        call(0, 1, 1),
        call(990, 992, 2),
        piece(WORKER, 10, 980, "shm_broadcast.dequeue"),
        piece(ENGINE, 0, 985, "wait_for_requests"),
        piece(API, 0, 5, "tokenize"),
    ]
    results = run([op(0, 10, 1), op(1000, 1010, 2)], slices)
    assert verdict(results).state == "no_load"


def test_launch_metrics_keep_negative_returns():
    results = run([op(0, 10, 1), op(50, 60, 2)], [call(0, 1, 1), call(40, 55, 2)])
    row = results.launches.row(1, named=True)
    assert (row["api_ns"], row["launch_to_start_ns"], row["return_to_start_ns"], row["late"]) == (
        15,
        10,
        -5,
        True,
    )


intervals = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40)), min_size=2, max_size=12)


@settings(max_examples=15, deadline=None)
@given(
    intervals,
    intervals,
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(1, 60),
            st.sampled_from(["aten::mm", "shm_broadcast.dequeue", "tokenize", "x"]),
        ),
        max_size=10,
    ),
    st.integers(-(10**12), 10**12),
)
def test_ledgers_add_up_and_no_shift_of_the_clock_changes_them(first, second, slices, shift):
    def build(by):
        ops = [op(by + ts, by + ts + n, i + 1) for i, (ts, n) in enumerate(first)]
        ops += [
            op(by + ts, by + ts + n, i + 1, gpu=1, **(COLLECTIVE if i % 2 else {}))
            for i, (ts, n) in enumerate(second)
        ]
        calls = [call(by + ts - 20, by + ts - 10, i + 1) for i, (ts, _) in enumerate(first)]
        others = [piece(WORKER, by + ts, by + ts + n, name) for ts, n, name in slices]
        return ops, [*calls, *others]

    ends = [
        min(max(ts + n for ts, n in side) for side in (first, second)),
        max(min(ts for ts, _ in side) for side in (first, second)),
    ]
    if ends[0] <= ends[1]:
        return
    straight, moved = (run(*build(by)) for by in (0, shift))
    for results in (straight, moved):
        window = results.window.duration_ns
        assert results.gpu_time.group_by("gpu").agg(pl.col("ns").sum())["ns"].to_list() == [window, window]
        lost = (
            results.gpu_time.filter(pl.col("state").is_in(["idle", "collective_wait"]))
            .group_by("gpu")
            .agg(pl.col("ns").sum())
            .sort("gpu")
        )
        caused = results.causes.group_by("gpu").agg(pl.col("ns").sum()).sort("gpu")
        assert dict(caused.iter_rows()) == {gpu: ns for gpu, ns in lost.iter_rows() if ns}
    assert straight.causes.equals(moved.causes)


def test_any_order_of_input_rows_gives_the_same_figures():
    ops = [op(i * 50, i * 50 + 30, i + 1) for i in range(10)]
    slices = [call(i * 50 - 15, i * 50 - 5, i + 1) for i in range(1, 10)] + [
        piece(WORKER, 60, 240, "execute_model")
    ]
    assert run(ops, slices).causes.equals(run(ops[::-1], slices[::-1]).causes)


def test_the_window_can_be_given_and_its_name_told():
    results = run([op(0, 10, 1), op(1000, 2000, 2)], [call(0, 1, 1), call(990, 995, 2)])
    assert results.window == Window(0, 2000, results.window.why)
    with pytest.raises(Exception, match="window"):
        analyse(results.trace, window_seconds=(5, 6))
