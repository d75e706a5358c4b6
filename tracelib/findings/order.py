"""Which finding comes first: the cheapest change of those that give the most, then the rest, then symptoms.

A change that gives less than a quarter of the largest gain does not go before it, however cheap it is.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import polars as pl
from msgspec.structs import replace

from tracelib.analyses.replay import Change as WhatIf
from tracelib.analyses.replay import change_words
from tracelib.analyses.results import Results
from tracelib.analyses.whatif import Replay
from tracelib.analyses.window import WHOLE
from tracelib.findings.doubts import Doubt, Unexplained, unexplained
from tracelib.findings.finding import ASIDE, WORTH_FIRST, Finding, Replayed, share_of, spent, whole_ns
from tracelib.findings.recording import CALLS, WORTH_SAYING
from tracelib.findings.rules import RULES
from tracelib.findings.verdict import Thresholds, shares
from tracelib.words import duration, share

#: Cheap before dear.
CHANGES = ("machine", "setting", "code", "none")
#: More rows of launches, host time and CPU states than this take a replay longer than a report may wait.
MOST_ROWS = 15_000_000
#: A replay that does not give the unchanged run back to within this share of the window proves nothing.
FAITHFUL = 0.05
#: A change of the time to first token that is not worth a word.
NOTICED = 0.02
NO_SCENARIO = "no change that can be replayed stands for it"

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
NOT_YET = "The most that these files explain; what the verdict says to record first may matter more."
NO_ADVICE = "No recommendation: these files are not enough for a verdict."
SYMPTOM = "A symptom: it goes away when its cause is fixed."


def in_order(findings: Iterable[Finding], results: Results) -> list[Finding]:
    """Return the findings in the order to act on them, each with its gain's share and its place.

    Gains are those of a replay (docs/what-if.md) where there is one.
    """
    rows = replayed(list(findings), results)
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


# -------------------- what a replay says of the gains
def replayed(findings: Sequence[Finding], results: Results) -> list[Finding]:
    """Return the findings with what a replay says of their changes, or why none does.

    The run's graph is made once, and only if some finding needs it. A statement on the run keeps its replay
    and has no gain.
    """
    changes = {rule.id: rule.replay for rule in RULES}
    asked = [row for row in findings if changes.get(row.id) is not None]
    why_none = _not_replayable(results) if asked else ""
    replay = Replay(results) if asked and not why_none else None
    gains: dict[WhatIf, Replayed | str] = {}
    rows = []
    for row in findings:
        change = changes.get(row.id)
        told: Replayed | str = NO_SCENARIO
        if change is not None:
            told = why_none
            if replay is not None:
                told = gains[change] = gains.get(change) or _replayed(replay, change)
        rows.append(_with_gain(row, told, results))
    return rows


def _not_replayable(results: Results) -> str:
    """Return why a report replays nothing of this run; "" if it does."""
    rows = sum(getattr(results, name).height for name in ("launches", "host_activity", "thread_states"))
    if rows > MOST_ROWS:
        return f"{rows:,} rows are too many for a report's time; tracelib whatif replays them"
    return "" if results.launches.height else "no GPU operation was recorded whose launch is known"


def _replayed(replay: Replay, change: WhatIf) -> Replayed | str:
    """Return what a change gives back, or why that is not known."""
    why_not = replay.why_not(change)
    if why_not:
        return why_not
    gain = replay.gain(change)
    off = gain.error_ns / replay.results.window.duration_ns
    if off > FAITHFUL:
        return f"replayed as it was, the run is off by {share(off)}"
    return Replayed(change=change_words(change), **gain._asdict())


def _with_gain(row: Finding, told: Replayed | str, results: Results) -> Finding:
    bound = row.gain_ns
    if isinstance(told, str):
        return replace(row, bound_ns=bound, not_replayed=told if bound is not None else None)
    gain = max(0, told.gained_ns) * results.gpu_time["gpu"].n_unique()
    return replace(row, gain_ns=None if bound is None else gain, bound_ns=bound, replay=told)


def gain_words(finding: Finding) -> str:
    """Return how much of the window the change of a finding gives back, and by what that is known."""
    gain, known = finding.gain_share or 0.0, finding.known_share
    if finding.replay is not None:
        return f"gain about {share(gain)} of GPU time by replay{_first_token(finding.replay)}"
    if known is None:
        return f"gain up to {share(gain)} of GPU time, not replayed"
    least = f"gain at least {share(gain)} of GPU time, not replayed"
    if not 0 < known < WHOLE:
        return least
    return f"{least} ({share(gain / known)} of the {share(known)} of it that the scheduler recorded)"


def _first_token(replay: Replayed) -> str:
    before, after = replay.ttft_before_ns, replay.ttft_ns
    if before is None or after is None or abs(after - before) < NOTICED * before:
        return ""
    return f", TTFT p50 {duration(before)} to about {duration(after)}"


def replay_words(finding: Finding) -> str:
    """Return what was replayed and what came of it, or why nothing was; empty of what has no gain."""
    told = finding.replay
    if told is None:
        return f"Not replayed: {finding.not_replayed}." if finding.not_replayed else ""
    before, known = told.window_ns + told.gained_ns, finding.known_share
    length = f"{duration(told.window_ns)} instead of {duration(before)}"
    if abs(told.gained_ns) < ASIDE * before:
        length = f"about as long as before ({duration(before)})"
    doubts = [
        f" Replayed as it was, the run is off by {share(told.error_ns / max(before, 1))}."
        * (told.error_ns >= ASIDE * before),
        f" The scheduler recorded {share(known or 0)} of it; the rest is taken to be alike."
        * (known is not None and 0 < known < WHOLE),
        " Each step keeps the prompts that it held: the queue may shrink by more." * bool(_first_token(told)),
    ]
    return f"Replayed {told.change}, the same work takes {length}{_first_token(told)}.{''.join(doubts)}"


# -------------------- the order
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
