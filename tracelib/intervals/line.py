"""How rows of many keys are worked on together: key after key on one line, in parts that stay in the processor's reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Part = TypeVar("Part")
Made = TypeVar("Made")

__all__ = ["begin", "each", "end", "in_order", "ints", "lines", "on_line", "span_of", "with_length"]

#: Rows that are worked on at a time, where the keys allow.
CHUNK = 2**17
#: More runs of one key than this, beside one per key, are sorted rather than picked one by one.
MANY_RUNS = 10_000
#: A line longer than this would not fit into 64 bits: then each key gets a line of its own.
LONGEST = 2**62


def ints(series: pl.Series) -> Ints:
    """Return a column without nulls as 64-bit integers."""
    values: Ints = series.cast(pl.Int64).to_numpy()
    return values


def begin(frame: pl.DataFrame) -> int:
    """Return the earliest `ts_ns` of a frame that has rows."""
    return int(ints(frame["ts_ns"]).min())


def end(frame: pl.DataFrame) -> int:
    """Return the latest `ts_ns + dur_ns` of a frame that has rows."""
    return int((ints(frame["ts_ns"]) + ints(frame["dur_ns"])).max())


def in_order(frame: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows of `frame` by key and begin; rows that stand so already, or in a few runs of such, cost little."""
    if frame.is_empty() or frame[by].null_count():
        return frame.sort(by, "ts_ns", maintain_order=True)
    if _stands_in_order(frame, by):
        return frame
    runs: dict[int, list[pl.DataFrame]] = {}
    for run in _runs(frame, by):
        runs.setdefault(run[by][0], []).append(run)
    parts = each(lambda key: _by_begin(pl.concat(runs[key])), sorted(runs))
    return pl.concat(parts, rechunk=True)


def _stands_in_order(frame: pl.DataFrame, by: str) -> bool:
    key, ts = frame[by].to_numpy(), ints(frame["ts_ns"])
    return bool(((key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & (ts[1:] >= ts[:-1]))).all())


def _runs(frame: pl.DataFrame, by: str) -> list[pl.DataFrame]:
    """Return stretches of rows of one key; the frame put in order by key first if these would be many."""
    changes = np.flatnonzero(np.diff(frame[by].to_numpy())) + 1
    if len(changes) > MANY_RUNS + frame[by].n_unique():
        return _runs(frame.sort(by, maintain_order=True), by)
    return [frame.slice(a, b - a) for a, b in pairwise([0, *changes.tolist(), frame.height])]


def _by_begin(rows: pl.DataFrame) -> pl.DataFrame:
    ts = ints(rows["ts_ns"])
    if (ts[1:] >= ts[:-1]).all():
        return rows
    return rows[np.argsort(ts, kind="stable")]  # which finds the runs and merges them


def each(function: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
    """Return `function` of each part, several at once: NumPy and Polars leave other threads their turn."""
    if len(parts) < 2:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        return list(pool.map(function, parts))


def with_length(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows that have a key and take time."""
    return rows.filter((pl.col("dur_ns") > 0) & pl.col(by).is_not_null())


def lines(rows: pl.DataFrame, by: str) -> list[pl.DataFrame]:
    """Return `rows` in parts of whole keys that each fit on one line, no part if there are no rows.

    Rows that stand key by key come in parts of about `CHUNK`, so that what is made of them stays in the processor's reach.
    """
    if rows.is_empty():
        return []
    if not rows[by].is_sorted():
        return [rows] if _fits(rows, by) else lines(rows.sort(by, maintain_order=True), by)
    changes = np.flatnonzero(np.diff(rows[by].to_numpy())) + 1
    bounds = [0, *changes.tolist(), rows.height]
    cuts = [0]
    for at, after in pairwise(bounds):
        if at > cuts[-1] and after - cuts[-1] > CHUNK:
            cuts.append(at)
    parts = [rows.slice(a, b - a) for a, b in pairwise([*cuts, rows.height])]
    if all(_fits(part, by) for part in parts):
        return parts
    return [rows.slice(a, b - a) for a, b in pairwise(bounds)]


def span_of(rows: pl.DataFrame) -> int:
    """Return more than the time between begin and end of `rows`."""
    ts, dur = ints(rows["ts_ns"]), ints(rows["dur_ns"])
    return int(ts.max()) + int(dur.max()) - int(ts.min()) + 1


def _fits(rows: pl.DataFrame, by: str) -> bool:
    key = rows[by].to_numpy()
    keys = int(key.max()) - int(key.min()) + 1
    return keys == 1 or keys * span_of(rows) < LONGEST


def on_line(rows: pl.DataFrame, by: str) -> tuple[Ints, Ints, Ints]:
    """Return begin and end of each row on a line that holds key after key, and what was added to the row's times."""
    shift = rows[by].to_numpy().astype(np.int64)
    shift -= shift.min()
    shift *= span_of(rows)
    shift -= begin(rows)
    start = ints(rows["ts_ns"]) + shift
    return start, start + ints(rows["dur_ns"]), shift
