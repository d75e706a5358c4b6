"""Threads that only polled had the CPUs, or used up the quota, that others wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.cpu_time import polls
from tracelib.findings.finding import Evidence, Finding, exposed, exposed_share, percent, spent, thread_name

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["busy_wait"]

WORTH_SAYING = 0.01

KINDS = {
    "yield": "shared-memory readers polling with sched_yield",
    "poll": "threads polling for a message of another process",
    "device_wait": "the driver polling for the GPU inside synchronous calls",
    "openmp": "idle OpenMP threads polling at a barrier",
    "nccl_proxy": "NCCL's proxy threads",
}
ADVICE = {
    "openmp": "Let idle OpenMP threads sleep, or have fewer: OMP_NUM_THREADS=1 for the workers, OMP_WAIT_POLICY=passive, GOMP_SPINCOUNT=0.",
    "device_wait": "Let the host sleep while the GPU works: events created with cudaEventBlockingSync, or cudaDeviceScheduleBlockingSync.",
    "poll": "Let readers of the message queue sleep after a short spin, or use blocking sockets between processes.",
    "yield": "Let readers of the shared-memory queue sleep after a short spin (vLLM: VLLM_SLEEP_WHEN_IDLE=1), or use Unix sockets.",
    "nccl_proxy": "Fewer NCCL socket threads: NCCL_NSOCKS_PERTHREAD, NCCL_SOCKET_NTHREADS.",
}


def busy_wait(results: Results) -> Finding | None:
    """Report lost GPU time whose blamed thread lacked a CPU because of polling.

    A spin only matters where somebody wanted the CPU that it burned: lost time in which the blamed thread was ready and
    another one polled on its CPU; and of the time in which a quota had stopped it, the share of the server's CPU time that
    polling had used up.
    """
    taken = results.cpu_contention.filter(pl.col("doing") == "spin")
    stopped = exposed(results, pl.col("cpu_state") == "throttled")
    load = results.thread_load
    ran, spun = (int(load[column].sum()) for column in ("running_ns", "spinning_ns"))
    burnt = spun / ran if ran else 0.0
    total = spent(taken) + round(burnt * spent(stopped))
    share = exposed_share(results, pl.DataFrame({"dur_ns": [total]}))
    if share < WORTH_SAYING or not ran:
        return None
    kinds = polls(results.spinning)
    named = ", ".join(
        f"{KINDS.get(kind, kind)} {ns / 1e9:.2f} s"
        for kind, ns in kinds.select("kind", "total_ns").iter_rows()
        if ns >= 0.05 * spun
    )
    order = [str(kind) for kind in kinds["kind"]]
    if spent(taken) > burnt * spent(stopped):  # who polled on the wanted CPUs decides what to change
        ranked = (
            taken.group_by("kind")
            .agg(pl.col("dur_ns").sum())
            .sort("dur_ns", "kind", descending=[True, False])
        )
        order = [str(kind) for kind in ranked["kind"]]
    return Finding(
        id="busy_wait",
        cause=None,
        claim=f"Polling burnt {percent(burnt)} of the server's CPU time ({named}); it held GPUs up for about {percent(share)} of the time{_how(results, taken, stopped)}.{_lengths(kinds)}",
        exposed_ns=total,
        exposed_share=share,
        confidence="medium" if spent(stopped) else "high",
        why="the scheduler names the polling thread on the wanted CPU"
        if not spent(stopped)
        else "of the time stopped by the quota, the share of CPU time that polling used up is taken: an estimate",
        evidence=_evidence(results, taken),
        disproof="If the launching threads wait for CPUs as long as before once the pollers sleep, something else takes them.",
        advice=[ADVICE[kind] for kind in order if kind in ADVICE][:3],
        verify=[
            "Record again: the polling threads' CPU time and the launching threads' runnable or throttled time must fall together."
        ],
        change="setting",
        gain_ns=total,
    )


def _lengths(kinds: pl.DataFrame) -> str:
    """Say how long the polls of the largest kind were on a CPU at a time."""
    if kinds.is_empty():
        return ""
    most = kinds.row(0, named=True)
    return (
        f" Of {most['count']} polls ({KINDS.get(most['kind'], most['kind'])}) half stayed on a CPU for up to {most['p50_ns'] / 1e6:.1f} ms, "
        f"95 % for up to {most['p95_ns'] / 1e6:.1f} ms."
    )


def _how(results: Results, taken: pl.DataFrame, stopped: pl.DataFrame) -> str:
    parts = []
    if spent(taken):
        parts.append(
            f"a poller sat on the CPU that a launching thread wanted ({percent(exposed_share(results, taken))})"
        )
    if spent(stopped):
        parts.append(
            f"a CPU quota stopped the server after polling had used up its part of it ({percent(exposed_share(results, stopped))} stopped in all)"
        )
    return ": " + " and ".join(parts) if parts else ""


def _evidence(results: Results, taken: pl.DataFrame) -> list[Evidence]:
    """Return the longest moments in which a poller had the wanted CPU, then the threads that polled most."""
    worst = taken.sort("dur_ns", "ts_ns", "gpu", descending=[True, False, False]).head(3)
    window = results.window
    most = (
        results.spinning.group_by("thread", "kind")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "thread", descending=[True, False])
    )
    return [
        Evidence(
            r["ts_ns"],
            r["dur_ns"],
            thread_name(results, r["thread"]),
            f"ready to run; {thread_name(results, r['by'])} polled on its CPU ({r['kind']})",
        )
        for r in worst.iter_rows(named=True)
    ] + [
        Evidence(
            window.start_ns,
            window.duration_ns,
            thread_name(results, thread),
            f"polls: {KINDS.get(kind, kind)}",
            f"{ns / 1e6:.0f} ms of CPU time",
        )
        for thread, kind, ns in most.head(3).iter_rows()
    ]
