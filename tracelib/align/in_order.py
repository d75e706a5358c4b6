"""How two sources' clocks compare by what both did in one order: leaving collectives, passing messages on.

The k-th collective of a group on one rank is the k-th on the other, and the k-th message that an engine sends
the k-th that its worker takes, however far their clocks are apart: order pairs what nearness cannot (20 us
undo the pairing of kernels that take 10). Where one recording began later, k is shifted: by so many that the
time from each event to the next is the same in both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.align.anchors import FAR_NS, MAX_DRIFT_PPB, MIN_ANCHORS, MIN_SHARE, Fit, straight_line
from tracelib.data import data
from tracelib.trace import Trace

Ints = NDArray[np.int64]

#: Beside which rules.toml lies.
PACKAGE = str(Path(__file__).parent)

#: How many of the likeliest shifts of k to try, besides none.
LAGS = 8
#: Ends of collectives that differ by no more than this are together whatever the rest of the run does.
TOGETHER_NS = 2_000
#: As many events on both sides that differ by no more are the same ones.
CLOSE_NS = 20_000
#: What the quickest messages take to their reader: shared memory takes tens of us, waking a reader as many.
QUICK_NS = 100_000
#: A call that takes so long to take a message waited for it. One that finds it there says nothing of when it
#: was sent.
WAITED_NS = QUICK_NS // 2


@dataclass(frozen=True)
class _Pairing:
    """A pairing of the second source's events with the first's: when they were, what to add to meet."""

    times: Ints
    missed: Ints
    spread_ns: float
    natural: bool  # both recordings cover the same events, but for a few at an end

    @property
    def shift_ns(self) -> float:
        return float(np.median(self.missed))


def fit_ends(first: pl.DataFrame, second: pl.DataFrame) -> Fit | None:
    """Return how `second`'s clock maps to `first`'s by ends of collectives, None if that is unclear.

    Both hold moments, `ts_ns` and `key`. `p50_ns` of the result is half of what four fifths of the residuals
    span: a shift beyond it is real.
    """
    ours, theirs = (_by_key(frame) for frame in (first, second))
    pairings = [_pairings(ours[key], theirs[key], _spread) for key in sorted(ours.keys() & theirs.keys())]
    kinds = [options for options in pairings if options]
    if not kinds:
        return None
    lead = max(kinds, key=lambda options: len(options[0].times))[0]
    chosen = [min(options, key=lambda each: abs(each.shift_ns - lead.shift_ns)) for options in kinds]
    times, missed = (np.concatenate([getattr(each, name) for each in chosen]) for name in ("times", "missed"))
    return _line_through(times, missed)


def fit_messages(sent: pl.DataFrame, taken: pl.DataFrame) -> Fit | None:
    """Return how the readers' clock maps to the senders', None if the messages that were taken do not tell.

    Both hold ends of calls, `ts_ns`, and whether they `waited`. A reader that waits has a message as soon as
    it was sent: of those that waited, many that take equally long and are the quickest show the clocks'
    difference, up to :data:`QUICK_NS`. One that is late finds its messages there, each as late as itself,
    which tells nothing.
    """
    ours, theirs = (np.sort(frame["ts_ns"].to_numpy()) for frame in (sent, taken))
    waits = taken.filter("waited")["ts_ns"].to_numpy()

    def awaited(times: Ints, missed: Ints) -> Ints:
        kept: Ints = missed[np.isin(times, waits)]
        return kept

    options = _pairings(ours, theirs, lambda times, missed: _haste(awaited(times, missed)))
    if not options:
        return None
    best = options[0]
    missed = awaited(best.times, best.missed)
    offset = QUICK_NS // 2 + _quickest(missed)
    halves = [_quickest(half) for half in np.array_split(missed, 2)]
    error = QUICK_NS + round(best.spread_ns) + abs(halves[0] - halves[1])  # those differ if the clocks drift
    return Fit(offset, 0, int(best.times[0]), len(missed), error // 2, error, error)


def messages(trace: Trace, direction: str) -> pl.DataFrame:
    """Return the ends of the outermost calls that send ("enqueue") or take ("dequeue") broadcast messages."""
    names = trace.slices["name"].unique()
    asked = names.filter(names.cast(pl.String).str.contains(_pattern(direction)))
    calls = trace.slices.filter(pl.col("name").is_in(asked.implode()), pl.col("dur_ns") > 0)
    ends = calls.sort("thread", "ts_ns", -pl.col("dur_ns")).with_columns(
        end=pl.col("ts_ns") + pl.col("dur_ns")
    )
    inside = pl.col("end").cum_max().over("thread").shift(1).over("thread") > pl.col("ts_ns")
    outer = ends.filter(~inside.fill_null(value=False))
    return outer.select(ts_ns="end", key=pl.lit("message"), waited=pl.col("dur_ns") >= WAITED_NS).sort(
        "ts_ns"
    )


@cache
def _pattern(direction: str) -> str:
    """Return what the names of calls in a direction look like; `rules.toml` says it."""
    rules = data(PACKAGE, "rules.toml")["slice"]
    return "|".join(f"(?:{rule['name']})" for rule in rules if rule.get("direction") == direction)


def _by_key(frame: pl.DataFrame) -> dict[str, Ints]:
    parts = frame.sort("ts_ns").partition_by("key", as_dict=True)
    return {str(key): part["ts_ns"].to_numpy() for (key,), part in parts.items()}


def _pairings(ours: Ints, theirs: Ints, spread: Callable[[Ints, Ints], float | None]) -> list[_Pairing]:
    """Return the pairings that fit, the likeliest first: an exactly repeating run fits at several."""
    surplus = len(ours) - len(theirs)
    found = []
    for lag in _lags(ours, theirs):
        first, second = max(0, -lag), min(len(theirs), len(ours) - lag)
        if second - first < max(MIN_ANCHORS, MIN_SHARE * min(len(ours), len(theirs))):
            continue
        times = theirs[first:second]
        missed = ours[first + lag : second + lag] - times
        width = spread(times, missed)
        if width is not None:
            natural = min(0, surplus) <= lag <= max(0, surplus)
            found.append(_Pairing(times, missed, width, natural))
            if width <= CLOSE_NS and lag == surplus == 0:
                return found[-1:]
    bound = max(TOGETHER_NS, 2 * min((each.spread_ns for each in found), default=0))
    alike = [each for each in found if each.spread_ns <= bound]
    return sorted(alike, key=lambda each: (not each.natural, abs(each.shift_ns)))


def _lags(ours: Ints, theirs: Ints) -> list[int]:
    """Return by how many events the second recording may have begun later: likely ones, and natural ones."""
    steps = [np.log(np.maximum(np.diff(ends), 1)) for ends in (ours, theirs)]
    if min(len(each) for each in steps) < MIN_ANCHORS - 1:
        return []
    size = 1 << sum(len(each) for each in steps).bit_length()
    spectra = [np.fft.rfft(each - each.mean(), size) for each in steps]
    alike = np.fft.irfft(spectra[0] * np.conj(spectra[1]), size)
    best = np.argpartition(alike, -LAGS)[-LAGS:]
    likely = {int(lag) if lag < len(ours) else int(lag) - size for lag in best}
    return [0, *sorted({len(ours) - len(theirs), *likely} - {0})]


def _spread(times: Ints, missed: Ints) -> float | None:
    line = _line_through(times, missed)
    return None if line is None else line.p50_ns


def _quickest(missed: Ints) -> int:
    return round(float(np.quantile(missed, 0.95)))


def _haste(missed: Ints) -> float | None:
    """Return how little the quickest fifth of messages differ, None if they differ, or are few."""
    if len(missed) < MIN_ANCHORS:
        return None
    width = _quickest(missed) - float(np.quantile(missed, 0.75))
    return width if width <= QUICK_NS else None


def _line_through(times: Ints, missed: Ints) -> Fit | None:
    pivot = int(np.median(times))
    offset, rate = straight_line((times - pivot).astype(float), missed.astype(float))
    rest = missed - offset - rate * (times - pivot)
    if np.mean(np.abs(rest) <= FAR_NS) < MIN_SHARE or abs(rate) * 1e9 > MAX_DRIFT_PPB:
        return None
    low, high = np.quantile(rest, (0.1, 0.9))
    p50, p99 = round((high - low) / 2), int(np.quantile(np.abs(rest), 0.99))
    return Fit(round(offset), round(rate * 1e9), pivot, len(times), p50, p99, max(p99, 1_000))
