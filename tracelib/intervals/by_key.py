"""Rows of many keys, worked on together: ordered, laid key after key on one line, and cut into parts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Keys = NDArray[np.integer]

Part = TypeVar("Part")
Made = TypeVar("Made")

#: Rows that are worked on at a time, where the keys allow.
CHUNK = 2**17
#: Rows on one line that are worked on at a time: what is made of them stays in the processor's cache.
AT_ONCE = 2**15
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
    """Return the rows of `frame` by key and begin; rows in order, or in a few runs of such, cost little."""
    if frame.is_empty() or frame[by].null_count():
        return frame.sort(by, "ts_ns", maintain_order=True)
    order = order_of(frame[by].to_numpy(), ints(frame["ts_ns"]))
    return frame if order is None else frame.select(pl.all().gather(order))


def order_of(key: Keys, ts: Ints) -> NDArray[np.uint32] | None:
    """Return the positions of rows by key and begin, a stable order; None if they stand in it."""
    if _stands_in_order(key, ts):
        return None
    runs: dict[int, list[tuple[int, int]]] = {}
    for a, b in pairwise([0, *changes(key).tolist(), len(key)]):
        runs.setdefault(int(key[a]), []).append((a, b))
    if sum(map(len, runs.values())) > MANY_RUNS + len(runs):
        return np.lexsort((ts, key)).astype(np.uint32)
    return np.concatenate(each(lambda one: _by_begin(runs[one], ts), sorted(runs)))


def _stands_in_order(key: Keys, ts: Ints) -> bool:
    for a in range(0, len(key), CHUNK):
        k, t = key[a : a + CHUNK + 1], ts[a : a + CHUNK + 1]
        if not ((k[1:] > k[:-1]) | ((k[1:] == k[:-1]) & (t[1:] >= t[:-1]))).all():
            return False
    return True


def _by_begin(runs: Sequence[tuple[int, int]], ts: Ints) -> NDArray[np.uint32]:
    place = np.concatenate([np.arange(a, b, dtype=np.uint32) for a, b in runs])
    begins = np.concatenate([ts[a:b] for a, b in runs])
    return place[np.argsort(begins, kind="stable")]  # which finds the runs and merges them


def each(function: Callable[[Part], Made], parts: Sequence[Part]) -> list[Made]:
    """Return `function` of each part, several at once: NumPy and Polars leave other threads their turn."""
    if len(parts) < 2:
        return [function(part) for part in parts]
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        return list(pool.map(function, parts))


def in_parts(function: Callable[[pl.DataFrame], pl.DataFrame], rows: pl.DataFrame) -> pl.DataFrame:
    """Return `function` of all rows, computed a few at a time, which takes little new memory."""
    if rows.height <= CHUNK:
        return function(rows)
    return pl.concat(each(function, list(rows.iter_slices(CHUNK))), rechunk=True)


def with_length(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the rows that have a key and take time; `rows` themselves if all do."""
    return lasting(rows.filter(pl.col(by).is_not_null()) if rows[by].null_count() else rows)


def lasting(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that take time; `rows` themselves if all do."""
    if not rows["dur_ns"].null_count():
        shortest = rows["dur_ns"].min()
        if shortest is None or shortest > 0:  # type: ignore[operator]
            return rows
    return rows.filter(pl.col("dur_ns") > 0)


def lines(rows: pl.DataFrame, by: str) -> list[pl.DataFrame]:
    """Return `rows` in parts of whole keys that each fit on one line, none if it has no rows.

    The parts have about `CHUNK` rows where the keys allow, so that what is made of them stays in the
    processor's reach.
    """
    if rows.is_empty():
        return []
    if not rows[by].is_sorted():
        rows = rows.select(pl.all().gather(key_by_key(rows[by].to_numpy())))
    parts = [rows.slice(a, b - a) for a, b in whole_keys(rows[by].to_numpy())]
    if all(_fits(part, by) for part in parts):
        return parts
    bounds = [0, *changes(rows[by].to_numpy()).tolist(), rows.height]
    return [rows.slice(a, b - a) for a, b in pairwise(bounds)]


def changes(values: Keys) -> Ints:
    """Return the positions at which a value differs from the one before it."""
    return np.flatnonzero(values[1:] != values[:-1]) + 1


def whole_keys(keys: Keys) -> list[tuple[int, int]]:
    """Return stretches (begin, end) of about `CHUNK` of the sorted `keys`, each of whole keys."""
    if not len(keys):
        return []
    bounds = [0, *changes(keys).tolist(), len(keys)]
    cuts = [0]
    for at, after in pairwise(bounds):
        if at > cuts[-1] and after - cuts[-1] > CHUNK:
            cuts.append(at)
    return list(pairwise([*cuts, len(keys)]))


def key_by_key(keys: Keys) -> Ints:
    """Return the stable order of `keys`; small keys are counted, not compared."""
    if len(keys) and int(keys.max()) - int(keys.min()) < 2**16:
        keys = (keys - keys.min()).astype(np.uint16)
    return np.argsort(keys, kind="stable")


def span_of(rows: pl.DataFrame) -> int:
    """Return more than the time between begin and end of `rows`."""
    ts, dur = ints(rows["ts_ns"]), ints(rows["dur_ns"])
    return int(ts.max()) + int(dur.max()) - int(ts.min()) + 1


def _fits(rows: pl.DataFrame, by: str) -> bool:
    key = rows[by].to_numpy()
    keys = int(key.max()) - int(key.min()) + 1
    return keys == 1 or keys * span_of(rows) < LONGEST


def on_line(rows: pl.DataFrame, by: str) -> tuple[Ints, Ints, Ints]:
    """Return begin and end of each row on a line that holds key after key, and each row's shift."""
    key, ts, dur = rows[by].to_numpy(), ints(rows["ts_ns"]), ints(rows["dur_ns"])
    if key.min() == key.max():
        return ts, ts + dur, np.broadcast_to(np.int64(0), len(ts))
    shift = key.astype(np.int64)
    shift -= shift.min()
    shift *= span_of(rows)
    shift -= begin(rows)
    start = ts + shift
    return start, start + dur, shift
