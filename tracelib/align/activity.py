"""Whether what a profiler saw a thread do agrees with when the scheduler let it run.

A host slice can only begin while its thread is on a CPU. If many begin while scheduler events have it off, the two
sources' clocks, or their thread ids, are not those of one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.align.domains import Tie
    from tracelib.trace import Trace

__all__ = ["off_share"]

#: Fewer slices than this in the common time say nothing.
ENOUGH = 50
#: A slice may seem to begin this long before its thread's switch-in: clocks are read at different points of the path.
SLACK_NS = 20_000


def off_share(slices_of: Trace, tie: Tie, sched_of: Trace, sched_tie: Tie) -> float | None:
    """Return the share of slices that begin while their thread is off the CPU, None if too little is common.

    Off = between a switch away from the thread and the next event of that thread, if that is a switch to it.
    """
    off = _off(sched_of, sched_tie)
    tids = slices_of.threads.select("thread", "tid")
    begins = (
        slices_of.slices.filter(pl.col("category").is_in(["op", "runtime", "driver", "annotation"]))
        .join(tids, on="thread")
        .select("tid", at=tie.moved(pl.col("ts_ns")))
        .filter(pl.col("tid").is_in(off["tid"].unique().implode()))
        .sort("at")
    )
    if off.is_empty() or begins.is_empty():
        return None
    inside = begins.filter(pl.col("at").is_between(off["left"].min(), off["came"].max()))
    if inside.height < ENOUGH:
        return None
    found = inside.join_asof(
        off, left_on="at", right_on="left", by="tid", check_sortedness=False, coalesce=False
    )
    away = (found["at"] > found["left"] + SLACK_NS) & (found["at"] < found["came"] - SLACK_NS)
    return int(away.fill_null(value=False).sum()) / inside.height


def _off(trace: Trace, tie: Tie) -> pl.DataFrame:
    """Return when threads were off the CPU for certain: tid, left, came; sorted by left."""
    switch = trace.sched.filter(pl.col("event") == "switch")
    sides = [
        switch.filter(pl.col(side) >= 0).select("ts_ns", thread=side, came=pl.lit(side == "next"))
        for side in ("prev", "next")
    ]
    events = pl.concat(sides).sort("thread", "ts_ns")
    following = pl.col("ts_ns").shift(-1).over("thread")
    comes_next = pl.col("came").shift(-1).over("thread")
    gaps = events.with_columns(until=following, back=comes_next).filter(~pl.col("came") & pl.col("back"))
    named = gaps.join(trace.threads.select("thread", "tid"), on="thread")
    return named.select("tid", left=tie.moved(pl.col("ts_ns")), came=tie.moved(pl.col("until"))).sort("left")
