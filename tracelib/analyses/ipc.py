"""Messages between the server's processes, as their own ranges show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.classify import slice_causes, slices_named

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.rules import Rules
    from tracelib.trace import Trace

__all__ = ["IPC", "ipc"]

IPC = pl.Schema(
    {
        "thread": pl.Int32(),
        "role": pl.String(),
        "rank": pl.Int32(),
        "kind": pl.String(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.Categorical(),
    }
)


def ipc(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the IPC ranges that overlap the window, whole (not cut at its edges).

    One row per range of category annotation or Python frame: `thread` (Int32), `role` (String), `rank` (Int32),
    `kind` (String: dequeue, enqueue, send, recv), `ts_ns`, `dur_ns` (Int64), `name` (Categorical). Sorted by
    `ts_ns`, `thread`.
    """
    meaning = slice_causes(trace.slices, rules).filter(pl.col("direction").is_not_null() & ~pl.col("weak"))
    ranges = slices_named(trace.slices, meaning).filter(pl.col("dur_ns") > 0)
    found = ranges.join(meaning, on=["name", "category"], how="inner")
    inside = found.filter(
        (pl.col("ts_ns") < window.end_ns) & (pl.col("ts_ns") + pl.col("dur_ns") > window.start_ns)
    )
    named = inside.join(trace.threads.select("thread", "role", "rank"), on="thread", how="left")
    return named.rename({"direction": "kind"}).select(list(IPC)).match_to_schema(IPC).sort("ts_ns", "thread")
