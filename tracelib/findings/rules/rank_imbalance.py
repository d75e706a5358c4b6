"""Ranks waited in collectives for one whose GPU had more to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Evidence, Finding, exposed, exposed_share, percent, spent

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["rank_imbalance"]

WORTH_SAYING = 0.03


def rank_imbalance(results: Results) -> Finding | None:
    """Report waiting in collectives while the late rank's device computed: the host is not to blame."""
    lost = exposed(results, pl.col("cause") == "imbalance")
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    labels = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    computed = results.gpu_time.filter(pl.col("state") == "compute").sort("ns", "gpu")
    busiest, least = computed.row(-1, named=True), computed.row(0, named=True)
    window = results.window
    return Finding(
        id="rank_imbalance",
        cause="imbalance",
        claim=f"For {percent(share)} of the time GPUs waited in a collective for a rank that was still computing; rank {labels[busiest['gpu']]} computed "
        f"{percent(busiest['ns'] / window.duration_ns)} of the time, rank {labels[least['gpu']]} {percent(least['ns'] / window.duration_ns)}.",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="high",
        why="the late rank's own kernels ran at that moment",
        evidence=[
            Evidence(
                r["ts_ns"],
                r["dur_ns"],
                f"rank {labels[r['gpu']]}",
                "waits in a collective while the late rank computes",
            )
            for r in lost.sort("dur_ns", "ts_ns", descending=[True, False]).head(5).iter_rows(named=True)
        ],
        disproof="If the same kernels take equally long on all ranks (same shapes, same clocks), they were launched at different times: then it is the host.",
        advice=[
            "Compare the ranks' kernels: unequal shapes (experts, layers, sequence parts) call for another split.",
            "Equal shapes that run slower on one GPU: look at its clocks, power limit, temperature, and at other jobs on it.",
        ],
        verify=["Compute time of the ranks must come together, and waiting in collectives fall."],
        change="code",
        gain_ns=spent(lost),
    )
