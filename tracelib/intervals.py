"""Interval algebra on frames: union, overlay, innermost slice, and nothing else.

Intervals are half-open, `[ts_ns, ts_ns + dur_ns)`, in integer nanoseconds. Every function works per key (a thread, a
GPU): rows of different keys never touch. A *timeline* is a frame whose intervals are disjoint and sorted per key.

How it is fast: keys are laid one after the other on a single line (`_on_one_line`), so that one sort and one binary
search serve all of them; NumPy does both, and no Python loop runs per row. `tests/test_intervals.py` holds a brute-force
oracle for each function, `benchmarks/intervals.py` the measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["begin", "clip", "end", "fill", "innermost", "layered", "merge_equal", "overlay", "union"]


def _ints(series: pl.Series) -> Ints:
    values: Ints = series.cast(pl.Int64).to_numpy()
    return values


def begin(frame: pl.DataFrame) -> int:
    """Return the earliest `ts_ns` of a frame that has rows."""
    return int(_ints(frame["ts_ns"]).min())


def end(frame: pl.DataFrame) -> int:
    """Return the latest `ts_ns + dur_ns` of a frame that has rows."""
    return int(_ints(frame["ts_ns"] + frame["dur_ns"]).max())


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
    ends = (
        frame.filter(pl.col("dur_ns") > 0)
        .select(by, "ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns"))
        .sort(by, "ts_ns")
        .with_columns(reach=pl.col("end").cum_max().over(by, order_by="ts_ns"))
    )
    new = (pl.col("ts_ns") > pl.col("reach").shift(1)) | (pl.col(by) != pl.col(by).shift(1))
    return (
        ends.with_columns(stretch=new.fill_null(value=True).cum_sum())
        .group_by("stretch", maintain_order=True)
        .agg(
            pl.col(by).first(),
            pl.col("ts_ns").first(),
            dur_ns=pl.col("reach").last() - pl.col("ts_ns").first(),
        )
        .drop("stretch")
    )


def fill(timeline: pl.DataFrame, by: str, keys: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return `timeline` cut to `[start_ns, end_ns)` and completed with rows whose other columns are null.

    After it, the intervals of each key in `keys` cover the stretch without gap or overlap.
    """
    inside = clip(timeline, start_ns, end_ns).filter(pl.col(by).is_in(list(keys)))
    marks = pl.DataFrame({by: list(keys)}, schema={by: timeline.schema[by]})
    edges = pl.concat([
        inside.select(by, a=pl.col("ts_ns"), b=pl.col("ts_ns") + pl.col("dur_ns")),
        marks.select(by, a=pl.lit(end_ns, pl.Int64), b=pl.lit(end_ns, pl.Int64)),
    ]).sort(by, "a", "b")  # fmt: skip
    before = pl.col("b").shift(1).over(by, order_by=["a", "b"]).fill_null(start_ns)
    gaps = edges.select(by, ts_ns=before, dur_ns=pl.col("a") - before).filter(pl.col("dur_ns") > 0)
    return pl.concat([inside, gaps], how="diagonal").select(timeline.columns).sort(by, "ts_ns")


def overlay(pieces: pl.DataFrame, timeline: pl.DataFrame, on: str) -> pl.DataFrame:
    """Cut each row of `pieces` where the `timeline` of its key changes, and add the timeline's columns.

    `pieces` may overlap each other. Total `dur_ns` stays the same to the nanosecond: what no row of the timeline covers
    comes back with null in its columns. Rows keep the order of `pieces`, then time.

    One row per part: the columns of `pieces` (with `ts_ns`, `dur_ns` of the part), then those of `timeline` but `on`.
    """
    extra = [column for column in timeline.columns if column not in (on, "ts_ns", "dur_ns")]
    left = pieces.filter(pl.col("dur_ns") > 0).with_row_index("_piece")
    keys = left[on].drop_nulls().unique().sort()
    if timeline.is_empty() or keys.is_empty():
        return left.drop("_piece").with_columns(pl.lit(None, timeline.schema[c]).alias(c) for c in extra)
    low, high = min(begin(left), begin(timeline)), max(end(left), end(timeline))
    numbered = timeline.with_columns(_at=pl.int_range(pl.len(), dtype=pl.UInt32))
    whole = fill(numbered, on, keys.to_list(), low, high)
    known = left.filter(pl.col(on).is_not_null())
    pairs = _range_join(known, whole, on, keys)
    parts = known.select(pl.exclude("ts_ns", "dur_ns").gather(pairs["left"])).with_columns(
        ts_ns=pairs["ts_ns"], dur_ns=pairs["dur_ns"], _at=whole["_at"].gather(pairs["right"])
    )
    rest = left.filter(pl.col(on).is_null()).with_columns(_at=pl.lit(None, pl.UInt32))
    joined = pl.concat([parts, rest], how="diagonal").sort("_piece", "ts_ns")
    added = timeline.select(pl.col(extra).gather(joined["_at"])) if extra else pl.DataFrame()
    return pl.concat([joined.select(pieces.columns), added], how="horizontal")


def _range_join(left: pl.DataFrame, whole: pl.DataFrame, on: str, keys: pl.Series) -> dict[str, pl.Series]:
    """Pair rows of `left` with the rows of a complete timeline that they overlap: positions and common stretch."""
    first = begin(whole)
    span = end(whole) - first + 1
    shift_left = _shift(left[on], keys, span, first)
    shift_whole = _shift(whole[on], keys, span, first)
    ls, ld = _ints(left["ts_ns"]) + shift_left, _ints(left["dur_ns"])
    ws, wd = _ints(whole["ts_ns"]) + shift_whole, _ints(whole["dur_ns"])
    low = np.searchsorted(ws + wd, ls, side="right")
    count = np.searchsorted(ws, ls + ld, side="left") - low
    at = np.repeat(np.arange(len(ls)), count)
    right = np.arange(count.sum()) + np.repeat(low - (np.cumsum(count) - count), count)
    start = np.maximum(ls[at], ws[right])
    stop = np.minimum((ls + ld)[at], (ws + wd)[right])
    columns = {"left": at, "right": right, "ts_ns": start - shift_left[at], "dur_ns": stop - start}
    return {name: pl.Series(name, values) for name, values in columns.items()}


def _shift(key: pl.Series, keys: pl.Series, span: int, first: int) -> Ints:
    """Return what to add to a row's times so that key number k lies in `[k * span, (k + 1) * span)`."""
    shift: Ints = np.searchsorted(_ints(keys), _ints(key)) * span - first
    return shift


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
    schema = {by: layers[0][1].schema[by], "ts_ns": pl.Int64(), "dur_ns": pl.Int64()}
    pieces = pl.DataFrame(
        {by: list(keys), "ts_ns": [start_ns] * len(keys), "dur_ns": [end_ns - start_ns] * len(keys)},
        schema=schema,
    ).with_columns(state=pl.lit(None, pl.String))
    for name, frame in layers:
        cover = union(clip(frame, start_ns, end_ns).select(by, "ts_ns", "dur_ns"), by).with_columns(
            _layer=pl.lit(name)
        )
        open_, decided = (
            pieces.filter(pl.col("state").is_null()),
            pieces.filter(pl.col("state").is_not_null()),
        )
        cut = overlay(open_, cover, by).with_columns(state=pl.col("_layer")).drop("_layer")
        pieces = pl.concat([decided, cut])
    return merge_equal(pieces.with_columns(pl.col("state").fill_null(rest)).sort(by, "ts_ns"), [by, "state"])


def merge_equal(timeline: pl.DataFrame, same: Sequence[str]) -> pl.DataFrame:
    """Join neighbouring rows of a sorted timeline that touch and agree in the columns `same`; other columns are dropped."""
    if timeline.is_empty():
        return timeline.select(*same, "ts_ns", "dur_ns")
    end = pl.col("ts_ns") + pl.col("dur_ns")
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in same)
    new = (differs | (pl.col("ts_ns") != end.shift(1))).fill_null(value=True)
    return (
        timeline.with_columns(_run=new.cum_sum())
        .group_by("_run", maintain_order=True)
        .agg(*[pl.col(c).first() for c in same], pl.col("ts_ns").first(), pl.col("dur_ns").sum())
        .select(*same, "ts_ns", "dur_ns")
    )


def innermost(slices: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return, per key, which row of `slices` is innermost at each moment: of those open, the one that began last.

    For properly nested slices that is the deepest one. Equal begins: the shorter one is inside. Slices that overlap
    without nesting (damaged input, several clocks) are handled by the same definition.

    One row per stretch: `by`, `ts_ns`, `dur_ns`, `row` (UInt32, position in `slices`); moments that no slice covers have
    no row.
    """
    rows = slices.select(by, "ts_ns", "dur_ns").with_row_index("row").filter(pl.col("dur_ns") > 0)
    if rows.is_empty():
        return rows.select(by, "ts_ns", "dur_ns", "row")
    rows = rows.sort(by, "ts_ns", "dur_ns", "row", descending=[False, False, True, False])
    keys = rows[by].unique().sort()
    first = begin(rows)
    shift = _shift(rows[by], keys, end(rows) - first + 1, first)
    start = _ints(rows["ts_ns"]) + shift
    at, until, top = _tops(start, start + _ints(rows["dur_ns"]))
    return pl.DataFrame({
        by: rows[by][top], "ts_ns": at - shift[top], "dur_ns": until - at, "row": rows["row"][top],
    })  # fmt: skip


def _tops(start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Return begin, stop and position of the innermost interval over time, for intervals in preorder."""
    parent = _parents(start, stop)
    nested = parent >= 0
    if (stop[nested] > stop[parent[nested]]).any():
        return _tops_one_by_one(start, stop)
    n = len(start)
    by_end = n - 1 - np.argsort(stop[::-1], kind="stable")  # equal ends: the inner one ends first
    ends = stop[by_end]
    times = np.empty(2 * n, np.int64)
    tops = np.empty(2 * n, np.int64)
    place_of_start = np.arange(n) + np.searchsorted(
        ends, start, side="right"
    )  # equal times: ends before begins
    place_of_end = np.arange(n) + np.searchsorted(start, ends, side="left")
    times[place_of_start], tops[place_of_start] = start, np.arange(n)
    times[place_of_end], tops[place_of_end] = ends, parent[by_end]
    keep = (times[1:] > times[:-1]) & (tops[:-1] >= 0)
    return times[:-1][keep], times[1:][keep], tops[:-1][keep]


def _parents(start: Ints, stop: Ints) -> Ints:
    """Return the position of each interval's parent, -1 for roots; intervals in preorder, none without length.

    Depth = intervals begun before minus intervals ended by then; the parent is the last interval one level up.
    """
    depth = np.arange(len(start)) - np.searchsorted(np.sort(stop), start, side="right")
    parent = np.full(len(start), -1, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, int(depth.max()) + 1):
        here, above = by_depth[bounds[level] : bounds[level + 1]], by_depth[bounds[level - 1] : bounds[level]]
        parent[here] = above[np.searchsorted(above, here) - 1]
    return parent


def _tops_one_by_one(start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Apply the definition row by row: for the few inputs whose intervals overlap without nesting."""
    out: list[tuple[int, int, int]] = []
    open_: list[int] = []  # in order of begin, so the last one is innermost
    now = 0
    ends: Any = stop.tolist()

    def advance(until: int | None) -> int:
        at = now
        while open_:
            top = open_[-1]
            if ends[top] > at:
                stop = ends[top] if until is None else min(ends[top], until)
                out.append((at, stop, top))
                at = stop
                if until is not None and at == until and ends[top] > until:
                    break
            open_.pop()
        return at

    for position, begin in enumerate(start.tolist()):
        advance(begin)
        now = begin
        open_.append(position)
    advance(None)
    table = np.array(out, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]
