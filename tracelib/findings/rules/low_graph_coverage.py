"""Kernels were launched one by one, and the launching could not keep up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.launches import graph_coverage
from tracelib.findings.finding import (
    Abstained,
    Evidence,
    Finding,
    exposed,
    exposed_share,
    mean,
    own_ns,
    percent,
    quantile,
    spent,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["low_graph_coverage"]

WORTH_SAYING = 0.05
#: Kernels launched by graphs / kernels.
COVERED = 0.5


def low_graph_coverage(results: Results) -> Finding | Abstained | None:
    """Report that few kernels came from graphs while GPUs waited for launches.

    Low coverage alone costs nothing: a GPU that is fed in time does not care how. So launches must be what it waits for.
    """
    coverage = graph_coverage(results.launches)
    cost = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(["api", "dispatch", "latency"])
    lost = exposed(results, cost)
    own = own_ns(lost)
    if own < WORTH_SAYING * _whole(results):
        return None
    if coverage is None:
        return _unknown(results.launches)
    if coverage >= COVERED:
        return None
    kernels = results.launches.filter(pl.col("kind") == "kernel")
    single = kernels.filter(pl.col("graph").is_null())
    length, late = quantile(single["dur_ns"], 0.5), mean(single["late"])
    window = results.window
    return Finding(
        id="low_graph_coverage",
        cause="kernel_launch",
        claim=f"{'None' if not coverage else f'Only {percent(coverage)}'} of {kernels.height} kernels came from graphs; half of the others lasted under {(length or 0) / 1e3:.0f} µs and {100 * late:.0f} % of them "
        f"came after the GPU had run dry. Launching cost the GPUs {percent(own / _whole(results))} of the time beyond any lack of CPUs.",
        exposed_ns=spent(lost),
        exposed_share=exposed_share(results, lost),
        confidence="high",
        why="kernels and their launch calls are recorded one by one",
        evidence=[
            Evidence(
                window.start_ns,
                window.duration_ns,
                "all GPUs",
                "kernels launched by graphs",
                percent(coverage),
            )
        ],
        disproof="If the gaps lie in prefill, whose shapes vary, graphs of decode steps do not close them.",
        advice=[
            "Capture decode steps into CUDA graphs (vLLM: no --enforce-eager; check which batch sizes are captured).",
            "Capture prefill in pieces too, where the server can (piecewise graphs), or fuse its operators with torch.compile.",
        ],
        verify=["Graph coverage must rise, the share of late launches fall."],
        change="setting",
        gain_ns=own,
    )


def _unknown(ops: pl.DataFrame) -> Abstained | None:
    """Abstain where graphs were recorded whole; where there are no kernels at all, there is nothing to say."""
    graphs = int((ops["kind"] == "graph").sum())
    if not graphs:
        return None
    reason = f"{graphs:,} launches of CUDA graphs were recorded as one operation each: which share of the kernels they hold is not known"
    return Abstained(
        "low_graph_coverage",
        reason,
        "nsys profile --cuda-graph-trace=node, which records the kernels of graphs one by one",
    )


def _whole(results: Results) -> int:
    """Return the GPU time of the window, all devices."""
    return results.window.duration_ns * results.gpu_time["gpu"].n_unique()
