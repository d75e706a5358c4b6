"""Whether what a profiler saw threads do agrees with when the scheduler let them run, and by which shift.

A thread does nothing while it is off the CPU: no slice of it can begin or end there. Each time that a thread
is provably off therefore bounds the shift between the profiler's clock and the scheduler's from both sides,
by the last thing the thread did before and the first thing it did after. Off for certain is the time from a
switch away from the thread to its next event, if that is a switch back or its wake-up; recorders lose
switches, so nothing else counts.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.align.anchors import MAX_DRIFT_PPB, Fit
from tracelib.schema import IDLE
from tracelib.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Of each thread that both know: when it left and came back, and the sorted moments when it was active.
Pairs = list[tuple[Ints, Ints, Ints]]

#: Fewer votes than this for a shift, and fewer slices in the common time, say nothing.
ENOUGH, FEW = 50, 12
#: So many slices may begin while their thread is off the CPU by a recorder's slip.
CHANCE = 3
#: Fewer absences than this bound nothing.
MIN_OFF = 12
#: A slice may seem to begin this long before its thread's switch-in: each recorder reads its clock elsewhere.
SLACK_NS = 20_000
#: Share of absences that may be contradicted: profilers cut the slices open when they start and stop.
TRIM = 0.01
ACTIVE = ("op", "runtime", "driver", "annotation", "python", "os")
#: For the search of an unknown shift: how many moments vote, over how long, and what one contradiction costs.
VOTERS, CHUNK_NS, PENALTY, PAIRS = 1_500, 3_000_000_000, 20, 1_000_000
#: By how much a drifting clock may be off at the ends of that time: no single shift fits exactly.
SMEAR_NS = 100_000
#: Clocks that something keeps in step drift less than this against each other.
PLAUSIBLE_DRIFT = 100e-6
#: Which parts of a rough fit's error to take it for unsure by, one after the other.
UNSURE = (1, 4, 16)
#: Another shift that does at least this well, relative to the best, makes the answer ambiguous.
RIVAL = 0.8


@dataclass(frozen=True)
class Bounds:
    """The shifts of the profiler's clock that `absences` of threads allow: `low_ns` to `high_ns`.

    `low_ns` > `high_ns`: no shift agrees. `error_ns` = how far off it can be at some time: the tightest
    limits are of different times, and a clock that drifts keeps clear of them all. `contradicted` = share of
    the absences during which their thread did something.
    """

    low_ns: int
    high_ns: int
    error_ns: int
    absences: int
    contradicted: float


def off_share(begins: pl.DataFrame, off: pl.DataFrame) -> float | None:
    """Return the share of slices that begin while their thread is off the CPU, None if too little is common.

    Both on one clock: `begins` as of :func:`moments`, `off` as of :func:`absences`.
    """
    common = begins.filter(pl.col("tid").is_in(off["tid"].unique().implode())).sort("at")
    if common.is_empty():
        return None
    inside = common.filter(pl.col("at").is_between(off["left"].min(), off["came"].max()))
    if inside.height < FEW:
        return None
    last = inside.join_asof(
        off.sort("left"), left_on="at", right_on="left", by="tid", check_sortedness=False, coalesce=False
    )
    away = (last["at"] > last["left"] + SLACK_NS) & (last["at"] < last["came"] - SLACK_NS)
    contradicted = int(away.fill_null(value=False).sum())
    return contradicted / inside.height if contradicted >= CHANCE else 0.0


def bounds(moments: pl.DataFrame, off: pl.DataFrame) -> Bounds | None:
    """Return which shifts of the moments agree with the absences, None if nothing tells (on one clock)."""
    pairs = _pairs(off, moments)
    centre = int(np.median(np.concatenate([at for _, _, at in pairs]))) if pairs else 0
    limits = _limits(pairs, 0.0, 0.0, centre, 2 * SLACK_NS)
    if limits is None:
        return None
    when, low, high = limits
    wrong = float(np.mean((low > SLACK_NS) | (high < -SLACK_NS)))
    room = _room(when, low, high, (int(when.min()), int(when.max())))
    return Bounds(_trimmed(low, "max"), _trimmed(high, "min"), room, len(low), wrong)


def activity_fit(off: pl.DataFrame, moments: pl.DataFrame) -> Fit | None:
    """Return how the moments' clock maps to that of the absences, None if nothing or several shifts fit."""
    pairs = _pairs(off, moments)
    for smear_ns in (0, SMEAR_NS):
        shift = _search(pairs, smear_ns)
        line = None if shift is None else _refined(pairs, *shift)
        if line is not None:
            return line
    return None


def refined(off: pl.DataFrame, moments: pl.DataFrame, rough: Fit) -> Fit | None:
    """Return the exact form of a rough fit of the moments' clock to that of the absences, None if none shows.

    Absences shorter than what is unsure tell nothing, so it begins with the long ones, where there are any.
    """
    pairs = _pairs(off, moments)
    for part in UNSURE if pairs else ():
        line = _refined(pairs, rough.offset_ns, rough.error_ns // part, rough.pivot_ns)
        if line is not None and line.error_ns <= rough.error_ns and _fits(pairs, line):
            return line
    return None


def _fits(pairs: Pairs, line: Fit) -> bool:
    """Say whether hardly an absence is contradicted, the short ones counted too."""
    limits = _limits(pairs, line.offset_ns, line.drift_ppb / 1e9, line.pivot_ns, 2 * SLACK_NS)
    return limits is not None and float(np.mean((limits[1] > SLACK_NS) | (limits[2] < -SLACK_NS))) <= TRIM


def moments(trace: Trace) -> pl.DataFrame:
    """Return when threads began and ended slices, moments at which they ran: tid, at, begin (or else end)."""
    slices = trace.slices.filter(pl.col("category").is_in(ACTIVE)).join(
        trace.threads.select("thread", "tid"), on="thread"
    )
    begins = slices.select("tid", at="ts_ns", begin=pl.lit(value=True))
    return pl.concat(
        [begins, slices.select("tid", at=pl.col("ts_ns") + pl.col("dur_ns"), begin=pl.lit(value=False))]
    )


def absences(trace: Trace) -> pl.DataFrame:
    """Return when threads were off the CPU for certain: tid, left, came.

    A thread that left its CPU still runnable comes back by a switch, one that slept by a wake-up or a switch.
    A sample of it, or a wake-up that it caused, in between proves that its coming back was not recorded.
    """
    switch = pl.col("event") == "switch"
    state = pl.col("prev_state").cast(pl.String)
    seen = [
        trace.sched.filter(switch).select("ts_ns", thread="prev", what=pl.lit("left"), state=state),
        trace.sched.filter(switch).select("ts_ns", thread="next", what=pl.lit("in"), state=None),
        trace.sched.filter(~switch).select("ts_ns", thread="next", what=pl.lit("woken"), state=None),
        trace.sched.filter(~switch).select("ts_ns", thread="prev", what=pl.lit("ran"), state=None),
        trace.samples.select("ts_ns", "thread", what=pl.lit("ran"), state=None),
    ]
    events = pl.concat(seen, how="vertical_relaxed").filter(pl.col("thread") != IDLE)
    following = events.sort("thread", "ts_ns", maintain_order=True).with_columns(
        came=pl.col("ts_ns").shift(-1).over("thread"), then=pl.col("what").shift(-1).over("thread")
    )
    back = (pl.col("then") == "in") | (
        (pl.col("then") == "woken") & (pl.col("state") != "R").fill_null(value=True)
    )
    gaps = following.filter(pl.col("what") == "left", back, pl.col("came") > pl.col("ts_ns"))
    named = gaps.join(trace.threads.select("thread", "tid"), on="thread")
    return named.select("tid", "came", left="ts_ns").sort("tid", "left")


def _pairs(off: pl.DataFrame, moments: pl.DataFrame) -> Pairs:
    out: Pairs = []
    common = off.select("tid").unique().join(moments.select("tid").unique(), on="tid").sort("tid")["tid"]
    for tid in common:
        gone = off.filter(pl.col("tid") == tid).sort("left")
        at = moments.filter(pl.col("tid") == tid)["at"].unique().sort()
        out.append((gone["left"].to_numpy(), gone["came"].to_numpy(), at.to_numpy()))
    return out


def _search(pairs: Pairs, smear_ns: int) -> tuple[int, int, int] | None:
    """Return the shift at which threads do most while on a CPU and nothing while off, its width, its time.

    Absences count from `smear_ns` after their begin to as much before their end. None if another shift does
    nearly as well: threads that were rarely off fit anywhere.
    """
    pairs = [
        (left[long] + smear_ns, came[long] - smear_ns, at)
        for left, came, at in pairs
        if (long := came - left > 2 * smear_ns).any()
    ]
    if not pairs:
        return None
    starts, ends, weights = [], [], []
    busiest = max(pairs, key=lambda pair: min(len(pair[0]), len(pair[2])))
    centre = int(np.median(busiest[2]))
    per_thread = max(1, VOTERS // len(pairs))
    for left, came, at in pairs:
        near = at[np.abs(at - centre) <= CHUNK_NS]
        voters = near[:: max(1, len(near) // per_thread)]
        if not len(voters):
            continue
        every = max(1, len(left) * len(voters) * len(pairs) // PAIRS)
        starts += [(left[::every, None] - voters).ravel(), left[0] - voters]
        ends += [(came[::every, None] - voters).ravel(), came[-1] - voters]
        weights += [np.full(starts[-2].size, -PENALTY), np.ones(len(voters), dtype=np.int64)]
    if not starts:
        return None
    begin, end, weight = np.concatenate(starts), np.concatenate(ends), np.concatenate(weights)
    at_edges = np.concatenate([begin, end])
    order = np.argsort(at_edges, kind="stable")
    edges = at_edges[order]
    score = np.cumsum(np.concatenate([weight, -weight])[order])
    best = int(np.argmax(score))
    first, last = _plateau(edges, score, best)
    elsewhere = (edges < first - 1_000_000) | (edges > last + 1_000_000)
    if score[best] < ENOUGH or (elsewhere.any() and score[elsewhere].max() > RIVAL * score[best]):
        return None
    return (first + last) // 2, last - first, centre


def _plateau(edges: Ints, score: Ints, best: int) -> tuple[int, int]:
    """Return the shifts round the best one that are nearly as good."""
    good = score >= RIVAL * score[best]
    low = best
    while low > 0 and good[low - 1]:
        low -= 1
    high = best
    while high + 1 < len(edges) and good[high]:
        high += 1
    return int(edges[low]), int(edges[high])


def _limits(
    pairs: Pairs, offset: float, rate: float, centre: int, unsure_ns: float, reach: int | None = None
) -> tuple[Floats, Floats, Floats] | None:
    """Return each absence's time and the least and most further shift, if it is twice `unsure_ns` long."""
    out: list[tuple[Floats, ...]] = []
    for left, came, at in pairs:
        middle = (left + came) // 2
        long = (came - left) > 2 * unsure_ns
        # The middle of the absence in the profiler's clock; the drift over the shift itself is below 1 ns.
        there = middle - offset - (middle - offset - centre) * rate
        inside = (there > at[0]) & (there < at[-1]) & long
        if reach is not None:
            inside &= np.abs(there - centre) <= reach
        after = np.searchsorted(at, there[inside])
        last, first = at[after - 1], at[np.minimum(after, len(at) - 1)]
        moved = [np.rint((x - centre) * rate + offset).astype(np.int64) + x for x in (first, last)]
        out.append((there[inside] - centre, came[inside] - moved[0], left[inside] - moved[1]))
    joined = [np.concatenate(parts).astype(float) for parts in zip(*out, strict=True)]
    if not joined or len(joined[0]) < MIN_OFF:
        return None
    return joined[0], joined[1], joined[2]


def _trimmed(limits: Floats, which: str) -> int:
    """Return the tightest limit but for the share that may be wrong."""
    spare = int(TRIM * len(limits))
    ordered = np.sort(limits)
    return round(float(ordered[-1 - spare] if which == "max" else ordered[spare]))


def _refined(pairs: Pairs, shift: int, width: int, centre: int) -> Fit | None:
    """Return the line that keeps clear of all absences by most, followed outwards from `centre`."""
    offset, rate, unsure = float(shift), 0.0, float(max(width, 100_000))
    span = max(int(max(at[-1] - centre, centre - at[0])) for _, _, at in pairs)
    turn, reach, count, margin = MAX_DRIFT_PPB / 2e9, 0, 0, 0.0
    while reach < span:
        reach = min(span, max(CHUNK_NS, reach * 4))
        for _ in range(3):
            limits = _limits(pairs, offset, rate, centre, unsure, reach)
            if limits is None:
                return None
            when, low, high = limits
            margin, add, more = _widest(when, low, high, turn)
            offset, rate, count = offset + add, rate + more, len(when)
            unsure = max(margin, 4 * SLACK_NS) if margin > 0 else unsure
            turn = min(turn, max(margin, SLACK_NS) / reach)
    if margin <= 0:
        return None
    first = min(int(at[0]) for _, _, at in pairs) - centre
    last = max(int(at[-1]) for _, _, at in pairs) - centre
    error = max(1_000, _room(when, low - add - more * when, high - add - more * when, (first, last)))
    return Fit(round(offset), round(rate * 1e9), centre, count, round(margin / 2), error, error)


def _room(when: Floats, low: Floats, high: Floats, edges: tuple[int, int]) -> int:
    """Return how far, within the run, other lines clear of all absences can be from the chosen one."""
    far = 0.0
    for drift in np.linspace(-PLAUSIBLE_DRIFT, PLAUSIBLE_DRIFT, 81):
        lowest, highest = _trimmed(low - drift * when, "max"), _trimmed(high - drift * when, "min")
        if lowest <= highest:
            far = max(far, *(abs(shift + drift * edge) for shift in (lowest, highest) for edge in edges))
    return round(far)


def _widest(when: Floats, low: Floats, high: Floats, turn: float) -> tuple[float, float, float]:
    """Return margin, shift and drift of the line with most room; without drift if that does as well."""
    lines = []
    for drift in np.linspace(-turn, turn, 81):
        lowest, highest = _trimmed(low - drift * when, "max"), _trimmed(high - drift * when, "min")
        lines.append((float(highest - lowest), (highest + lowest) / 2, float(drift)))
    best = max(lines)
    still = lines[len(lines) // 2]
    return still if still[0] > 0 and still[0] >= 0.5 * best[0] else best
