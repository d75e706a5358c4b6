"""Timelines laid over each other: an upper one hides what lies beneath."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.intervals.cover import clip, merge_equal, overlay, union, whole
from tracelib.intervals.line import begin, changes, each, end, in_order, ints, lines, with_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["beneath", "layered", "under"]


def beneath(first: pl.DataFrame, second: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the timeline `first`, and the timeline `second` where `first` has nothing; both of the same columns.

    Sorted by `by`, `ts_ns`.
    """
    line = in_order(with_length(first.select(by, "ts_ns", "dur_ns"), by), by)
    return in_order(pl.concat([first, under(line, second.select(first.columns), by)]), by)


def under(line: pl.DataFrame, second: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the timeline `second` where the timeline `line`, which is in order, has nothing."""
    if second.is_empty() or line.is_empty():
        return second
    told = second.with_columns(_seen=pl.lit(value=True))
    return overlay(_gaps(line, by, second), told, by).filter("_seen").select(second.columns)


def _gaps(line: pl.DataFrame, by: str, around: pl.DataFrame) -> pl.DataFrame:
    """Return where `line`, in order, has nothing between begin and end of the rows `around`, for the keys of these."""
    low, high = begin(around), end(around)
    keys = around[by].drop_nulls().unique()
    line = line.filter(pl.col(by).is_in(keys.implode()))
    never = keys.filter(~keys.is_in(line[by].unique().implode()))
    found = each(lambda part: _holes(part, by, low, high), lines(line, by))
    return clip(pl.concat([whole(line, by, never.to_list(), low, high), *found]), low, high)


def _holes(line: pl.DataFrame, by: str, low: int, high: int) -> pl.DataFrame:
    """Return what is free between `low` and the first row of each key, between its rows, and between the last and `high`."""
    start = ints(line["ts_ns"])
    stop = start + ints(line["dur_ns"])
    first = np.append(0, changes(line[by].to_numpy()))
    last = np.append(first[1:], len(start)) - 1
    before = np.append(low, stop[:-1])
    before[first] = low
    free = np.flatnonzero(start > before)
    return pl.DataFrame(
        {
            by: line[by].gather(np.append(free, last)),
            "ts_ns": np.append(before[free], stop[last]),
            "dur_ns": np.append(start[free] - before[free], high - stop[last]),
        }
    )


def layered(
    layers: Sequence[tuple[str, pl.DataFrame]],
    by: str,
    keys: Sequence[int],
    start_ns: int,
    end_ns: int,
    rest: str,
) -> pl.DataFrame:
    """Return one timeline in which an earlier layer hides the later ones, and `rest` is what no layer covers.

    Each layer is a name and a frame with `by`, `ts_ns`, `dur_ns`. One row per stretch: `by`, `ts_ns`, `dur_ns`, `state`
    (the layer's name); per key the rows cover `[start_ns, end_ns)` without gap or overlap.
    """
    open_ = whole(layers[0][1], by, keys, start_ns, end_ns)
    decided = [open_.clear().with_columns(state=pl.lit(None, pl.UInt8))]
    for number, (_, frame) in enumerate(layers):
        cover = union(clip(frame.select(by, "ts_ns", "dur_ns"), start_ns, end_ns), by)
        cut = overlay(open_, cover.with_columns(state=pl.lit(number, pl.UInt8)), by)
        decided.append(cut.filter(pl.col("state").is_not_null()))
        open_ = cut.filter(pl.col("state").is_null()).drop("state")
    decided.append(open_.with_columns(state=pl.lit(len(layers), pl.UInt8)))
    line = merge_equal(in_order(pl.concat(decided), by), [by, "state"])
    names = pl.Series([*(name for name, _ in layers), rest])
    return line.with_columns(state=names.gather(line["state"]))
