"""Moments that two recorders both saw, and the one shift, and drift, that makes them agree.

A moment is a row of `ts_ns`, in the source's own clock, and `key`, text that is equal in both sources for the
same kind of moment. Keys repeat (a thread leaves a CPU thousands of times). Every pair of moments with one
key votes for the shift between them; the true shift gets a vote from almost every moment, any other only by
chance or period. From the winning shift, moments are matched one after the other outwards, a line is fitted
through their differences, and the share of moments that meet a partner is compared with that of the
runners-up: a run that repeats itself exactly, one period later, fits as well, and then there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.schema import IDLE
from tracelib.trace import Trace

Ints = NDArray[np.int64]
#: Difference at a time, drift as a plain ratio, and that time.
Line = tuple[float, float, int]

#: Fewer common moments than this prove nothing.
MIN_ANCHORS = 12
#: Share of the moments in the common time that must meet a partner.
MIN_SHARE = 0.7
#: A second shift that does at least this well, relative to the best, makes the answer ambiguous.
RIVAL = 0.75
#: By chance, moments must meet less than this part of what the best line reaches; shifts that show chance.
CHANCE, DECOYS_NS = 0.4, (-23_456_789, -9_123_457, -3_701_235, 3_302_467, 8_765_431, 21_098_765)
#: Widths of the bins in which votes are counted: narrow for dense moments, wide for a drifting clock.
BINS_NS = (5_000, 25_000, 125_000, 600_000)
VOTERS, VOTES = 600, 300_000
#: Shifts to try of each width: how far a peak stands out compares within one width only.
CANDIDATES = 4
#: A moment whose nearest partner is farther away has none; and where residuals are looked for.
FAR_NS, NEAR_NS = 100_000, 200_000
CHUNKS = (0.5, 0.25, 0.75, 0.1, 0.9)
#: No clock of a machine that is in order drifts more.
MAX_DRIFT_PPB = 500_000


def _tids(trace: Trace, column: str) -> pl.Expr:
    """Return the kernel's thread ids for a column of local ones; the idle task is 0."""
    ids = {IDLE: 0, **dict(trace.threads.select("thread", "tid").iter_rows())}
    return pl.col(column).replace_strict(ids, default=None, return_dtype=pl.Int64)


def _moments(frame: pl.DataFrame, *parts: str) -> pl.DataFrame:
    return (
        frame.drop_nulls(["ts_ns", *parts])
        .select("ts_ns", key=pl.concat_str(*parts, separator=" "))
        .sort("ts_ns")
    )


def switches(trace: Trace) -> pl.DataFrame:
    """Return the switches between two named threads on a CPU: the same event in perf, ftrace and the like."""
    events = trace.sched.filter(pl.col("event") == "switch")
    return _moments(events.with_columns(a=_tids(trace, "prev"), b=_tids(trace, "next")), "cpu", "a", "b")


def wakeups(trace: Trace) -> pl.DataFrame:
    """Return the wake-ups of named threads."""
    events = trace.sched.filter(pl.col("event") == "wakeup")
    return _moments(events.with_columns(b=_tids(trace, "next")), "cpu", "b")


def switches_by_thread(trace: Trace) -> pl.DataFrame:
    """Return when each thread came to and left each CPU: nsys and perf both know, and name one side each."""
    events = trace.sched.filter(pl.col("event") == "switch")
    sides = [
        _moments(
            events.with_columns(a=_tids(trace, side), side=pl.lit(side)).filter(pl.col("a") > 0),
            "side",
            "cpu",
            "a",
        )
        for side in ("prev", "next")
    ]
    return pl.concat(sides).sort("ts_ns")


def named_ranges(trace: Trace) -> pl.DataFrame:
    """Return the starts of people's named ranges by thread: record_function in Kineto, NVTX in nsys."""
    ranges = trace.slices.filter(pl.col("category") == "annotation", pl.col("dur_ns") > 0)
    return _moments(
        ranges.with_columns(tid=_tids(trace, "thread"), text=pl.col("name").cast(pl.String)), "tid", "text"
    )


def collective_ends(trace: Trace) -> pl.DataFrame:
    """Return the ends of collectives: ranks of one group leave one together, within microseconds.

    The message size tells one collective of a group from the next where it is recorded, the sequence number
    better.
    """
    ops = trace.gpu_ops.filter(
        pl.col("collective").is_not_null() & ~pl.col("collective").cast(pl.String).is_in(["send", "recv"])
    )
    kinds = [pl.col(name).cast(pl.String).fill_null("") for name in ("collective", "group", "sequence")]
    return _moments(ops.select(pl.col("ts_ns") + pl.col("dur_ns"), *kinds), "collective", "group", "sequence")


#: What to compare in two sources, most telling first, and in what words to speak of it.
KINDS: dict[str, Callable[[Trace], pl.DataFrame]] = {
    "thread switches": switches,
    "switches by thread": switches_by_thread,
    "wake-ups": wakeups,
    "named ranges": named_ranges,
    "ends of collectives": collective_ends,
}


@dataclass(frozen=True)
class Fit:
    """Add ``offset_ns + drift_ppb * (t - pivot_ns) / 1e9`` to the second source's times to get the first."""

    offset_ns: int
    drift_ppb: int
    pivot_ns: int
    anchors: int
    p50_ns: int
    p99_ns: int
    error_ns: int
    kind: str = ""

    def at(self, time: int) -> int:
        """Return what must be added to a time of the second source."""
        return self.offset_ns + (time - self.pivot_ns) * self.drift_ppb // 1_000_000_000

    def inverse(self) -> Fit:
        """Return the fit that maps the first source's clock to the second's."""
        drift = self.drift_ppb / 1e9
        return replace(
            self,
            offset_ns=-self.offset_ns,
            pivot_ns=self.pivot_ns + self.offset_ns,
            drift_ppb=-round(drift / (1 + drift) * 1e9),
        )


class _Index:
    """The first source's moments, ready to be asked which one of a key is nearest to a time."""

    def __init__(self, times: Ints, keys: Ints) -> None:
        self.origin = int(times.min())
        self.reach = int(times.max()) - self.origin + 1
        self.stride = 1 << (self.reach + 2).bit_length()
        self.packed = np.sort(keys * self.stride + (times - self.origin) + 1)
        self.low, self.high = int(times.min()), int(times.max())

    def nearest(self, times: Ints, keys: Ints) -> Ints:
        """Return each time's difference to the nearest moment of its key; far away if there is none."""
        wanted = keys * self.stride + np.clip(times - self.origin + 1, 0, self.stride - 1)
        after = np.searchsorted(self.packed, wanted)
        best = np.full(len(times), self.stride, dtype=np.int64)
        for at in (after - 1, after):
            packed = self.packed[np.clip(at, 0, len(self.packed) - 1)]
            same = (packed // self.stride == keys) & (at >= 0) & (at < len(self.packed))
            difference = packed - keys * self.stride - 1 + self.origin - times
            best = np.where(same & (np.abs(difference) < np.abs(best)), difference, best)
        return best


def fit(first: pl.DataFrame, second: pl.DataFrame) -> Fit | None:
    """Return how `second`'s clock maps to `first`'s, None if too little is common or several shifts would do.

    Both hold moments: `ts_ns` and `key`.
    """
    first_times, first_keys, times, keys = _common(first, second)
    if len(times) < MIN_ANCHORS or len(first_times) < MIN_ANCHORS:
        return None
    index = _Index(first_times, first_keys)
    lines = [
        line
        for shift, centre, width in _candidates(first_times, first_keys, times, keys)
        if (line := _track(index, times, keys, shift, centre, width)) is not None
    ]
    if not lines:
        return None
    # All are judged by the sharpest one's measure: a line that fits loosely must not win by its looseness.
    missed = [_missed(index, times, keys, line) for line in lines]
    tight = max(2_000.0, 6 * min(float(np.median(miss[miss <= FAR_NS])) for miss in missed))
    shares = [float((miss <= tight).sum()) / len(miss) for miss in missed]
    best = int(np.argmax(shares))
    spread = [
        abs(_at(line, time) - _at(lines[best], time)) for line in lines for time in (times[0], times[-1])
    ]
    rivals = [
        share for share, *far in zip(shares, spread[::2], spread[1::2], strict=True) if max(far) > 4 * tight
    ]
    if shares[best] < MIN_SHARE or max(rivals, default=0.0) > RIVAL * shares[best]:
        return None
    if _by_chance(index, times, keys, lines[best], tight) > CHANCE * shares[best]:
        return None
    return _measured(lines[best], missed[best])


def residuals(first: pl.DataFrame, second: pl.DataFrame) -> Ints:
    """Return by how much `second`'s moments miss the nearest of `first`, where one is near."""
    first_times, first_keys, times, keys = _common(first, second)
    if not len(times) or not len(first_times):
        return np.empty(0, dtype=np.int64)
    missed = _Index(first_times, first_keys).nearest(times, keys)
    return missed[np.abs(missed) <= NEAR_NS]


def _common(first: pl.DataFrame, second: pl.DataFrame) -> tuple[Any, Any, Any, Any]:
    """Return times and numbered keys of both, for keys that both have."""
    both = first.select("key").unique().join(second.select("key").unique(), on="key").sort("key")
    numbered = both.with_row_index("number").with_columns(pl.col("number").cast(pl.Int64))
    out: list[Any] = []
    for frame in (first, second):
        rows = frame.join(numbered, on="key").sort("ts_ns")
        out += [rows["ts_ns"].to_numpy(), rows["number"].to_numpy()]
    return out[0], out[1], out[2], out[3]


def _candidates(first_times: Ints, first_keys: Ints, times: Ints, keys: Ints) -> list[tuple[int, int, int]]:
    """Return the most voted shifts, with the time of the voters and the width of their bins."""
    order = np.argsort(first_keys, kind="stable")
    by_key = np.searchsorted(first_keys[order], np.arange(int(first_keys.max()) + 2))
    peaks: list[tuple[float, int, int, int]] = []
    for where in CHUNKS:
        start = int(max(0, len(times) - VOTERS) * where)
        chunk = slice(start, start + VOTERS)
        shifts = _votes(times[chunk], keys[chunk], first_times[order], by_key)
        centre = int(np.median(times[chunk]))
        for width in BINS_NS:
            peaks += [(strength, shift, centre, width) for shift, strength in _peaks(shifts, width)]
    best: list[tuple[int, int, int]] = []
    for _, shift, centre, width in sorted(peaks, key=lambda item: (-item[0], item[3])):
        several = sum(narrow == width for _, _, narrow in best)
        if several < CANDIDATES and all(
            abs(shift - other) > 2 * min(width, narrow) for other, _, narrow in best
        ):
            best.append((shift, centre, width))
    return best


def _votes(times: Ints, keys: Ints, first_times: Ints, by_key: Ints) -> Ints:
    """Return the shift that each pair of a voter and a moment of its key stands for."""
    counts = by_key[keys + 1] - by_key[keys]
    rare_first = np.argsort(counts, kind="stable")
    affordable = int(np.searchsorted(np.cumsum(counts[rare_first]), VOTES // 2))
    common = rare_first[affordable:]  # of these, some from all over the chunk
    every = 1 + int(counts[common].sum()) // (VOTES // 2)
    within = np.concatenate([rare_first[:affordable], np.sort(common)[::every]])
    starts = by_key[keys[within]]
    repeat = counts[within]
    offsets = np.arange(int(repeat.sum())) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    shifts: Ints = first_times[np.repeat(starts, repeat) + offsets] - np.repeat(times[within], repeat)
    return shifts


def _peaks(shifts: Ints, width: int, count: int = 5) -> list[tuple[int, float]]:
    """Return the shifts with most votes, and by how many deviations they stand out of the other bins.

    Two neighbouring bins count as one, as a peak may straddle their edge.
    """
    if not len(shifts):
        return []
    bins, votes = np.unique(shifts // width, return_counts=True)
    following = np.where(np.append(np.diff(bins) == 1, False), np.append(votes[1:], 0), 0)
    both = votes + following
    usual = float(both.mean())
    peaks: list[tuple[int, float]] = []
    for at in np.argsort(-both, kind="stable")[: 4 * count]:
        if all(abs(int(bins[at]) * width - shift) > 2 * width for shift, _ in peaks):
            middle = int(bins[at] + (following[at] > 0)) * width
            peaks.append((middle, (float(both[at]) - usual) / usual**0.5))
    return peaks[:count]


def _at(line: Line, time: int) -> float:
    """Return the difference between the clocks at a time of the second."""
    offset, rate, centre = line
    return offset + (int(time) - centre) * rate


def _missed(index: _Index, times: Ints, keys: Ints, line: Line) -> Ints:
    """Return how far the moments in the common time are from their nearest partners."""
    offset, rate, centre = line
    moved = times + np.rint((times - centre) * rate + offset).astype(np.int64)
    common = (moved >= index.low - 1_000_000) & (moved <= index.high + 1_000_000)
    return np.abs(index.nearest(moved[common], keys[common]))


def _by_chance(index: _Index, times: Ints, keys: Ints, line: Line, tight: float) -> float:
    """Return the share of moments that meet a partner as closely under shifts that are surely wrong."""
    offset, rate, centre = line
    wrong = [_missed(index, times, keys, (offset + decoy, rate, centre)) for decoy in DECOYS_NS]
    return float(np.median([(miss <= tight).sum() / max(1, len(miss)) for miss in wrong]))


def _track(index: _Index, times: Ints, keys: Ints, shift: int, centre: int, width: int) -> Line | None:
    """Return the line through the differences of matched moments, followed outwards from `centre`."""
    offset, rate, reach, tolerance = float(shift), 0.0, 0, 2 * width
    span = int(max(times.max() - centre, centre - times.min()))
    while reach < span:
        # Start with what the voters spanned: the rate is known well enough to look four times as far.
        reach = min(span, max(1_000_000_000, reach * 4))
        inside = np.abs(times - centre) <= reach
        for _ in range(6):
            moved = (times[inside] - centre) * rate + offset
            missed = index.nearest(times[inside] + np.rint(moved).astype(np.int64), keys[inside])
            close = np.abs(missed) <= tolerance
            if close.sum() < MIN_ANCHORS:
                return None
            add, turn = straight_line(
                (times[inside][close] - centre).astype(float), missed[close].astype(float)
            )
            offset, rate = offset + add, rate + turn
            scale = float(np.median(np.abs(missed[close] - np.median(missed[close]))))
            tolerance = int(min(tolerance, max(2_000, 12 * scale)))
        if abs(rate) * 1e9 > MAX_DRIFT_PPB:
            return None
        tolerance = max(tolerance, 20_000)
    common = _missed(index, times, keys, (offset, rate, centre))
    return (offset, rate, centre) if (common <= FAR_NS).sum() >= MIN_ANCHORS else None


def straight_line(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return offset and slope through the bulk of the points: least squares near the median, repeated."""
    offset, slope = float(np.median(y)), 0.0
    for _ in range(3):
        rest = np.abs(y - offset - slope * x)
        keep = rest <= max(500.0, 3 * float(np.median(rest)))
        if keep.sum() < MIN_ANCHORS or float(np.ptp(x[keep])) < 1e8:
            break
        slope, offset = (float(value) for value in np.polyfit(x[keep], y[keep], 1))
    return offset, slope


def _measured(line: Line, missed: Ints) -> Fit:
    matched = missed[missed <= FAR_NS]
    p50, p99 = (int(np.quantile(matched, part, method="inverted_cdf")) for part in (0.5, 0.99))
    offset, rate, centre = line
    return Fit(round(offset), round(rate * 1e9), centre, len(matched), p50, p99, max(p99, 1_000))
