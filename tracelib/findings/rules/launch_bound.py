"""GPUs ran dry because the host launched kernels more slowly than they were executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.launches import graph_coverage
from tracelib.analyses.long_slices import lost_in_long_slices
from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, mean, shortage_note, spent

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["launch_bound"]

WORTH_SAYING = 0.05
#: Share of it that, unexplained, makes the claim less sure.
HIDDEN = 0.2


def launch_bound(results: Results) -> Finding | None:
    """Report lost GPU time between launches: the calls, the framework between them, the device's own start-up."""
    cost = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(["api", "dispatch", "latency"])
    lost = exposed(results, cost)
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    parts = (
        lost.group_by("sub_cause").agg(pl.col("dur_ns").sum()).sort("dur_ns", "sub_cause", descending=True)
    )
    total = int(lost["dur_ns"].sum())
    split = ", ".join(f"{_WORDS[name]} {100 * ns / total:.0f} %" for name, ns in parts.iter_rows())
    coverage = graph_coverage(results.launches)
    by_graphs = "" if coverage is None else f", {100 * coverage:.0f} % of the kernels were launched by graphs"
    late = mean(results.launches["late"])
    hidden = _hidden(results, total)
    return Finding(
        id="launch_bound",
        cause="kernel_launch",
        claim=f"The GPUs waited for the next launch {100 * share:.1f} % of the time ({split}); {100 * late:.0f} % of the launches came after the GPU had run dry{by_graphs}."
        f"{shortage_note(lost)}",
        confidence="medium" if hidden else "high",
        why=f"each gap is joined to the call that ended it by correlation id{hidden}",
        disproof="If capturing the decode step into CUDA graphs leaves the gaps between kernels as they are, the launch path is not what they wait for.",
        advice=[
            "Launch less: CUDA graphs for decode steps, small operators fused (torch.compile), less Python between launches.",
            "Keep the launching thread on a core of its own (taskset, numactl); other threads of the process contend for the interpreter lock.",
        ],
        verify=["The share of late launches must fall, useful GPU time rise."],
        change="code",
        **cost_of(results, lost),
    )


_WORDS = {
    "api": "the launch calls",
    "dispatch": "Python and framework between launches",
    "latency": "the device's own start-up",
}


def _hidden(results: Results, total: int) -> str:
    """Say how much of it may be something else: time in ops that outlast their siblings, of which there are no samples."""
    part = spent(lost_in_long_slices(results.trace, results.host_activity, results.lost)) / total
    if part < HIDDEN:
        return ""
    return (
        f", but {100 * part:.0f} % of it lies in ops over ten times as long as their siblings: without CPU samples that may be "
        "compilation, loading, or a missing CPU"
    )
