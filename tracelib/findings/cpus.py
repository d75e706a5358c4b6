"""Rules on CPUs: too few, taken by tokenizers or pollers, or stopped by a quota."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.cpu_time import polls
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.analyses.throttling import FEWEST_PERIODS, PERIODS_NS
from tracelib.data import data
from tracelib.findings import recording
from tracelib.findings.finding import (
    Abstained,
    Evidence,
    Finding,
    evidence_rows,
    exposed_share,
    gpus_named,
    moments,
    over_the_window,
    quota_words,
    seen_share,
    share_of,
    short_of_cpu,
    shortage_known,
    spent,
    thread_name,
)
from tracelib.words import SERVER, counted, cpus, duration, plain, share, sub_cause_name

if TYPE_CHECKING:
    from tracelib.findings.rules import Rule

#: Counters that span so many times the window tell of more than it.
OTHER_SPAN = 1.5
#: From these parts of the time without a CPU on it is named who ran: the server's threads, other processes.
#: From the first on, periods in which a quota ran out are worth a word, too.
OWN, FOREIGN = 0.05, 0.01
#: What each kind of polling is called, what makes it stop, and what that changes.
POLLING = data(__file__, "polling.toml")


# -------------------- shortage
def cpu_shortage(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report lost GPU time whose blamed thread was runnable, and who ran instead."""
    if not tells_shortage(results.thread_states):
        return rule.abstained(
            "no wake-up events, so nothing shows whether threads waited for a CPU or slept",
            recording.SWITCHES,
        )
    lost = short_of_cpu(results, "runnable")
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    known = shortage_known(results)
    return rule.finding(
        results,
        lost,
        claim=f"For {seen_share(results, part)} of GPU time the thread that a GPU waited for was ready to "
        f"run and had no CPU.{_who_ran_instead(results)}{_supply(results)}",
        confidence="high" if known > 0.8 else "medium",
        why=f"read off scheduler events, which tell the state of the thread in question for {share(known)} "
        "of the GPU time lost to the host",
        advice=[text.format(confined=_confined(results)) for text in rule.advice],
    )


def _supply(results: Results) -> str:
    """Say how many CPUs the server had, and how many of its threads wanted one."""
    used, host = server_cpus(results)
    most = demand_at(results.demand, 0.95)
    if used is None or most is None:
        return ""
    of = f" of the host's {host}" if host else ""
    return (
        f" The server ran on {used}{of} CPUs; for 95 % of the recorded time at most {most} of its "
        "threads ran or were ready to run."
    )


def _confined(results: Results) -> str:
    """Name what may keep the server on a part of the host's CPUs, where it was seen on a part only."""
    used, host = server_cpus(results)
    if used is None or host is None or used >= host:
        return ""
    return f" (it ran on {used} of {host}: look for taskset, cpuset.cpus, Kubernetes' static CPU manager)"


def _who_ran_instead(results: Results) -> str:
    """Name who ran on the wanted CPUs meanwhile, and what that was, where the scheduler events say so.

    Processes that nothing ties to the server are named by themselves, for they can be moved away; so is what
    the recorders did in the server's threads and their own, for it is not there without them.
    """
    total = spent(results.cpu_contention)
    threads = results.trace.threads
    foreign = pl.col("role").is_null() & threads["role"].is_in(SERVER).any()
    names = threads.select(
        by="thread",
        foreign=foreign,
        name=pl.when(foreign)
        .then(pl.coalesce("process", "name"))
        .otherwise(pl.coalesce("name", "role", "process")),
    )
    does = {"spin": "polling", "tokenization": "tokenizing", "profiler": "recording"}
    ran = (
        results.cpu_contention.filter(pl.col("by").is_not_null())
        .join(names, on="by", how="left")
        .with_columns(does=pl.col("doing").cast(pl.String).replace_strict(does, default=None))
        .with_columns(does=pl.when("foreign").then(pl.lit("not known as the server's")).otherwise("does"))
        .group_by("name", "does", "foreign")
        .agg(part=pl.col("dur_ns").sum() / total)
        .sort("part", "name", "does", descending=[True, False, False])
    )
    own = ran.filter(~pl.col("foreign") & (pl.col("part") > OWN)).head(4)
    others = ran.filter(pl.col("foreign") & (pl.col("part") > FOREIGN)).head(3)
    named = [
        f"{plain(name, 80) if name else 'unknown threads'}{f' ({does})' if does else ''} {share(part)}"
        for name, does, _, part in pl.concat([own, others]).iter_rows()
    ]
    return f" Who ran instead, as shares of that time: {', '.join(named)}." if named else ""


# -------------------- quota
def quota_throttling(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in which the blamed thread was throttled.

    Throttled = runnable while its CPU idles, again and again until the same period's end (docs/numbers.md,
    "Scheduler states"): only a quota does that.
    """
    if not tells_shortage(results.thread_states):
        return rule.abstained(
            f"no wake-up events, so nothing shows whether threads were ready or slept{_counted(results)}",
            f"{recording.SWITCHES}; keep cpu.stat before and after",
        )
    gaps = results.thread_states.filter(pl.col("state").cast(pl.String) == "throttled")
    lost = short_of_cpu(results, "throttled")
    part = exposed_share(results, lost)
    if gaps.is_empty() or part < rule.threshold:
        stopped = (results.supply.throttled_share or 0.0) >= OWN
        unseen = f"no thread that a GPU waited for is seen to be stopped by a quota{_counted(results)}"
        return rule.abstained(unseen, recording.SWITCHES) if stopped else None
    worst = gaps.sort("dur_ns", "ts_ns", descending=[True, False]).head(5)
    return rule.finding(
        results,
        lost,
        claim=f"For {seen_share(results, part)} of GPU time a CPU quota{quota_words(results)} had stopped "
        f"the thread that a GPU waited for: {counted(gaps.height, 'time')} a thread was ready while CPUs "
        "were idle, and ran again only when the quota's next period began.",
        confidence="high" if gaps.height >= 10 else "medium",
        why=f"{counted(gaps.height, 'gap')} end on one period grid; only a quota does that{_size(results)}"
        f"{_counted(results)}",
        evidence=evidence_rows(
            worst.iter_rows(named=True),
            lambda row: thread_name(results, row["thread"]),
            lambda _: "runnable while its CPU was idle",
        ),
    )


def _size(results: Results) -> str:
    """Say how the quota's size is known: from what the server used in the periods in which it was stopped."""
    used = results.quota_use["cpus"]
    if used.len() < FEWEST_PERIODS:
        return ""
    low, middle, high = results.quota_use.select(
        nearest_rank(pl.col("cpus"), q).alias(f"{q}") for q in (0.1, 0.5, 0.9)
    ).row(0)
    return (
        f"; before each stop the server had used about {middle:.1f} CPUs' worth of the period ({low:.1f} to "
        f"{high:.1f} in 8 of 10 of {used.len()} periods): the quota, less what other processes of its group "
        "used"
    )


def _other_span(results: Results) -> list[str]:
    """Say that the counters cover another time than the trace, by the periods that they counted.

    Periods in which the group was idle are not counted, so fewer of them prove nothing.
    """
    supply, window = results.supply, results.window.duration_ns
    ran = supply.counters["nr_periods"] * (supply.period_us or PERIODS_NS[0] // 1000) * 1000
    if ran <= OTHER_SPAN * window:
        return []
    return [f"those periods are {duration(ran)}, of which the window shown here is only {duration(window)}"]


def _counted(results: Results) -> str:
    """Return what the kernel itself counted, and the quota's size where it can be told."""
    supply = results.supply
    bounds = supply.quota_bounds()
    parts, counters = [], supply.counters
    if supply.throttled_share is not None:
        parts.append(
            f"the kernel's cpu.stat counts {counters['nr_throttled']} of {counters['nr_periods']} periods in "
            f"which it ran out and {duration(counters['throttled_usec'] * 1000)} of throttled time, "
            f"{supply.since}"
        )
        parts += _other_span(results)
    if supply.quota_cpus is not None:
        parts.append(f"cpu.max allows {cpus(supply.quota_cpus)}")
    elif bounds is not None:
        parts.append(
            f"by its CPU time the quota is between {bounds[0]:.1f} and {bounds[1]:.1f} CPUs (for periods of "
            "100 ms)"
        )
    return "".join(f"; {part}" for part in parts)


# -------------------- tokenizers in the way
def tokenization_starves(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time whose blamed thread was runnable while a tokenizer had its CPU.

    Tokenization that the GPUs wait for is another finding; this one is about tokenization that nobody waits
    for at that moment and that still takes the CPU away. Without scheduler events there is nothing to see
    (`cpu_shortage` abstains).
    """
    lost = taken_by_tokenizers(results)
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    return rule.finding(
        results,
        lost,
        claim=f"For {seen_share(results, part)} of GPU time the thread that a GPU waited for was ready to "
        f"run while another tokenized on its CPU: {_by_whom(results, lost)}.",
        evidence=evidence_rows(
            moments(lost),
            lambda row: thread_name(results, row["thread"]),
            lambda row: (
                f"ready to run; {thread_name(results, row['by'])} tokenized on its CPU; "
                f"{gpus_named(results, row['gpus'])} waited"
            ),
        ),
    )


def _by_whom(results: Results, lost: pl.DataFrame) -> str:
    """Name the threads that tokenized most, and whether they encoded or decoded."""
    threads = lost.group_by("by", "kind").agg(pl.col("dur_ns").sum())
    most = threads.sort("dur_ns", "by", "kind", descending=[True, False, False]).head(3)
    return ", ".join(
        f"{thread_name(results, thread)} ({sub_cause_name(kind or 'encode')}) {share(share_of(results, ns))}"
        for thread, kind, ns in most.iter_rows()
    )


def taken_by_tokenizers(results: Results) -> pl.DataFrame:
    """Return when a tokenizer that no GPU waited for had the CPU of a thread that one did wait for."""
    return results.cpu_contention.filter(
        (pl.col("doing") == "tokenization") & (pl.col("cause") != "tokenization")
    )


# -------------------- polling
def busy_wait(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time whose blamed thread lacked a CPU because of polling.

    A spin only matters where somebody wanted the CPU that it burned: lost time in which the blamed thread was
    ready and another one polled on its CPU; and of the time in which a quota had stopped it, the share of the
    server's CPU time that polling had used up.
    """
    taken = results.cpu_contention.filter(pl.col("doing") == "spin")
    stopped = short_of_cpu(results, "throttled")
    load = results.thread_load
    ran, spun = (int(load[column].sum()) for column in ("running_ns", "spinning_ns"))
    burnt = spun / ran if ran else 0.0
    total = spent(taken) + round(burnt * spent(stopped))
    part = share_of(results, total)
    if part < rule.threshold or not ran:
        return None
    kinds = polls(results.spinning)
    named = ", ".join(
        f"{_polling(kind)} {duration(ns)}"
        for kind, ns in kinds.select("kind", "total_ns").iter_rows()
        if ns >= 0.05 * spun
    )
    order = kinds["kind"]
    if spent(taken) > burnt * spent(stopped):  # who polled on the wanted CPUs decides what to change
        by_kind = taken.group_by("kind").agg(pl.col("dur_ns").sum())
        order = by_kind.sort("dur_ns", "kind", descending=[True, False])["kind"]
    cost = f"{_how_long(results, part, stopped)}{_how(results, taken, stopped)}"
    return rule.finding(
        results,
        total,
        claim=f"Polling burnt {share(burnt)} of the server's CPU time{recording.where_recorded(results)} "
        f"({named}) and held the GPUs up for {cost}.{_lengths(kinds)}",
        confidence="medium" if spent(stopped) else "high",
        why="an estimate: of the time stopped by the quota, as much as the share of CPU time that polling "
        "had used up"
        if spent(stopped)
        else "the scheduler names the polling thread on the wanted CPU",
        evidence=_pollers(results, taken, _by_thread(results.spinning)),
        **_stops(order),
    )


def _how_long(results: Results, part: float, stopped: pl.DataFrame) -> str:
    """Return how long polling held GPUs up: an estimate under a quota, else what is seen of it."""
    return f"{f'about {share(part)}' if spent(stopped) else seen_share(results, part)} of GPU time"


def _stops(kinds: pl.Series) -> dict[str, Any]:
    """Return what makes these kinds of polling stop, and what the first of it changes."""
    known = [POLLING[kind] for kind in kinds if kind in POLLING]
    return {"advice": [kind["advice"] for kind in known[:3]], "change": known[0]["change"]} if known else {}


def _by_thread(polls: pl.DataFrame, thread: str = "thread") -> pl.DataFrame:
    """Return the time of each thread's polling of each kind, the longest first."""
    summed = polls.group_by(thread, "kind").agg(pl.col("dur_ns").sum())
    return summed.sort("dur_ns", thread, "kind", descending=[True, False, False])


def _polling(kind: str) -> str:
    return POLLING[kind]["name"] if kind in POLLING else kind


def _lengths(kinds: pl.DataFrame) -> str:
    """Say how long the polls of the largest kind were on a CPU at a time."""
    if kinds.is_empty():
        return ""
    most = kinds.row(0, named=True)
    return (
        f" Of {counted(most['count'], 'poll')} ({_polling(most['kind'])}) half stayed on a CPU for up to "
        f"{duration(most['p50_ns'])}, 95 % for up to {duration(most['p95_ns'])}."
    )


def _how(results: Results, taken: pl.DataFrame, stopped: pl.DataFrame) -> str:
    parts = []
    if spent(taken):
        on_its_cpu = share(exposed_share(results, taken))
        parts.append(f"a poller sat on the CPU that a launching thread wanted ({on_its_cpu})")
    if spent(stopped):
        in_all = share(exposed_share(results, stopped))
        parts.append(
            f"a CPU quota stopped the server after polling had used up its part of it ({in_all} stopped in "
            "all)"
        )
    return ": " + " and ".join(parts) if parts else ""


def _pollers(
    results: Results, taken: pl.DataFrame, most: pl.DataFrame, cpu: str = "its CPU"
) -> list[Evidence]:
    """Return the longest moments in which a poller had the wanted CPU, then what the threads of `most` took.

    What they took is their polling of that kind in the whole window.
    """
    longest = evidence_rows(
        moments(taken, 3),
        lambda row: thread_name(results, row["thread"]),
        lambda row: (
            f"ready to run; {thread_name(results, row['by'])} polled on {cpu} ({row['kind']}); "
            f"{gpus_named(results, row['gpus'])} waited"
        ),
    )
    threads = [
        over_the_window(
            results,
            thread_name(results, thread),
            f"polls: {_polling(kind)}",
            f"{duration(_spun(results, thread, kind))} of CPU time",
            results.trace.sched,
        )
        for thread, kind, _ in most.head(3).iter_rows()
    ]
    return [*longest, *threads]


def _spun(results: Results, thread: int, kind: str) -> int:
    return spent(results.spinning.filter((pl.col("thread") == thread) & (pl.col("kind") == kind)))


def polling_elsewhere(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time whose blamed thread lacked a CPU while another CPU of its server only polled."""
    beside = results.polling_beside
    part = exposed_share(results, beside)
    if part < rule.threshold:
        return None
    seen = max(spent(results.demand), 1)  # what scheduler events cover of the window
    most = _by_thread(beside, "by")
    thread, kind, _ = most.row(0)
    return rule.finding(
        results,
        beside,
        claim=f"For {seen_share(results, part)} of GPU time the thread that a GPU waited for was ready and "
        f"had no CPU while a thread on another CPU that it could use only polled. "
        f"{thread_name(results, thread)} polled most at these moments ({_polling(kind)}); over the "
        f"recorded time this took {_spun(results, thread, kind) / seen:.2f} CPUs.",
        evidence=_pollers(results, beside, most, "another CPU"),
        **_stops(most["kind"].unique(maintain_order=True)),
    )
