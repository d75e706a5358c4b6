"""How large a CPU quota is, from what the server used before each stop (ATTRIBUTION.md, "Throttling").

A cgroup may use `quota` of CPU time in each period and is stopped when it has (the kernel's
Documentation/scheduler/sched-bwc.rst). So in a period in which threads were stopped, what the server's threads ran is the
quota, less what other processes of the cgroup used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.demand import SERVER
from tracelib.analyses.throttling import grid
from tracelib.intervals import overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

__all__ = ["FEWEST_PERIODS", "QUOTA_USE", "quota_use"]

#: Periods with a stop that make an estimate of the quota's size.
FEWEST_PERIODS = 5

QUOTA_USE = pl.Schema(
    {
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "ran_ns": pl.Int64(),
        "unknown_ns": pl.Int64(),
        "throttled_ns": pl.Int64(),
        "cpus": pl.Float64(),
    }
)


def quota_use(trace: Trace, window: Window, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return what the server used in each whole period of the quota in which it was stopped.

    One row per period: `ts_ns`, `dur_ns` (Int64), `ran_ns` (Int64: CPU time of the server's threads in it), `unknown_ns`
    (Int64: time of which the scheduler events do not tell whether they ran), `throttled_ns` (Int64, threads summed), `cpus`
    (Float64: `ran_ns` / `dur_ns`, an estimate of the quota in CPUs). Sorted by `ts_ns`. Empty where no quota was seen.
    """
    stopped = thread_states.filter(pl.col("state") == "throttled")
    found = grid((stopped["ts_ns"] + stopped["dur_ns"]).to_numpy())
    if found is None:
        return pl.DataFrame(schema=QUOTA_USE)
    period, phase = found
    first = window.start_ns + (phase - window.start_ns) % period
    count = max(0, (window.end_ns - first) // period)
    periods = pl.DataFrame(
        {"ts_ns": [first + n * period for n in range(count)]}, schema={"ts_ns": pl.Int64}
    ).with_columns(
        dur_ns=pl.lit(period, pl.Int64), _one=pl.lit(0, pl.Int32), _n=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    return _used(trace, periods, thread_states)


def _used(trace: Trace, periods: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    server = trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    own = thread_states.filter(pl.col("thread").is_in(server.implode())).select(
        "ts_ns", "dur_ns", state=pl.col("state").cast(pl.String), _one=pl.lit(0, pl.Int32)
    )
    parts = overlay(own, periods.select("_one", "ts_ns", "dur_ns", "_n"), "_one")
    spent = parts.group_by("_n").agg(
        ran_ns=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        unknown_ns=pl.col("dur_ns").filter(pl.col("state") == "unknown").sum(),
        throttled_ns=pl.col("dur_ns").filter(pl.col("state") == "throttled").sum(),
    )
    rows = periods.join(spent, on="_n").filter(pl.col("throttled_ns") > 0)
    told = rows.with_columns(cpus=pl.col("ran_ns") / pl.col("dur_ns"))
    return told.select(list(QUOTA_USE)).match_to_schema(QUOTA_USE).sort("ts_ns")
