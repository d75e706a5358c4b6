"""How much of the window each of the server's threads worked on a CPU, polling apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.demand import SERVER
from tracelib.intervals import overlay

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["THREAD_LOAD", "thread_load"]

THREAD_LOAD = pl.Schema(
    {
        "thread": pl.Int32(),
        "running_ns": pl.Int64(),
        "spinning_ns": pl.Int64(),
        "working_ns": pl.Int64(),
        "wanting_ns": pl.Int64(),
    }
)


def thread_load(trace: Trace, thread_states: pl.DataFrame, spinning: pl.DataFrame) -> pl.DataFrame:
    """Return how busy each thread of the server was.

    Takes the frames `thread_states` and `spinning`.

    One row per thread: `thread` (Int32), `running_ns` (Int64: on a CPU), `spinning_ns` (Int64: the part in which it polled),
    `working_ns` (Int64: the rest), `wanting_ns` (Int64: runnable or throttled). Sorted by `working_ns`, largest first. A
    thread that works nearly all the time is one that more CPUs cannot help: only less work, or more threads, can.
    """
    server = trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    own = thread_states.filter(pl.col("thread").is_in(server.implode())).select(
        "thread", "ts_ns", "dur_ns", "state"
    )
    ran = own.filter(pl.col("state") == "running")
    polled = overlay(ran, spinning, "thread").filter(pl.col("kind").is_not_null())
    summed = own.group_by("thread").agg(
        running_ns=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        wanting_ns=pl.col("dur_ns").filter(pl.col("state").is_in(["runnable", "throttled"])).sum(),
    )
    spun = polled.group_by("thread").agg(spinning_ns=pl.col("dur_ns").sum())
    rows = summed.join(spun, on="thread", how="left").with_columns(pl.col("spinning_ns").fill_null(0))
    worked = rows.with_columns(working_ns=pl.col("running_ns") - pl.col("spinning_ns"))
    return (
        worked.select(list(THREAD_LOAD))
        .match_to_schema(THREAD_LOAD)
        .sort("working_ns", "thread", descending=[True, False])
    )
