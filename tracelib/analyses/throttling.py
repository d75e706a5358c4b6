"""CPU quotas, as they show in scheduler events (ATTRIBUTION.md, "Throttling").

A thread that is ready leaves its CPU to idle, and comes back when the quota's next period begins. Rarely affinity changes
look alike for a moment; so only gaps that end on one period grid count, three of them at least.
"""

from __future__ import annotations

import numpy as np
import polars as pl

__all__ = ["PERIOD_NS", "throttled"]

#: The kernel's default period of cpu.max / cpu.cfs_period_us.
PERIOD_NS = 100_000_000
#: How far from the grid a gap may end: timer slack, and the sampling period where the return was not recorded.
TOLERANCE_NS = 5_000_000
SHORTEST_NS = 1_000_000
FEWEST = 3


def throttled(states: pl.DataFrame, period_ns: int = PERIOD_NS) -> pl.DataFrame:
    """Return `states` with `throttled` instead of `runnable` where a quota kept the thread off an idle CPU.

    Takes rows of `thread_states` and `to_idle` (Boolean: the thread left its CPU, ready, to idle). Rows stay as they are
    otherwise.
    """
    gap = pl.col("to_idle") & (pl.col("state") == "runnable") & (pl.col("dur_ns") >= SHORTEST_NS)
    ends = states.filter(gap).select(end=pl.col("ts_ns") + pl.col("dur_ns"))["end"].to_numpy()
    if len(ends) < FEWEST:
        return states
    phase = _phase(ends % period_ns, period_ns)
    off = (pl.col("ts_ns") + pl.col("dur_ns") - phase) % period_ns
    on_grid = (off <= TOLERANCE_NS) | (off >= period_ns - TOLERANCE_NS)
    if states.filter(gap & on_grid).height < FEWEST:
        return states
    return states.with_columns(
        state=pl.when(gap & on_grid).then(pl.lit("throttled", states.schema["state"])).otherwise("state")
    )


def _phase(ends: np.ndarray[tuple[int], np.dtype[np.int64]], period_ns: int) -> int:
    """Return the phase of the grid that most ends lie on: the candidate with most neighbours within the tolerance."""
    distance = np.abs(ends[:, None] - ends[None, :])
    near = np.minimum(distance, period_ns - distance) <= TOLERANCE_NS
    return int(ends[near.sum(axis=1).argmax()])
