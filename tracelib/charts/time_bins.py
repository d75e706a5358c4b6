"""Time cut into equal bins: how much of each bin any number of intervals covers, exactly."""

import numpy as np
import polars as pl
from numpy.typing import NDArray


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
