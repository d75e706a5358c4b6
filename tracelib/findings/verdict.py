"""The answer in one word and one sentence, and how sure it is (docs/numbers.md, "Verdict")."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import polars as pl

from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.collectives import missing_ranks
from tracelib.analyses.comparison import kernels
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import tells_shortage
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings.document import Verdict
from tracelib.findings.doubts import confidence_in, damage, recorder_cost, settled_by, unexplained
from tracelib.findings.finding import (
    NOT_HOST,
    WORTH_FIRST,
    at_least,
    exposed_share,
    quota_words,
    share_of,
    short_of_cpu,
    spent,
)
from tracelib.findings.recording import LIGHT, RANKS, ROOFLINE, calls_only, of_recorded, switches_ns
from tracelib.sources.health import no_gpu_work
from tracelib.words import (
    SERVER,
    badge,
    cause_name,
    counted,
    duration,
    limit_name,
    plain,
    sentence,
    share,
    sub_cause_name,
)

#: A server slept nearly all the time if none of its threads wanted or had a CPU for more of what is known of
#: it.
ASLEEP = 0.02
#: From this share of what scheduler events cover on, a thread without a CPU is worth a word where no GPU was
#: recorded.
WANTED = 0.1
#: The threads that GPUs waited for had CPUs if they lacked one, or nobody knows, for no more of that time.
LACKED = 0.1
#: Parts of a cause that call for a change of their own, and so are named apart in the sentence.
APART = ("jit_compile", "module_load", "alloc", "cpu_collective")
#: Less is not worth a word in the sentence; nor is less time stopped by a quota, or ready without a CPU.
WORTH_A_WORD, THROTTLED, STARVED = 0.005, 0.01, 0.02
#: So many of the longest kernels are named where these are the limit.
KERNELS = 3


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
    """Shares of the window: on the median device, or of GPU time (the window summed over the devices)."""

    host: float  # lost to exposed host causes
    lost: float
    unattributed: float
    no_work: float
    busy: float
    useful: float
    collective: float  # neither useful nor lost: in collectives whose waiting cannot be told from transfer
    #: The part lost to the host in which the blamed thread wanted a CPU and all were taken, or in which a
    #: quota kept it off an idle CPU: of GPU time always, as in findings and figures.
    starved: float
    throttled: float
    #: Share of `host` whose CPU state is known; 0 where waiting for a CPU cannot be told from sleep.
    cpu_known: float
    causes: dict[str, float]  # host causes, each
    #: The same in words, with those parts apart that call for another change.
    named: dict[str, float]


def verdict(results: Results, thresholds: Thresholds | None = None) -> Verdict:
    """Return the verdict on the median device; its sentence tells shares of GPU time, as the whole page does.

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
            why=[*damage(results), "no source shows the GPUs"],
        )
    limits = thresholds or Thresholds()
    part = shares(results)
    small = _too_small(results, part, limits)
    if small:
        why = [*damage(results), *results.window.cut, "a verdict on so little would be a guess"]
        return Verdict(state="insufficient", sentence=small, confidence="high", why=why)
    state, told = _state(part, limits), shares(results, exposed_share)
    confidence, why = confidence_in(results, part)
    limiting = _limits(state, told, results)
    answer = Verdict(
        state=state,
        sentence=_sentence(state, told, results, limits),
        confidence=confidence,
        why=[*_median_device(part, told), *why],
        limits=limiting,
        settled_by=settled_by(results, state, confidence, part)
        or (ROOFLINE if "kernels" in limiting else ""),
    )
    return _if_not_firm(answer, part, told, results, limits)


def _median_device(part: Shares, told: Shares) -> list[str]:
    """Say what the verdict goes by, where that is another figure than the one in the sentence."""
    median, summed = share(part.host), share(told.host)
    if median == summed:
        return []
    return [f"the verdict goes by the median GPU, which the host held up for {median} of the window"]


def _if_not_firm(
    answer: Verdict, part: Shares, told: Shares, results: Results, limits: Thresholds
) -> Verdict:
    """Return the answer; less sure if it would be another one without the recorders' own work.

    What they record of themselves is not a host cause; their samples in launching are counted in its time.
    """
    cost = share_of(results, recorder_cost(results).in_launching_ns)
    without = [max(0.0, each.host - cost) for each in (part, told)]
    otherwise = _state(replace(part, host=without[0]), limits)
    if otherwise == answer.state:
        return answer
    another = badge(otherwise, _limits(otherwise, replace(told, host=without[1]), results))
    known = (
        f"about {share(cost)} of GPU time is the recorders' own work inside launching; without it the host "
        f'would hold the GPUs up for {share(without[1])} of GPU time, and the verdict would be "{another}"'
    )
    said = f"{answer.sentence} This is not firm: {known}."
    lighter = f"the same load for a few seconds, at less cost to it: {LIGHT}"
    return msgspec.structs.replace(
        answer, sentence=said, confidence="low", record_first=[lighter], firm=False
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


def _median(results: Results, rows: pl.DataFrame) -> float:
    """Return the rows' time as a share of the window, on the median device."""
    devices = results.gpu_time.select("gpu").unique()
    time = devices.join(rows.group_by("gpu").agg(pl.col("dur_ns").sum()), on="gpu", how="left")
    middle = time["dur_ns"].fill_null(0).median()
    return float(middle) / results.window.duration_ns  # type: ignore[arg-type]


def shares(results: Results, of: Callable[[Results, pl.DataFrame], float] = _median) -> Shares:
    """Return what the verdict stands on: on the median device, or as `of` makes shares of rows' time."""
    unknown = (pl.col("cause") == "unattributed") | (pl.col("sub_cause") == NOT_RECORDED).fill_null(
        value=False
    )
    pieces = results.lost.with_columns(cause=pl.when(unknown).then(pl.lit("unattributed")).otherwise("cause"))
    host = pieces.filter(~pl.col("cause").is_in(NOT_HOST))
    known = host.filter(pl.col("cpu_state") != "unknown")
    can_tell = tells_shortage(results.thread_states) and spent(host)
    time = results.gpu_time.rename({"ns": "dur_ns"})
    return Shares(
        host=of(results, host),
        lost=of(results, pieces),
        unattributed=of(results, pieces.filter(pl.col("cause") == "unattributed")),
        no_work=of(results, pieces.filter(pl.col("cause") == "no_work")),
        busy=of(results, time.filter(pl.col("state") != "idle")),
        useful=of(results, time.filter(pl.col("state").is_in(USEFUL))),
        collective=of(results, time.filter(pl.col("state") == "collective")),
        starved=exposed_share(results, short_of_cpu(results, "runnable")),
        throttled=exposed_share(results, short_of_cpu(results, "throttled")),
        cpu_known=spent(known) / spent(host) if can_tell else 0.0,
        causes={str(cause): of(results, rows) for (cause,), rows in host.group_by("cause")},
        named=_named(host, lambda rows: of(results, rows)),
    )


def _named(host: pl.DataFrame, of: Callable[[pl.DataFrame], float]) -> dict[str, float]:
    apart = pl.col("sub_cause").is_in(APART).fill_null(value=False)
    named = host.group_by("cause", sub_cause=pl.when(apart).then("sub_cause"))
    return {
        sub_cause_name(str(sub_cause)) if sub_cause else cause_name(str(cause)): of(rows)
        for (cause, sub_cause), rows in named
    }


# -------------------- what limits
def _limits(state: str, told: Shares, results: Results) -> list[str]:
    """Return what limits, by its keys in words.toml: of the host what to change first, else what GPUs did."""
    if state in ("no_load", "insufficient"):
        return []
    if state == "not_cpu_bound":
        return [max(spent_elsewhere(results).items(), key=lambda item: item[1])[0]]
    known = told.cpu_known * told.host
    short = {"quota": told.throttled, "cores": told.starved}
    least = {"quota": THROTTLED, "cores": STARVED}
    found = [name for name, part in short.items() if part >= max(least[name], WORTH_FIRST * known)]
    own = told.host - told.throttled - told.starved - (1 - told.cpu_known) * told.host * bool(found)
    return [*found, "host_work"] if not found or own >= WORTH_FIRST * known else found


def spent_elsewhere(results: Results) -> dict[str, float]:
    """Return how long the GPUs did what is not the host's doing, as shares of GPU time, by limit."""
    time = results.gpu_time.select(pl.col("state").cast(pl.String), dur_ns="ns")
    by_state = {
        "kernels": ["compute"],
        "copies": ["copy"],
        "collectives": ["collective_transfer", "collective"],
    }
    spent_in = {
        limit: exposed_share(results, time.filter(pl.col("state").is_in(states)))
        for limit, states in by_state.items()
    }
    lost = results.lost.filter(pl.col("cause").is_in(NOT_HOST)).group_by("cause")
    return spent_in | {str(cause): exposed_share(results, rows) for (cause,), rows in lost}


# -------------------- the sentence
def _asleep(results: Results) -> str:
    """Say that the server slept, or lacked CPUs, where the scheduler saw that of its threads.

    A server that slept may have had nothing to record. Shares are of the time that scheduler events cover.
    """
    states = results.scheduling.filter(pl.col("role").is_in(SERVER))
    covered = switches_ns(results)
    if not tells_shortage(results.thread_states) or states.is_empty() or not covered:
        return ""
    wanted = pl.col("runnable_ns") + pl.col("throttled_ns")
    known = pl.col("running_ns") + pl.col("blocked_ns") + wanted
    most, awake, half_known = (
        states.filter(known > 0)
        .select(
            most=wanted.max(),
            awake=((pl.col("running_ns") + wanted) / known).max(),
            half_known=known.sum() < pl.col("unknown_ns").sum(),
        )
        .row(0)
    )
    if (most or 0) > WANTED * covered:
        return f"; a thread of the server wanted a CPU and had none for {of_recorded(most, results)}"
    if awake is None or awake > ASLEEP or half_known:
        return ""
    return "; the server's threads slept nearly all the time: if the GPUs were recorded, there was no load"


def _sentence(state: str, told: Shares, results: Results, limits: Thresholds) -> str:
    host, collectives = _held_up(told, results), _in_collectives(told)
    useful = f"The GPUs did useful work for {'at least ' * bool(collectives)}{share(told.useful)} of GPU time"
    useful += f"; {collectives}" if collectives else ""
    match state:
        case "cpu_bound":
            return f"The host {host}.{_shortage(told, results)}"
        case "mixed":
            return f"The host is a part of the limit: it {host}.{_shortage(told, results)} {useful}."
        case "not_cpu_bound":
            return f"The host is not the limit: it {host}.{_elsewhere(results)}"
        case "no_load":
            nothing = f"There was no work for {share(told.no_work)} of GPU time"
            return f"{nothing}: no request was waiting for that GPU anywhere. The host {host}."
    return f"These files cannot tell: {_unknown(told, results, limits)}. The host {host}."


def _unknown(told: Shares, results: Results, limits: Thresholds) -> str:
    """Say which time stands in the way of a verdict."""
    if _untold(told, limits):
        return f"the GPUs were busy, but {_in_collectives(told)}"
    unknown = (
        f"for {share(told.unattributed)} of GPU time the GPUs were idle for a reason that no source recorded"
    )
    return f"{unknown} ({_why_unknown(results)})" if _blind(told, limits) else unknown


def _elsewhere(results: Results) -> str:
    """Say what the GPUs did instead of waiting for the host: kernels by time, copies, collectives, waits."""
    parts = [
        (limit_name(limit), share(part))
        for limit, part in sorted(spent_elsewhere(results).items(), key=lambda item: -item[1])
        if part >= WORTH_A_WORD
    ]
    longest = kernels({"": results}).filter(~pl.col("collective")).head(KERNELS)
    named = ", ".join(
        f"{plain(name, 40)} {share(part)}" for name, part in longest.select("name", "share").iter_rows()
    )
    longest_named = f" The longest kernels and copies: {named}." if named else ""
    if not parts:
        return longest_named
    (first, of_time), *others = parts
    rest = "".join(f", {name} {part}" for name, part in others)
    return f" {sentence(first)} took {of_time} of GPU time{rest}.{longest_named}"


def _why_unknown(results: Results) -> str:
    """Return what is known of the largest part of the time that no source explains."""
    rows = [row for row in unexplained(results) if row.record_with != RANKS]
    return rows[0].words if rows else "nothing else is known of it"


def _held_up(part: Shares, results: Results) -> str:
    """Say how long the host held the GPUs up, and by what most."""
    largest = sorted(part.named.items(), key=lambda item: (-item[1], item[0]))[:3]
    named = ", ".join(f"{words} {share(of)}" for words, of in largest if of >= WORTH_A_WORD)
    least = "at least " if missing_ranks(results.trace)[0] else ""
    host = f"held the GPUs up for {least}{share(part.host)} of GPU time"
    return f"{host} ({named})" if named else host


def _in_collectives(part: Shares) -> str:
    """Say how long the GPUs were in collectives that cannot be split; empty where that is little."""
    if part.collective < WORTH_A_WORD:
        return ""
    return f"for {share(part.collective)} they ran collectives in which waiting cannot be told from transfer"


def _shortage(part: Shares, results: Results) -> str:
    """Say what kind of shortage it was: a quota, too few CPUs, or none, which call for different changes."""
    said, least = [], at_least(part.cpu_known)
    if part.throttled >= THROTTLED:
        said.append(
            f"For {least}{share(part.throttled)} of GPU time a CPU quota{quota_words(results)} had stopped "
            "the thread that a GPU waited for, while CPUs were idle."
        )
    if part.starved >= STARVED:
        said.append(
            f"For {least}{share(part.starved)} of GPU time the thread that a GPU waited for wanted a CPU "
            f"while {_cpus(results)}."
        )
    if said:
        return " " + " ".join(said)
    lacked = part.starved + part.throttled + (1 - part.cpu_known) * part.host
    if part.host >= 0.05 and lacked <= LACKED * part.host:
        return " The threads had CPUs when they needed them; their own work is what takes long."
    return ""


def _cpus(results: Results) -> str:
    """Return which CPUs were busy, in words."""
    used, host = server_cpus(results)
    of = f" (of the host's {host})" if host else ""
    if not used:
        return "all CPUs were busy"
    return (
        f"the server's only CPU{of} was busy" if used == 1 else f"the server's {used} CPUs{of} were all busy"
    )
