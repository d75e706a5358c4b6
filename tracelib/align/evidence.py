"""How two sources' clocks compare by what both saw: where they disagree, one of them is wrong.

What is compared, the surest first: switches, wake-ups and named ranges that both recorded (:mod:`.anchors`);
ends of collectives on two ranks and messages between two processes (:mod:`.in_order`); that a thread does
nothing while it is off the CPU (:mod:`.activity`); when threads were busy (:mod:`.rhythm`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import polars as pl

from tracelib.align import activity, rhythm
from tracelib.align.anchors import KINDS, Fit, fit, residuals
from tracelib.align.in_order import TOGETHER_NS, fit_ends, fit_messages, messages
from tracelib.align.ties import UNMOVED, UNTIED, Tie, source_row
from tracelib.trace import Trace

#: Moments that mean the same on every host; all others are told by thread ids, which one host gives out.
COLLECTIVES = "ends of collectives"
ACROSS_HOSTS = (COLLECTIVES,)
#: The calls that send and take broadcast messages, and what of them is compared.
MESSAGE, MESSAGES = ("enqueue", "dequeue"), "messages"
#: A clock that nothing measures better is accepted up to this estimated error; it is said with the tie.
COARSE_NS = 3_000_000
#: An answer this good need not be compared with what the other kinds of moments would say.
GOOD_NS = 10_000
#: A declared clock is contradicted if more than this share of a thread's absences is.
CONTRADICTED = 0.1
#: Two recordings of one run cover at least this part of the shorter one together.
MEET = 0.1
#: The share of a source's moments that must have a partner near, for a tie to count as checked by them.
CHECKED = 0.5

#: What of a trace is compared.
MAKERS: Mapping[str, Callable[[Trace], pl.DataFrame]] = {
    **KINDS,
    **{direction: partial(messages, direction=direction) for direction in MESSAGE},
    "moments": activity.moments,
    "absences": activity.absences,
    "on_cpu": rhythm.on_cpu,
    "sampled": rhythm.sampled,
}


@dataclass(frozen=True)
class Check:
    """How two tied sources agree, by `count` things of a `kind`.

    At most `error_ns` off each other; or they do not agree, and `shift_ns` would make them.
    """

    kind: str
    count: int
    error_ns: int
    p50_ns: int | None = None
    p99_ns: int | None = None
    shift_ns: int = 0


Compare = Callable[[int, int, Sequence[Tie]], Check | None]


@dataclass
class Evidence:
    """What each of `traces` can be compared by, computed when first asked for."""

    traces: Sequence[Trace]
    max_error_ns: int  # a fit that may be further off is not used
    _frames: dict[tuple[int, str], pl.DataFrame] = field(default_factory=dict)
    _fits: dict[tuple[int, int], Fit | None] = field(default_factory=dict)
    _checks: dict[tuple[object, ...], Check | None] = field(default_factory=dict)
    _spans: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    _ids: dict[int, set[int]] = field(default_factory=dict)

    def _frame(self, index: int, what: str) -> pl.DataFrame:
        if (index, what) not in self._frames:
            self._frames[index, what] = MAKERS[what](self.traces[index])
        return self._frames[index, what]

    def span(self, index: int) -> tuple[int, int] | None:
        """Return from when to when a source recorded, as far as it or its events tell, in its own clock."""
        if index not in self._spans:
            self._spans[index] = self._span(index)
        return self._spans[index]

    def _span(self, index: int) -> tuple[int, int] | None:
        trace, row = self.traces[index], source_row(self.traces[index])
        frames = (trace.slices, trace.gpu_ops, trace.samples, trace.sched, trace.counters)
        times = [frame["ts_ns"].to_numpy() for frame in frames if frame.height]
        ends = [int(end) for at in times for end in (at.min(), at.max())]
        ends += [
            row[name] for name in ("recorded_from_ns", "recorded_to_ns") if times and row[name] is not None
        ]
        return (min(ends), max(ends)) if ends else None

    def _apart(self, one: int, other: int) -> bool:
        """Say whether two sources name different hosts, on which thread ids mean nothing to each other."""
        hosts = {source_row(self.traces[index])["host"] for index in (one, other)} - {None}
        return len(hosts) > 1

    def groups(self, index: int) -> dict[str, int | None]:
        """Return the groups that a source's collectives name, and how many ranks each has, if known."""
        trace = self.traces[index]
        if self._frame(index, COLLECTIVES).is_empty():
            return {}
        named = trace.gpu_ops.filter(pl.col("collective").is_not_null())
        sizes = named.group_by(pl.col("group").cast(pl.String).fill_null("")).agg(pl.col("group_size").max())
        return dict(sizes.sort("group").iter_rows())

    def only_collectives(self, one: int, other: int) -> bool:
        """Say whether nothing but collectives can compare two sources: other hosts, or other processes."""
        if self._apart(one, other):
            return True
        traces = [self.traces[index] for index in (one, other)]
        if any(trace.sched.height or trace.samples.height for trace in traces):
            return False
        ranks = [source_row(trace)["rank"] for trace in traces]
        for index in (one, other):
            if index not in self._ids:
                self._ids[index] = processes(self.traces[index])
        differ = None not in ranks and ranks[0] != ranks[1]
        return differ or not self._ids[one] & self._ids[other]

    def _have_activity(self, *, slices: int, sched: int) -> bool:
        return self.traces[sched].sched.height > 0 and self.traces[slices].slices.height > 0

    def fit(self, tied: int, other: int) -> Fit | None:
        """Return how source `other`'s clock maps to source `tied`'s, by the anchors that tell it best."""
        if (tied, other) not in self._fits:
            self._fits[tied, other] = self._best_fit(tied, other)
        return self._fits[tied, other]

    def _best_fit(self, tied: int, other: int) -> Fit | None:
        best: Fit | None = None
        for kind in ACROSS_HOSTS if self._apart(tied, other) else (*KINDS, "activity"):
            if kind == "activity":
                way = self._fit_activity(tied, other)
            else:
                way = self._fit_moments(tied, other, kind)
            least = self.max_error_ns if best is None else best.error_ns - 1
            if way is not None and way.error_ns <= least:
                best = replace(way, kind=kind)
            if best is not None and best.error_ns <= GOOD_NS:
                break
        return best or self._coarse(tied, other)

    def _coarse(self, tied: int, other: int) -> Fit | None:
        """Return a fit that is good for more than single calls, where there is no better one."""
        way = (
            None
            if self._apart(tied, other)
            else self._fit_messages(tied, other, [UNMOVED] * len(self.traces))
        )
        return None if way is None or way.error_ns > COARSE_NS else replace(way, kind=MESSAGES)

    def _fit_messages(self, one: int, other: int, ties: Sequence[Tie]) -> Fit | None:
        """Return how source `other`'s clock maps to source `one`'s by messages of an engine and a worker."""
        works = [self.traces[index].gpu_ops.height > 0 for index in (one, other)]
        if works[0] == works[1]:  # workers of one group do not write to each other
            return None
        for sender, reader in ((one, other), (other, one)):
            frames = [self._frame(index, what) for index, what in zip((sender, reader), MESSAGE, strict=True)]
            if any(frame.is_empty() for frame in frames):
                continue
            way = fit_messages(
                *(
                    _moved(frame, ties[at], "ts_ns")
                    for frame, at in zip(frames, (sender, reader), strict=True)
                )
            )
            if way is not None:
                return way if sender == one else way.inverse()
        return None

    def _fit_moments(self, tied: int, other: int, kind: str) -> Fit | None:
        first, second = self._frame(tied, kind), self._frame(other, kind)
        return _fit_of(first, second, kind) if first.height and second.height else None

    def _fit_activity(self, tied: int, other: int) -> Fit | None:
        """Return the fit of one source's slices to the other's scheduler events, whichever has which."""
        if self._have_activity(sched=tied, slices=other):
            forward = activity.activity_fit(self._frame(tied, "absences"), self._frame(other, "moments"))
            if forward is not None:
                return forward
        if self._have_activity(sched=other, slices=tied):
            backward = activity.activity_fit(self._frame(other, "absences"), self._frame(tied, "moments"))
            return None if backward is None else backward.inverse()
        return None

    def rhythm(self, index: int, ties: Sequence[Tie | None]) -> tuple[Fit, int] | None:
        """Return how a source's clock maps to the timeline by when threads were busy, None if unclear.

        All sources that are tied speak together, of which the second number names one. The fit is exact where
        threads were off the CPU often enough, else good to a millisecond.
        """
        others = {
            at: tie
            for at, tie in enumerate(ties)
            if tie is not None and at != index and not self._apart(at, index)
        }
        own, trace = {index: UNMOVED}, self.traces[index]
        if max(trace.slices.height, trace.sched.height, trace.samples.height) < rhythm.ENOUGH:
            return None
        for ran in ("on_cpu", "sampled"):
            if self._frame(index, ran).height:
                backward, compared = self._in_rhythm(own, others, ran), "moments"
                way = None if backward is None else backward.inverse()
            else:
                way, compared = self._in_rhythm(others, own, ran), ran
            if way is not None:
                return way, max(others, key=lambda at: self._frame(at, compared).height)
        return None

    def _in_rhythm(self, kernel: Mapping[int, Tie], slices: Mapping[int, Tie], ran: str) -> Fit | None:
        """Return how the clock of `slices`, sources that saw threads do things, maps to that of `kernel`."""
        if not kernel or not slices:
            return None
        times, moments = self._pooled(kernel, ran, "begin", "end"), self._pooled(slices, "moments", "at")
        rough = rhythm.rhythm_fit(times, moments)
        if rough is None or rough.error_ns > COARSE_NS:
            return None
        exact = activity.refined(self._pooled(kernel, "absences", "left", "came"), moments, rough)
        agree = exact is not None and abs(exact.offset_ns - rough.offset_ns) <= rough.error_ns
        return exact if agree else rough

    def _pooled(self, ties: Mapping[int, Tie], what: str, *columns: str) -> pl.DataFrame:
        return pl.concat([_moved(self._frame(at, what), tie, *columns) for at, tie in ties.items()])

    def off_share(self, slices: int, sched: int, ties: Sequence[Tie]) -> float | None:
        """Return the share of a source's slices that begin while their thread is off the CPU in another's."""
        if not self._have_activity(slices=slices, sched=sched):
            return None
        begins = self._frame(slices, "moments").filter("begin")
        absences = self._frame(sched, "absences")
        return activity.off_share(
            _moved(begins, ties[slices], "at"), _moved(absences, ties[sched], "left", "came")
        )

    def check(self, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        """Return how two tied sources agree, None if they share nothing that tells."""
        return self._kept(self._check, one, other, ties)

    def check_ends(self, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        """Return how two tied ranks agree by their collectives."""
        return self._kept(self._check_ends, one, other, ties)

    def _kept(self, make: Compare, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        """Return what `make` finds; the same sources are checked again when a third one was tied anew."""
        key = (make.__name__, one, other, ties[one], ties[other])
        if key not in self._checks:
            self._checks[key] = make(one, other, ties)
        return self._checks[key]

    def _check_ends(self, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        return self._check_moments(one, other, COLLECTIVES, ties)

    def _check(self, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        apart = self._apart(one, other)
        kinds = ACROSS_HOSTS if apart else KINDS
        pairs = () if apart else ((one, other), (other, one))
        checks = [self._check_activity(*pair, ties) for pair in pairs]
        checks += [self._check_moments(one, other, kind, ties) for kind in kinds]
        checks += [] if apart else [self._check_messages(one, other, ties)]
        telling = [check for check in checks if check is not None]
        wrong = [check for check in telling if check.shift_ns]
        return min(wrong or telling, key=lambda check: check.error_ns, default=None)

    def _check_activity(self, slices: int, sched: int, ties: Sequence[Tie]) -> Check | None:
        if not self._have_activity(slices=slices, sched=sched):
            return None
        moments = _moved(self._frame(slices, "moments"), ties[slices], "at")
        off = _moved(self._frame(sched, "absences"), ties[sched], "left", "came")
        limits = activity.bounds(moments, off)
        if limits is None and _meet(moments, off):
            return None  # they cover a common time, and nothing in it tells
        if limits is not None and limits.contradicted <= CONTRADICTED and limits.low_ns <= limits.high_ns:
            return Check("activity", limits.absences, limits.error_ns)
        return self._check_of(activity.activity_fit(off, moments), "activity")

    def _check_messages(self, one: int, other: int, ties: Sequence[Tie]) -> Check | None:
        way = self._fit_messages(one, other, ties)
        if way is None:
            return None
        shift = way.offset_ns if abs(way.offset_ns) > way.error_ns else 0
        return Check(MESSAGES, way.anchors, abs(way.offset_ns) + way.error_ns, shift_ns=shift)

    def check_rhythm(self, index: int, ties: Sequence[Tie | None]) -> tuple[Check, int] | None:
        """Return how a tied source agrees with all others, None if that is unclear, and one of those."""
        tie, found = ties[index] or UNTIED, self.rhythm(index, ties)
        if found is None:
            return None
        way, through = found
        off = way.at(way.pivot_ns) - tie.at(way.pivot_ns)
        shift = off if abs(off) > way.error_ns else 0
        return Check("activity", way.anchors, abs(off) + way.error_ns, shift_ns=shift), through

    def _check_moments(self, one: int, other: int, kind: str, ties: Sequence[Tie]) -> Check | None:
        if any(self._frame(index, kind).is_empty() for index in (one, other)):
            return None
        first, second = (_moved(self._frame(index, kind), ties[index], "ts_ns") for index in (one, other))
        if kind == COLLECTIVES and (ordered := fit_ends(first, second)) is not None:
            return _check_in_order(ordered, second["ts_ns"])
        missed = np.abs(residuals(first, second))
        times = [frame["ts_ns"].to_numpy() for frame in (first, second)]
        low, high = max(int(at[0]) for at in times), min(int(at[-1]) for at in times)
        common = min(int(((at >= low) & (at <= high)).sum()) for at in times)
        if common and len(missed) >= CHECKED * common and float(np.quantile(missed, 0.5)) <= GOOD_NS:
            p50, p99 = (int(np.quantile(missed, part, method="inverted_cdf")) for part in (0.5, 0.99))
            return Check(kind, len(missed), p99, p50, p99)
        return self._check_of(fit(first, second), kind)

    def _check_of(self, better: Fit | None, kind: str) -> Check | None:
        """Return what a fit of two tied clocks says of their ties: wrong, or by how much they may be off."""
        if better is None or better.error_ns > self.max_error_ns:
            return None
        shift, error = better.offset_ns, better.error_ns
        if abs(shift) <= self.max_error_ns:
            shift, error = 0, abs(shift) + error
        return Check(kind, better.anchors, error, better.p50_ns, better.p99_ns, shift)


def _fit_of(first: pl.DataFrame, second: pl.DataFrame, kind: str) -> Fit | None:
    ordered = fit_ends(first, second) if kind == COLLECTIVES else None
    return ordered or fit(first, second)


def _check_in_order(found: Fit, times: pl.Series) -> Check:
    """Return what ends of collectives prove, however little: more than their own spread is a wrong clock."""
    shift = max((found.at(int(at)) for at in (times[0], found.pivot_ns, times[-1])), key=abs)
    wrong = abs(shift) > max(found.p50_ns, TOGETHER_NS)
    return Check(
        COLLECTIVES, found.anchors, found.error_ns, found.p50_ns, found.p99_ns, shift if wrong else 0
    )


def processes(trace: Trace) -> set[int]:
    """Return the ids of processes with slices."""
    active = trace.slices["thread"].unique().drop_nulls().implode()
    return set(trace.threads.filter(pl.col("thread").is_in(active))["pid"].drop_nulls().to_list()) - {0, -1}


def _meet(moments: pl.DataFrame, off: pl.DataFrame) -> bool:
    """Say whether both cover a common time, as recordings of one run do unless a clock is wrong."""
    if moments.is_empty() or off.is_empty():
        return True
    first = moments.select(low=pl.col("at").min(), high=pl.col("at").max()).row(0)
    second = off.select(low=pl.col("left").min(), high=pl.col("came").max()).row(0)
    common = min(first[1], second[1]) - max(first[0], second[0])
    return bool(common > MEET * min(first[1] - first[0], second[1] - second[0]))


def _moved(frame: pl.DataFrame, tie: Tie, *columns: str) -> pl.DataFrame:
    return frame.with_columns(tie.moved(pl.col(column)).alias(column) for column in columns)
