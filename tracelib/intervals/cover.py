"""What intervals cover: alone, together, and laid over each other."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.intervals.by_key import (
    AT_ONCE,
    begin,
    changes,
    each,
    end,
    in_order,
    ints,
    lasting,
    lines,
    on_line,
    span_of,
    with_length,
)

Ints = NDArray[np.int64]
Rows = NDArray[np.uint32]


def clip(frame: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the rows of `frame` that overlap `[start_ns, end_ns)`, cut to it, without those of no length."""
    if frame.height and start_ns <= begin(frame) and end(frame) <= end_ns:
        return frame.filter(pl.col("dur_ns") > 0)
    start = pl.col("ts_ns").clip(lower_bound=start_ns)
    stop = (pl.col("ts_ns") + pl.col("dur_ns")).clip(upper_bound=end_ns)
    return frame.with_columns(ts_ns=start, dur_ns=stop - start).filter(pl.col("dur_ns") > 0)


def union(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the time that the intervals of `frame` cover together, per key.

    Needs columns `by`, `ts_ns`, `dur_ns`. One row per covered stretch: `by`, `ts_ns`, `dur_ns`, sorted;
    stretches that touch are one.
    """
    rows = with_length(frame.select(by, "ts_ns", "dur_ns"), by)
    return pl.concat([rows.clear(), *each(lambda part: _union(part, by), lines(rows, by))], rechunk=True)


def _union(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    start, stop, shift = on_line(rows, by)
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        rows, start, stop, shift = rows[order], start[order], stop[order], shift[order]
    reach = np.maximum.accumulate(stop)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    last = np.append(first[1:], len(start)) - 1
    return pl.DataFrame(
        {
            by: rows[by].gather(first),
            "ts_ns": start[first] - shift[first],
            "dur_ns": reach[last] - start[first],
        }
    )


def fill(timeline: pl.DataFrame, by: str, keys: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return `timeline` cut to `[start_ns, end_ns)` and completed with rows whose other columns are null.

    After it, the intervals of each key in `keys` cover the stretch without gap or overlap. Sorted by `by`,
    `ts_ns`.
    """
    return overlay(whole(timeline, by, keys, start_ns, end_ns), timeline, by).select(timeline.columns)


def whole(like: pl.DataFrame, by: str, keys: Sequence[int], start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the stretch `[start_ns, end_ns)` of each key."""
    return pl.DataFrame({by: sorted(keys)}, schema={by: like.schema[by]}).with_columns(
        ts_ns=pl.lit(start_ns, pl.Int64), dur_ns=pl.lit(end_ns - start_ns, pl.Int64)
    )


def overlay(pieces: pl.DataFrame, timeline: pl.DataFrame, on: str) -> pl.DataFrame:
    """Cut each row of `pieces` where the `timeline` of its key changes, and add the timeline's columns.

    `pieces` may overlap each other. Total `dur_ns` stays the same to the nanosecond: what no row of the
    timeline covers comes back with null in its columns. Rows keep the order of `pieces`, then time.

    One row per part: the columns of `pieces` (with `ts_ns`, `dur_ns` of the part), then those of `timeline`
    but `on`.

    Raises ValueError if intervals of `timeline` overlap.
    """
    extra = [column for column in timeline.columns if column not in (on, "ts_ns", "dur_ns")]
    left = lasting(pieces)
    if timeline.is_empty() or left[on].null_count() == left.height:
        return left.with_columns(pl.lit(None, timeline.schema[c]).alias(c) for c in extra)
    numbered = left.select(on, "ts_ns", "dur_ns").with_row_index("_piece")
    line = timeline.select(on, "ts_ns", "dur_ns")
    alone = numbered.clear()
    if numbered[on].null_count():
        numbered, alone = numbered.filter(pl.col(on).is_not_null()), numbered.filter(pl.col(on).is_null())
    stretches = lines(numbered, on)
    if len(stretches) > 1 and line[on].null_count() == 0 and line[on].is_sorted():
        line = line.with_columns(pl.col(on).set_sorted())  # looked at once, not for each stretch
    parts = [*chain.from_iterable(each(lambda part: _cut(part, line, on), stretches))]
    if alone.height:
        parts.append(alone.select("_piece", "ts_ns", "dur_ns", _at=pl.lit(None, pl.UInt32)))
    cut = pl.concat(parts, rechunk=True)
    if not cut["_piece"].is_sorted():
        cut = cut.select(pl.all().gather(np.argsort(cut["_piece"].to_numpy(), kind="stable")))
    rows = left.select(pl.exclude("ts_ns", "dur_ns").gather(cut["_piece"]))
    rows = rows.hstack([cut["ts_ns"], cut["dur_ns"]]).select(pieces.columns)
    return rows.hstack(timeline.select(pl.col(extra).gather(cut["_at"]))) if extra else rows


def _cut(pieces: pl.DataFrame, timeline: pl.DataFrame, on: str) -> list[pl.DataFrame]:
    """Return the parts of `pieces`: `_piece`, `ts_ns`, `dur_ns`, `_at` (the timeline's row, null = none)."""
    left, right, shift = on_line(pieces, on)
    start, stop, row = _same_line(timeline, pieces, on)
    row = np.append(row, np.uint32(0))  # which -1, none, takes
    low = np.searchsorted(stop, left, side="right")
    count = np.searchsorted(start, right, side="left") - low
    number = pieces["_piece"].to_numpy()
    made = []
    for few in _few(2 * count + 2):
        piece, begins, length, covering = _parts(left[few], right[few], low[few], count[few], start, stop)
        piece += few.start
        made.append(
            pl.DataFrame(
                {
                    "_piece": number[piece],
                    "ts_ns": begins - shift[piece],
                    "dur_ns": length,
                    "_at": pl.Series(row[covering]).set(pl.Series(covering < 0), None),
                }
            )
        )
    return made


def _few(edges: Ints) -> Iterator[slice]:
    """Yield stretches of pieces that have about `AT_ONCE` edges together."""
    until = np.cumsum(edges)
    cuts = np.unique(np.searchsorted(until, np.arange(0, until[-1], AT_ONCE))).tolist()
    return (slice(a, b) for a, b in pairwise([*cuts, len(edges)]))


def _parts(
    left: Ints, right: Ints, low: Ints, count: Ints, start: Ints, stop: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return each part's piece, begin, length, and the number of the interval that covers it (-1 = none).

    Each piece, from `left` to `right`, meets the `count` intervals from number `low` on.
    """
    # The edges of each piece: its begin, begin and end of each interval in it, its end.
    edges = 2 * count + 2
    place = np.cumsum(edges) - edges
    piece = np.repeat(np.arange(len(left)), edges)
    nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    inside = np.repeat(place + 1, count) + 2 * nth
    of, covering = piece[inside], np.repeat(low, count) + nth
    edge = np.empty(len(piece), np.int64)
    edge[place], edge[place + edges - 1] = left, right
    edge[inside] = np.maximum(start[covering], left[of])
    edge[inside + 1] = np.minimum(stop[covering], right[of])
    at = np.full(len(piece), -1, np.int64)
    at[inside] = covering
    length = np.diff(edge, append=0)
    length[place + edges - 1] = 0
    kept = np.flatnonzero(length > 0)
    return piece[kept], edge[kept], length[kept], at[kept]


def _same_line(timeline: pl.DataFrame, pieces: pl.DataFrame, on: str) -> tuple[Ints, Ints, Rows]:
    """Return begin, end and position of the timeline's rows that can meet `pieces`, on the line of these."""
    low, high = int(pieces[on].to_numpy().min()), int(pieces[on].to_numpy().max())
    after = 0
    if timeline[on].null_count() == 0 and timeline[on].is_sorted():
        after, until = np.searchsorted(timeline[on].to_numpy(), [low, high + 1])
        timeline = timeline.slice(after, until - after)
    keys = timeline[on].fill_null(low - 1) if timeline[on].null_count() else timeline[on]
    key, start = ints(keys), ints(timeline["ts_ns"])
    stop = start + ints(timeline["dur_ns"])
    meets = (stop > start) & (key >= low) & (key <= high)
    if low < high:
        first, span = begin(pieces), span_of(pieces)
        shift = (key - low) * span - first
        start, stop = np.maximum(start, first) + shift, np.minimum(stop, first + span) + shift
        meets &= stop > start
    row = np.arange(after, after + len(start), dtype=np.uint32)
    if not meets.all():
        start, stop, row = start[meets], stop[meets], row[meets]
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, stop, row = start[order], stop[order], row[order]
    if (start[1:] < stop[:-1]).any():
        raise ValueError(f"the timeline's intervals overlap on one {on}")
    return start, stop, row


def merge_equal(timeline: pl.DataFrame, same: Sequence[str]) -> pl.DataFrame:
    """Join neighbours of a sorted timeline that touch and agree in the columns `same`; other columns go."""
    if timeline.is_empty():
        return timeline.select(*same, "ts_ns", "dur_ns")
    ends = pl.col("ts_ns") + pl.col("dur_ns")
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift(1)) for c in same)
    new = (differs | (pl.col("ts_ns") != ends.shift(1))).fill_null(value=True)
    last = new.shift(-1, fill_value=True)
    marked = timeline.select(*same, "ts_ns", _end=ends, _new=new, _last=last)
    stop = marked.filter("_last")["_end"]
    return marked.filter("_new").select(*same, "ts_ns", dur_ns=stop - pl.col("ts_ns"))


def merge_near(rows: pl.DataFrame, apart_ns: int) -> pl.DataFrame:
    """Join a thread's pieces between which there is not more than that, and that agree in the other columns.

    Takes `thread`, `ts_ns`, `dur_ns` and others; returns `thread`, the others, `begin`, `end`.
    """
    end = pl.col("ts_ns") + pl.col("dur_ns")
    ordered = rows.sort("thread", "ts_ns").with_columns(end=end)
    same = [name for name in rows.columns if name not in ("ts_ns", "dur_ns")]
    new = (pl.col("ts_ns") - pl.col("end").shift(1) > apart_ns) | pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(name).shift(1)) for name in same
    )
    return (
        ordered.with_columns(_run=new.fill_null(value=True).cum_sum())
        .group_by("_run", maintain_order=True)
        .agg(
            pl.exclude("ts_ns", "dur_ns", "end").first(),
            begin=pl.col("ts_ns").first(),
            end=pl.col("end").max(),
        )
        .drop("_run")
    )


def beneath(first: pl.DataFrame, second: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the timeline `first`, and the timeline `second` where `first` has nothing; of the same columns.

    Sorted by `by`, `ts_ns`.
    """
    line = in_order(with_length(first.select(by, "ts_ns", "dur_ns"), by), by)
    return in_order(pl.concat([first, under(line, second.select(first.columns), by)]), by)


def under(line: pl.DataFrame, second: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the timeline `second` where the timeline `line`, which is in order, has nothing."""
    if second.is_empty() or line.is_empty():
        return second
    marked = second.with_columns(_seen=pl.lit(value=True))
    return overlay(_gaps(line, by, second), marked, by).filter("_seen").select(second.columns)


def _gaps(line: pl.DataFrame, by: str, around: pl.DataFrame) -> pl.DataFrame:
    """Return where `line`, in order, has nothing from the begin to the end of `around`, for its keys."""
    low, high = begin(around), end(around)
    keys = around[by].drop_nulls().unique()
    line = line.filter(pl.col(by).is_in(keys.implode()))
    never = keys.filter(~keys.is_in(line[by].unique().implode()))
    holes = each(lambda part: _holes(part, by, low, high), lines(line, by))
    return clip(pl.concat([whole(line, by, never.to_list(), low, high), *holes]), low, high)


def _holes(line: pl.DataFrame, by: str, low: int, high: int) -> pl.DataFrame:
    """Return what is free from `low` to the first row of each key, between its rows, and then to `high`."""
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

    Each layer is a name and a frame with `by`, `ts_ns`, `dur_ns`. One row per stretch: `by`, `ts_ns`,
    `dur_ns`, `state` (the layer's name); per key the rows cover `[start_ns, end_ns)` without gap or overlap.
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


# -------------------- time cut into equal bins
def bin_borders(start_ns: int, end_ns: int, bins: int) -> NDArray[np.int64]:
    """Return the `bins` + 1 borders of equal bins over ``[start_ns, end_ns)``, whole nanoseconds."""
    bins = max(1, min(bins, end_ns - start_ns))
    return start_ns + (np.arange(bins + 1, dtype=np.int64) * (end_ns - start_ns)) // bins


def ms_since_start(borders: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the borders as a chart's axis has them."""
    ms: NDArray[np.float32] = ((borders - borders[0]) / 1e6).astype(np.float32)
    return ms


def covered_ns(ts_ns: pl.Series, dur_ns: pl.Series, borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nanoseconds that the intervals spend in each bin; intervals that overlap count each.

    The time covered before t is a sum of ramps: over all starts s <= t of (t - s), less over all ends e <= t
    of (t - e).
    """
    base = borders[0]
    starts = np.sort(ts_ns.to_numpy() - base)
    ends = np.sort((ts_ns + dur_ns).to_numpy() - base)
    return np.diff(_ramps(starts, borders - base) - _ramps(ends, borders - base))


def _ramps(corners: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    passed = np.searchsorted(corners, at, side="right")
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(corners)])
    heights: NDArray[np.int64] = passed * at - sums[passed]
    return heights


def state_shares(pieces: pl.DataFrame, states: list[str], borders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a row per state and a column per bin: the share of the bin in that state.

    0..1, more where pieces overlap. `pieces` has `ts_ns`, `dur_ns` and `state`.
    """
    width = np.diff(borders)
    shares = []
    for state in states:
        own = pieces.filter(pl.col("state").cast(pl.String) == state)
        shares.append(covered_ns(own["ts_ns"], own["dur_ns"], borders) / width)
    return np.array(shares).reshape(len(states), len(width))


#: A stretch is looked at with this much of its length on either side, at least with so much time.
MARGIN, LEAST_MARGIN_NS = 0.5, 1_000_000


def widened(start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return a stretch with some time before and after it, to be looked at.

    >>> widened(10_000_000, 14_000_000), widened(10_000_000, 10_000_000)
    ((8000000, 16000000), (9000000, 11000000))
    """
    margin = max(round(MARGIN * (end_ns - start_ns)), LEAST_MARGIN_NS)
    return start_ns - margin, end_ns + margin


def weighted_mean(steps: pl.DataFrame, column: str, borders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of a step function in each bin; time that no step covers counts as 0."""
    base = int(borders[0])
    ordered = steps.sort("ts_ns")
    begin = ordered["ts_ns"].to_numpy() - base
    length = ordered["dur_ns"].to_numpy()
    height = ordered[column].to_numpy().astype(np.int64)
    corners = np.column_stack([begin, begin + length]).ravel()
    gained = np.column_stack([np.zeros_like(length), height * length]).ravel()
    total = np.interp(borders - base, corners, np.cumsum(gained), left=0.0)
    mean: NDArray[np.float64] = np.diff(total) / np.diff(borders)
    return mean
