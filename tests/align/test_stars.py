"""Clocks of many ranks: each is compared with one of its star, and the largest star is right."""

import polars as pl
import pytest

from tests.align.clocks import moved
from tests.align.test_moved import US, steps, worker
from tracelib.align import align
from tracelib.align.evidence import Check
from tracelib.align.stars import stars


def compared(off, groups):
    """Return what `stars` finds of ranks whose clocks are so many ns off, and which pairs it compared."""
    asked = []

    def compare(one, other):
        asked.append((one, other))
        if not groups[one].keys() & groups[other].keys():
            return None
        shift = off[one] - off[other]
        return Check("ends of collectives", 100, 1_000, 0, 0, shift if abs(shift) > 2_000 else 0)

    return stars(range(len(off)), groups, compare), asked


@pytest.mark.parametrize("ranks", [16, 64])
def test_each_rank_is_compared_once(ranks):
    found, asked = compared([0] * ranks, [{"tp": ranks}] * ranks)
    assert asked == [(0, other) for other in range(1, ranks)]
    assert not any(check.shift_ns for check in found.checks.values())
    assert found.agree == dict.fromkeys(range(ranks), ranks - 1)
    assert not any(found.disagree.values())


def test_of_two_hosts_the_one_with_fewer_ranks_is_wrong():
    off = [20_000] * 3 + [0] * 5
    found, asked = compared(off, [{"tp": 8}] * 8)
    assert [(found.agree[at], found.disagree[at]) for at in range(8)] == [(2, 5)] * 3 + [(4, 3)] * 5
    assert len(asked) == 7 + 4  # all with the first; then all others with the first of these


def test_hosts_that_are_each_off_by_their_own_time_take_two_looks_at_a_rank():
    off = [host * 10_000 for host in range(32) for _ in range(8)]
    _, asked = compared(off, [{"world": 256}] * 256)
    assert len(asked) < 2 * 256


def test_groups_that_share_ranks_make_one_star():
    """Two by two: tensor parallel within a host, data parallel across."""
    groups = [{"tp0": 2, "dp0": 2}, {"tp0": 2, "dp1": 2}, {"tp1": 2, "dp0": 2}, {"tp1": 2, "dp1": 2}]
    found, _ = compared([0, 0, 5_000, 0], groups)
    assert [found.disagree[at] for at in range(4)] == [1, 1, 3, 1]


def test_replicas_of_one_name_are_strangers_whatever_the_order_of_files():
    off = [0, 300_000, 0, 300_000]
    found, _ = compared(off, [{"0": 2}] * 4)
    assert set(found.checks) == {(0, 2), (1, 3)}
    assert not found.related(0, 1)
    assert found.related(1, 3)


def test_ranks_of_a_host_whose_clock_is_off_are_all_mended():
    """Three of five ranks are right; 20 us between the hosts would undo the pairing of their collectives."""
    sized = []
    for rank in range(5):
        trace = worker(rank % 2, steps(), f"{rank}.json", pid=100 + rank)
        size = pl.lit(5, trace.gpu_ops.schema["group_size"])
        number = pl.lit(rank, trace.sources.schema["rank"])
        sources = trace.sources.with_columns(rank=number)
        sized.append(trace.replace(gpu_ops=trace.gpu_ops.with_columns(group_size=size), sources=sources))
    run = align([moved(trace, 20 * US, 0) if n in (1, 3) else trace for n, trace in enumerate(sized)])
    assert run.sources["tied_by"].to_list() == ["declared", "anchors", "declared", "anchors", "declared"]
    assert all(abs(ns + 20 * US) <= 2 * US for ns in run.sources["offset_ns"].gather([1, 3]).to_list())
