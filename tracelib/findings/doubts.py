"""What these files leave open: time that an abstained rule, or nothing, may explain, and what would tell.

A finding that claims such time is less sure (docs/numbers.md, "Verdict"), and so is the verdict. It says what
its limits are, what to record before anything is changed, or which one recording would settle it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from msgspec.structs import replace

from tracelib.analyses.collectives import missing_ranks
from tracelib.analyses.long_slices import lost_in_long_slices, lost_in_long_work
from tracelib.analyses.lost import NO_LAUNCH, NOT_STARTED
from tracelib.analyses.results import Results
from tracelib.analyses.scheduler_events import sleeps
from tracelib.analyses.scheduling import tells_shortage
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.analyses.window import WHOLE, recorded_ns
from tracelib.findings import recording
from tracelib.findings.finding import (
    NOT_HOST,
    Change,
    Confidence,
    Finding,
    mean,
    own_ns,
    share_of,
    spent,
    thread_name,
)
from tracelib.words import counted, share

if TYPE_CHECKING:
    from tracelib.findings.verdict import Shares

#: Wake-ups that end so many sleeps are not worth a word.
WOKEN = 0.8
HALF = 0.5
#: Fewer sleeps say nothing of wake-ups.
FEWEST_SLEEPS = 20


def shortfalls(results: Results) -> list[str]:
    """Return what to say of scheduler events and samples that cover a part of the window or lack wake-ups."""
    return [*_covers(results), *_wakeups(results)]


def half_covered(results: Results) -> bool:
    """Return whether scheduler events cover half the window or more; `shortfalls` says how much."""
    part = _covered(results.trace.sched, results)
    return part is not None and part >= HALF


def _covers(results: Results) -> list[str]:
    parts = {
        "scheduler events": _covered(results.trace.sched, results),
        "CPU samples": _covered(results.trace.samples, results),
    }
    return [
        f"the {name} cover {share(part)} of the window; of the rest they tell nothing"
        for name, part in parts.items()
        if part is not None and part < WHOLE
    ]


def _covered(events: pl.DataFrame, results: Results) -> float | None:
    """Return the share of the window from the first to the last of the events; None without any."""
    if events.is_empty():
        return None
    return recorded_ns([events], results.window) / results.window.duration_ns


def _wakeups(results: Results) -> list[str]:
    ended, woken = sleeps(results.trace, results.window)
    if ended < FEWEST_SLEEPS or not woken or woken >= WOKEN * ended:
        return []
    without = share(1 - woken / ended)
    unknown = "so how long those threads then waited for a CPU is not known"
    return [f"{without} of {ended:,} sleeps end without a wake-up event, {unknown}"]


#: Share of a finding's time, or of the exposed host time, that makes it less sure if it is doubtful.
DOUBTFUL = 0.2
#: The recorders' cost as a share of the window, from which figures are less sure.
COSTLY = 0.05


class Doubt(NamedTuple):
    """Time that something else may explain: which rule's question it is, in words, and what answers it."""

    rule: str
    rows: pl.DataFrame  # of results.lost
    words: str
    record_with: str
    change: Change  # what that rule's advice would touch


def doubts(results: Results) -> list[Doubt]:
    """Return the time over which rules abstain for want of a recording, and that others may claim."""
    host = results.lost.filter(~pl.col("cause").is_in(NOT_HOST))
    state = pl.col("cpu_state").cast(pl.String)
    known = state != "unknown" if tells_shortage(results.thread_states) else state == "running"
    long = lost_in_long_slices(results.trace, results.host_activity, results.lost)
    work = lost_in_long_work(results.trace, results.host_activity, results.lost)
    found = [
        Doubt(
            "cpu_shortage",
            host.filter(~known & (pl.col("sub_cause") != NOT_RECORDED).fill_null(value=True)),
            "no scheduler event tells whether the thread in question had a CPU",
            recording.SWITCHES,
            "machine",
        ),
        Doubt(
            "run_time_compilation",
            long,
            "the thread was in operators over ten times as long as their siblings, "
            "which may have compiled or loaded code",
            recording.SAMPLES,
            "setting",
        ),
        Doubt(
            "gc_pauses",
            work,
            "the thread was in ranges over ten times as long as their siblings, "
            "in which the interpreter may have collected garbage",
            recording.SAMPLES,
            "code",
        ),
    ]
    if results.cpu_time.is_empty():
        asleep = results.lost.filter((state == "blocked") & (pl.col("sub_cause") == "dispatch"))
        words = "the thread slept inside framework code, and no sample tells for what"
        found.append(Doubt("gil_contention", asleep, words, recording.LOCK, "code"))
    return [doubt for doubt in found if doubt.rows.height]


def less_sure(finding: Finding, open_questions: Sequence[Doubt]) -> Finding:
    """Return the finding, no longer of high confidence where a rule that abstained may explain its time."""
    rows = finding.__dict__.get("lost")
    if finding.confidence != "high" or rows is None or not spent(rows):
        return finding
    shares = [(spent(_common(rows, doubt.rows)) / spent(rows), doubt) for doubt in open_questions]
    reasons = [f"; for {share(part)} of it {doubt.words}" for part, doubt in shares if part >= DOUBTFUL]
    if not reasons:
        return finding
    return replace(finding, confidence="medium", why=finding.why + "".join(reasons))


def inflated(finding: Finding, cost: Cost, workers: pl.Series) -> Finding:
    """Return a finding, less sure where the recorders make up much of it: on launching, on a full worker.

    `workers` are the threads of workers: what they were at is sampled with what the recorders cost.
    """
    rows = finding.__dict__.get("lost")
    full = rows if finding.id == "single_thread_saturated" else None
    if finding.cause == "kernel_launch":
        part = cost.in_launching_ns / max(finding.exposed_ns, 1)
        words = "of this loss is the recorders' own work inside launching"
    elif full is not None and full["thread"].is_in(workers).any():
        part = cost.recorder_cpu_ns / max(cost.path_cpu_ns, 1)
        words = "of the workers' launching, as sampled, is the recorders' own work"
    else:
        return finding
    if part < DOUBTFUL:
        return finding
    why = f"{finding.why}; about {share(part)} {words}"
    return replace(finding, confidence="low" if finding.confidence == "low" else "medium", why=why)


def _common(rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    return rows.join(others.select("gpu", "ts_ns").unique(), on=["gpu", "ts_ns"], how="semi")


def doubtful(results: Results) -> list[str]:
    """Return why the verdict is less sure: rules that abstained over much of the exposed host time.

    Not the lack of CPU states, of which the verdict speaks anyway.
    """
    total = spent(results.lost.filter(~pl.col("cause").is_in(NOT_HOST)))
    return [
        f"for {share(spent(doubt.rows) / total)} of the GPU time lost to the host {doubt.words}"
        for doubt in doubts(results)
        if doubt.rule != "cpu_shortage" and total and spent(doubt.rows) >= DOUBTFUL * total
    ]


# -------------------- the recorders
class Cost(NamedTuple):
    """GPU time that the recorders cost, and their part of the workers' sampled CPU time of launching."""

    ns: int
    in_launching_ns: int  # the part of `ns` that the ledger charges to launching
    recorder_cpu_ns: int
    path_cpu_ns: int


def recorder_cost(results: Results) -> Cost:
    """Return what the recorders cost: what they record of themselves, and their sampled part in launching."""
    launching = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(["dispatch", "api"])
    worker = results.cpu_time.filter(pl.col("role") == "worker")
    recorder = int(worker.filter(pl.col("cause") == "profiler")["cpu_ns"].sum())
    path = recorder + int(worker.filter(launching)["cpu_ns"].sum())
    sampled = recorder / path if recorder else 0.0
    recorded = results.lost.filter(pl.col("cause") == "profiler")
    hidden = round(sampled * own_ns(results.lost.filter(launching)))
    return Cost(spent(recorded) + hidden, hidden, recorder, path)


def costly(results: Results) -> list[str]:
    """Return what to say of recorders that cost the GPUs much."""
    return _cost(results) if share_of(results, recorder_cost(results).ns) > COSTLY else []


def _cost(results: Results) -> list[str]:
    """Return what to say of what the recorders cost, however little; nothing where they cost nothing."""
    cost = recorder_cost(results).ns
    if results.cpu_time.is_empty() and not cost:
        return ["without CPU samples nothing tells what the recorders themselves cost"]
    part = share(share_of(results, cost))
    about = "" if part.startswith("<") else "about "
    return [f"the recorders themselves cost {about}{part} of GPU time"] if cost else []


# -------------------- what no source explains
class Unexplained(NamedTuple):
    """GPU time that no source explains, why, and what would."""

    ns: int
    words: str
    record_with: str


def unexplained(results: Results) -> list[Unexplained]:
    """Return the time that is not attributed, may be waiting, or ended at a process that was not recorded."""
    sub, lost = pl.col("sub_cause").fill_null(""), results.lost
    nothing = lost.filter(pl.col("cause") == "unattributed")
    together = results.gpu_time.filter(pl.col("state") == "collective")["ns"].sum()
    found = [
        Unexplained(
            spent(nothing.filter(~sub.is_in([NOT_STARTED, NO_LAUNCH]))), _nothing_seen(results), _MORE
        ),
        Unexplained(
            spent(nothing.filter(sub == NOT_STARTED)),
            "work had been launched and did not start, and nothing recorded says why",
            "every process that uses the GPU (nvidia-smi names them), from before the first launch on",
        ),
        Unexplained(
            spent(nothing.filter(sub == NO_LAUNCH)),
            "the launch call of what the GPUs did next was not recorded",
            recording.CALLS,
        ),
        Unexplained(
            int(together or 0),
            "GPUs were in collectives in which waiting cannot be told from transfer",
            recording.RANKS,
        ),
        Unexplained(
            spent(lost.filter(sub == NOT_RECORDED)),
            "GPUs waited for a process that no source recorded",
            recording.SERVER,
        ),
    ]
    return sorted((row for row in found if row.ns), key=lambda row: -row.ns)


_MORE = f"with_stack=True and annotations on that thread, or {recording.SAMPLES}"


def _nothing_seen(results: Results) -> str:
    """Say what is known of the threads for whose lost time no slice and no sample tells anything."""
    blind = results.lost.filter((pl.col("cause") == "unattributed") & pl.col("sub_cause").is_null())
    most = blind.drop_nulls("thread").group_by("thread").agg(pl.col("dur_ns").sum()).sort("dur_ns", "thread")
    usual = "no range and no sample covered the thread that the GPUs waited for"
    if most.is_empty():
        return usual
    thread = most["thread"][-1]
    own = results.trace.slices.filter(pl.col("thread") == thread)
    calls = own.filter(pl.col("correlation").is_not_null())
    if own.is_empty() or calls.height < own.height or (results.trace.samples["thread"] == thread).any():
        return usual
    return f"thread {thread_name(results, thread)} launched, and nothing else of it was recorded"


# -------------------- the confidence
def damage(results: Results) -> list[str]:
    """Return what to say of files that are damaged, cut short or cannot be opened."""
    errors = results.trace.health.filter(pl.col("level") == "error").height
    if not errors:
        return []
    lost = "parts of the recording are lost: files are damaged, cut short or cannot be opened"
    return [f"{lost}; none of that time is in any figure ({counted(errors, 'error')} under Trace health)"]


def _missing(results: Results) -> list[str]:
    """Return what to say of ranks that take part in collectives and were not recorded."""
    missing, ranks = missing_ranks(results.trace)
    if not missing:
        return []
    numbers = ", ".join(map(str, ranks[:8])) + (" and more" if len(ranks) > 8 else "")
    rank, was, them = ("rank", "was", "it") if missing == 1 else ("ranks", "were", "them")
    named = f"{rank} {numbers}" if ranks else f"{missing} more {rank} of its group"
    unsure = f"so nothing shows whether the others waited for {them}"
    return [f"{named} {was} not recorded, {unsure}; record every rank at once"]


def confidence_in(results: Results, part: Shares) -> tuple[Confidence, list[str]]:
    """Return how sure the verdict is, and its limits: what makes it less sure first, then what is known."""
    lost_files = [*damage(results), *_missing(results)]
    unknown = part.unattributed / part.lost if part.lost else 0.0
    launched = mean(results.launches["call_ts_ns"].is_not_null())
    untied = results.trace.sources.filter(pl.col("tied_by") == "untied").height
    weak = unknown > 0.2 or launched < 0.5
    doubted = doubtful(results)
    less = costly(results) or doubted
    why = [*lost_files, *results.window.cut]
    if unknown > 0.02:
        why.append(f"{share(unknown)} of the lost time has no recorded cause")
    why.append(f"a launch was found for {share(launched)} of the GPU operations")
    why.append(
        f"the CPU state is known for {share(part.cpu_known)} of the GPU time lost to the host"
        if tells_shortage(results.thread_states)
        else "no wake-up events, so nothing shows how much of it is CPU shortage"
    )
    why += [*shortfalls(results), *doubted, *_cost(results), *_idle(results)]
    if untied:
        why.append(
            f"{untied} of {counted(results.trace.sources.height, 'source')} could not be tied to the timeline"
        )
    sure = not (weak or lost_files or untied or less) and unknown < 0.1
    sure = sure and part.cpu_known > HALF and half_covered(results)
    return ("low" if weak else "high" if sure else "medium"), why


def _idle(results: Results) -> list[str]:
    """Return what to say of time without a request; where that is most of the lost time the sentence does."""
    idle = spent(results.lost.filter(pl.col("cause") == "no_work"))
    part = share_of(results, idle)
    if part < recording.WORTH_SAYING or idle > HALF * spent(results.lost):
        return []
    return [
        f"for {share(part)} of GPU time there was no request to work on: the server was not under full load"
    ]


def settled_by(results: Results, state: str, confidence: Confidence, part: Shares) -> str:
    """Return the one recording that would settle the verdict; empty where it is sure already."""
    if confidence == "high":
        return ""
    doubted = [doubt.record_with for doubt in doubts(results) if doubt.rule != "cpu_shortage"]
    blind = [row.record_with for row in unexplained(results)]
    accused = state in ("cpu_bound", "mixed")  # whether threads had CPUs matters where they are to blame
    open_points = [
        (damage(results), "the same run again: files of this one are damaged or cut short"),
        (_missing(results), recording.RANKS),
        (blind and part.unattributed > 0.1 * part.lost, blind[0] if blind else ""),
        (
            accused and (part.cpu_known <= HALF or not half_covered(results)),
            f"{recording.SWITCHES}, for the whole window",
        ),
        (costly(results), recording.LIGHT),
        (doubted and doubtful(results), doubted[0] if doubted else ""),
    ]
    return next((record for is_open, record in open_points if is_open), "")
