"""One thread worked nearly all the time and the GPUs waited for it: more CPUs would not help it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Evidence, Finding, exposed, exposed_share, percent, spent, thread_name
from tracelib.findings.verdict import NOT_HOST

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["single_thread_saturated"]

WORTH_SAYING = 0.05
#: Of the window: on a CPU, polling not counted.
SATURATED = 0.85
#: Work that a warm server does not do has rules of its own.
ONCE = ("jit_compile", "module_load", "alloc")


def single_thread_saturated(results: Results) -> Finding | None:
    """Report threads that worked over 85 % of the window, and the lost GPU time for which they are to blame while they ran.

    Polling is no work: a worker that spins for its GPU is on a CPU all the time and waits.
    """
    window = results.window.duration_ns
    full = results.thread_load.filter(pl.col("working_ns") >= SATURATED * window)
    once = pl.col("sub_cause").is_in(ONCE).fill_null(value=False)
    blamed = (pl.col("cpu_state") == "running") & ~pl.col("cause").is_in(NOT_HOST) & ~once
    lost = exposed(results, blamed & pl.col("thread").is_in(full["thread"].implode()))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    own = (
        lost.group_by("thread")
        .agg(pl.col("dur_ns").sum())
        .join(full, on="thread")
        .sort("dur_ns", "thread", descending=[True, False])
    )
    worst = own.row(0, named=True)
    return Finding(
        id="single_thread_saturated",
        cause=None,
        claim=f"Thread {thread_name(results, worst['thread'])} worked {percent(worst['working_ns'] / window)} of the time, as much as one thread can; "
        f"for {percent(share)} of the time GPUs waited for {'it' if own.height == 1 else f'it and {own.height - 1} more like it'}. More CPUs do not help a thread that already has one.",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="high",
        why="scheduler events show it on a CPU, and neither its ranges nor its samples show it waiting",
        evidence=[
            Evidence(
                results.window.start_ns,
                window,
                thread_name(results, r["thread"]),
                "on a CPU and at work",
                percent(r["working_ns"] / window),
            )
            for r in own.head(5).iter_rows(named=True)
        ],
        disproof="If samples show that thread polling, it is not at its limit.",
        advice=[
            "Take work off this thread: another process for tokenization or output, asynchronous scheduling, CUDA graphs instead of single launches.",
            "Several API servers or engines instead of one (vLLM: --api-server-count, data parallelism).",
            "A CPU with faster single cores; a higher clock for that core.",
        ],
        verify=["Its working share must fall below 85 %, and the GPUs' useful share rise."],
        change="none",
        gain_ns=None,
    )
