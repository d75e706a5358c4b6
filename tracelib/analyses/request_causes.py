"""What the GPU's lost time within each request's time to first token went to (ATTRIBUTION.md, Ledger 4: "GPU … by cause")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window

__all__ = ["REQUEST_CAUSES", "request_causes"]

REQUEST_CAUSES = pl.Schema({"row": pl.Int64(), "id": pl.String(), "cause": pl.String(), "ns": pl.Int64()})


def request_causes(requests: pl.DataFrame, lost: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the causes of the GPU's idle and waiting time between each request's tokenization and its first token.

    Takes the frames `requests` and `lost`; of several GPUs the first stands for all, as in `requests`. They cover all of that
    time, on the way to the GPU and back too: per request they add up to what the GPU lost in it.

    One row per request and cause: `row` (Int64: the request's row in `requests`), `id`, `cause` (String), `ns` (Int64, > 0).
    Sorted by `row`, `cause`.
    """
    if requests.is_empty() or lost.is_empty():
        return pl.DataFrame(schema=REQUEST_CAUSES)
    first = lost["gpu"].min()
    begin = pl.col("tokenized_ns")
    waiting = requests.with_row_index("row").select(
        pl.col("row").cast(pl.Int64),
        "id",
        ts_ns=begin,
        dur_ns=pl.col("first_token_ns") - begin,
        gpu=pl.lit(first, lost.schema["gpu"]),
    )
    held = lost.filter(
        (pl.col("gpu") == first) & (pl.col("ts_ns") >= window.start_ns) & (pl.col("ts_ns") < window.end_ns)
    )
    cut = overlay(waiting, held.select("gpu", "ts_ns", "dur_ns", "cause"), "gpu").drop_nulls("cause")
    summed = cut.group_by("row", "id", "cause").agg(ns=pl.col("dur_ns").sum())
    return (
        summed.with_columns(pl.col("cause").cast(pl.String))
        .match_to_schema(REQUEST_CAUSES)
        .sort("row", "cause")
    )
