"""Rules on the launching thread: compilation, launches, synchronisation, interpreter lock, recorders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.drains import LAUNCHING, behind
from tracelib.analyses.launches import graph_coverage
from tracelib.analyses.long_slices import lost_in_long_slices
from tracelib.analyses.results import Results
from tracelib.findings import recording
from tracelib.findings.doubts import recorder_cost
from tracelib.findings.finding import (
    ASIDE,
    COVERED,
    NOT_HOST,
    SYMPTOM,
    Abstained,
    Finding,
    evidence_of_lost,
    evidence_rows,
    exposed_share,
    gpus_named,
    mean,
    moments,
    over_the_window,
    own_ns,
    quantile,
    share_of,
    shortage_note,
    spent,
    state_known,
    thread_name,
    whole_ns,
)
from tracelib.words import counted, duration, plain, share, sub_cause_name

if TYPE_CHECKING:
    from tracelib.findings.rules import Rule

#: Share of the launching time whose CPU states are known, from which on lack of CPUs is told apart from it.
KNOWN = 0.9
UNKNOWN_STATES = "; how much of that was lack of a CPU is not known"
#: Share of the launching time behind emptied queues that is worth a word.
DRAINED = 0.05
#: Share of the window asleep inside framework code that calls for an answer.
ASLEEP = 0.05


def _launching(results: Results) -> pl.DataFrame:
    return results.lost.filter((pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(LAUNCHING))


# -------------------- launches
def launched_singly(results: Results) -> bool:
    """Return whether most kernels are known to come from launches of their own, not from graphs."""
    coverage = graph_coverage(results.launches)
    return coverage is not None and coverage < COVERED


def wakes(results: Results) -> pl.DataFrame:
    """Return the lost time in launches behind an emptied queue (:func:`tracelib.analyses.drains.behind`).

    Only where a host cause emptied it: after a wait for requests the first launch is late whatever the host
    does.
    """
    return behind(results.lost, results.drains).filter(~pl.col("of").is_in(NOT_HOST))


def events_named(rows: pl.DataFrame, most: int = 2) -> str:
    """Return the names of the events that `rows` of :func:`wakes` lie behind."""
    by_event = rows.drop_nulls("event").group_by("event").agg(pl.col("dur_ns").sum())
    longest = by_event.sort("dur_ns", "event", descending=[True, False])["event"]
    named = ", ".join(plain(event, 80) for event in longest.head(most))
    return f"{named} and {longest.len() - most} more" if longest.len() > most else named


def wake_note(results: Results, cause: str | None, sub_cause: str | None) -> str:
    """Return a sentence on late launches behind queues that a cause emptied; empty where it is little."""
    if cause in (None, "sync") or (cause == "kernel_launch" and sub_cause is None):
        return ""  # `host_synchronisation` says it itself, and launching is not an event
    rows = wakes(results).filter(pl.col("of") == cause)
    if sub_cause is not None:
        rows = rows.filter(pl.col("of_sub") == sub_cause)
    part = exposed_share(results, rows)
    return (
        f" It emptied the launch queue: late launches behind it cost another {share(part)} of GPU time."
        if part >= ASIDE
        else ""
    )


# -------------------- compilation
def run_time_compilation(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in nvrtc, Triton, Inductor, ptxas and engine builds.

    Compilation that the GPUs do not wait for (another batch runs meanwhile) costs them nothing and is not
    counted.
    """
    lost = results.lost.filter((pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") == "jit_compile"))
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return _unexplained_ops(rule, results)
    evidence = evidence_of_lost(results, lost)
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for code that was compiled at run time, up to "
        f"{duration(evidence[0].dur_ns)} at once.{shortage_note(lost)}",
        evidence=evidence,
    )


def _unexplained_ops(rule: Rule, results: Results) -> Abstained | None:
    """Abstain where ops outlast their siblings by far and no sample says what they did."""
    part = exposed_share(results, lost_in_long_slices(results.trace, results.host_activity, results.lost))
    if part < rule.threshold:
        return None
    return rule.abstained(
        f"for {share(part)} of GPU time the GPUs waited for framework ops that took over ten times as long "
        "as their siblings; without CPU samples nothing tells whether they compiled, loaded code or had no "
        "CPU",
        recording.SAMPLES,
    )


# -------------------- launches
def low_graph_coverage(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report that few kernels came from graphs while GPUs waited for launches.

    Low coverage alone costs nothing: a GPU that is fed in time does not care how. So launches must be what it
    waits for.
    """
    lost = _launching(results)
    own = own_ns(lost) - own_ns(wakes(results))
    if own < rule.threshold * whole_ns(results):
        return None
    coverage = graph_coverage(results.launches)
    if coverage is None:
        return _whole_graphs(rule, results.launches)
    if coverage >= COVERED:
        return None
    kernels = results.launches.filter(pl.col("kind") == "kernel")
    single = kernels.filter(pl.col("graph").is_null())
    beyond = " beyond any lack of CPUs" if state_known(lost) >= KNOWN else UNKNOWN_STATES
    few = f"Only {share(coverage)}" if coverage else "None"
    return rule.finding(
        results,
        lost,
        claim=f"{few} of {counted(kernels.height, 'kernel')} came from CUDA graphs. Half of the others took "
        f"at most {duration(quantile(single['dur_ns'], 0.5))}, and {share(mean(single['late']))} of them "
        f"came after the GPU had run dry. Launching cost {share(share_of(results, own))} of GPU "
        f"time{beyond}.",
        evidence=[over_the_window(results, "all GPUs", "kernels launched by graphs", share(coverage))],
        gain_ns=own,
    )


def _whole_graphs(rule: Rule, ops: pl.DataFrame) -> Abstained | None:
    """Abstain where graphs were recorded whole; without any kernel there is nothing to say."""
    graphs = int((ops["kind"] == "graph").sum())
    if not graphs:
        return None
    return rule.abstained(
        f"CUDA graphs were recorded as one operation each ({counted(graphs, 'launch', 'launches')}): which "
        "share of the kernels they hold is not known",
        recording.GRAPH_NODES,
    )


def launch_bound(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time in launching: the calls, the framework between them, the device's start-up."""
    lost = _launching(results)
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    parts = lost.group_by("sub_cause").agg(pl.col("dur_ns").sum())
    split = ", ".join(
        f"{sub_cause_name(name)} {share(share_of(results, ns))}"
        for name, ns in parts.sort("dur_ns", "sub_cause", descending=True).iter_rows()
    )
    coverage = graph_coverage(results.launches)
    by_graphs = "" if coverage is None else f"; {share(coverage)} of the kernels came from CUDA graphs"
    wake = wakes(results)
    emptied = (
        f" {share(exposed_share(results, wake))} of GPU time was lost right behind {events_named(wake)}, "
        "which let the launch queue run empty."
        if spent(wake) >= DRAINED * spent(lost)
        else ""
    )
    own = own_ns(lost) - own_ns(wake)
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited for the next launch ({split}). "
        f"{_late(results)} came after the GPU had run dry{by_graphs}."
        f"{emptied}{shortage_note(lost)}",
        gain_ns=own if own >= SYMPTOM * spent(lost) else None,
    )


# -------------------- synchronisation
def host_synchronisation(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time in synchronisations, and in late launches behind those that emptied the queue.

    A long synchronisation is mostly the victim: the host waits because the GPU works. Only the part counts in
    which the GPU had nothing left to do: the host had not yet noticed, or had not yet launched ahead again.
    Where it could not, because it had no CPU, the lack of CPUs is to blame, not the synchronisation.
    """
    inside, wake = (
        results.lost.filter(pl.col("cause") == "sync"),
        wakes(results).filter(pl.col("of") == "sync"),
    )
    lost = pl.concat([inside, wake.select(inside.columns)])
    own = own_ns(lost)
    if not own or share_of(results, own) < rule.threshold:
        return None
    whole = int(results.host_time.filter(pl.col("cause") == "sync")["total_ns"].sum())
    victim = (
        f" (Synchronisations took {duration(whole)} altogether; while the GPU works they cost nothing.)"
        if whole
        else ""
    )
    return rule.finding(
        results,
        lost,
        claim=f"For {share(exposed_share(results, lost))} of GPU time the GPUs had run dry at a "
        f"synchronisation or a blocking copy{_emptied(results)}: for {share(exposed_share(results, inside))} "
        f"the host was still in it, for {share(exposed_share(results, wake))} it had yet to launch ahead "
        f"again.{shortage_note(lost)}{victim}",
        gain_ns=own,
    )


def _late(results: Results) -> str:
    """Say which part of the launch calls came late, and of the operations: a graph's launches many."""
    operations = results.launches.drop_nulls("call_ts_ns")
    calls, started = (share(mean(rows["late"])) for rows in (_calls(results), operations))
    return f"{calls} of the launch calls, which start {started} of the operations,"


def _calls(results: Results) -> pl.DataFrame:
    """Return one row per launch call: a graph's launches many operations, each of which has a row."""
    return results.launches.drop_nulls("call_ts_ns").unique(["call_thread", "call_ts_ns"])


def _emptied(results: Results) -> str:
    """Name the calls at which the device ran dry, and count the late launches behind them."""
    calls = results.drains.filter(pl.col("cause") == "sync")
    by_name = calls.drop_nulls("what").group_by("what").agg(pl.len(), pl.col("late").sum())
    named = ", ".join(
        f"{plain(what, 80)} {counted(times, 'time')}, "
        f"{counted(late, 'late launch', 'late launches')} behind it"
        for what, times, late in by_name.sort("late", "what", descending=[True, False]).head(2).iter_rows()
    )
    return f" ({named})" if named else ""


# -------------------- interpreter lock
def gil_contention(rule: Rule, results: Results) -> Finding | Abstained | None:
    """Report lost GPU time that fits a wait for the interpreter lock: likely, never certain."""
    lost = results.gil_waits
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return _asleep_in_the_framework(rule, results)
    sampled = spent(lost.filter(pl.col("cause") == "gil")) > spent(lost) / 2
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs likely waited for a thread that wanted Python's "
        "interpreter lock while another thread of its process held it.",
        confidence="medium" if sampled else "low",
        why="samples are in the lock's own wait"
        if sampled
        else "the thread slept inside framework code while a sibling ran the interpreter; it may have slept "
        "for another reason",
        evidence=evidence_rows(
            moments(lost),
            lambda row: thread_name(results, row["thread"]),
            lambda row: (
                "asleep while another thread of its process ran Python; "
                f"{gpus_named(results, row['gpus'])} waited"
            ),
        ),
    )


def _asleep_in_the_framework(rule: Rule, results: Results) -> Abstained | None:
    """Abstain where launching threads slept inside framework code and no sample says for what."""
    asleep = results.lost.filter((pl.col("cpu_state") == "blocked") & (pl.col("sub_cause") == "dispatch"))
    part = exposed_share(results, asleep)
    if results.cpu_time.height or part < ASLEEP:
        return None
    return rule.abstained(
        f"for {share(part)} of GPU time launching threads slept inside framework code; without samples "
        "nothing tells why",
        recording.LOCK,
    )


# -------------------- the recorders
def profiler_overhead(rule: Rule, results: Results) -> Finding | None:
    """Report lost GPU time that the recorders made.

    What they record of themselves (cause `profiler`), and their part in launching: of the CPU time of the
    workers' launch path, samples tell how much is in the profiler; that part of the GPUs' waiting for
    launches is the profiler's too.
    """
    recorded = results.lost.filter(pl.col("cause") == "profiler")
    total, _, recorder, path = recorder_cost(results)
    part = share_of(results, total)
    if part < rule.threshold:
        return None
    evidence = evidence_of_lost(results, recorded, 3)
    estimate = ""
    if recorder:
        amount = f"{duration(recorder)} of {duration(path)}"
        evidence = [
            over_the_window(results, "workers", "CPU time in the profiler", amount, results.trace.samples),
            *evidence,
        ]
        estimate = (
            f" {share(recorder / path)} of the CPU time on the workers' launch path is the profiler's own, "
            "so kernel launch looks longer than it is by about that part."
        )
    return rule.finding(
        results,
        total,
        claim=f"The recorders' own work cost about {share(part)} of GPU time. What else they slow down these "
        f"files cannot tell.{estimate}",
        confidence="medium" if recorder else "high",
        why="estimated from the share of samples in the profiler's code"
        if recorder
        else "the recorder's own ranges are in the gaps",
        evidence=evidence,
    )
