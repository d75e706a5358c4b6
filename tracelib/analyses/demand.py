"""How many of the server's threads wanted a CPU, moment by moment (ATTRIBUTION.md, "Demand")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.scheduling import tells_shortage

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

__all__ = ["DEMAND", "SERVER", "demand", "demand_at"]

#: Roles whose threads make up the server.
SERVER = ("api_server", "engine", "worker")
DEMAND = pl.Schema({"ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "running": pl.Int32(), "runnable": pl.Int32()})


def demand(trace: Trace, window: Window, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return the number of running and of runnable (throttled included) threads over time.

    Threads of the server's roles; all but the recorders' and the system's where no role is known.

    One row per stretch: `ts_ns`, `dur_ns` (Int64), `running`, `runnable` (Int32). The rows cover the window without gap or
    overlap. Sorted by `ts_ns`. Empty if scheduler events do not tell who waits for a CPU: running threads alone are no demand.
    """
    role = trace.threads.select("thread", "role")
    known = role.filter(pl.col("role").is_in(SERVER))
    counted = known if known.height else role.filter(pl.col("role").is_null())
    rows = thread_states.filter(pl.col("thread").is_in(counted["thread"].implode())).select(
        "ts_ns",
        end=pl.col("ts_ns") + pl.col("dur_ns"),
        running=(pl.col("state") == "running").cast(pl.Int32),
        runnable=pl.col("state").is_in(["runnable", "throttled"]).cast(pl.Int32),
    )
    if rows.is_empty() or not tells_shortage(thread_states):
        return pl.DataFrame(schema=DEMAND)
    begins = rows.select("ts_ns", "running", "runnable")
    ends = rows.select("end", -pl.col("running"), -pl.col("runnable")).rename({"end": "ts_ns"})
    steps = pl.concat([begins, ends]).group_by("ts_ns").agg(pl.col("running", "runnable").sum()).sort("ts_ns")
    line = steps.with_columns(
        pl.col("running", "runnable").cum_sum(),
        dur_ns=pl.col("ts_ns").shift(-1).fill_null(window.end_ns) - pl.col("ts_ns"),
    )
    return line.filter(pl.col("dur_ns") > 0).select(list(DEMAND)).match_to_schema(DEMAND).sort("ts_ns")


def demand_at(demand: pl.DataFrame, q: float) -> int | None:
    """Return the number of threads that wanted a CPU at most for the share `q` of the time; None where nobody can say."""
    steps = demand.with_columns(n=pl.col("running") + pl.col("runnable")).sort("n")
    reached = steps.filter(pl.col("dur_ns").cum_sum() >= q * int(steps["dur_ns"].sum()))
    return int(reached["n"][0]) if reached.height else None
