"""The answer in one word and one sentence (ATTRIBUTION.md, "Verdict")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.collectives import missing_ranks
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.scheduling import SERVER, tells_shortage
from tracelib.analyses.throttling import FEWEST_PERIODS
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings.finding import mean

if TYPE_CHECKING:
    from tracelib.analyses.results import Results
    from tracelib.findings.finding import Confidence

__all__ = [
    "APART",
    "NOT_HOST",
    "NOT_RECORDED",
    "STATES",
    "WORDS",
    "Shares",
    "Thresholds",
    "Verdict",
    "quota_words",
    "shares",
    "verdict",
]

STATES = ("cpu_bound", "not_cpu_bound", "mixed", "no_load", "insufficient")
#: Causes of lost GPU time that are not the host's doing, or that nobody can tell.
NOT_HOST = ("imbalance", "no_work", "profiler", "unattributed")

#: CPU time per time asleep, the server's threads together, up to which they slept nearly all the time.
ASLEEP = 0.02

WORDS = {
    "tokenization": "tokenization",
    "kernel_launch": "kernel launch",
    "ipc": "messages between processes",
    "scheduling": "the engine's scheduler",
    "sync": "synchronisation with the device",
    "gc": "garbage collection",
    "gil": "waiting for the interpreter lock",
}
#: Parts of kernel_launch that call for a change of their own, and so are named apart in the sentence.
APART = {
    "jit_compile": "run-time compilation",
    "module_load": "loading of GPU code",
    "alloc": "memory allocation",
}


@dataclass(frozen=True)
class Thresholds:
    """Shares of the window (`cpu_bound`, `not_cpu_bound`) and of lost time (`no_load`, `insufficient`)."""

    cpu_bound: float = 0.15
    not_cpu_bound: float = 0.10
    no_load: float = 0.5
    insufficient: float = 1 / 3


@dataclass(frozen=True)
class Verdict:
    """The verdict, its sentence, and the reasons for the confidence in it."""

    state: str
    sentence: str
    confidence: Confidence
    why: list[str]


@dataclass(frozen=True)
class Shares:
    """Shares of the window on the median device."""

    host: float  # lost to exposed host causes
    lost: float
    unattributed: float
    no_work: float
    busy: float
    useful: float
    collective: float  # neither useful nor lost: in collectives whose waiting cannot be told from transfer
    starved: float  # the part of `host` in which the blamed thread wanted a CPU and all were taken
    throttled: float  # the part of `host` in which a quota kept it off an idle CPU
    cpu_known: (
        float  # share of `host` whose CPU state is known; 0 where waiting for a CPU cannot be told from sleep
    )
    causes: dict[str, float]  # host causes, each
    named: dict[
        str, float
    ]  # the same in words, with those parts of kernel_launch apart that call for another change


def verdict(results: Results, thresholds: Thresholds | None = None) -> Verdict:
    """Return the verdict on the median device.

    Two cases go beyond the definition's letter, both where it would answer a question that nobody asked: time that cannot
    be attributed, or that had no work, makes no verdict while all lost time together stays under `not_cpu_bound`.
    """
    if results.gpu_time.is_empty():
        said = f"These files cannot tell: no GPU operation was recorded, so nothing says when the GPUs were held up{_asleep(results)}."
        return Verdict("insufficient", said, "high", [*_damage(results), "no source recorded the GPUs"])
    limits = thresholds or Thresholds()
    share = shares(results)
    state = _state(share, limits)
    confidence, why = _confidence(results, share)
    return Verdict(state, _sentence(state, share, results, limits), confidence, why)


def _asleep(results: Results) -> str:
    """Say that the server slept, where the scheduler saw that: then there may have been nothing to record."""
    server = results.scheduling.filter(pl.col("role").is_in(SERVER))
    slept, ran = (int(server[column].sum() or 0) for column in ("blocked_ns", "running_ns"))
    if not tells_shortage(results.thread_states) or not slept or ran > ASLEEP * slept:
        return ""
    return "; the server's threads slept nearly all the time: if the GPUs were recorded, there was no load"


def _state(share: Shares, limits: Thresholds) -> str:
    if _untold(share, limits):
        return "insufficient"
    if share.host + share.unattributed + share.no_work < limits.not_cpu_bound:
        return "not_cpu_bound"
    if share.unattributed > limits.insufficient * share.lost:
        return "insufficient"
    if share.no_work > limits.no_load * share.lost:
        return "no_load"
    if share.host > limits.cpu_bound and share.unattributed < max(share.causes.values(), default=0.0):
        return "cpu_bound"
    return "not_cpu_bound" if share.host < limits.not_cpu_bound else "mixed"


def _untold(share: Shares, limits: Thresholds) -> bool:
    """Return whether too much of the busy time is in collectives whose waiting cannot be told."""
    return share.collective > limits.insufficient * share.busy


def shares(results: Results) -> Shares:
    """Return what the verdict stands on, on the median device."""
    unknown = (pl.col("cause") == "unattributed") | (pl.col("sub_cause") == NOT_RECORDED).fill_null(
        value=False
    )
    pieces = results.lost.with_columns(cause=pl.when(unknown).then(pl.lit("unattributed")).otherwise("cause"))
    host = pieces.filter(~pl.col("cause").is_in(NOT_HOST))
    state = pl.col("cpu_state").cast(pl.String)
    known = host.filter(pl.col("cpu_state") != "unknown")
    total = int(host["dur_ns"].sum())
    told = tells_shortage(results.thread_states)
    time = results.gpu_time.rename({"ns": "dur_ns"})
    return Shares(
        host=_median(results, host),
        lost=_median(results, pieces),
        unattributed=_median(results, pieces.filter(pl.col("cause") == "unattributed")),
        no_work=_median(results, pieces.filter(pl.col("cause") == "no_work")),
        busy=_median(results, time.filter(pl.col("state") != "idle")),
        useful=_median(results, time.filter(pl.col("state").is_in(USEFUL))),
        collective=_median(results, time.filter(pl.col("state") == "collective")),
        starved=_median(results, host.filter(state == "runnable")),
        throttled=_median(results, host.filter(state == "throttled")),
        cpu_known=int(known["dur_ns"].sum()) / total if total and told else 0.0,
        causes={str(cause): _median(results, rows) for (cause,), rows in host.group_by("cause")},
        named=_named(results, host),
    )


def _named(results: Results, host: pl.DataFrame) -> dict[str, float]:
    apart = pl.col("sub_cause").replace_strict(APART, default=None, return_dtype=pl.String)
    words = pl.col("cause").replace(WORDS)
    told = host.with_columns(_word=pl.when(pl.col("cause") == "kernel_launch").then(apart).fill_null(words))
    return {str(word): _median(results, rows) for (word,), rows in told.group_by("_word")}


def _median(results: Results, rows: pl.DataFrame) -> float:
    """Return the rows' time as a share of the window, on the median device."""
    devices = results.gpu_time.select("gpu").unique()
    spent = devices.join(rows.group_by("gpu").agg(pl.col("dur_ns").sum()), on="gpu", how="left")
    middle = spent["dur_ns"].fill_null(0).median()
    return float(middle) / results.window.duration_ns  # type: ignore[arg-type]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _sentence(state: str, share: Shares, results: Results, limits: Thresholds) -> str:
    largest = sorted(share.named.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{words} {_percent(part)}" for words, part in largest[:3] if part >= 0.005)
    missing, _ = missing_ranks(results.trace)
    least = "at least " if missing else ""
    host = f"host work held the GPUs up for {least}{_percent(share.host)} of the time" + (
        f" ({named})" if named else ""
    )
    starved = _shortage(share, results)
    apart = f"{_percent(share.collective)} of the time they ran collectives in which waiting cannot be told from transfer"
    doubtful = share.collective >= 0.005
    used = f"the GPUs did useful work {'at least ' if doubtful else ''}{_percent(share.useful)} of the time"
    used += f", and for {apart}" if doubtful else ""
    unknown = (
        f"{_percent(share.unattributed)} of the time the GPUs were idle for a reason that no source recorded"
    )
    if _untold(share, limits):
        unknown = f"the GPUs were busy, but for {apart}"
    return {
        "cpu_bound": f"The CPU side is the limit: {host}{starved}.",
        "mixed": f"The CPU side is part of it, not all: {host}{starved}; {used}.",
        "not_cpu_bound": f"The CPU side is not the limit: {host}; {used}.",
        "no_load": f"There was no work for {_percent(share.no_work)} of the time: no request waited anywhere; {host}.",
        "insufficient": f"These files cannot tell: {unknown}; {host}.",
    }[state]


def _shortage(share: Shares, results: Results) -> str:
    """Say what kind of shortage it was: a quota, too few CPUs, or none, which call for different changes."""
    parts = []
    if share.throttled >= 0.01:
        parts.append(
            f"in {_percent(share.throttled)} of the time a CPU quota{quota_words(results)} had stopped the thread in question while CPUs were idle"
        )
    if share.starved >= 0.02:
        parts.append(
            f"in {_percent(share.starved)} of the time the thread in question wanted a CPU and {_cpus(results)} taken"
        )
    if parts:
        return "; " + ", and ".join(parts)
    enough = share.cpu_known > 0.5 and share.host >= 0.05
    return (
        "; its threads had CPUs when they needed them, so the host's work itself is what takes long"
        if enough
        else ""
    )


def quota_words(results: Results) -> str:
    """Return the quota's size: as cpu.max says it, else from what was used before each stop (`quota_use`)."""
    if results.supply.quota_cpus is not None:
        return f" of {results.supply.quota_cpus:g} CPUs"
    used = results.quota_use["cpus"]
    return f" of about {float(used.median()):.1f} CPUs" if used.len() >= FEWEST_PERIODS else ""  # type: ignore[arg-type]


def _cpus(results: Results) -> str:
    """Return which CPUs were taken, in words."""
    seen, host = server_cpus(results)
    if not seen:
        return "all were"
    which, be = ("the one", "was") if seen == 1 else (f"all {seen}", "were")
    return f"{which} that the server ran on{f' (the host has {host})' if host else ''} {be}"


def _damage(results: Results) -> list[str]:
    """Return what to say of files that are damaged, cut short or could not be opened."""
    errors = results.trace.health.filter(pl.col("level") == "error").height
    lost = "parts of the recording are lost: files are damaged, cut short or cannot be opened"
    return (
        [f"{lost}; none of that time is in any figure ({errors} errors under Trace health)"] if errors else []
    )


def _missing(results: Results) -> list[str]:
    """Return what to say of ranks that take part in collectives and were not recorded."""
    missing, ranks = missing_ranks(results.trace)
    if not missing:
        return []
    who = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:8]))}{' and more' if len(ranks) > 8 else ''}"
    named = f"{missing} more rank{'' if missing == 1 else 's'} of its group" if not ranks else who
    was, them = ("was", "it") if missing == 1 else ("were", "them")
    return [
        f"{named} {was} not recorded: whether the others waited for {them} cannot be told; record every rank at once"
    ]


def _confidence(results: Results, share: Shares) -> tuple[Confidence, list[str]]:
    """Return how sure the verdict is, and why, weakest point first."""
    why = _damage(results)
    unknown = share.unattributed / share.lost if share.lost else 0.0
    launched = mean(results.launches["call_ts_ns"].is_not_null())
    untied = results.trace.sources.filter(pl.col("tied_by") == "untied").height
    why += _missing(results)
    damaged = bool(why)
    weak = unknown > 0.2 or launched < 0.5
    if unknown > 0.02:
        why.append(f"{_percent(unknown)} of the lost time has no recorded cause")
    why.append(f"a launch was found for {_percent(launched)} of the GPU operations")
    why.append(
        f"the CPU state is known for {_percent(share.cpu_known)} of the exposed host time"
        if tells_shortage(results.thread_states)
        else "no wake-up events: how much of it is CPU shortage cannot be told"
    )
    if untied:
        why.append(f"{untied} of {results.trace.sources.height} sources could not be tied to the timeline")
    sure = not weak and not damaged and unknown < 0.1 and share.cpu_known > 0.5 and not untied
    return ("low" if weak else "high" if sure else "medium"), why
