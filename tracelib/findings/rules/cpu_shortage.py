"""GPUs stood still while the thread they waited for wanted a CPU and had none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.scheduling import tells_shortage
from tracelib.findings.finding import Abstained, Finding, evidence_of_lost, exposed, exposed_share
from tracelib.findings.verdict import NOT_HOST

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["cpu_shortage"]

#: Below this share of the window, waiting for a CPU is what any busy machine shows.
WORTH_SAYING = 0.02


def cpu_shortage(results: Results) -> Finding | Abstained | None:
    """Report lost GPU time whose blamed thread was runnable, and who ran instead."""
    if not tells_shortage(results.thread_states):
        return Abstained(
            "cpu_shortage", "no wake-up events: whether threads waited for a CPU or slept cannot be told",
            "perf record -k mono -a -e sched:sched_switch -e sched:sched_wakeup, then perf script --header --ns -F +pid",
        )  # fmt: skip
    lost = exposed(results, (pl.col("cpu_state") == "runnable") & ~pl.col("cause").is_in(NOT_HOST))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    host = exposed(results, ~pl.col("cause").is_in(NOT_HOST))
    known = 1 - _share(host.filter(pl.col("cpu_state") == "unknown"), host)
    return Finding(
        id="cpu_shortage", cause=None,
        claim=f"For {100 * share:.1f} % of the time a GPU was held up by a thread that was ready to run and had no CPU"
        f"{_instead(results, lost)}.",
        exposed_ns=int(lost["dur_ns"].sum()), exposed_share=share, confidence="high" if known > 0.8 else "medium",
        why=f"read off scheduler events, which tell the state of the thread in question for {100 * known:.0f} % of the exposed host time",
        evidence=evidence_of_lost(results, lost),
        disproof="If more CPUs leave the runnable time of the launching threads as it is, something else keeps them off the CPU (affinity, priority, a quota).",
        advice=[
            "Give the server more CPU cores; GPUs + 2 runnable processes is the floor, 4 to 8 cores per GPU the usual band.",
            "Pin the launching threads of the workers to cores of their own (taskset, numactl), apart from tokenizer threads.",
            "Cap tokenizer and OpenMP thread pools at what the machine has (TOKENIZERS_PARALLELISM, RAYON_NUM_THREADS, OMP_NUM_THREADS).",
        ],
        verify=["Record again: runnable time of the launching threads, and this share, must fall.", "tracelib report before/ after/ and compare the CPU state column."],
    )  # fmt: skip


def _share(part: pl.DataFrame, whole: pl.DataFrame) -> float:
    total = int(whole["dur_ns"].sum())
    return int(part["dur_ns"].sum()) / total if total else 0.0


def _instead(results: Results, lost: pl.DataFrame) -> str:
    """Name the roles that ran on the CPUs meanwhile, where the scheduler events say so."""
    waited = results.thread_states.filter(
        (pl.col("state").cast(pl.String) == "runnable")
        & pl.col("thread").is_in(lost["thread"].unique().implode())
        & pl.col("by").is_not_null()
    )
    if waited.is_empty():
        return ""
    names = results.trace.threads.select(by="thread", ran=pl.coalesce("name", "role", "process"))
    ran = (
        waited.join(names, on="by", how="left")
        .group_by("ran")
        .agg(pl.col("dur_ns").sum())
        .drop_nulls()
        .sort("dur_ns", "ran", descending=True)
    )
    total = int(waited["dur_ns"].sum())
    shown = [f"{name} {100 * ns / total:.0f} %" for name, ns in ran.head(3).iter_rows() if ns > 0.05 * total]
    return f" (running instead: {', '.join(shown)})" if shown else ""
