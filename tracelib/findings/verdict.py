"""The answer in one word and one sentence, and how sure it is (docs/numbers.md, "Verdict")."""

from dataclasses import dataclass, replace

import msgspec
import polars as pl

from tracelib.analyses.capacity import quota_by_use, server_cpus
from tracelib.analyses.collectives import missing_ranks
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import tells_shortage
from tracelib.analyses.throttling import FEWEST_PERIODS
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings.document import Verdict
from tracelib.findings.doubts import costly, doubtful, half_covered, recorder_cost, shortfalls, unexplained
from tracelib.findings.finding import (
    NOT_HOST,
    Confidence,
    at_least,
    exposed_share,
    mean,
    share_of,
    short_of_cpu,
    spent,
)
from tracelib.findings.recording import LIGHT, RANKS, calls_only
from tracelib.sources.health import no_gpu_work
from tracelib.words import SERVER, cause_name, counted, cpus, duration, share, sub_cause_name, verdict_name

#: A server slept nearly all the time if none of its threads wanted or had a CPU for more of what is known of
#: it.
ASLEEP = 0.02
#: From this share of the window on, a thread without a CPU is worth a word where no GPU was recorded.
WANTED = 0.1
#: The threads that GPUs waited for had CPUs if they lacked one, or nobody knows, for no more of that time.
LACKED = 0.1
#: Parts of a cause that call for a change of their own, and so are named apart in the sentence.
APART = ("jit_compile", "module_load", "alloc", "cpu_collective")
#: Less is not worth a word in the sentence.
WORTH_A_WORD = 0.005


@dataclass(frozen=True)
class Thresholds:
    """Shares of the window (`cpu_bound`, `not_cpu_bound`) or lost time (`no_load`, `insufficient`); sizes."""

    cpu_bound: float = 0.15
    not_cpu_bound: float = 0.10
    no_load: float = 0.5
    insufficient: float = 1 / 3
    #: A recording that is shorter, or has fewer GPU operations, supports no verdict.
    shortest_ns: int = 50_000_000
    fewest_operations: int = 200


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
    #: The part lost to the host in which the blamed thread wanted a CPU and all were taken, or in which a
    #: quota kept it off an idle CPU: the mean over the devices, as in findings and figures.
    starved: float
    throttled: float
    #: Share of `host` whose CPU state is known; 0 where waiting for a CPU cannot be told from sleep.
    cpu_known: float
    causes: dict[str, float]  # host causes, each
    #: The same in words, with those parts apart that call for another change.
    named: dict[str, float]


def verdict(results: Results, thresholds: Thresholds | None = None) -> Verdict:
    """Return the verdict on the median device.

    Two cases go beyond the definition's letter, both where it would answer a question that nobody asked: time
    that cannot be attributed, or that had no work, makes no verdict while all lost time together stays under
    `not_cpu_bound`.
    """
    if results.gpu_time.is_empty():
        return Verdict(
            state="insufficient",
            sentence=f"These files cannot tell: {calls_only(results)}"
            f"{no_gpu_work(results.trace.health['message'])}, so nothing says "
            f"when the GPUs were held up{_asleep(results)}.",
            confidence="high",
            why=[*_damage(results), "no source shows the GPUs"],
        )
    limits = thresholds or Thresholds()
    part = shares(results)
    small = _too_small(results, part, limits)
    if small:
        why = [*_damage(results), *results.window.cut, "a verdict on so little would be a guess"]
        return Verdict(state="insufficient", sentence=small, confidence="high", why=why)
    state = _state(part, limits)
    confidence, why = _confidence(results, part)
    sentence = _sentence(state, part, results, limits)
    answer = Verdict(state=state, sentence=sentence, confidence=confidence, why=why)
    return _if_not_firm(answer, part, results, limits)


def _if_not_firm(answer: Verdict, part: Shares, results: Results, limits: Thresholds) -> Verdict:
    """Return the answer; less sure if it would be another one without the recorders' own work.

    What they record of themselves is not a host cause; their samples in launching are counted in its time.
    """
    cost = share_of(results, recorder_cost(results).in_launching_ns)
    host = max(0.0, part.host - cost)
    otherwise = _state(replace(part, host=host), limits)
    if otherwise == answer.state:
        return answer
    known = (
        f"about {share(cost)} of the time is the recorders' own work inside launching; without it host work "
        f"would hold the GPUs up for {share(host)} of the time: {verdict_name(otherwise)}"
    )
    sentence = f"{answer.sentence.removesuffix('.')}. This is not firm: {known}."
    lighter = f"the same load for a few seconds, at less cost to it: {LIGHT}"
    return msgspec.structs.replace(
        answer, sentence=sentence, confidence="low", why=[known, *answer.why], record_first=[lighter]
    )


# -------------------- the state
def _too_small(results: Results, part: Shares, limits: Thresholds) -> str:
    """Say that the recording is too small for a verdict, if it is."""
    length, operations = results.window.duration_ns, results.launches.height
    if length >= limits.shortest_ns and operations >= limits.fewest_operations:
        return ""
    besides = f"; besides, {_why_unknown(results)}" if _blind(part, limits) else ""
    return (
        f"These files cannot tell: {counted(operations, 'GPU operation')} in {duration(length)} are too few "
        f"to say anything{besides}. Record {duration(limits.shortest_ns)} and {limits.fewest_operations} "
        "operations or more, under load."
    )


def _state(part: Shares, limits: Thresholds) -> str:
    if _untold(part, limits):
        return "insufficient"
    if part.host + part.unattributed + part.no_work < limits.not_cpu_bound:
        return "not_cpu_bound"
    if _blind(part, limits):
        return "insufficient"
    if part.no_work > limits.no_load * part.lost:
        return "no_load"
    if part.host > limits.cpu_bound and part.unattributed < max(part.causes.values(), default=0.0):
        return "cpu_bound"
    return "not_cpu_bound" if part.host < limits.not_cpu_bound else "mixed"


def _blind(part: Shares, limits: Thresholds) -> bool:
    """Return whether no source explains too much of the lost time."""
    return part.unattributed > limits.insufficient * part.lost


def _untold(part: Shares, limits: Thresholds) -> bool:
    """Return whether too much of the busy time is in collectives whose waiting cannot be told."""
    return part.collective > limits.insufficient * part.busy


def shares(results: Results) -> Shares:
    """Return what the verdict stands on, on the median device."""
    unknown = (pl.col("cause") == "unattributed") | (pl.col("sub_cause") == NOT_RECORDED).fill_null(
        value=False
    )
    pieces = results.lost.with_columns(cause=pl.when(unknown).then(pl.lit("unattributed")).otherwise("cause"))
    host = pieces.filter(~pl.col("cause").is_in(NOT_HOST))
    known = host.filter(pl.col("cpu_state") != "unknown")
    can_tell = tells_shortage(results.thread_states) and spent(host)
    time = results.gpu_time.rename({"ns": "dur_ns"})
    return Shares(
        host=_median(results, host),
        lost=_median(results, pieces),
        unattributed=_median(results, pieces.filter(pl.col("cause") == "unattributed")),
        no_work=_median(results, pieces.filter(pl.col("cause") == "no_work")),
        busy=_median(results, time.filter(pl.col("state") != "idle")),
        useful=_median(results, time.filter(pl.col("state").is_in(USEFUL))),
        collective=_median(results, time.filter(pl.col("state") == "collective")),
        starved=exposed_share(results, short_of_cpu(results, "runnable")),
        throttled=exposed_share(results, short_of_cpu(results, "throttled")),
        cpu_known=spent(known) / spent(host) if can_tell else 0.0,
        causes={str(cause): _median(results, rows) for (cause,), rows in host.group_by("cause")},
        named=_named(results, host),
    )


def _named(results: Results, host: pl.DataFrame) -> dict[str, float]:
    apart = pl.col("sub_cause").is_in(APART).fill_null(value=False)
    named = host.group_by("cause", sub_cause=pl.when(apart).then("sub_cause"))
    return {
        sub_cause_name(str(sub_cause)) if sub_cause else cause_name(str(cause)): _median(results, rows)
        for (cause, sub_cause), rows in named
    }


def _median(results: Results, rows: pl.DataFrame) -> float:
    """Return the rows' time as a share of the window, on the median device."""
    devices = results.gpu_time.select("gpu").unique()
    spent = devices.join(rows.group_by("gpu").agg(pl.col("dur_ns").sum()), on="gpu", how="left")
    middle = spent["dur_ns"].fill_null(0).median()
    return float(middle) / results.window.duration_ns  # type: ignore[arg-type]


# -------------------- the sentence
def _asleep(results: Results) -> str:
    """Say that the server slept, or lacked CPUs, where the scheduler saw that of its threads.

    A server that slept may have had nothing to record.
    """
    server = results.scheduling.filter(pl.col("role").is_in(SERVER))
    if not tells_shortage(results.thread_states) or server.is_empty():
        return ""
    wanted = pl.col("runnable_ns") + pl.col("throttled_ns")
    known = pl.col("running_ns") + pl.col("blocked_ns") + wanted
    most, awake, half_known = (
        server.filter(known > 0)
        .select(
            most=(wanted / results.window.duration_ns).max(),
            awake=((pl.col("running_ns") + wanted) / known).max(),
            half_known=known.sum() < pl.col("unknown_ns").sum(),
        )
        .row(0)
    )
    if (most or 0.0) > WANTED:
        return f"; a thread of the server wanted a CPU and had none for {share(most)} of the time"
    if awake is None or awake > ASLEEP or half_known:
        return ""
    return "; the server's threads slept nearly all the time: if the GPUs were recorded, there was no load"


def _sentence(state: str, part: Shares, results: Results, limits: Thresholds) -> str:
    host, collectives = _held_up(part, results), _in_collectives(part)
    useful = f"the GPUs did useful work {'at least ' if collectives else ''}{share(part.useful)} of the time"
    if collectives:
        useful += f", and for {collectives}"
    if _untold(part, limits):
        unknown = f"the GPUs were busy, but for {collectives}"
    else:
        unknown = (
            f"{share(part.unattributed)} of the time the GPUs were idle for a reason that no source recorded"
        )
        if _blind(part, limits):
            unknown += f" ({_why_unknown(results)})"
    return {
        "cpu_bound": f"The CPU side is the limit: {host}{_shortage(part, results)}.",
        "mixed": f"The CPU side is part of it, not all: {host}{_shortage(part, results)}; {useful}.",
        "not_cpu_bound": f"The CPU side is not the limit: {host}; {useful}.",
        "no_load": f"There was no work for {share(part.no_work)} of the time: no request for that GPU waited "
        "anywhere; "
        f"{host}.",
        "insufficient": f"These files cannot tell: {unknown}; {host}.",
    }[state]


def _why_unknown(results: Results) -> str:
    """Return what is known of the largest part of the time that no source explains."""
    rows = [row for row in unexplained(results) if row.record_with != RANKS]
    return rows[0].words if rows else "nothing else is known of it"


def _held_up(part: Shares, results: Results) -> str:
    """Say how long host work held the GPUs up, and by what most."""
    largest = sorted(part.named.items(), key=lambda item: (-item[1], item[0]))[:3]
    named = ", ".join(f"{words} {share(of)}" for words, of in largest if of >= WORTH_A_WORD)
    least = "at least " if missing_ranks(results.trace)[0] else ""
    host = f"host work held the GPUs up for {least}{share(part.host)} of the time"
    return f"{host} ({named})" if named else host


def _in_collectives(part: Shares) -> str:
    """Say how long the GPUs were in collectives that cannot be split; empty where that is little."""
    if part.collective < WORTH_A_WORD:
        return ""
    return (
        f"{share(part.collective)} of the time they ran collectives in which waiting cannot be told from "
        "transfer"
    )


def _shortage(part: Shares, results: Results) -> str:
    """Say what kind of shortage it was: a quota, too few CPUs, or none, which call for different changes."""
    parts, least = [], at_least(part.cpu_known)
    if part.throttled >= 0.01:
        parts.append(
            f"for {least}{share(part.throttled)} of the time a CPU quota{quota_words(results)} had stopped "
            "the thread that a GPU waited for, while CPUs were idle"
        )
    if part.starved >= 0.02:
        parts.append(
            f"for {least}{share(part.starved)} of the time the thread that a GPU waited for wanted a CPU "
            f"while {_cpus(results)}"
        )
    if parts:
        return "; " + ", and ".join(parts)
    lacked = part.starved + part.throttled + (1 - part.cpu_known) * part.host
    if part.host >= 0.05 and lacked <= LACKED * part.host:
        return "; the threads had CPUs when they needed them, so the host's own work is what takes long"
    return ""


def quota_words(results: Results) -> str:
    """Return the quota's size: as cpu.max says it, else from what was used before each stop (`quota_use`)."""
    if results.supply.quota_cpus is not None:
        return f" of {cpus(results.supply.quota_cpus)}"
    if results.quota_use.height < FEWEST_PERIODS:
        return ""
    return f" of about {quota_by_use(results):.1f} CPUs"


def _cpus(results: Results) -> str:
    """Return which CPUs were busy, in words."""
    used, host = server_cpus(results)
    of = f" (of the host's {host})" if host else ""
    if not used:
        return "all CPUs were busy"
    return (
        f"the server's only CPU{of} was busy" if used == 1 else f"the server's {used} CPUs{of} were all busy"
    )


# -------------------- the confidence
def _damage(results: Results) -> list[str]:
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


def _confidence(results: Results, part: Shares) -> tuple[Confidence, list[str]]:
    """Return how sure the verdict is, and why, weakest point first."""
    why = [*_damage(results), *_missing(results)]
    damaged = bool(why)
    why += results.window.cut
    unknown = part.unattributed / part.lost if part.lost else 0.0
    launched = mean(results.launches["call_ts_ns"].is_not_null())
    untied = results.trace.sources.filter(pl.col("tied_by") == "untied").height
    weak = unknown > 0.2 or launched < 0.5
    if unknown > 0.02:
        why.append(f"{share(unknown)} of the lost time has no recorded cause")
    why.append(f"a launch was found for {share(launched)} of the GPU operations")
    why.append(
        f"the CPU state is known for {share(part.cpu_known)} of the exposed host time"
        if tells_shortage(results.thread_states)
        else "no wake-up events, so nothing shows how much of it is CPU shortage"
    )
    why += [*shortfalls(results), *(less := [*costly(results), *doubtful(results)])]
    if untied:
        why.append(
            f"{untied} of {counted(results.trace.sources.height, 'source')} could not be tied to the timeline"
        )
    sure = (
        not weak
        and not damaged
        and unknown < 0.1
        and part.cpu_known > 0.5
        and not untied
        and not less
        and half_covered(results)
    )
    return ("low" if weak else "high" if sure else "medium"), why
