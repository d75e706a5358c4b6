"""Interval algebra on frames: union, overlay, innermost slice, and nothing else.

Intervals are half-open, `[ts_ns, ts_ns + dur_ns)`, in integer nanoseconds. Every function works per key (a thread, a
GPU): rows of different keys never touch, and rows whose key is null belong to none. A *timeline* is a frame whose
intervals are disjoint and sorted per key.

`overlay` is intersection (the parts that a row of the timeline covers), subtraction (the parts that none covers) and
the state at a moment in one; summed up per row, `innermost` is the self time of nested slices.

How it is fast: keys are laid one after the other on a single line (`_on_line`), so that one sort and one binary search
serve all of them; what stands in order already is not sorted again; NumPy does the work, and no Python loop runs per row.
`tests/test_intervals.py` holds a brute-force oracle for each function, `benchmarks/intervals.py` the measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Places = NDArray[np.int32]

__all__ = [
    "begin",
    "beneath",
    "clip",
    "end",
    "fill",
    "innermost",
    "layered",
    "merge_equal",
    "overlay",
    "union",
]

#: A line longer than this would not fit into 64 bits: then each key gets a line of its own.
LONGEST = 2**62


def _ints(series: pl.Series) -> Ints:
    values: Ints = series.cast(pl.Int64).to_numpy()
    return values


def begin(frame: pl.DataFrame) -> int:
    """Return the earliest `ts_ns` of a frame that has rows."""
    return int(_ints(frame["ts_ns"]).min())


def end(frame: pl.DataFrame) -> int:
    """Return the latest `ts_ns + dur_ns` of a frame that has rows."""
    return int((_ints(frame["ts_ns"]) + _ints(frame["dur_ns"])).max())


def clip(frame: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the rows of `frame` that overlap `[start_ns, end_ns)`, cut to it; rows without length are dropped."""
    start = pl.col("ts_ns").clip(lower_bound=start_ns)
    stop = (pl.col("ts_ns") + pl.col("dur_ns")).clip(upper_bound=end_ns)
    return frame.with_columns(ts_ns=start, dur_ns=stop - start).filter(pl.col("dur_ns") > 0)


def union(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the time that the intervals of `frame` cover together, per key.

    Needs columns `by`, `ts_ns`, `dur_ns`. One row per covered stretch: `by`, `ts_ns`, `dur_ns`, sorted; stretches that
    touch are one.
    """
    rows = _with_length(frame.select(by, "ts_ns", "dur_ns"), by)
    return pl.concat([rows.clear(), *(_union(part, by) for part in _lines(rows, by))])


def _union(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    start, stop, shift = _on_line(rows, by)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, start, stop, shift = rows[order], start[order], stop[order], shift[order]
    reach = np.maximum.accumulate(stop)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    last = np.append(first[1:], len(start)) - 1
    return pl.DataFrame({
        by: rows[by].gather(first), "ts_ns": start[first] - shift[first], "dur_ns": reach[last] - start[first],
    })  # fmt: skip


def in_order(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows of `frame` by key and begin; rows that stand so already, or in a few runs of such, cost little."""
    if len(lines := _lines(frame, by)) != 1:
        return frame.sort(by, "ts_ns", maintain_order=True)
    start, _, _ = _on_line(lines[0], by)
    if not (start[1:] < start[:-1]).any():
        return frame
    order = np.argsort(start, kind="stable")  # which finds the runs and merges them
    return frame[order]


def _with_length(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    return rows.filter((pl.col("dur_ns") > 0) & pl.col(by).is_not_null())


def _lines(rows: pl.DataFrame, by: str) -> list[pl.DataFrame]:
    """Return `rows` in parts that each fit on one line: as a rule all of them, none if there are no rows."""
    if rows.is_empty():
        return []
    key = _ints(rows[by])
    keys = int(key.max()) - int(key.min()) + 1
    if keys == 1 or keys * (end(rows) - begin(rows) + 1) < LONGEST:
        return [rows]
    parts = rows.partition_by(by, maintain_order=True, as_dict=True)
    return [parts[number] for number in sorted(parts)]


def _on_line(rows: pl.DataFrame, by: str) -> tuple[Ints, Ints, Ints]:
    """Return begin and end of each row on a line that holds key after key, and what was added to the row's times."""
    key, first = _ints(rows[by]), begin(rows)
    shift = (key - key.min()) * (end(rows) - first + 1) - first
    start = _ints(rows["ts_ns"]) + shift
    return start, start + _ints(rows["dur_ns"]), shift


def fill(timeline: pl.DataFrame, by: str, keys: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return `timeline` cut to `[start_ns, end_ns)` and completed with rows whose other columns are null.

    After it, the intervals of each key in `keys` cover the stretch without gap or overlap. Sorted by `by`, `ts_ns`.
    """
    return overlay(_whole(timeline, by, keys, start_ns, end_ns), timeline, by).select(timeline.columns)


def _whole(like: pl.DataFrame, by: str, keys: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the stretch `[start_ns, end_ns)` of each key."""
    return pl.DataFrame({by: sorted(keys)}, schema={by: like.schema[by]}).with_columns(
        ts_ns=pl.lit(start_ns, pl.Int64), dur_ns=pl.lit(end_ns - start_ns, pl.Int64)
    )


def overlay(pieces: pl.DataFrame, timeline: pl.DataFrame, on: str) -> pl.DataFrame:
    """Cut each row of `pieces` where the `timeline` of its key changes, and add the timeline's columns.

    `pieces` may overlap each other. Total `dur_ns` stays the same to the nanosecond: what no row of the timeline covers
    comes back with null in its columns. Rows keep the order of `pieces`, then time.

    One row per part: the columns of `pieces` (with `ts_ns`, `dur_ns` of the part), then those of `timeline` but `on`.

    Raises
    ------
    ValueError
        Intervals of `timeline` overlap: it is none.

    """
    extra = [column for column in timeline.columns if column not in (on, "ts_ns", "dur_ns")]
    left = pieces.filter(pl.col("dur_ns") > 0)
    if timeline.is_empty() or left[on].null_count() == left.height:
        return left.with_columns(pl.lit(None, timeline.schema[c]).alias(c) for c in extra)
    numbered = left.select(on, "ts_ns", "dur_ns").with_row_index("_piece")
    parts = [_cut(part, timeline, on) for part in _lines(numbered.filter(pl.col(on).is_not_null()), on)]
    alone = numbered.filter(pl.col(on).is_null()).select(
        "_piece", "ts_ns", "dur_ns", _at=pl.lit(None, pl.UInt32)
    )
    cut = pl.concat([*parts, alone])
    if len(parts) > 1 or alone.height:
        cut = cut.sort("_piece", "ts_ns")
    told = left.select(pl.exclude("ts_ns", "dur_ns").gather(cut["_piece"])).with_columns(
        cut["ts_ns"], cut["dur_ns"]
    )
    return told.select(pieces.columns).with_columns(timeline[c].gather(cut["_at"]) for c in extra)


def _cut(pieces: pl.DataFrame, timeline: pl.DataFrame, on: str) -> pl.DataFrame:
    """Return the parts of `pieces`: `_piece`, `ts_ns`, `dur_ns`, `_at` (the timeline's row there; null = none)."""
    left, right, shift = _on_line(pieces, on)
    start, stop, row = _same_line(timeline, pieces, on)
    low = np.searchsorted(stop, left, side="right")
    count = np.searchsorted(start, right, side="left") - low
    # The edges of each piece: its begin, begin and end of each row in it, its end.
    edges = 2 * count + 2
    place = np.cumsum(edges) - edges
    piece = np.repeat(np.arange(len(left), dtype=np.int32), edges)
    nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    inside = np.repeat(place + 1, count) + 2 * nth
    of, covering = piece[inside], np.repeat(low, count) + nth
    edge = np.empty(len(piece), np.int64)
    edge[place], edge[place + edges - 1] = left, right
    edge[inside] = np.maximum(start[covering], left[of])
    edge[inside + 1] = np.minimum(stop[covering], right[of])
    at = np.full(len(piece), -1, np.int64)
    at[inside] = row[covering]
    length = np.diff(edge, append=0)
    length[place + edges - 1] = 0
    kept = np.flatnonzero(length > 0)
    found = pl.Series(at[kept])
    return pl.DataFrame({
        "_piece": pieces["_piece"].gather(piece[kept]), "ts_ns": edge[kept] - shift[piece[kept]], "dur_ns": length[kept],
        "_at": found.set(found < 0, None).cast(pl.UInt32),
    })  # fmt: skip


def _same_line(timeline: pl.DataFrame, pieces: pl.DataFrame, on: str) -> tuple[Ints, Ints, Ints]:
    """Return begin, end and position of the timeline's rows that can meet `pieces`, on the line of these."""
    key, first, last = _ints(timeline[on].fill_null(-1)), begin(pieces), end(pieces)
    known = _ints(pieces[on])
    start = np.maximum(_ints(timeline["ts_ns"]), first)
    stop = np.minimum(_ints(timeline["ts_ns"]) + _ints(timeline["dur_ns"]), last)
    row = np.flatnonzero((stop > start) & (key >= known.min()) & (key <= known.max()))
    shift = (key[row] - known.min()) * (last - first + 1) - first
    start, stop = start[row] + shift, stop[row] + shift
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, stop, row = start[order], stop[order], row[order]
    if (start[1:] < stop[:-1]).any():
        raise ValueError(f"the timeline's intervals overlap on one {on}")
    return start, stop, row


def beneath(first: pl.DataFrame, second: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the timeline `first`, and the timeline `second` where `first` has nothing; both of the same columns.

    Sorted by `by`, `ts_ns`.
    """
    if first.is_empty() or second.is_empty():
        return in_order(first if second.is_empty() else second, by)
    low, high = begin(second), end(second)
    keys = second[by].drop_nulls().unique().to_list()
    bare = first.select(by, "ts_ns", "dur_ns", _hides=pl.lit(value=True))
    gaps = fill(bare, by, keys, low, high).filter(pl.col("_hides").is_null()).drop("_hides")
    told = second.with_columns(_seen=pl.lit(value=True))
    added = overlay(gaps, told, by).filter(pl.col("_seen")).select(first.columns)
    return in_order(pl.concat([first, added]), by)


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
    open_ = _whole(layers[0][1], by, keys, start_ns, end_ns)
    decided = [open_.clear().with_columns(state=pl.lit(None, pl.String))]
    for name, frame in layers:
        cover = union(clip(frame.select(by, "ts_ns", "dur_ns"), start_ns, end_ns), by)
        cut = overlay(open_, cover.with_columns(state=pl.lit(name)), by)
        decided.append(cut.filter(pl.col("state").is_not_null()))
        open_ = cut.filter(pl.col("state").is_null()).drop("state")
    decided.append(open_.with_columns(state=pl.lit(rest)))
    return merge_equal(pl.concat(decided).sort(by, "ts_ns"), [by, "state"])


def merge_equal(timeline: pl.DataFrame, same: Sequence[str]) -> pl.DataFrame:
    """Join neighbouring rows of a sorted timeline that touch and agree in the columns `same`; other columns are dropped."""
    if timeline.is_empty():
        return timeline.select(*same, "ts_ns", "dur_ns")
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in same)
    new = (differs | (pl.col("ts_ns") != ends.shift(1))).fill_null(value=True)
    last = new.shift(-1, fill_value=True)
    marked = timeline.select(*same, "ts_ns", _end=ends, _new=new, _last=last)
    stop = marked.filter("_last")["_end"]
    return marked.filter("_new").select(*same, "ts_ns", dur_ns=stop - pl.col("ts_ns"))


def innermost(slices: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return, per key, which row of `slices` is innermost at each moment: of those open, the one that began last.

    For properly nested slices that is the deepest one. Equal begins: the shorter one is inside; equal ends as well: the
    later row. Slices that overlap without nesting (damaged input, several clocks) are handled by the same definition.

    One row per stretch: `by`, `ts_ns`, `dur_ns`, `row` (UInt32, position in `slices`); moments that no slice covers have
    no row. Sorted by `by`, `ts_ns`.
    """
    rows = _with_length(slices.select(by, "ts_ns", "dur_ns").with_row_index("row"), by)
    empty = rows.select(by, "ts_ns", "dur_ns", "row").clear()
    return pl.concat([empty, *(_innermost(part, by) for part in _lines(rows, by))])


def _innermost(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    start, stop, shift = _on_line(rows, by)
    order = _preorder(start, stop)
    if order is not None:
        rows, start, stop, shift = rows[order], start[order], stop[order], shift[order]
    at, until, top = _tops(start, stop)
    return pl.DataFrame({
        by: rows[by].gather(top), "ts_ns": at - shift[top], "dur_ns": until - at, "row": rows["row"].gather(top),
    })  # fmt: skip


def _preorder(start: Ints, stop: Ints) -> Ints | None:
    """Return the order by begin, the longer first; None if the rows stand in it."""
    follows = (start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (stop[1:] <= stop[:-1]))
    if follows.all():
        return None
    rows = pl.DataFrame({"start": start, "stop": stop})
    order = pl.arg_sort_by("start", "stop", descending=[False, True], maintain_order=True)
    return _ints(rows.select(order).to_series())


def _tops(start: Ints, stop: Ints) -> tuple[Ints, Ints, Places]:
    """Return begin, stop and position of the innermost interval over time, for intervals in preorder.

    It changes where one begins, to that one, and where one ends that nothing hides, to the last before it that goes on.
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
    """Return when the top changes, and to which interval (-1 = none); ends before begins, of equal ends the inner first.

    Nothing needs sorting: before the begin of number i lie i begins and i - depth ends, before its end `after` begins and
    after - depth - 1 ends.
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
    """Return the position of each interval's parent, the last one before it that is one level up; -1 for roots."""
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
    """Return for each interval the last one before it that ends later, -1 if none does, by jumping over jumps."""
    before = np.arange(-1, len(stop) - 1, dtype=np.int32)
    open_ = np.arange(1, len(stop))
    while len(open_):
        open_ = open_[stop[before[open_]] <= stop[open_]]
        before[open_] = before[before[open_]]
        open_ = open_[before[open_] >= 0]
    return before
