"""Which finding comes first: the cheapest change among those that give the most, then the rest, then symptoms.

A change that gives less than a quarter of the largest gain does not go before it, however cheap it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.findings.finding import percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelib.findings.finding import Change, Finding

__all__ = ["ordered", "place", "reservation"]

#: Cheap before dear.
CHANGES: tuple[Change, ...] = ("machine", "setting", "code", "none")
WORTH_FIRST = 0.25

#: What is said of the first finding, and of the others.
_WORDS: dict[Change, tuple[str, str]] = {
    "machine": (
        "First, because it needs no change of the server, and what is named below shrinks with it.",
        "Needs no change of the server.",
    ),
    "setting": (
        "First, because no cheaper change gives as much: it is a setting of the server.",
        "A setting of the server.",
    ),
    "code": (
        "First, because nothing cheaper gives as much; it takes a change of the server or its clients.",
        "Takes a change of the server or its clients.",
    ),
    "none": ("A symptom: it goes when what causes it is mended.",) * 2,
}


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Return the findings in the order in which they should be acted on.

    A statement on the whole run that the verdict makes too comes first: a server without requests, or at the limit of its
    GPUs, needs no change. Then changes, then symptoms, then other statements.
    """
    rows = list(found)
    most = max((f.gain_ns or 0 for f in rows), default=0)

    def key(finding: Finding) -> tuple[int, int, int, str]:
        if finding.statement:
            return (0 if finding.leads else 3, 0, -finding.exposed_ns, finding.id)
        if finding.gain_ns is None:
            return (2, 0, -finding.exposed_ns, finding.id)
        leading = finding.gain_ns >= WORTH_FIRST * most
        dear = CHANGES.index(finding.change) if leading else len(CHANGES)
        return (1, dear, -finding.gain_ns, finding.id)

    return sorted(rows, key=key)


def place(finding: Finding, number: int) -> str:
    """Return why the finding stands where it does, `number` counted from 1."""
    if finding.statement:
        return finding.statement
    return _WORDS[finding.change if finding.gain_ns is not None else "none"][number > 1]


def reservation(found: Iterable[Finding]) -> str:
    """Return what must be said of every gain of a run whose recorders cost the GPUs something; empty where they did not.

    How much of one gain is theirs is not known: they slow down what they record, each thing by another part.
    """
    cost = next((f.exposed_share for f in found if f.id == "profiler_overhead"), None)
    return (
        ""
        if cost is None
        else f" The recorders cost the GPUs about {percent(cost)} of the time: part of this gain may be theirs."
    )
