"""Ties every source's clock to one timeline, in the order that docs/numbers.md (Alignment) gives.

By the user's word, by declaration, by a steady clock that another source names too, by anchors that two
sources both saw. What is left stays untied. If no file says where wall time is, the clock of the fullest one
is the timeline. Declared clocks are checked against the anchors: a clock that they prove wrong is replaced by
theirs, and the report says so; the user's word is never replaced, only doubted. Files that share no time with
the others are pointed out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from tracelib.align.clocks import (
    BILLION,
    Check,
    Evidence,
    Tie,
    declared_tie,
    shared_clock_tie,
    source_row,
    user_offset,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracelib.align.anchors import Fit
    from tracelib.trace import Trace


DEFAULT_MAX_ERROR_NS = 50_000

Remark = tuple[int | None, str, str, str]  # source, level, message, fix
Checks = dict[tuple[int, int], Check]


@dataclass
class Timeline:
    """A tie per source, what there is to say about them, and the evidence that they rest on."""

    ties: list[Tie]
    evidence: Evidence
    remarks: list[Remark] = field(default_factory=list)

    def off_share(self, index: int, other: int) -> float | None:
        """Return the share of source `index`'s slices that begin while source `other` has their thread off the CPU."""
        return self.evidence.off_share(index, other, self.ties)


def timeline(traces: Sequence[Trace], offsets: Mapping[str, int], max_error_ns: int) -> Timeline:
    """Return how each of `traces` is tied."""
    rows = [source_row(trace) for trace in traces]
    evidence = Evidence(traces)
    ties: list[Tie | None] = [user_offset(str(row["file"]), offsets) or declared_tie(row) for row in rows]
    if all(tie is None for tie in ties):
        fullest = max(
            range(len(traces)), key=lambda index: (traces[index].gpu_ops.height, _rows(traces[index]))
        )
        ties[fullest] = Tie("reference")
    _tie_all(rows, ties, evidence, max_error_ns)
    remarks, checks = _replace_wrong(rows, ties, evidence, max_error_ns)
    made = [_checked(index, tie or Tie("untied"), checks, rows) for index, tie in enumerate(ties)]
    remarks += apart(evidence, made)
    for index, tie in enumerate(made):
        remarks += _remarks(index, tie, checks, rows)
    return Timeline(made, evidence, remarks)


def _rows(trace: Trace) -> int:
    return sum(frame.height for frame in trace.frames().values())


def _tie_all(
    rows: Sequence[Mapping[str, Any]], ties: list[Tie | None], evidence: Evidence, max_error_ns: int
) -> None:
    """Tie what can be tied through those that are, the surest first."""
    while True:
        for index, row in enumerate(rows):
            if ties[index] is None:
                tied = [(other, tie) for other, tie in zip(rows, ties, strict=True) if tie is not None]
                ties[index] = shared_clock_tie(row, tied)
        found = _surest(ties, evidence, max_error_ns)
        if found is None:
            return
        index, through, best = found
        against = ties[through]
        assert against is not None
        ties[index] = _through(best, against, str(rows[through]["file"]))


def _surest(ties: Sequence[Tie | None], evidence: Evidence, max_error_ns: int) -> tuple[int, int, Fit] | None:
    """Return a source without a tie, the tied one that it agrees with best, and how their clocks differ."""
    found = [
        (fit, index, through)
        for index, tie in enumerate(ties)
        if tie is None
        for through, known in enumerate(ties)
        if known is not None and (fit := evidence.fit(through, index, max_error_ns)) is not None
    ]
    if not found:
        return None
    fit, index, through = min(found, key=lambda item: item[0].error_ns)
    return index, through, fit


def _through(found: Fit, against: Tie, file: str) -> Tie:
    """Return the tie of a source that `found` maps to the clock of a source tied by `against`."""
    at_pivot = found.pivot_ns + found.offset_ns
    drifted = (at_pivot - against.pivot_ns) * against.drift_ppb // BILLION
    return Tie(
        "anchors",
        found.offset_ns + against.offset_ns + drifted,
        found.drift_ppb + against.drift_ppb,
        found.pivot_ns,
        found.error_ns + (against.error_ns or 0),
        against=file,
        anchors=found.anchors,
        p50_ns=found.p50_ns,
        p99_ns=found.p99_ns,
        kind=found.kind,
    )


def _replace_wrong(
    rows: Sequence[Mapping[str, Any]], ties: list[Tie | None], evidence: Evidence, max_error_ns: int
) -> tuple[list[Remark], Checks]:
    """Check the tied sources against each other, and tie by anchors those whose declared clock is proven wrong.

    Which of two is wrong, more witnesses decide; then, who shares less time with the others; then, the one
    without GPU work, whose header is a mere pair of clock readings.
    """
    remarks: list[Remark] = []

    def made(index: int) -> Tie:
        return ties[index] or Tie("untied")

    while True:
        checks = _checks(ties, evidence, max_error_ns)
        wrong = {pair: check for pair, check in checks.items() if check.shift_ns}
        accused = [index for pair in wrong for index in pair if made(index).method == "declared"]
        if not accused:
            remarks += [_doubt(pair, check, rows) for pair, check in wrong.items()]
            return remarks, checks
        # What was measured against an accused one repeats its word: only declared clocks bear witness.
        votes = [
            index for pair in wrong if all(made(at).method != "anchors" for at in pair) for index in pair
        ]
        worst = max(
            accused,
            key=lambda index: (
                votes.count(index),
                -_shared_time(index, rows, evidence, ties),
                evidence.traces[index].gpu_ops.is_empty(),
                index,
            ),
        )
        pair, check = next((pair, check) for pair, check in wrong.items() if worst in pair)
        other = pair[0] if pair[1] == worst else pair[1]
        _untie(worst, rows, ties)
        _tie_all(
            [{**row, "clock": None} if at == worst else row for at, row in enumerate(rows)],
            ties,
            evidence,
            max_error_ns,
        )
        level = "warning" if ties[worst] is not None else "error"
        said = (
            f"the clock that it declares is {abs(check.shift_ns) / 1e6:.3f} ms off that of {rows[other]['file']}, as "
            f"{check.count:,} anchors ({check.kind}) prove; {'it is tied by anchors instead' if ties[worst] else 'it is kept apart'}"
        )
        remarks.append((worst, level, said, "give its offset (--offset FILE=NS) if you know better"))


def _shared_time(
    index: int, rows: Sequence[Mapping[str, Any]], evidence: Evidence, ties: Sequence[Tie | None]
) -> int:
    """Return how long a source and each of the others, tied otherwise than through it, cover the same time, in all."""
    file = rows[index]["file"]
    free = [at for at, tie in enumerate(ties) if at != index and tie is not None and tie.against != file]
    return common_ns(index, free, evidence, ties)


def _untie(index: int, rows: Sequence[Mapping[str, Any]], ties: list[Tie | None]) -> None:
    """Take a source's tie away, and the ties of those that were tied through it."""
    ties[index] = None
    for other, tie in enumerate(ties):
        if tie is not None and tie.against == rows[index]["file"]:
            _untie(other, rows, ties)


def _checks(ties: Sequence[Tie | None], evidence: Evidence, max_error_ns: int) -> Checks:
    """Return how the sources agree whose clocks nobody measured."""
    held = [index for index, tie in enumerate(ties) if tie is not None]
    moved = [tie or Tie("untied") for tie in ties]
    checks: Checks = {}
    for one, other in combinations(held, 2):
        files = {str(source_row(evidence.traces[index])["file"]) for index in (one, other)}
        measured = [moved[index] for index in (one, other) if moved[index].method == "anchors"]
        # What was tied through the other one proves nothing about it.
        if len(measured) < 2 and not any(tie.against in files for tie in measured):
            check = evidence.check(one, other, moved, max_error_ns)
            if check is not None:
                checks[one, other] = check
    return checks


def _checked(index: int, tie: Tie, checks: Checks, rows: Sequence[Mapping[str, Any]]) -> Tie:
    """Return a tie that nobody measured with what the best check says of it: the error that is left room for, and by what."""
    found = _best_check(index, checks)
    if found is None or tie.error_ns is not None:
        return tie
    check, other = found
    return replace(
        tie,
        error_ns=check.error_ns,
        against=str(rows[other]["file"]),
        kind=check.kind,
        anchors=check.count,
        p50_ns=check.p50_ns,
        p99_ns=None if check.p50_ns is None else check.p99_ns,
    )


def _best_check(index: int, checks: Checks) -> tuple[Check, int] | None:
    """Return the check that leaves a source least room, of those that agree with its tie, and against which source."""
    agreed = [
        (check, pair[0] if pair[1] == index else pair[1])
        for pair, check in checks.items()
        if index in pair and not check.shift_ns
    ]
    return min(agreed, key=lambda item: item[0].error_ns, default=None)


def _doubt(pair: tuple[int, int], check: Check, rows: Sequence[Mapping[str, Any]]) -> Remark:
    said = (
        f"its clock is {abs(check.shift_ns) / 1e6:.3f} ms off that of {rows[pair[0]]['file']}, as {check.count:,} anchors "
        f"({check.kind}) say; what is joined between them is off by as much"
    )
    return pair[1], "warning", said, "correct the offset of one of them (--offset FILE=NS), or leave it out"


def _remarks(index: int, tie: Tie, checks: Checks, rows: Sequence[Mapping[str, Any]]) -> list[Remark]:
    if tie.method == "untied":
        fix = "give its clock (--ftrace-clock mono) or its offset to wall time (--offset FILE=NS); record perf with -k mono"
        return [
            (
                index,
                "warning",
                "its clock could not be tied to the others': it is reported alone, and nothing of it is joined",
                fix,
            )
        ]
    if tie.method == "anchors":
        return [(index, "info", _by_anchors(tie), "")]
    said: list[Remark] = []
    if tie.method == "reference" and len(rows) > 1:
        said.append((index, "info", "no file says where wall time is: this file's clock is the timeline", ""))
    agreed = _best_check(index, checks)
    if agreed is not None:
        check, other = agreed[0], rows[agreed[1]]["file"]
        median = "" if check.p50_ns is None else f", half of them within {_us(check.p50_ns)}"
        message = f"its clock agrees with that of {other} within {_us(check.error_ns)}{median} by {check.count:,} anchors ({check.kind})"
        said.append((index, "info", message, ""))
    return said


def _by_anchors(tie: Tie) -> str:
    drift = (
        f"; its clock runs {-tie.drift_ppb / 1000:+.1f} ppm against that one"
        if abs(tie.drift_ppb) >= 1000
        else ""
    )
    if tie.kind == "activity":
        how = f"{tie.anchors:,} times that its threads were off the CPU leave it within {_us(tie.p99_ns)}"
    else:
        how = (
            f"{tie.anchors:,} moments that both saw ({tie.kind}): half of them agree within {_us(tie.p50_ns)}, "
            f"99 % within {_us(tie.p99_ns)}"
        )
    return f"tied through {tie.against} by {how}{drift}"


def _us(ns: int | None) -> str:
    return "unknown" if ns is None else f"{ns / 1000:.1f} µs"


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
