"""Which finding comes first: the cheapest change of those that give the most, then the rest, then symptoms.

A change that gives less than a quarter of the largest gain does not go before it, however cheap it is.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import polars as pl
from msgspec.structs import replace

from tracelib.analyses.results import Results
from tracelib.findings.doubts import Doubt, Unexplained, unexplained
from tracelib.findings.finding import WORTH_FIRST, Finding, share_of, spent, whole_ns
from tracelib.findings.recording import CALLS, WORTH_SAYING
from tracelib.findings.verdict import Thresholds, shares
from tracelib.words import share

#: Cheap before dear.
CHANGES = ("machine", "setting", "code", "none")

#: What is said of the first finding, and of the others.
PLACES = {
    "machine": (
        "First, because it needs no change to the server, and what is named below shrinks with it.",
        "Needs no change to the server.",
    ),
    "setting": (
        "First, because no cheaper change gives as much: it is only a server setting.",
        "A setting of the server.",
    ),
    "code": (
        "First, because nothing cheaper gives as much; it takes a change to the server or its clients.",
        "Takes a change to the server or its clients.",
    ),
}
#: What is said of the first change instead where something may come before it, and of any where no verdict is
#: possible.
NOT_YET = "The most that these files explain; what the verdict says to record first may come before it."
NO_ADVICE = "No recommendation: these files are not enough for a verdict."
SYMPTOM = "A symptom: it goes away when its cause is fixed."


def in_order(findings: Iterable[Finding], results: Results) -> list[Finding]:
    """Return the findings in the order to act on them, each with its gain's share and its place."""
    rows = list(findings)
    rows = ordered(rows, {row.id for row in rows if _leads(row, results)})
    caveat = reservation(rows)
    return [
        replace(
            row,
            gain_share=None if row.gain_ns is None else share_of(results, row.gain_ns),
            place=place(row, number) + (caveat if row.gain_ns is not None else ""),
        )
        for number, row in enumerate(rows, 1)
    ]


def not_yet(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings where something must be recorded before the first change is made."""
    return [
        replace(row, place=row.place.replace(PLACES[row.change][0], NOT_YET)) if row.gain_ns else row
        for row in findings
    ]


def without_advice(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of files that support no verdict: what was seen, and nothing to do or to gain."""
    bare: dict[str, Any] = {"gain_ns": None, "gain_share": None, "advice": [], "place": NO_ADVICE}
    return [replace(row, **bare) for row in findings]


def ordered(findings: Iterable[Finding], leading: Collection[str] = ()) -> list[Finding]:
    """Return the findings in the order in which they should be acted on.

    A statement on the whole run that the verdict makes too (`leading`, by id) comes first: a server without
    requests, or at the limit of its GPUs, needs no change. Then changes, then symptoms, then other
    statements.
    """
    rows = list(findings)
    most = max((row.gain_ns or 0 for row in rows), default=0)

    def key(finding: Finding) -> tuple[int, int, int, str]:
        if finding.place:  # a statement
            return (0 if finding.id in leading else 3, 0, -finding.exposed_ns, finding.id)
        if finding.gain_ns is None:
            return (2, 0, -finding.exposed_ns, finding.id)
        worth_first = finding.gain_ns >= WORTH_FIRST * most
        dear = CHANGES.index(finding.change) if worth_first else len(CHANGES)
        return (1, dear, -finding.gain_ns, finding.id)

    return sorted(rows, key=key)


def _leads(finding: Finding, results: Results) -> bool:
    """Return whether the verdict makes this statement too, by its own measure."""
    if finding.id == "no_load":
        part = shares(results)
        return part.no_work > Thresholds.no_load * part.lost
    return finding.id == "gpu_bound"


def place(finding: Finding, number: int) -> str:
    """Return why the finding stands where it does, `number` counted from 1."""
    if finding.place:
        return finding.place
    return SYMPTOM if finding.gain_ns is None else PLACES[finding.change][number > 1]


def reservation(findings: Iterable[Finding]) -> str:
    """Return what must be said of every gain where the recorders cost the GPUs something; else nothing.

    How much of one gain is theirs is not known: they slow down what they record, each thing by another part.
    """
    cost = next((row.exposed_share for row in findings if row.id == "profiler_overhead"), None)
    if cost is None:
        return ""
    return f" The recorders cost about {share(cost)} of GPU time: part of this gain may be theirs."


# -------------------- what to record before
def record_first(results: Results, findings: Sequence[Finding], open_questions: Iterable[Doubt]) -> list[str]:
    """Return what to record before anything is changed: what may come before the first change, by size.

    Time that nothing explains counts where it is more than the first change would give; an abstained rule's
    where it would change the order.
    """
    if results.gpu_time.is_empty():
        return [
            f"the GPUs' own operations: {CALLS}; if that gave none, see the recorder's log for CUPTI errors"
        ]
    first = next((row for row in findings if row.gain_ns is not None), None)
    gain = first.gain_ns or 0 if first else 0
    least = max(gain, WORTH_SAYING * whole_ns(results))
    rows = [row for row in unexplained(results) if row.ns > least]
    told = {row.id for row in findings}
    rows += [
        Unexplained(spent(doubt.rows), doubt.words, doubt.record_with)
        for doubt in open_questions
        if doubt.rule not in told and first and _goes_before(doubt, first, gain)
    ]
    return [
        f"for {share(share_of(results, row.ns))} of GPU time {row.words}: {row.record_with}"
        for row in sorted(rows, key=lambda row: -row.ns)
    ]


def _goes_before(doubt: Doubt, first: Finding, gain: int) -> bool:
    """Return whether what an abstained rule may explain would precede the first change, or be most of it."""
    own = spent(doubt.rows.filter(pl.col("cause") == first.cause)) if first.cause else 0
    if doubt.rule != "cpu_shortage" and own > first.exposed_ns / 2:
        return True
    cheaper = CHANGES.index(doubt.change) < CHANGES.index(first.change)
    return spent(doubt.rows) > (WORTH_FIRST * gain if cheaper else gain)
