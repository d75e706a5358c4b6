"""Where a source's clock stands by declaration or by the user's word, before anything is measured.

A :class:`Tie` maps a file's own times to the timeline. Declared clocks (ATTRIBUTION.md, Alignment; FORMATS.md 1.5):
Kineto's base + ts is wall time, an nsys session starts at a wall time, perf's `reference time` header pairs its clock
with wall time. Two sources of one host that name the same steady clock (perf `-k mono` and ftrace's `mono`) share it, so
one pair ties both.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.errors import BadParameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelib.trace import Trace

__all__ = [
    "FTRACE_CLOCKS",
    "Tie",
    "declared_tie",
    "shared_clock_tie",
    "source_row",
    "user_offset",
    "with_clock_pairs",
    "with_ftrace_clock",
]

BILLION = 1_000_000_000
#: Kernel names of trace clocks, and the clock that each reads; the others do not compare to any other source's clock.
FTRACE_CLOCKS = {
    "mono": "monotonic",
    "mono_raw": "monotonic_raw",
    "boot": "boottime",
    "tai": "tai",
    "local": "local",
    "global": "local",
    "perf": "local",
    "uptime": "local",
    "x86-tsc": "tsc",
    "counter": "counter",
}
#: Clocks that mean the same in every source of one host until it reboots.
STEADY = frozenset({"monotonic", "monotonic_raw", "boottime", "tai", "tsc"})


@dataclass(frozen=True)
class Tie:
    """How one source's times map to the timeline: ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9``.

    `method` is declared, user, anchors, reference (this source's clock is the timeline) or untied; `against` names the
    source whose clock it was tied through; `anchors` counts what two sources both saw, `p50_ns` and `p99_ns` are the
    residuals of those, `error_ns` is what the tie is good for.
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

    def moved(self, times: pl.Expr) -> pl.Expr:
        """Return `times` on the timeline; monotone, so nesting and order survive."""
        shifted = times + self.offset_ns
        if not self.drift_ppb:
            return shifted
        # Whole microseconds times ppb stay far below 2^63 for any run; the lost sub-microsecond part drifts < 1 ns.
        return shifted + ((times - self.pivot_ns) // 1000 * self.drift_ppb) // (BILLION // 1000)


def source_row(trace: Trace) -> dict[str, Any]:
    """Return the row of `sources` of a trace of one file."""
    return trace.sources.row(0, named=True)


def with_ftrace_clock(traces: Sequence[Trace], clock: str | None) -> list[Trace]:
    """Return the traces with the clock of ftrace files set to what the user says (`trace_clock`'s own names).

    Raises
    ------
    BadParameter
        The kernel has no trace clock of that name.

    """
    if clock is None:
        return list(traces)
    if clock not in FTRACE_CLOCKS:
        raise BadParameter("ftrace_clock", clock, FTRACE_CLOCKS)
    said = pl.lit(FTRACE_CLOCKS[clock])
    return [
        trace.replace(sources=trace.sources.with_columns(clock=said))
        if source_row(trace)["format"] == "ftrace"
        else trace
        for trace in traces
    ]


def with_clock_pairs(traces: Sequence[Trace], wall_offsets: Mapping[str, int]) -> list[Trace]:
    """Return the traces, those that name a clock in `wall_offsets` and declare no tie to wall time with that one.

    `wall_offsets` maps a clock to what must be added to it to get wall time, read on the host of these traces.
    """
    out = []
    for trace in traces:
        row = source_row(trace)
        known = row["wall_offset_ns"] is None and row["clock"] in wall_offsets
        said = pl.lit(wall_offsets.get(row["clock"]), pl.Int64)
        out.append(trace.replace(sources=trace.sources.with_columns(wall_offset_ns=said)) if known else trace)
    return out


def declared_tie(row: Mapping[str, Any]) -> Tie | None:
    """Return the tie to wall time that the file itself declares, None if it declares none."""
    if row["wall_offset_ns"] is None:
        return None
    return Tie("declared", int(row["wall_offset_ns"]))


def user_offset(file: str, offsets: Mapping[str, int]) -> Tie | None:
    """Return the user's tie for `file`: the entry with its name, else the first whose glob matches."""
    if file in offsets:
        return Tie("user", int(offsets[file]))
    return next((Tie("user", int(ns)) for pattern, ns in offsets.items() if fnmatch(file, pattern)), None)


def unmatched_offsets(files: Sequence[str], offsets: Mapping[str, int]) -> list[str]:
    """Return the names and globs in `offsets` that stand for no file: most likely a slip of the pen."""
    return [
        pattern for pattern in offsets if not any(file == pattern or fnmatch(file, pattern) for file in files)
    ]


def shared_clock_tie(row: Mapping[str, Any], others: Sequence[tuple[Mapping[str, Any], Tie]]) -> Tie | None:
    """Return the tie of a tied source that names the same steady clock on the same host, None if there is none.

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
