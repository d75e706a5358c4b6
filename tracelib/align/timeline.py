"""Ties every source's clock to one timeline, in the order that ATTRIBUTION.md (Alignment) gives.

By the user's word, by declaration, by a steady clock that another source names too, by anchors that two sources both saw.
What is left stays untied. If nothing says where wall time is, the first source's clock is the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelib.align.anchors import KINDS
from tracelib.align.domains import BILLION, Tie, declared_tie, shared_clock_tie, source_row, user_offset
from tracelib.align.fit import Fit, fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelib.trace import Trace

__all__ = ["DEFAULT_MAX_ERROR_NS", "Timeline", "timeline"]

DEFAULT_MAX_ERROR_NS = 50_000

Remark = tuple[int | None, str, str, str]  # source, level, message, fix


@dataclass
class Timeline:
    """A tie per source, and what there is to say about them."""

    ties: list[Tie]
    remarks: list[Remark] = field(default_factory=list)


def timeline(traces: Sequence[Trace], offsets: Mapping[str, int], max_error_ns: int) -> Timeline:
    """Return how each of `traces` is tied."""
    rows = [source_row(trace) for trace in traces]
    ties: list[Tie | None] = [user_offset(str(row["file"]), offsets) or declared_tie(row) for row in rows]
    for index, row in enumerate(rows):
        if ties[index] is None:
            tied = [(other, tie) for other, tie in zip(rows, ties, strict=True) if tie is not None]
            ties[index] = shared_clock_tie(row, tied)
    if all(tie is None for tie in ties):
        ties[0] = Tie("reference")
    while (found := _next_by_anchors(traces, ties, max_error_ns)) is not None:
        ties[found[0]] = found[1]
    made = [tie or Tie("untied") for tie in ties]
    remarks = [_remark(index, row, tie) for index, (row, tie) in enumerate(zip(rows, made, strict=True))]
    return Timeline(made, [remark for remark in remarks if remark is not None])


def _next_by_anchors(
    traces: Sequence[Trace], ties: Sequence[Tie | None], max_error_ns: int
) -> tuple[int, Tie] | None:
    """Return a source that has no tie yet, and its tie through the tied source with which it agrees best."""
    for index, tie in enumerate(ties):
        if tie is not None:
            continue
        fits = [
            (found, other)
            for other, known in enumerate(ties)
            if known is not None
            and (found := _common_moments(traces[other], traces[index], max_error_ns)) is not None
        ]
        if fits:
            best, through = max(fits, key=lambda pair: (pair[0].share, pair[0].anchors))
            against = ties[through]
            assert against is not None
            return index, _through(best, against, str(source_row(traces[through])["file"]))
    return None


def _common_moments(tied: Trace, other: Trace, max_error_ns: int) -> Fit | None:
    """Return the fit of the most telling kind of moment that both sources hold, None if none gives one answer."""
    for _, moments in KINDS:
        found = fit(moments(tied), moments(other))
        if found is not None and found.error_ns <= max_error_ns:
            return found
    return None


def _through(found: Fit, against: Tie, file: str) -> Tie:
    """Return the tie of a source that `found` maps to the clock of a source tied by `against`."""
    at_pivot = found.pivot_ns + found.offset_ns
    drifted = (at_pivot - against.pivot_ns) * against.drift_ppb // BILLION
    return Tie(
        "anchors", found.offset_ns + against.offset_ns + drifted, found.drift_ppb + against.drift_ppb, found.pivot_ns,
        found.error_ns + (against.error_ns or 0), against=file, anchors=found.anchors, p50_ns=found.p50_ns, p99_ns=found.p99_ns,
    )  # fmt: skip


def _remark(index: int, row: Mapping[str, object], tie: Tie) -> Remark | None:
    if tie.method == "anchors":
        said = f"tied through {tie.against} by {tie.anchors:,} moments that both saw: half of them agree within {_us(tie.p50_ns)}, 99 % within {_us(tie.p99_ns)}"
        drift = (
            f"; its clock runs {tie.drift_ppb / 1000:+.1f} ppm against that one"
            if abs(tie.drift_ppb) >= 1000
            else ""
        )
        return index, "info", said + drift, ""
    if tie.method == "untied":
        fix = "give its clock (--ftrace-clock mono) or its offset to wall time (--offset FILE=NS); record perf with -k mono"
        return (
            index,
            "warning",
            "its clock could not be tied to the others': it is reported alone, and nothing of it is joined",
            fix,
        )
    if tie.method == "reference" and row["wall_offset_ns"] is None:
        return index, "info", "no file says where wall time is: this file's clock is the timeline", ""
    return None


def _us(ns: int | None) -> str:
    return "unknown" if ns is None else f"{ns / 1000:.1f} µs"
