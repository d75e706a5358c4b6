"""What must be recorded for a figure or a rule to see anything, and how to record it.

A rule that returns None says "no". Where its evidence is missing that would be a guess, as long as some GPU
time was lost that it could explain. Each rule's table names the checks it rests on (`abstains_without`); a
rule that knows better abstains itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from tracelib.analyses.launches import launch_calls
from tracelib.analyses.results import NEEDS, Results
from tracelib.analyses.scheduling import tells_shortage
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.analyses.window import WHOLE, recorded_ns
from tracelib.findings.finding import Abstained, exposed_share
from tracelib.sources.health import no_gpu_work
from tracelib.words import counted, share

#: Share of the window that must have been lost for a cause that nobody recorded to be worth a word.
WORTH_SAYING = 0.01

CALLS = NEEDS["launches"].record_with
SWITCHES = NEEDS["scheduling"].record_with
SAMPLES = NEEDS["cpu_time"].record_with
LOCK = f"{SAMPLES}, or py-spy record --gil"
SERVER = (
    "profile the engine and the API server too (vLLM's /start_profile covers workers only), "
    "or perf record -a -g"
)
LIGHT = "the torch profiler without with_stack, record_shapes and profile_memory, samples at 99 Hz or fewer"
#: How fast kernels could be is a question of the GPU, which no trace answers.
ROOFLINE = (
    "ncu --set roofline on the longest kernels, under the same load: it tells whether they can be faster; "
    "these files do not"
)
RANKS = "the profiler on every rank at the same time, on tied clocks"
GRAPH_NODES = "nsys profile --cuda-graph-trace=node, which records the kernels of graphs one by one"


class Check(NamedTuple):
    """Something that rules rest on: why it is missing in a run ("" = it is not), and what records it."""

    missing: Callable[[Results], str]
    record_with: str


def unseen(rule: str, checks: tuple[str, ...], results: Results) -> Abstained | None:
    """Return why a rule that found nothing could not have found anything; None = it could have."""
    if results.gpu_time.is_empty():
        why = f"{calls_only(results)}{no_gpu_work(results.trace.health['message'])}"
        reason = f"{why}, so nothing says what the GPUs waited for"
        return Abstained(id=rule, reason=reason, record_with=CALLS)
    for name in checks:
        reason = CHECKS[name].missing(results)
        if reason:
            return Abstained(id=rule, reason=reason, record_with=CHECKS[name].record_with)
    return None


def calls_only(results: Results) -> str:
    """Say how many launch calls were recorded where no operation was; empty where there are none."""
    calls = launch_calls(results.trace)
    was = "was" if calls == 1 else "were"
    return f"{counted(calls, 'launch call')} {was} recorded, but " if calls else ""


def _share(results: Results, condition: pl.Expr) -> float:
    return exposed_share(results, results.lost.filter(condition))


def _hides_something(results: Results) -> bool:
    """Return whether GPUs waited for host threads at all."""
    return _share(results, ~pl.col("cause").is_in(["imbalance", "no_work"])) >= WORTH_SAYING


def _no_launches(results: Results) -> str:
    if results.launches["call_ts_ns"].null_count() < results.launches.height or not _hides_something(results):
        return ""
    return "no launch call was recorded, so nothing says which thread the GPUs waited for"


def _nobody_upstream(results: Results) -> str:
    blind = _share(results, pl.col("sub_cause") == NOT_RECORDED)
    if blind < WORTH_SAYING:
        return ""
    return (
        f"for {share(blind)} of GPU time the GPUs waited for a process that no source recorded; "
        "an idle server looks the same"
    )


def _no_wakeups(results: Results) -> str:
    if tells_shortage(results.thread_states) or not _hides_something(results):
        return ""
    asleep = "whether threads waited for a CPU or slept"
    return f"no wake-up events, so nothing shows {asleep}, nor who ran instead"


def _no_switches(results: Results) -> str:
    if results.thread_states.height or not _hides_something(results):
        return ""
    return "no scheduler events: how long each thread had a CPU is not known"


def _others_not_sampled(results: Results) -> str:
    part = exposed_share(results, results.cpu_contention.filter(pl.col("doing").is_null()))
    if results.trace.samples.height or part < WORTH_SAYING:
        return ""
    return (
        f"for {share(part)} of GPU time another thread had the CPU of the one that a GPU waited for; "
        "without CPU samples nothing tells what it did"
    )


def _no_samples_of(cause: str, words: str) -> Callable[[Results], str]:
    """Return the check for a cause that ranges seldom name, so that it takes samples to rule it out."""

    def missing(results: Results) -> str:
        named = results.host_activity.filter(pl.col("cause").cast(pl.String) == cause).height
        if named or results.trace.samples.height or not _hides_something(results):
            return ""
        return (
            f"there are neither CPU samples nor ranges that name {words}: "
            "it would look like the work around it"
        )

    return missing


def _unmatched(results: Results) -> str:
    if results.collectives.is_empty() or results.collectives["matched"].any():
        return ""
    return "collectives could not be matched across ranks, so nothing tells waiting in them from transfer"


def switches_ns(results: Results) -> int:
    """Return how much of the window scheduler events cover."""
    return recorded_ns([results.trace.sched], results.window)


def where_recorded(results: Results) -> str:
    """Say of which part of the window scheduler events tell; empty where that is all of it."""
    part = switches_ns(results) / results.window.duration_ns
    return "" if part >= WHOLE else f" in the {share(part)} of the window that the scheduler recorded"


def of_recorded(ns: int, results: Results) -> str:
    """Return in words which share of what scheduler events cover `ns` is, and how much that is.

    Where events were lost, nobody knows what a thread did: it may have slept, so that counts as time, too.
    """
    known = switches_ns(results)
    part = known / results.window.duration_ns
    of = "the window" if part >= WHOLE else f"the {share(part)} of the window that the scheduler recorded"
    return f"{share(ns / known)} of {of}"


CHECKS = {
    "launch_calls": Check(_no_launches, CALLS),
    "upstream": Check(_nobody_upstream, SERVER),
    "wakeups": Check(_no_wakeups, SWITCHES),
    "switches": Check(_no_switches, SWITCHES),
    "samples_of_others": Check(_others_not_sampled, SAMPLES),
    "samples_of_gc": Check(_no_samples_of("gc", "garbage collection"), SAMPLES),
    "samples_of_gil": Check(_no_samples_of("gil", "the interpreter lock"), LOCK),
    "samples_of_profiler": Check(_no_samples_of("profiler", "the recorder's own work"), SAMPLES),
    "matched_collectives": Check(_unmatched, RANKS),
}
