"""Moments that two recorders both saw, by which their clocks can be compared.

Each function returns one row per moment: `ts_ns` in the source's own clock and `key`, text that is equal in both sources
for the same kind of moment. Keys repeat (a thread leaves a CPU thousands of times); :mod:`tracelib.align.fit` finds the
one shift that makes the sequences agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import IDLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelib.trace import Trace

__all__ = ["KINDS", "collective_ends", "named_ranges", "switches", "switches_by_thread", "wakeups"]

MOMENTS = pl.Schema({"ts_ns": pl.Int64, "key": pl.String})


def _tids(trace: Trace, column: str) -> pl.Expr:
    """Return the kernel's thread ids for a column of local ones; the idle task is 0."""
    ids = {IDLE: 0, **dict(trace.threads.select("thread", "tid").iter_rows())}
    return pl.col(column).replace_strict(ids, default=None, return_dtype=pl.Int64)


def _moments(frame: pl.DataFrame, *parts: str) -> pl.DataFrame:
    return (
        frame.drop_nulls(["ts_ns", *parts])
        .select("ts_ns", key=pl.concat_str(*parts, separator=" "))
        .sort("ts_ns")
    )


def switches(trace: Trace) -> pl.DataFrame:
    """Return the switches between two named threads on a CPU: the same event in perf, ftrace and the like."""
    events = trace.sched.filter(pl.col("event") == "switch")
    return _moments(events.with_columns(a=_tids(trace, "prev"), b=_tids(trace, "next")), "cpu", "a", "b")


def wakeups(trace: Trace) -> pl.DataFrame:
    """Return the wake-ups of named threads."""
    events = trace.sched.filter(pl.col("event") == "wakeup")
    return _moments(events.with_columns(b=_tids(trace, "next")), "cpu", "b")


def switches_by_thread(trace: Trace) -> pl.DataFrame:
    """Return when each thread came to and left each CPU: what nsys and perf both know, which name one side each."""
    events = trace.sched.filter(pl.col("event") == "switch")
    sides = [
        _moments(
            events.with_columns(a=_tids(trace, side), side=pl.lit(side)).filter(pl.col("a") > 0),
            "side",
            "cpu",
            "a",
        )
        for side in ("prev", "next")
    ]
    return pl.concat(sides).sort("ts_ns")


def named_ranges(trace: Trace) -> pl.DataFrame:
    """Return the starts of people's named ranges by thread: record_function in Kineto, NVTX in nsys."""
    ranges = trace.slices.filter(pl.col("category") == "annotation", pl.col("dur_ns") > 0)
    return _moments(
        ranges.with_columns(tid=_tids(trace, "thread"), text=pl.col("name").cast(pl.String)), "tid", "text"
    )


def collective_ends(trace: Trace) -> pl.DataFrame:
    """Return the ends of collectives: ranks of one group leave one together, within microseconds.

    The message size tells one collective of a group from the next where it is recorded, the sequence number better.
    """
    ops = trace.gpu_ops.filter(
        pl.col("collective").is_not_null() & ~pl.col("collective").cast(pl.String).is_in(["send", "recv"])
    )
    kinds = [pl.col(name).cast(pl.String).fill_null("") for name in ("collective", "group", "sequence")]
    return _moments(ops.select(pl.col("ts_ns") + pl.col("dur_ns"), *kinds), "collective", "group", "sequence")


#: What to compare in two sources, most telling first, and in what words to speak of it.
KINDS: tuple[tuple[str, Callable[[Trace], pl.DataFrame]], ...] = (
    ("thread switches", switches),
    ("switches by thread", switches_by_thread),
    ("wake-ups", wakeups),
    ("named ranges", named_ranges),
    ("ends of collectives", collective_ends),
)
