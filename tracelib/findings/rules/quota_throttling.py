"""A CPU quota (cgroup) stopped the server's threads while CPUs were idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.scheduling import tells_shortage
from tracelib.analyses.throttling import FEWEST_PERIODS
from tracelib.findings.finding import Abstained, Evidence, Finding, exposed, exposed_share, thread_name
from tracelib.findings.verdict import quota_words

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["quota_throttling"]

WORTH_SAYING = 0.005


def quota_throttling(results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in which the blamed thread was throttled.

    Throttled = runnable while its CPU idles, again and again until the same period's end (ATTRIBUTION.md, "Scheduler
    states"): only a quota does that.
    """
    counted = _counted(results)
    if not tells_shortage(results.thread_states):
        return Abstained(
            "quota_throttling",
            f"no wake-up events: whether threads were ready or slept cannot be told{counted}",
            "perf record -k mono -a -e sched:sched_switch -e sched:sched_wakeup; keep cpu.stat before and after",
        )
    gaps = results.thread_states.filter(pl.col("state").cast(pl.String) == "throttled")
    lost = exposed(results, pl.col("cpu_state") == "throttled")
    share = exposed_share(results, lost)
    if gaps.is_empty() or share < WORTH_SAYING:
        return None
    worst = gaps.sort("dur_ns", "ts_ns", descending=[True, False]).head(5)
    return Finding(
        id="quota_throttling",
        cause=None,
        claim=f"A CPU quota{quota_words(results)} stopped threads that the GPUs waited for, for {100 * share:.1f} % of the time: {gaps.height} times a thread was ready, "
        f"CPUs were idle, and it ran again only when the quota's next period began.",
        exposed_ns=int(lost["dur_ns"].sum()),
        exposed_share=share,
        confidence="high" if gaps.height >= 10 else "medium",
        why=f"{gaps.height} gaps end on one period grid; nothing but a quota does that{_size(results)}{counted}",
        evidence=[
            Evidence(
                r["ts_ns"], r["dur_ns"], thread_name(results, r["thread"]), "runnable while its CPU was idle"
            )
            for r in worst.iter_rows(named=True)
        ],
        disproof="If cpu.stat of the container shows nr_throttled standing still during the run, it was not the quota.",
        advice=[
            "Raise or remove the CPU limit of the container (Kubernetes: resources.limits.cpu; Docker: --cpus); in Kubernetes resources.requests.cpu alone keeps the container's share and never stops it.",
            "Size thread pools to the quota, not to the host's CPU count (OMP_NUM_THREADS, RAYON_NUM_THREADS, tokenizer workers).",
        ],
        change="machine",
        gain_ns=int(lost["dur_ns"].sum()),
        verify=[
            "nr_throttled and throttled_usec in /sys/fs/cgroup/.../cpu.stat must stop growing.",
            "Record again: no throttled gaps.",
        ],
    )


def _size(results: Results) -> str:
    """Say how the quota's size is known: from what the server used in the periods in which it was stopped."""
    used = results.quota_use["cpus"]
    if used.len() < FEWEST_PERIODS:
        return ""
    low, middle, high = (float(used.quantile(q, "nearest") or 0.0) for q in (0.1, 0.5, 0.9))
    return (
        f"; before each stop the server had used about {middle:.1f} CPUs' worth of the period ({low:.1f} to {high:.1f} in 8 of 10 of {used.len()} periods): "
        "the quota, less what other processes of its group used"
    )


def _counted(results: Results) -> str:
    """Return what the kernel itself counted, and the quota's size where it can be told; nothing where nobody kept it."""
    supply = results.supply
    share, bounds = supply.throttled_share, supply.quota_bounds()
    said = []
    if share is not None:
        counters = supply.counters
        said.append(
            f"the kernel's cpu.stat counts {counters['nr_throttled']} of {counters['nr_periods']} periods in which it ran out"
            f" and {counters['throttled_usec'] / 1e6:.1f} s of throttled time, {supply.since}"
        )
    if supply.quota_cpus is not None:
        said.append(f"cpu.max allows {supply.quota_cpus:g} CPUs")
    elif bounds is not None:
        said.append(
            f"by its CPU time the quota lies between {bounds[0]:.1f} and {bounds[1]:.1f} CPUs (for periods of 100 ms)"
        )
    return "".join(f"; {part}" for part in said)
