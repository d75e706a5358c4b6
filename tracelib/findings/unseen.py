"""Which rules found nothing because what they look at was not recorded: they abstain, and name the recording that settles it.

A rule that returns None says "no". Where its evidence is missing that would be a guess, as long as some GPU time was lost
that it could explain. What each rule rests on is data here, tried in this order; a rule that knows better abstains itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.scheduling import tells_shortage
from tracelib.findings.finding import Abstained, exposed, exposed_share, percent
from tracelib.findings.verdict import NOT_RECORDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelib.analyses.results import Results

__all__ = ["unseen"]

#: Share of the window that must have been lost for a cause that nobody recorded to be worth a word.
WORTH_SAYING = 0.01

CALLS = "torch.profiler with CPU and CUDA activities, or nsys profile -t cuda,nvtx"
SCHED = "perf record -k mono -a -e sched:sched_switch -e sched:sched_wakeup, then perf script --header --ns -F +pid"
SAMPLES = "perf record -k mono -a -g -e cpu-clock/freq=499/, then perf script --header --ns -F +pid"
SERVER = "profile the engine and the API server too (vLLM's /start_profile covers workers only), or perf record -a -g"
RANKS = "the profiler on every rank at the same time, on tied clocks"


@dataclass(frozen=True)
class Need:
    """What some rules rest on: which, why it is missing in a run ("" = it is not), and what records it."""

    rules: tuple[str, ...]
    missing: Callable[[Results], str]
    record_with: str


def unseen(rule: str, results: Results) -> Abstained | None:
    """Return why the rule of that name, which found nothing, could not have found anything; None = it could have."""
    if results.gpu_time.is_empty():
        return Abstained(
            rule, "no GPU operation was recorded, so nothing says what the GPUs waited for", CALLS
        )
    for need in NEEDS:
        reason = need.missing(results) if rule in need.rules else ""
        if reason:
            return Abstained(rule, reason, need.record_with)
    return None


def _share(results: Results, condition: pl.Expr) -> float:
    return exposed_share(results, exposed(results, condition.fill_null(value=False)))


def _hides_something(results: Results) -> bool:
    """Whether GPUs waited for host threads at all."""
    return _share(results, ~pl.col("cause").is_in(["imbalance", "no_work"])) >= WORTH_SAYING


def _no_launches(results: Results) -> str:
    if results.launches["call_ts_ns"].null_count() < results.launches.height or not _hides_something(results):
        return ""
    return "no launch call was recorded, so nothing says which thread the GPUs waited for"


def _nobody_upstream(results: Results) -> str:
    blind = _share(results, pl.col("sub_cause") == NOT_RECORDED)
    if blind < WORTH_SAYING:
        return ""
    return f"for {percent(blind)} of the time the GPUs waited for a process of which no source recorded what it did; an idle server looks the same"


def _no_wakeups(results: Results) -> str:
    if tells_shortage(results.thread_states) or not _hides_something(results):
        return ""
    return "no wake-up events: whether threads waited for a CPU or slept cannot be told, nor who ran instead"


def _no_switches(results: Results) -> str:
    if results.thread_states.height or not _hides_something(results):
        return ""
    return "no scheduler events: how long each thread had a CPU is not known"


def _unnamed_instead(results: Results) -> str:
    share = exposed_share(results, results.cpu_contention.filter(pl.col("doing").is_null()))
    if results.trace.samples.height or share < WORTH_SAYING:
        return ""
    return f"for {percent(share)} of the time a GPU waited for a thread whose CPU another one had; without CPU samples nothing says what that did"


def _no_samples_of(cause: str, words: str) -> Callable[[Results], str]:
    """Return the check for a cause that ranges seldom name: without samples, silence about it says nothing."""

    def missing(results: Results) -> str:
        told = results.host_activity.filter(pl.col("cause").cast(pl.String) == cause).height
        if told or results.trace.samples.height or not _hides_something(results):
            return ""
        return f"there are neither CPU samples nor ranges that name {words}: it would look like the work around it"

    return missing


def _unmatched(results: Results) -> str:
    if results.collectives.is_empty() or results.collectives["matched"].any():
        return ""
    return "collectives could not be matched across ranks, so waiting in them cannot be told from transfer"


NEEDS = (
    Need(
        (
            "allocation_hot_path",
            "gc_pauses",
            "gil_contention",
            "host_synchronisation",
            "launch_bound",
            "low_graph_coverage",
            "module_loading",
            "run_time_compilation",
            "staircase",
        ),
        _no_launches,
        CALLS,
    ),
    Need(("engine_scheduling", "ipc_stretched", "no_load", "tokenization_exposed"), _nobody_upstream, SERVER),
    Need(("busy_wait", "cpu_shortage", "quota_throttling", "tokenization_starves"), _no_wakeups, SCHED),
    Need(("single_thread_saturated",), _no_switches, SCHED),
    Need(("busy_wait", "tokenization_starves"), _unnamed_instead, SAMPLES),
    Need(("gc_pauses",), _no_samples_of("gc", "garbage collection"), SAMPLES),
    Need(
        ("gil_contention",),
        _no_samples_of("gil", "the interpreter lock"),
        f"{SAMPLES}, or py-spy record --gil",
    ),
    Need(("profiler_overhead",), _no_samples_of("profiler", "the recorder's own work"), SAMPLES),
    Need(("launch_skew_amplified", "rank_imbalance", "straggler_rank"), _unmatched, RANKS),
)
