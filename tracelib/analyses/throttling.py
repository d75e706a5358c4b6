"""CPU quotas, as they show in scheduler events (ATTRIBUTION.md, "Throttling").

A thread that is ready leaves its CPU to idle, or is woken and finds its CPU idle, and yet comes back only when the
quota's next period begins. Migrations and affinity changes look alike for a moment; so only gaps that end on one period
grid count: on three of its points at least, and most of all such gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["PERIODS_NS", "cpu_stat", "quota_periods", "throttled"]

#: Periods that are tried, in this order: the kernel's default of cpu.max / cpu.cfs_period_us first, then longer before
#: shorter ones, since a grid also lies on its own halves.
PERIODS_NS = (
    100_000_000,
    1_000_000_000,
    500_000_000,
    250_000_000,
    200_000_000,
    50_000_000,
    25_000_000,
    20_000_000,
    10_000_000,
)
#: How far past the grid a gap may be seen to end: the quota's timer, one CPU after the other, and the sampling period
#: where the thread's coming was not recorded. As a part of the period, at most a twentieth.
TOLERANCE_NS = 3_000_000
SHORTEST_NS = 1_000_000
FEWEST_POINTS = 3
#: Of the gaps, how many must end on the grid.
MOST = 0.7


def throttled(states: pl.DataFrame, periods_ns: Sequence[int] = PERIODS_NS) -> pl.DataFrame:
    """Return `states` with `throttled` instead of `runnable` where a quota kept the thread off an idle CPU.

    Takes rows of `thread_states`, and of each gap off a CPU the columns `to_idle` (Boolean: ready, and the CPU idle),
    `waited_ns` (Int64: how long it certainly waited) and `latest_ns` (Int64: when the thread was back at the latest). Where
    its coming is known only to lie in the gap's last part (a row `unknown`), it came at the grid's point in there.
    """
    gap = pl.col("to_idle") & (pl.col("waited_ns") >= SHORTEST_NS)
    waits = gap & (pl.col("state") == "runnable")
    found = grid(states.filter(waits)["latest_ns"].to_numpy(), periods_ns)
    if found is None:
        return states
    period, phase = found
    off = (pl.col("latest_ns") - phase) % period
    end = pl.col("ts_ns") + pl.col("dur_ns")
    kept_off = waits & (off <= _tolerance(period))
    came = gap & (pl.col("state") == "unknown") & (off <= _tolerance(period))
    point = pl.col("latest_ns") - off
    begin = pl.when(came).then(pl.max_horizontal("ts_ns", point)).otherwise("ts_ns")
    return states.with_columns(
        ts_ns=begin,
        dur_ns=pl.when(kept_off).then(pl.max_horizontal(end, point)).otherwise(end) - begin,
        state=pl.when(kept_off).then(pl.lit("throttled", states.schema["state"])).otherwise("state"),
    ).filter(pl.col("dur_ns") > 0)


def grid(ends: NDArray[np.int64], periods_ns: Sequence[int] = PERIODS_NS) -> tuple[int, int] | None:
    """Return (period, phase) in ns of the grid on which most of `ends` lie, None = on none of `periods_ns`."""
    for period in periods_ns:
        if len(ends) < FEWEST_POINTS:
            return None
        tolerance = _tolerance(period)
        folded = np.sort(ends % period)
        twice = np.concatenate([folded, folded + period])
        near = np.searchsorted(twice, folded + tolerance, side="right") - np.arange(len(folded))
        phase = int(folded[near.argmax()])
        on = ends[(ends - phase) % period <= tolerance]
        if len(np.unique((on - phase) // period)) >= FEWEST_POINTS and len(on) >= MOST * len(ends):
            return period, phase
    return None


def _tolerance(period_ns: int) -> int:
    return min(TOLERANCE_NS, period_ns // 20)


QUOTA_PERIODS = pl.Schema(
    {
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "threads": pl.Int64(),
        "thread_ns": pl.Int64(),
        "wall_ns": pl.Int64(),
    }
)


def quota_periods(thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches in which a quota kept any thread off.

    One row per stretch: `ts_ns`, `dur_ns` (Int64), `threads` (Int64: how many were kept off at some time in it),
    `thread_ns` (Int64: their time together), `wall_ns` (Int64: the same as `dur_ns`). Sorted by `ts_ns`. The kernel's
    `throttled_usec` is a third figure: it adds up CPUs (run queues), and counts one that has nothing else to run only once.
    """
    rows = thread_states.filter(pl.col("state") == "throttled").sort("ts_ns")
    if rows.is_empty():
        return pl.DataFrame(schema=QUOTA_PERIODS)
    end = pl.col("ts_ns") + pl.col("dur_ns")
    new = (pl.col("ts_ns") > end.cum_max().shift(1)).fill_null(value=True)
    stretches = (
        rows.with_columns(end=end, stretch=new.cum_sum())
        .group_by("stretch")
        .agg(
            pl.col("ts_ns").min(),
            dur_ns=pl.col("end").max() - pl.col("ts_ns").min(),
            threads=pl.col("thread").n_unique().cast(pl.Int64),
            thread_ns=pl.col("dur_ns").sum(),
        )
    )
    return stretches.with_columns(wall_ns="dur_ns").select(list(QUOTA_PERIODS)).sort("ts_ns")


def cpu_stat(before: str, after: str) -> Mapping[str, int]:
    """Return how the counters of a cgroup's `cpu.stat` grew between two readings, in their own units.

    Takes the files' texts. cgroup v1's `throttled_time` (ns) is given as `throttled_usec`. Lines that are no `name count`
    are skipped. Source: the kernel's Documentation/admin-guide/cgroup-v2.rst, "cpu.stat".
    """
    first, then = _counters(before), _counters(after)
    return {name: value - first.get(name, 0) for name, value in then.items()}


def _counters(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    counters = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    if "throttled_time" in counters:
        counters["throttled_usec"] = counters.pop("throttled_time") // 1000
    return counters
