"""Which of several open slices is innermost, and when."""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.intervals.by_key import AT_ONCE, each, ints, lines, on_line, with_length

Ints = NDArray[np.int64]
Places = NDArray[np.int32]


def outermost(slices: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the rows of `slices` that lie in no earlier one of their key, sorted by `by` and begin."""
    down = [False] * (len(by) + 1) + [True]
    rows = slices.sort(*by, "ts_ns", "dur_ns", descending=down, maintain_order=True)
    end = pl.col("ts_ns") + pl.col("dur_ns")
    return rows.filter((end > end.cum_max().shift(1).over(by)).fill_null(value=True))


def innermost(slices: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return, per key, which row of `slices` is innermost at each moment: the open one that began last.

    For properly nested slices that is the deepest one. Equal begins: the shorter one is inside; equal ends as
    well: the later row. Slices that overlap without nesting (damaged input, several clocks) are handled by
    the same definition.

    One row per stretch: `by`, `ts_ns`, `dur_ns`, `row` (UInt32, position in `slices`); moments that no slice
    covers have no row. Sorted by `by`, `ts_ns`.
    """
    rows = with_length(slices.select(by, "ts_ns", "dur_ns").with_row_index("row"), by)
    empty = rows.select(by, "ts_ns", "dur_ns", "row").clear()
    parts = each(lambda part: _innermost(part, by), lines(rows, by))
    return pl.concat([empty, *chain.from_iterable(parts)], rechunk=True)


def _innermost(rows: pl.DataFrame, by: str) -> list[pl.DataFrame]:
    start, stop, shift = on_line(rows, by)
    order = _preorder(start, stop)
    if order is not None:
        rows, start, stop, shift = rows[order], start[order], stop[order], shift[order]
    return [
        pl.DataFrame(
            {
                by: rows[by].gather(top),
                "ts_ns": at - shift[top],
                "dur_ns": until - at,
                "row": rows["row"].gather(top),
            }
        )
        for at, until, top in _tops(start, stop)
    ]


def _preorder(start: Ints, stop: Ints) -> Ints | None:
    """Return the order by begin, the longer first; None if the rows stand in it."""
    follows = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (stop[1:] <= stop[:-1]))
    if follows.all():
        return None
    rows = pl.DataFrame({"start": start, "stop": stop})
    order = pl.arg_sort_by("start", "stop", descending=[False, True], maintain_order=True)
    return ints(rows.select(order).to_series())


def _tops(start: Ints, stop: Ints) -> Iterator[tuple[Ints, Ints, Places]]:
    """Yield begin, stop and position of the innermost interval over time, of intervals in preorder.

    A part ends where an interval begins, which makes a new stretch begin there anyway; what goes on then is
    carried into the next part, which is made large enough for that to cost little.
    """
    at, open_ = 0, np.empty(0, np.int32)
    while at < len(start):
        after = at + max(AT_ONCE, 2 * len(open_))
        after = (
            int(np.searchsorted(start, start[after - 1], side="right")) if after < len(start) else len(start)
        )
        until = start[after] if after < len(start) else np.iinfo(np.int64).max
        place = np.concatenate([open_, np.arange(at, after, dtype=np.int32)])
        ends = stop[place]
        begin, end, top = _tops_of_part(np.maximum(start[place], start[at]), np.minimum(ends, until))
        yield begin, end, place[top]
        at, open_ = after, place[ends > until]


def _tops_of_part(start: Ints, stop: Ints) -> tuple[Ints, Ints, Places]:
    """Return the same of few intervals.

    The innermost changes where one begins, to that one, and where one ends that nothing hides, to the last
    before it that goes on.
    """
    after = np.searchsorted(start, stop, side="left")  # the first that begins when this one has ended
    depth = np.cumsum(1 - np.bincount(after, minlength=len(start) + 1)[:-1]) - 1  # begun before and going on
    parent = _parents(depth)
    inner = np.flatnonzero(parent >= 0)
    if (stop[inner] > stop[parent[inner]]).any():
        times, tops = _changes_of_crossing(start, stop)
    else:
        times, tops = _changes_of_nested(start, stop, after, depth, parent)
    keep = np.flatnonzero((times[1:] > times[:-1]) & (tops[:-1] >= 0))
    return times[keep], times[keep + 1], tops[keep]


def _changes_of_nested(
    start: Ints, stop: Ints, after: Ints, depth: Ints, parent: Places
) -> tuple[Ints, Places]:
    """Return when the top changes, and to which interval (-1 = none); ends before begins, inner ends first.

    Nothing needs sorting: before the begin of number i lie i begins and i - depth ends, before its end
    `after` begins and after - depth - 1 ends.
    """
    n = len(start)
    times, tops = np.empty(2 * n, np.int64), np.empty(2 * n, np.int32)
    place = 2 * np.arange(n) - depth
    times[place], tops[place] = start, np.arange(n, dtype=np.int32)
    place = 2 * after - depth - 1
    times[place], tops[place] = stop, parent
    return times, tops


def _changes_of_crossing(start: Ints, stop: Ints) -> tuple[Ints, Places]:
    """Return the same of intervals that overlap without nesting."""
    under = _last_longer(stop)
    hidden_by = len(stop) - 1 - _last_longer(stop[::-1])[::-1]  # the next one that ends later; len = none
    begins = np.append(start, np.iinfo(np.int64).max)[hidden_by]
    ending = np.flatnonzero(begins >= stop)
    times = np.concatenate([stop[ending], start])
    tops = np.concatenate([under[ending], np.arange(len(start), dtype=np.int32)])
    order = np.argsort(times, kind="stable")
    return times[order], tops[order]


def _parents(depth: Ints) -> Places:
    """Return the position of each interval's parent, the last one before it one level up; -1 for roots."""
    levels = int(depth.max()) + 1
    by_depth = np.argsort(depth.astype(np.uint16 if levels < 2**16 else np.int64), kind="stable").astype(
        np.int32
    )
    bounds = np.cumsum(np.bincount(depth))
    parent = np.full(len(depth), -1, np.int32)
    above = by_depth[: bounds[0]]
    for level in range(1, levels):
        here = by_depth[bounds[level - 1] : bounds[level]]
        parent[here] = above[np.searchsorted(above, here) - 1]
        above = here
    return parent


def _last_longer(stop: Ints) -> Places:
    """Return for each interval the last one before it that ends later (-1 = none), jumping over jumps."""
    before = np.arange(-1, len(stop) - 1, dtype=np.int32)
    open_ = np.arange(1, len(stop))
    while len(open_):
        open_ = open_[stop[before[open_]] <= stop[open_]]
        before[open_] = before[before[open_]]
        open_ = open_[before[open_] >= 0]
    return before
