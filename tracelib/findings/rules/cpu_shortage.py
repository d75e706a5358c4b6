"""GPUs stood still while the thread they waited for wanted a CPU and had none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.capacity import server_cpus
from tracelib.analyses.scheduling import demand_at, tells_shortage
from tracelib.findings.finding import (
    Abstained,
    Finding,
    evidence_of_lost,
    exposed,
    exposed_share,
    percent,
    spent,
)
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
            "cpu_shortage",
            "no wake-up events: whether threads waited for a CPU or slept cannot be told",
            "perf record -k mono -a -e sched:sched_switch -e sched:sched_wakeup, then perf script --header --ns -F +pid",
        )
    lost = exposed(results, (pl.col("cpu_state") == "runnable") & ~pl.col("cause").is_in(NOT_HOST))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    host = exposed(results, ~pl.col("cause").is_in(NOT_HOST))
    known = 1 - _share(host.filter(pl.col("cpu_state") == "unknown"), host)
    return Finding(
        id="cpu_shortage",
        cause=None,
        claim=f"For {percent(share)} of the time a GPU was held up by a thread that was ready to run and had no CPU{_instead(results)}.{_supply(results)}",
        exposed_ns=int(lost["dur_ns"].sum()),
        exposed_share=share,
        confidence="high" if known > 0.8 else "medium",
        why=f"read off scheduler events, which tell the state of the thread in question for {100 * known:.0f} % of the exposed host time",
        evidence=evidence_of_lost(results, lost),
        disproof="If more CPUs leave the runnable time of the launching threads as it is, something else keeps them off the CPU (affinity, priority, a quota).",
        advice=[
            f"Give the server more CPU cores{_confined(results)}; GPUs + 2 runnable processes is the floor, 4 to 8 cores per GPU the usual band.",
            "Pin the launching threads of the workers to cores of their own (taskset, numactl), apart from tokenizer threads.",
            "Cap tokenizer and OpenMP thread pools at what the server may use (TOKENIZERS_PARALLELISM, RAYON_NUM_THREADS, OMP_NUM_THREADS).",
        ],
        verify=[
            "Record again: runnable time of the launching threads, and this share, must fall.",
            "tracelib report before/ after/ and compare the CPU state column.",
        ],
        change="machine",
        gain_ns=int(lost["dur_ns"].sum()),
    )


def _share(part: pl.DataFrame, whole: pl.DataFrame) -> float:
    total = int(whole["dur_ns"].sum())
    return int(part["dur_ns"].sum()) / total if total else 0.0


def _supply(results: Results) -> str:
    """Say how many CPUs the server had, and how many of its threads wanted one."""
    seen, host = server_cpus(results)
    most = demand_at(results.demand, 0.95)
    if seen is None or most is None:
        return ""
    of = f" of the host's {host}" if host else ""
    return (
        f" The server ran on {seen}{of} CPUs; in 95 % of the time at most {most} of its threads wanted one."
    )


def _confined(results: Results) -> str:
    """Name what may keep the server on a part of the host's CPUs, where it was seen on a part only."""
    seen, host = server_cpus(results)
    if seen is None or host is None or seen >= host:
        return ""
    return f" (it ran on {seen} of {host}: look for taskset, cpuset.cpus, Kubernetes' static CPU manager)"


def _instead(results: Results) -> str:
    """Name who ran on the wanted CPUs meanwhile, and what that was, where the scheduler events say so."""
    rows = results.cpu_contention.filter(pl.col("by").is_not_null())
    total = spent(results.cpu_contention)
    names = results.trace.threads.select(by="thread", name=pl.coalesce("name", "role", "process"))
    named = rows.join(names, on="by", how="left").with_columns(
        does=pl.when(pl.col("doing") == "spin")
        .then(pl.lit("polling"))
        .when(pl.col("doing") == "tokenization")
        .then("doing")
    )
    ran = (
        named.group_by("name", "does")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "name", "does", descending=[True, False, False])
    )
    shown = [
        f"{name or 'unknown threads'}{f' ({does})' if does else ''} {100 * ns / total:.0f} %"
        for name, does, ns in ran.head(4).iter_rows()
        if ns > 0.05 * total
    ]
    return f"; instead ran {', '.join(shown)}" if shown else ""
