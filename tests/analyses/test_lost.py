"""Ledger 2 by hand: each rule of lost GPU time on a few rows, and sums that no input changes."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.server_by_hand import COLLECTIVE, OTHER, WORKER, call, op, piece, run, told


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
