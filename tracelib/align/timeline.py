"""Ties every source's clock to one timeline, in the order that ATTRIBUTION.md (Alignment) gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelib.align.domains import Tie, declared_tie, shared_clock_tie, source_row, user_offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelib.trace import Trace

__all__ = ["DEFAULT_MAX_ERROR_NS", "Timeline", "timeline"]

DEFAULT_MAX_ERROR_NS = 50_000

Remark = tuple[int | None, str, str, str]  # source, level, message, fix


@dataclass
class Timeline:
    """A tie per source, what there is to say about them, and how well activity agrees with the scheduler."""

    ties: list[Tie]
    remarks: list[Remark] = field(default_factory=list)

    def off_share(self, index: int, other: int) -> float | None:
        return None


def timeline(traces: Sequence[Trace], offsets: Mapping[str, int], max_error_ns: int) -> Timeline:
    """Return how each of `traces` is tied."""
    rows = [source_row(trace) for trace in traces]
    ties: list[Tie | None] = [user_offset(str(row["file"]), offsets) or declared_tie(row) for row in rows]
    for index, row in enumerate(rows):
        if ties[index] is None:
            tied = [(other, tie) for other, tie in zip(rows, ties, strict=True) if tie is not None]
            ties[index] = shared_clock_tie(row, tied)
    if len(rows) == 1 and ties[0] is None:
        ties[0] = Tie("reference")
    return Timeline([tie or Tie("untied") for tie in ties])
