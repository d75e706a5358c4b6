"""Time cut into equal bins: how much of each bin a set of intervals covers, exactly, however many intervals there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["cover", "edges", "log_edges", "occupancy"]


def edges(start_ns: int, end_ns: int, bins: int) -> NDArray[np.int64]:
    """Return the `bins` + 1 borders of equal bins over ``[start_ns, end_ns)``, whole nanoseconds."""
    bins = max(1, min(bins, end_ns - start_ns))
    return start_ns + (np.arange(bins + 1, dtype=np.int64) * (end_ns - start_ns)) // bins


def cover(ts_ns: pl.Series, dur_ns: pl.Series, borders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nanoseconds that the intervals spend in each bin; intervals that overlap count each.

    The time covered before t is a sum of ramps: over all starts s <= t of (t - s), less over all ends e <= t of (t - e).
    """
    base = borders[0]
    starts = np.sort(ts_ns.to_numpy() - base)
    ends = np.sort((ts_ns + dur_ns).to_numpy() - base)
    return np.diff(_ramps(starts, borders - base) - _ramps(ends, borders - base))


def _ramps(corners: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
    passed = np.searchsorted(corners, at, side="right")
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(corners)])
    result: NDArray[np.int64] = passed * at - sums[passed]
    return result


def occupancy(
    pieces: pl.DataFrame, states: list[str], borders: NDArray[np.int64], column: str = "state"
) -> NDArray[np.float64]:
    """Return a row per state and a column per bin: the share (0..1, more where pieces overlap) of the bin in that state.

    `pieces` has `ts_ns`, `dur_ns` and `column`.
    """
    width = np.diff(borders)
    rows = []
    for state in states:
        own = pieces.filter(pl.col(column).cast(pl.String) == state)
        rows.append(cover(own["ts_ns"], own["dur_ns"], borders) / width)
    return np.array(rows).reshape(len(states), len(width))


def log_edges(values: pl.Series, per_decade: int = 6) -> NDArray[np.float64]:
    """Return borders of equal ratio that hold every positive value; at least one bin."""
    positive = values.filter(values > 0)
    low, high = positive.min(), positive.max()
    first = np.floor(np.log10(float(low)) * per_decade) if low is not None else 0.0  # type: ignore[arg-type]
    last = np.floor(np.log10(float(high)) * per_decade) + 1 if high is not None else 1.0  # type: ignore[arg-type]
    result: NDArray[np.float64] = 10 ** (np.arange(first, last + 1) / per_decade)
    return result
