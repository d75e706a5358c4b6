"""CPU quotas: gaps on a period grid are throttling, others are not; the throttled capture against its
cgroup's counters.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.throttling import cpu_stat, grid
from tracelib.analyses.window import window as gpu_window

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from scheduling_frames import IDLE, rows, switch, trace, wakeup, window

A, B, MS = 1, 2, 1_000_000


def run_until_the_quota_is_spent(comes: list[int], spent: list[int]) -> list[tuple[object, ...]]:
    """One thread on CPU 0 that leaves ready to idle at each of `spent`, and comes back at each of `comes`."""
    out = [switch(t, 0, A, "R", IDLE) for t in spent]
    back = [switch(t, 0, IDLE, "R", A) for t in comes]
    return sorted([wakeup(0, 1, B), *out, *back], key=lambda row: row[1])


def stops(states: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches in which a quota kept any thread off: ts_ns, dur_ns, threads, thread_ns (theirs
    together).

    The kernel's `throttled_usec` is another figure: it adds up CPUs (run queues), and counts one that has
    nothing else to run only once.
    """
    off = states.filter(pl.col("state") == "throttled").sort("ts_ns")
    end = pl.col("ts_ns") + pl.col("dur_ns")
    new = (pl.col("ts_ns") > end.cum_max().shift(1)).fill_null(value=True)
    stretches = off.with_columns(end=end, stretch=new.cum_sum()).group_by("stretch", maintain_order=True)
    return stretches.agg(
        pl.col("ts_ns").min(),
        dur_ns=pl.col("end").max() - pl.col("ts_ns").min(),
        threads=pl.col("thread").n_unique(),
        thread_ns=pl.col("dur_ns").sum(),
    )


def test_gaps_that_end_on_a_grid_are_throttling() -> None:
    comes = [107 * MS, 207 * MS, 307 * MS + 300_000, 407 * MS]
    spent = [67 * MS, 150 * MS, 260 * MS, 380 * MS]
    states = thread_states(trace(run_until_the_quota_is_spent(comes, spent)), window(0, 407 * MS))
    assert [r[:4] for r in rows(states, A) if r[2] == "throttled"] == [
        (67 * MS, 107 * MS, "throttled", 0),
        (150 * MS, 207 * MS, "throttled", 0),
        (260 * MS, 307 * MS + 300_000, "throttled", 0),
        (380 * MS, 407 * MS, "throttled", 0),
    ]
    assert not (states["state"] == "runnable").any()
    stretches = stops(states)
    assert stretches["dur_ns"].to_list() == [40 * MS, 57 * MS, 47 * MS + 300_000, 27 * MS]
    assert stretches["threads"].to_list() == [1, 1, 1, 1]


def test_gaps_that_end_anywhere_are_not() -> None:
    comes, spent = [107 * MS, 223 * MS, 341 * MS, 478 * MS], [67 * MS, 150 * MS, 260 * MS, 380 * MS]
    states = thread_states(trace(run_until_the_quota_is_spent(comes, spent)), window(0, 478 * MS))
    assert set(states["state"].cast(pl.String).unique()) == {"running", "runnable", "unknown"}
    assert stops(states).is_empty()


def test_two_gaps_on_a_grid_prove_nothing() -> None:
    states = thread_states(
        trace(run_until_the_quota_is_spent([107 * MS, 207 * MS], [67 * MS, 150 * MS])), window(0, 207 * MS)
    )
    assert not (states["state"] == "throttled").any()


def test_many_gaps_in_one_period_are_one_point_of_the_grid() -> None:
    assert grid(np.array([100, 100, 101, 102, 103]) * MS) is None


def test_the_grid_is_found_among_other_gaps() -> None:
    ends = np.array([20, 120, 220, 320, 420, 251, 377]) * MS
    assert grid(ends) == (100 * MS, 20 * MS)


def test_another_period() -> None:
    assert grid(np.array([7, 57, 107, 157, 257]) * MS) == (50 * MS, 7 * MS)


def test_a_coming_that_was_not_recorded_is_put_on_the_grid() -> None:
    """The thread is seen 1 ms after its period began; the samples bound its coming, the grid of the others
    gives it.
    """
    period, us = 2 * MS, 1_000
    sched = [wakeup(0, 1, B), switch(1, 2, B, "S", IDLE)]
    samples = [(0, B)]
    for n in range(1, 5):
        begin = n * 100 * MS
        seen = begin + [0, 1000, 500, 1500][n - 1] * us
        samples += [(seen + k * period, A) for k in range(20)]
        sched.append(switch(seen + 20 * period, 0, A, "R", IDLE))
    samples.append((600 * MS, B))
    states = thread_states(trace(sched, samples, period=period), window(0, 500 * MS))
    kept_off = [(r[0], r[1]) for r in rows(states, A) if r[2] == "throttled"]
    # The grid is put where the earliest of them was seen, 500 us into its period: later than the truth, never
    # before it.
    assert kept_off == [
        (140 * MS, 200 * MS + 500 * us),
        (241 * MS, 300 * MS + 500 * us),
        (340 * MS + 500 * us, 400 * MS + 500 * us),
    ]
    assert all(r[5] for r in rows(states, A) if r[2] == "throttled"), "rebuilt, and marked so"
    # Between the grid's point and the first sample nothing proves that it ran.
    assert (200 * MS + 500 * us, 201 * MS, "unknown") in [r[:3] for r in rows(states, A)]


def test_cpu_stat_of_both_cgroup_versions() -> None:
    assert cpu_stat("nr_periods 5\nthrottled_usec 10\n", "nr_periods 9\nthrottled_usec 25\n") == {
        "nr_periods": 4,
        "throttled_usec": 15,
    }
    assert cpu_stat("nr_periods 5\nthrottled_time 1000\n", "nr_periods 9\nthrottled_time 26000\n") == {
        "nr_periods": 4,
        "throttled_usec": 25,
    }
    assert cpu_stat("", "nr_periods 9\nnonsense\n") == {"nr_periods": 9}


@pytest.mark.corpus
def test_the_throttled_capture_against_its_cgroup(run_of) -> None:
    """`cpu.max 200000 100000`: what the trace must show, and what `cpu.stat` says of the same cgroup.

    The counters cover the server's whole life (27 s), the trace its loaded 2 s, so only rates compare: the
    share of periods in which it was throttled. `throttled_usec` adds up run queues, also of threads that no
    trace names: it is an upper bound per period of what the threads' states show, not their sum.
    """
    folder, of = run_of("throttled").folder, run_of("throttled").trace
    over = gpu_window(of)
    states = thread_states(of, over)
    stat = cpu_stat((folder / "cpu.stat.before").read_text(), (folder / "cpu.stat.after").read_text())
    assert states.group_by("thread").agg(pl.col("dur_ns").sum())["dur_ns"].unique().to_list() == [
        over.duration_ns
    ]
    stretches = stops(states)
    ends = (stretches["ts_ns"] + stretches["dur_ns"]).to_numpy()
    assert grid(ends, [100 * MS]) is not None
    assert len(np.unique(ends // (100 * MS))) == len(ends)
    share = len(ends) / (over.duration_ns / (100 * MS))
    assert share == pytest.approx(stat["nr_throttled"] / stat["nr_periods"], abs=0.12)
    assert stretches["thread_ns"].mean() < 1000 * stat["throttled_usec"] / stat["nr_throttled"]
    # The quota itself: the server ran two CPUs' worth, period by period.
    server = of.threads.filter(pl.col("role").is_in(["api_server", "engine", "worker"]))["thread"]
    running = states.filter(pl.col("thread").is_in(server.implode()) & (pl.col("state") == "running"))
    assert running["dur_ns"].sum() == pytest.approx(2 * over.duration_ns, rel=0.05)


@pytest.mark.corpus
@pytest.mark.parametrize("capture", ["starved", "healthy"])
def test_no_quota_is_seen_where_there_is_none(run_of, capture: str) -> None:
    of = run_of(capture).trace
    assert not (thread_states(of, gpu_window(of))["state"] == "throttled").any()
