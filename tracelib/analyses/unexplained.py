"""Lost GPU time inside framework slices that outlast their siblings, where no sample says what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.look_inside import OPEN, outlasting

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["unexplained"]


def unexplained(trace: Trace, activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that run-time compilation, loading or a missing CPU may hide behind the name of an op.

    Takes the frames `host_activity` and `lost`. One row per piece: those of `lost` whose thread was in a slice far longer than
    its siblings (:mod:`tracelib.analyses.look_inside`), sorted by `ts_ns`. Empty where there are CPU samples: they were asked.
    """
    if trace.samples.height:
        return lost.clear()
    opened = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(OPEN)
    told = activity.filter(outlasting(activity, opened & pl.col("waits_for").is_null()))
    long = told.select("thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")).sort("ts_ns")
    inside = (
        lost.filter(opened)
        .sort("ts_ns")
        .join_asof(long, on="ts_ns", by="thread", strategy="backward", check_sortedness=False)
    )
    return inside.filter(pl.col("ts_ns") < pl.col("until")).drop("until")
