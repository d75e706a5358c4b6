"""Whether the files were recorded together: which of them cover the same time, once their clocks are tied."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracelib.align.domains import Tie
    from tracelib.align.evidence import Evidence

__all__ = ["apart", "common_ns", "stretches"]

Span = tuple[int, int]  # first and last ns on the timeline


def common_ns(index: int, others: Iterable[int], evidence: Evidence, ties: Sequence[Tie | None]) -> int:
    """Return the time that a source and each of the others cover together, summed over them."""
    spans = _spans(evidence, ties)
    first, last = spans.get(index, (0, 0))
    known = [spans[at] for at in others if at in spans]
    return sum(max(0, min(last, end) - max(first, begin)) for begin, end in known)


def apart(evidence: Evidence, ties: Sequence[Tie]) -> list[tuple[int | None, str, str, str]]:
    """Return remarks (source, level, message, fix) on files that lie where no other does, and on several runs read as one."""
    found = stretches(_spans(evidence, ties))
    if len(found) < 2:
        return []
    alone = "it covers none of the time that the other files cover: another run, or a wrong clock"
    remarks: list[tuple[int | None, str, str, str]] = [
        (index, "warning", alone, "") for one in found if len(one) == 1 for index in one
    ]
    runs = sum(len(one) > 1 for one in found)
    if runs > 1:
        message = f"the files lie in {runs} stretches of time between which nothing was recorded, as those of {runs} runs would"
        remarks.append((None, "warning", message, "report each run by itself: tracelib batch 'FOLDER/*'"))
    return remarks


def stretches(spans: Mapping[int, Span]) -> list[list[int]]:
    """Return the keys of the spans, those together that share time, directly or by way of others; by time."""
    found: list[list[int]] = []
    reached = -math.inf
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if first < reached:
            found[-1].append(key)
        else:
            found.append([key])
        reached = max(reached, last)
    return found


def _spans(evidence: Evidence, ties: Sequence[Tie | None]) -> dict[int, Span]:
    """Return what each tied source covers, of those that hold anything with a time."""
    return {
        index: (own[0] + tie.offset_ns, own[1] + tie.offset_ns)
        for index, tie in enumerate(ties)
        if tie is not None and tie.method != "untied" and (own := evidence.span(index)) is not None
    }
