"""Rules on several ranks."""

import dataclasses

import polars as pl
import pytest

from tests.findings.cases import Case, no_calls, no_rank_1, outcome, rule_tests
from tests.findings.sheet import ANY_SIZE, MS, Sheet
from tracelib.analyses.results import analyse
from tracelib.findings.finding import moments
from tracelib.findings.verdict import verdict


def always(_):
    return 1


def in_turn(n):
    return n % 2


def ranks(late, name="aten::mm", compute=0.0, size=2):
    """Ten collectives of `size` ranks; that which `late` gives is 5 ms late, in a slice or computing."""
    sheet = Sheet(ranks=size)
    for rank in range(size):
        sheet.kernel(-2, -1, rank=rank)
    for n in range(10):
        begin = 20 * n
        starts = [begin + 10.0] * size
        starts[late(n)] += 5
        sheet.doing(late(n), begin + 6, begin + 14.99, name, "op")
        if compute:
            sheet.kernel(begin + 6, begin + 6 + compute, call=(begin + 5, begin + 5.1), rank=late(n))
        sheet.all_reduce(starts, begin + 16, n)
        for rank in range(size):
            sheet.kernel(begin + 16, begin + 24, call=(begin + 15.5, begin + 15.6), rank=rank)
    return sheet


def test_one_rank_always_last_is_a_straggler():
    found = outcome("straggler_rank", ranks(always).results())
    assert (found.exposed_ns, found.cause) == (10 * 5 * MS, None)
    assert found.claim.startswith("Rank 1 came last in 10 of 10 collectives and caused 100 % of the waiting")
    assert "The GPUs waited in collectives for 12 % of GPU time" in found.claim
    assert found.evidence[0].who == "rank 0"


def two_files(trace, error_ns, tied_with):
    """The same run, each rank in a file of its own whose clock is tied as `tied_with` and `error_ns` say."""
    rank_1 = trace.gpu_ops["gpu"] == 1
    ops = trace.gpu_ops.with_columns(source=rank_1.cast(pl.Int32))
    files = trace.sources.with_columns(error_ns=pl.lit(error_ns), tied_with=pl.lit(tied_with))
    other = files.with_columns(source=pl.lit(1, pl.Int32), file=pl.lit("r1.json"))
    return dataclasses.replace(trace, gpu_ops=ops, sources=pl.concat([files, other]))


@pytest.mark.parametrize(
    ("error_ms", "tied_with", "told"),
    [(0, None, 10), (3, "t.json", 10), (3, "perf.txt", 0), (6, "r1.json", 0), (1, "perf.txt", 10)],
)
def test_who_came_last_is_only_said_beyond_the_clocks_error(error_ms, tied_with, told):
    """The skew is 5 ms; two clocks tied to a third one may be off each other by both errors."""
    results = analyse(two_files(ranks(always).trace(), error_ms * MS, tied_with))
    assert results.collectives.filter("order_known")["event"].n_unique() == told
    found = outcome("straggler_rank", results)
    assert (found is not None) == bool(told)
    if told and error_ms:
        off = error_ms if tied_with == "t.json" else 2 * error_ms
        assert f"collectives with an arrival skew above the clock error ({off}.00 ms)" in found.claim


def test_a_late_host_is_amplified_by_collectives():
    results = ranks(in_turn).results()
    found = outcome("launch_skew_amplified", results)
    assert found.exposed_ns == 50 * MS
    assert "ranks came late by 50.0 ms in all. " in found.claim  # of two ranks one waits as long
    assert outcome("rank_imbalance", results) is None


def test_of_three_ranks_two_wait_for_the_late_one():
    found = outcome("launch_skew_amplified", ranks(in_turn, size=3).results())
    assert "late by 50.0 ms in all, which cost 100 ms of GPU time (2.0 times as much). " in found.claim


def test_a_late_gpu_is_imbalance_and_no_launch_skew():
    results = ranks(in_turn, compute=9.0).results()
    assert outcome("rank_imbalance", results).exposed_ns == 50 * MS
    assert outcome("launch_skew_amplified", results) is None


# -------------------- collectives over the CPU
def over_the_cpu(name="gloo:all_reduce", *, hidden=False):
    """The worker is in a call from 1 to 100 ms; its GPU waits for what comes after, or works meanwhile."""
    sheet = Sheet()
    sheet.kernel(0, 101 if hidden else 1)
    sheet.doing(0, 1, 100, name)
    sheet.kernel(101, 102, call=(100.5, 100.6))
    return sheet


@pytest.mark.parametrize("name", ["gloo:all_reduce", "mpi:barrier", "ProcessGroupGloo::broadcast"])
def test_a_collective_over_the_cpu_is_not_called_a_message(name):
    results = over_the_cpu(name).results()
    found = outcome("cpu_collectives", results)
    assert (found.exposed_ns, found.cause) == (99 * MS, "ipc")
    assert "for the ranks to meet in collectives over the CPU" in found.claim
    assert outcome("ipc_stretched", results) is None
    assert "(collectives on the CPU 97 %" in verdict(results, ANY_SIZE).sentence


# -------------------- each rule's trigger, near miss, and what it cannot do without
CASES = [
    Case("straggler_rank", lambda: ranks(always), lambda: ranks(in_turn), (no_rank_1,)),
    Case("launch_skew_amplified", lambda: ranks(always), lambda: ranks(always, compute=9.0), (no_rank_1,)),
    Case("cpu_collectives", over_the_cpu, lambda: over_the_cpu(hidden=True), (no_calls,)),
    Case("rank_imbalance", lambda: ranks(always, compute=9.0), lambda: ranks(always), (no_rank_1,)),
]
TestRules = rule_tests(CASES)


# -------------------- one moment is one row of evidence
def test_a_moment_that_several_gpus_lost_is_one_row_that_names_them():
    """The host of rank 1 is late for 5 ms in every collective: ranks 0 and 2 wait there for it."""
    found = outcome("launch_skew_amplified", ranks(always, size=3).results())
    rows = [(row.ts_ns, row.what) for row in found.evidence]
    assert len({at for at, _ in rows}) == len(rows)
    assert all(what.startswith("GPUs of ranks 0 and 2 waiting in a collective;") for _, what in rows)
    last = outcome("straggler_rank", ranks(always, size=3).results())
    assert {row.who for row in last.evidence} == {"ranks 0 and 2"}


def test_stretches_of_different_moments_or_threads_stay_apart():
    rows = pl.DataFrame(
        [(0, 10, 0, 1), (1, 8, 1, 1), (9, 4, 2, 1), (1, 8, 3, 2)],
        schema=["ts_ns", "dur_ns", "gpu", "thread"],
        orient="row",
    )
    assert [(row["ts_ns"], row["thread"], list(row["gpus"])) for row in moments(rows)] == [
        (0, 1, [0, 1]),
        (1, 2, [3]),
        (9, 1, [2]),
    ]
