"""How two ranks' clocks compare by the collectives that both took part in: the ranks leave each one together.

The k-th collective of a group on one rank is the k-th on the other, however far their clocks are apart, so order
pairs the ends where nearness cannot: 20 us undo the pairing of kernels that take 10. Where one recording began
later, k is shifted: by so many that the time from each end to the next is the same on both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelib.align.anchors import FAR_NS, MAX_DRIFT_PPB, MIN_ANCHORS, MIN_SHARE, Fit, straight_line

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: How many of the likeliest shifts of k to try, besides none.
LAGS = 8
#: Ends that differ by no more than this are together whatever the rest of the run does.
TOGETHER_NS = 2_000


@dataclass(frozen=True)
class _Pairing:
    """A pairing of two ranks' ends of one kind: when the second's were, and what must be added to meet the first's."""

    times: Ints
    missed: Ints
    spread_ns: float

    @property
    def shift_ns(self) -> float:
        return float(np.median(self.missed))


def fit_in_order(first: pl.DataFrame, second: pl.DataFrame) -> Fit | None:
    """Return how `second`'s clock maps to `first`'s, None if the order of their collectives does not tell.

    Both hold moments, `ts_ns` and `key`. `p50_ns` of the result is half of what four fifths of the residuals
    span: a shift beyond it is real.
    """
    kinds = _paired(first, second)
    if not kinds:
        return None
    lead = max(kinds, key=lambda options: len(options[0].times))[0]
    chosen = [min(options, key=lambda each: abs(each.shift_ns - lead.shift_ns)) for options in kinds]
    times, missed = (np.concatenate([getattr(each, name) for each in chosen]) for name in ("times", "missed"))
    return _line_through(times, missed)


def _paired(first: pl.DataFrame, second: pl.DataFrame) -> list[list[_Pairing]]:
    """Return, of each kind of collective that both have, the pairings that fit, the best first."""
    ours, theirs = (_by_key(frame) for frame in (first, second))
    pairings = [_pairings(ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys())]
    return [options for options in pairings if options]


def _by_key(frame: pl.DataFrame) -> dict[str, Ints]:
    parts = frame.sort("ts_ns").partition_by("key", as_dict=True)
    return {str(key): part["ts_ns"].to_numpy() for (key,), part in parts.items()}


def _pairings(ours: Ints, theirs: Ints) -> list[_Pairing]:
    found = [pairing for lag in _lags(ours, theirs) if (pairing := _pairing(ours, theirs, lag)) is not None]
    if not found:
        return []
    bound = max(TOGETHER_NS, 2 * min(each.spread_ns for each in found))
    # A run that repeats itself exactly fits at several: the declared clocks are most likely right.
    alike = [each for each in found if each.spread_ns <= bound]
    return sorted(alike, key=lambda each: abs(each.shift_ns))


def _lags(ours: Ints, theirs: Ints) -> list[int]:
    """Return by how many collectives the second recording may have begun later: likely ones, and none."""
    steps = [np.log(np.maximum(np.diff(ends), 1)) for ends in (ours, theirs)]
    size = 1 << sum(len(each) for each in steps).bit_length()
    spectra = [np.fft.rfft(each - each.mean(), size) for each in steps if len(each)]
    if len(spectra) < 2:
        return []
    alike = np.fft.irfft(spectra[0] * np.conj(spectra[1]), size)
    best = np.argpartition(alike, -LAGS)[-LAGS:]
    return sorted({0, *(int(lag) if lag < len(ours) else int(lag) - size for lag in best)})


def _pairing(ours: Ints, theirs: Ints, lag: int) -> _Pairing | None:
    """Return the k-th of `theirs` with the k + `lag`-th of `ours`, None if they do not end together."""
    first, second = max(0, -lag), min(len(theirs), len(ours) - lag)
    if second - first < max(MIN_ANCHORS, MIN_SHARE * min(len(ours), len(theirs))):
        return None
    times = theirs[first:second]
    missed = ours[first + lag : second + lag] - times
    line = _line_through(times, missed)
    return None if line is None else _Pairing(times, missed, line.p50_ns)


def _line_through(times: Ints, missed: Ints) -> Fit | None:
    pivot = int(np.median(times))
    offset, rate = straight_line((times - pivot).astype(float), missed.astype(float))
    rest = missed - offset - rate * (times - pivot)
    if np.mean(np.abs(rest) <= FAR_NS) < MIN_SHARE or abs(rate) * 1e9 > MAX_DRIFT_PPB:
        return None
    low, high = np.quantile(rest, (0.1, 0.9))
    p99 = int(np.quantile(np.abs(rest), 0.99))
    return Fit(
        round(offset), round(rate * 1e9), pivot, len(times), round((high - low) / 2), p99, max(p99, 1_000)
    )
