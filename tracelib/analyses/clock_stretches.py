"""CPU samples taken by time, as the stretches that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.classify import sample_causes
from tracelib.intervals import clip

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.rules import Rules
    from tracelib.trace import Trace

__all__ = ["clock_stretches"]


def clock_stretches(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the samples of time-based events as the stretches that they stand for.

    One row per sample: the columns of `samples`, `role`, `cause`, `sub_cause`, `tier` as of
    :func:`tracelib.classify.sample_causes`; `ts_ns`, `dur_ns` = the time since the thread's sample before it, one period at
    most, cut to the window. Sorted by `thread`, `ts_ns`.
    """
    by_clock = pl.col("event").cast(pl.String).str.contains("^(?:cpu|task)-clock") & (pl.col("period") > 0)
    told = sample_causes(trace.samples.filter(by_clock), trace.threads, trace.stacks, rules).sort(
        "thread", "ts_ns"
    )
    before = pl.col("ts_ns").shift(1).over("thread", order_by="ts_ns")
    start = pl.max_horizontal(before, pl.col("ts_ns") - pl.col("period"))
    stretches = told.with_columns(ts_ns=start, dur_ns=pl.col("ts_ns") - start)
    return clip(stretches, window.start_ns, window.end_ns)
