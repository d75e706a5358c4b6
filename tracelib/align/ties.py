"""How a source's times map to the timeline, as far as the file or the user says it.

A :class:`Tie` maps a file's own times to the timeline. Declared clocks (docs/numbers.md, Alignment): Kineto's
base + ts is wall time, an nsys session starts at a wall time, perf's `reference time` header pairs its clock
with wall time. Two sources of one host that name the same steady clock (perf `-k mono` and ftrace's `mono`)
share it, so one pair ties both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import polars as pl

from tracelib.align.anchors import Fit
from tracelib.clocks import LONGEST_NS, STEADY, TRACE_CLOCKS
from tracelib.errors import BadParameter
from tracelib.sources import format_named
from tracelib.trace import Trace

BILLION = 1_000_000_000
#: A row of `health`: source, level, message, fix.
Remark = tuple[int | None, str, str, str]


@dataclass(frozen=True)
class Tie:
    """How one source's times map to the timeline: ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9``.

    `method` is declared, user, anchors, reference (this source's clock is the timeline) or untied; `against`
    names the source whose clock it was tied through; `anchors` counts what two sources both saw, `p50_ns` and
    `p99_ns` are the residuals of those, `error_ns` is what the tie is good for.
    """

    method: str
    offset_ns: int = 0
    drift_ppb: int = 0
    pivot_ns: int = 0
    error_ns: int | None = None
    against: str | None = None
    anchors: int = 0
    p50_ns: int | None = None
    p99_ns: int | None = None
    kind: str = ""

    def at(self, time: int) -> int:
        """Return what is added to a time of the source."""
        return self.offset_ns + (time - self.pivot_ns) * self.drift_ppb // BILLION

    def moved(self, times: pl.Expr) -> pl.Expr:
        """Return `times` on the timeline; monotone, so nesting and order survive."""
        shifted = times + self.offset_ns
        if not self.drift_ppb:
            return shifted
        # Whole microseconds times ppb stay far below 2^63 for any run; what is lost drifts less than 1 ns.
        return shifted + ((times - self.pivot_ns) // 1000 * self.drift_ppb) // (BILLION // 1000)


UNTIED, UNMOVED = Tie("untied"), Tie("reference")


def source_row(trace: Trace) -> dict[str, Any]:
    """Return the row of `sources` of a trace of one file."""
    return trace.sources.row(0, named=True)


def with_ftrace_clock(traces: Sequence[Trace], clock: str | None) -> list[Trace]:
    """Return the traces with the clock of ftrace files set to what the user says (`trace_clock`'s own names).

    Raises BadParameter if the kernel has no trace clock of that name.
    """
    if clock is None:
        return list(traces)
    if clock not in TRACE_CLOCKS:
        raise BadParameter("ftrace_clock", clock, TRACE_CLOCKS)
    named = pl.lit(TRACE_CLOCKS[clock])
    return [
        trace.replace(sources=trace.sources.with_columns(clock=named))
        if format_named(source_row(trace)["format"]).clock_from_user
        else trace
        for trace in traces
    ]


def with_clock_pairs(traces: Sequence[Trace], wall_offsets: Mapping[str, int]) -> list[Trace]:
    """Return the traces, tied to wall time if they declare no tie and name a clock in `wall_offsets`.

    `wall_offsets` maps a clock to what must be added to get wall time, read on the host of these traces.
    """
    paired = []
    for trace in traces:
        row = source_row(trace)
        if row["wall_offset_ns"] is None and row["clock"] in wall_offsets:
            offset = pl.lit(wall_offsets[row["clock"]], pl.Int64)
            paired.append(trace.replace(sources=trace.sources.with_columns(wall_offset_ns=offset)))
        else:
            paired.append(trace)
    return paired


def declared_tie(row: Mapping[str, Any]) -> Tie | None:
    """Return the tie to wall time that the file itself declares, None if it declares none."""
    return None if row["wall_offset_ns"] is None else Tie("declared", int(row["wall_offset_ns"]))


def user_offset(file: str, offsets: Mapping[str, int]) -> Tie | None:
    """Return the user's tie for `file`: the entry with its name, else the first whose glob matches."""
    own = offsets.get(file)
    ns = own if own is not None else next((ns for name, ns in offsets.items() if fnmatch(file, name)), None)
    if ns is not None and abs(ns) > LONGEST_NS:
        raise BadParameter("offsets", ns, [f"ns from {-LONGEST_NS} to {LONGEST_NS}"])
    return None if ns is None else Tie("user", int(ns))


def unmatched_offsets(files: Sequence[str], offsets: Mapping[str, int]) -> list[str]:
    """Return the names and globs in `offsets` that match no file: most likely a slip of the pen."""
    return [
        pattern for pattern in offsets if not any(file == pattern or fnmatch(file, pattern) for file in files)
    ]


def shared_clock_tie(row: Mapping[str, Any], others: Sequence[tuple[Mapping[str, Any], Tie]]) -> Tie | None:
    """Return the tie of a source that names the same steady clock on the same host, None if there is none.

    An ftrace text does not name its host; a clock shared with sources of two hosts is not decided here.
    """
    if row["clock"] not in STEADY:
        return None
    same = [
        (other, tie)
        for other, tie in others
        if other["clock"] == row["clock"] and (row["host"] is None or other["host"] in (None, row["host"]))
    ]
    if len({other["host"] for other, _ in same}) != 1:
        return None
    other, tie = same[0]
    return Tie("declared", tie.offset_ns, tie.drift_ppb, tie.pivot_ns, tie.error_ns, against=other["file"])


def tie_through(fit: Fit, against: Tie, file: str) -> Tie:
    """Return the tie of a source that `fit` maps to the clock of a source tied by `against`."""
    at_pivot = fit.pivot_ns + fit.offset_ns
    drifted = (at_pivot - against.pivot_ns) * against.drift_ppb // BILLION
    return Tie(
        "anchors",
        fit.offset_ns + against.offset_ns + drifted,
        fit.drift_ppb + against.drift_ppb,
        fit.pivot_ns,
        fit.error_ns + (against.error_ns or 0),
        against=file,
        anchors=fit.anchors,
        p50_ns=fit.p50_ns,
        p99_ns=fit.p99_ns,
        kind=fit.kind,
    )
