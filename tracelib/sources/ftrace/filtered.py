"""Whether a trace was recorded for some threads only, as `set_event_pid` and `trace-cmd record -P` do.

The text does not say so. Such a recording holds every switch to or from these threads and no other, every wake-up that
they make or receive and no other; what seems to be missing between its switches was left out, not lost.
"""

from __future__ import annotations

import polars as pl

from tracelib.schema import IDLE

__all__ = ["threads_recorded"]

#: Of fewer switches, and at fewer places, a loss may look the same by chance.
FEWEST_SWITCHES, FEWEST_GAPS = 10, 2


def threads_recorded(sched: pl.DataFrame, gaps: pl.DataFrame) -> int:
    """Return for how many threads at least the trace was recorded, 0 if it was not for some only, or one cannot tell.

    At a gap the thread that came and the one that leaves are both others: of a recorded thread, the switch between would
    stand there. No switch and no wake-up may then join two of the others or of them and the idle task, and each thread
    that must be a recorded one comes and leaves by turns.

    Parameters
    ----------
    sched
        The frame `sched`.
    gaps
        came, left: result of :func:`tracelib.sources.ftrace.sched.gaps`.

    """
    switch, pair = pl.col("event") == "switch", ["prev", "next"]
    switches = sched.filter(switch).drop_nulls(pair).sort("ts_ns", maintain_order=True)
    if gaps.height < FEWEST_GAPS or switches.height < FEWEST_SWITCHES:
        return 0
    others = pl.concat([gaps["came"], gaps["left"], pl.Series([IDLE], dtype=gaps.schema["came"])]).unique()
    other = pl.col("prev", "next").is_in(others.implode()).fill_null(value=True)
    woken = sched.filter(~switch).select(other)
    sides = switches.select(other)
    if any((rows["prev"] & rows["next"]).any() for rows in (woken, sides)):
        return 0
    recorded = pl.concat(
        [switches["prev"].filter(sides["next"]), switches["next"].filter(sides["prev"])]
    ).unique()
    return recorded.len() if _take_turns(switches, recorded) else 0


def _take_turns(switches: pl.DataFrame, threads: pl.Series) -> bool:
    """Say whether each of the threads comes, leaves, and comes again."""
    rows = switches.select(*("prev", "next")).with_row_index("place")
    sides = [
        rows.select("place", pl.col(side).alias("thread"), pl.lit(side == "next").alias("comes"))
        for side in ("prev", "next")
    ]
    turns = pl.concat(sides).filter(pl.col("thread").is_in(threads.implode())).sort("place")
    again = pl.col("comes") == pl.col("comes").shift(1).over("thread")
    return not turns.select(again.fill_null(value=False)).to_series().any()
