"""What two sources both saw, worked out once per source: the anchors that tie clocks and that check declared ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracelib.align import activity
from tracelib.align.anchors import KINDS
from tracelib.align.domains import source_row
from tracelib.align.fit import Fit, fit, residuals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelib.align.domains import Tie
    from tracelib.trace import Trace

__all__ = ["Check", "Evidence"]

#: Kinds of moments that mean the same on every host; all others are told by thread ids, which one host gives out.
ACROSS_HOSTS = ("ends of collectives",)
#: An answer this good need not be compared with what the other kinds of moments would say.
GOOD_NS = 10_000
#: A declared clock is contradicted if more than this share of a thread's absences is.
CONTRADICTED = 0.1
#: Two recordings of one run cover at least this part of the shorter one together.
MEET = 0.1
#: Of the moments of one source, the share that must have a partner near for a tie to count as checked by them.
CHECKED = 0.5


@dataclass(frozen=True)
class Check:
    """How two tied sources agree: `error_ns` at most, by `count` things of a `kind`; or `shift_ns` that would be needed."""

    kind: str
    count: int
    error_ns: int
    p50_ns: int | None = None
    p99_ns: int | None = None
    shift_ns: int = 0


@dataclass
class Evidence:
    """Anchors of each of `traces`, made when first asked for."""

    traces: Sequence[Trace]
    _made: dict[tuple[int, str], pl.DataFrame] = field(default_factory=dict)

    def _frame(self, index: int, what: str) -> pl.DataFrame:
        if (index, what) not in self._made:
            makers = {**dict(KINDS), "moments": activity.moments, "absences": activity.absences}
            self._made[index, what] = makers[what](self.traces[index])
        return self._made[index, what]

    def span(self, index: int) -> tuple[int, int] | None:
        """Return the first and last moment of a source's events, in its own clock."""
        frames = [
            getattr(self.traces[index], name)
            for name in ("slices", "gpu_ops", "samples", "sched", "counters")
        ]
        times = [frame["ts_ns"].to_numpy() for frame in frames if frame.height]
        return (min(int(at.min()) for at in times), max(int(at.max()) for at in times)) if times else None

    def _apart(self, one: int, other: int) -> bool:
        """Say whether two sources name different hosts, on which thread ids mean nothing to each other."""
        hosts = {source_row(self.traces[index])["host"] for index in (one, other)} - {None}
        return len(hosts) > 1

    def fit(self, tied: int, other: int, max_error_ns: int) -> Fit | None:
        """Return how source `other`'s clock maps to source `tied`'s, by the anchors that tell it best."""
        best: Fit | None = None
        for kind in (*dict(KINDS), "activity"):
            if kind not in ACROSS_HOSTS and self._apart(tied, other):
                continue
            found = self._activity(tied, other) if kind == "activity" else self._moments(tied, other, kind)
            if (
                found is not None
                and found.error_ns <= max_error_ns
                and (best is None or found.error_ns < best.error_ns)
            ):
                best = _of_kind(found, kind)
            if best is not None and best.error_ns <= GOOD_NS:
                break
        return best

    def _moments(self, tied: int, other: int, kind: str) -> Fit | None:
        first, second = self._frame(tied, kind), self._frame(other, kind)
        return fit(first, second) if first.height and second.height else None

    def _activity(self, tied: int, other: int) -> Fit | None:
        """Return the fit of one source's slices to the other's scheduler events, whichever has which."""
        found = self._ran(sched=tied, slices=other)
        if found is None:
            turned = self._ran(sched=other, slices=tied)
            found = None if turned is None else _inverse(turned)
        return found

    def _ran(self, *, sched: int, slices: int) -> Fit | None:
        if self.traces[sched].sched.is_empty() or self.traces[slices].slices.is_empty():
            return None
        return activity.activity_fit(self._frame(sched, "absences"), self._frame(slices, "moments"))

    def off_share(self, slices: int, sched: int, ties: Sequence[Tie]) -> float | None:
        """Return the share of a source's slices that begin while another's events have their thread off the CPU."""
        if self.traces[sched].sched.is_empty() or self.traces[slices].slices.is_empty():
            return None
        begins = self._frame(slices, "moments").filter("begin")
        return activity.off_share(
            _moved(begins, ties[slices], "at"),
            _moved(self._frame(sched, "absences"), ties[sched], "left", "came"),
        )

    def check(self, one: int, other: int, ties: Sequence[Tie], max_error_ns: int) -> Check | None:
        """Return how two tied sources agree, None if they share nothing that tells."""
        found = [self._check_activity(*pair, ties, max_error_ns) for pair in ((one, other), (other, one))]
        found += [
            self._check_moments(one, other, kind, ties, max_error_ns)
            for kind in dict(KINDS)
            if kind in ACROSS_HOSTS or not self._apart(one, other)
        ]
        known = [check for check in found if check is not None]
        wrong = [check for check in known if check.shift_ns]
        return min(wrong or known, key=lambda check: check.error_ns, default=None)

    def _check_activity(
        self, slices: int, sched: int, ties: Sequence[Tie], max_error_ns: int
    ) -> Check | None:
        if (
            self._apart(slices, sched)
            or self.traces[sched].sched.is_empty()
            or self.traces[slices].slices.is_empty()
        ):
            return None
        moments = _moved(self._frame(slices, "moments"), ties[slices], "at")
        off = _moved(self._frame(sched, "absences"), ties[sched], "left", "came")
        found = activity.bounds(moments, off)
        if found is None and _meet(moments, off):
            return None  # they cover a common time, and nothing in it tells
        if found is not None and found.contradicted <= CONTRADICTED and found.low_ns <= found.high_ns:
            return Check(
                "activity", found.absences, max(-found.low_ns, found.high_ns, found.low_ns, -found.high_ns)
            )
        return _check_of(activity.activity_fit(off, moments), "activity", max_error_ns)

    def _check_moments(
        self, one: int, other: int, kind: str, ties: Sequence[Tie], max_error_ns: int
    ) -> Check | None:
        first, second = (_moved(self._frame(index, kind), ties[index], "ts_ns") for index in (one, other))
        if first.is_empty() or second.is_empty():
            return None
        missed = np.abs(residuals(first, second, 0))
        times = [frame["ts_ns"].to_numpy() for frame in (first, second)]
        low, high = max(int(at[0]) for at in times), min(int(at[-1]) for at in times)
        common = min(int(((at >= low) & (at <= high)).sum()) for at in times)
        if common and len(missed) >= CHECKED * common and float(np.quantile(missed, 0.5)) <= GOOD_NS:
            p50, p99 = (int(np.quantile(missed, part)) for part in (0.5, 0.99))
            return Check(kind, len(missed), p99, p50, p99)
        return _check_of(fit(first, second), kind, max_error_ns)


def _meet(moments: pl.DataFrame, off: pl.DataFrame) -> bool:
    """Say whether both cover a common time, as recordings of one run do unless a clock is wrong."""
    if moments.is_empty() or off.is_empty():
        return True
    first = moments.select(low=pl.col("at").min(), high=pl.col("at").max()).row(0)
    second = off.select(low=pl.col("left").min(), high=pl.col("came").max()).row(0)
    common = min(first[1], second[1]) - max(first[0], second[0])
    return bool(common > MEET * min(first[1] - first[0], second[1] - second[0]))


def _check_of(better: Fit | None, kind: str, max_error_ns: int) -> Check | None:
    """Return what a fit of two tied clocks says of their ties: that they are wrong, or by how much they may be."""
    if better is None or better.error_ns > max_error_ns:
        return None
    if abs(better.offset_ns) > max_error_ns:
        return Check(
            kind, better.anchors, better.error_ns, better.p50_ns, better.p99_ns, shift_ns=better.offset_ns
        )
    return Check(kind, better.anchors, abs(better.offset_ns) + better.error_ns, better.p50_ns, better.p99_ns)


def _moved(frame: pl.DataFrame, tie: Tie, *columns: str) -> pl.DataFrame:
    return frame.with_columns(tie.moved(pl.col(column)).alias(column) for column in columns)


def _of_kind(found: Fit, kind: str) -> Fit:
    values: dict[str, Any] = {**vars(found), "kind": kind}
    return Fit(**values)


def _inverse(found: Fit) -> Fit:
    """Return the fit that maps the first source's clock to the second's."""
    drift = found.drift_ppb / 1e9
    values: dict[str, Any] = {
        **vars(found),
        "offset_ns": -found.offset_ns,
        "pivot_ns": found.pivot_ns + found.offset_ns,
        "drift_ppb": -round(drift / (1 + drift) * 1e9),
    }
    return Fit(**values)
