"""A run cut to its window, for a viewer that shall not show the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["within"]

#: Frames of events, and whether they last.
TIMED = {"slices": True, "gpu_ops": True, "samples": False, "sched": False, "counters": False}


def within(results: Results) -> Results:
    """Return `results` with only those events of its trace that overlap the window, each whole: nothing is cut at an edge."""
    start, end = results.window.start_ns, results.window.end_ns
    kept = {
        name: getattr(results.trace, name).filter(
            (pl.col("ts_ns") < end) & (pl.col("ts_ns") + (pl.col("dur_ns") if lasts else 0) >= start)
        )
        for name, lasts in TIMED.items()
    }
    return replace(results, trace=results.trace.replace(**kept))
