"""Which host call launched which GPU operation, row by row: the arrows of a viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["FLOWS", "flows"]

FLOWS = pl.Schema({"flow": pl.Int64(), "slice": pl.Int64(), "op": pl.Int64()})
KEY = ["source", "pid", "correlation"]


def flows(trace: Trace) -> pl.DataFrame:
    """Return the launches that were recorded on both sides.

    Joined by correlation id within a process, the outermost call of an id, as :mod:`tracelib.analyses.launches` does.

    One row per GPU operation with a known launch: `flow` (Int64, from 1), `slice` (Int64, row of `trace.slices`), `op`
    (Int64, row of `trace.gpu_ops`). Sorted by `flow`.
    """
    calls = (
        trace.slices.with_row_index("slice")
        .filter(pl.col("correlation").is_not_null() & pl.col("category").is_in(["runtime", "driver"]))
        .join(trace.threads.select("thread", "pid"), on="thread")
        .sort("dur_ns", "slice", descending=[True, False])
        .unique(KEY, keep="first", maintain_order=True)
    )
    ops = trace.gpu_ops.with_row_index("op").filter(pl.col("correlation").is_not_null())
    joined = ops.select("op", *KEY).join(calls.select("slice", *KEY), on=KEY).sort("op")
    return joined.select(flow=pl.col("op").cast(pl.Int64) + 1, slice="slice", op="op").match_to_schema(
        FLOWS, integer_cast="upcast"
    )
