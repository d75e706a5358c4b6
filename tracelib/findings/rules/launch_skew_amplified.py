"""One rank's late launch stopped all others at the next collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import (
    Finding,
    evidence_of_lost,
    exposed,
    exposed_share,
    percent,
    quantile,
    shortage_note,
    spent,
)
from tracelib.findings.verdict import NOT_HOST

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["launch_skew_amplified"]

WORTH_SAYING = 0.03


def launch_skew_amplified(results: Results) -> Finding | None:
    """Report waiting in collectives that goes back to the late rank's host.

    Amplification = GPU time that all ranks wait per time that the last one is late: with N ranks up to N - 1. Waiting for
    a rank whose device computed is another finding (`rank_imbalance`).
    """
    lost = exposed(results, (pl.col("lost") == "collective_wait") & ~pl.col("cause").is_in(NOT_HOST))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    met = results.collectives.filter("matched")
    late, waited = int(met.unique("event")["skew_ns"].sum()), int(met["wait_ns"].sum())
    events, skew = met["event"].n_unique(), quantile(met.unique("event")["skew_ns"], 0.95) or 0
    return Finding(
        id="launch_skew_amplified",
        cause=None,
        claim=f"In {events} collectives ranks came late by {late / 1e6:.0f} ms in all, which cost {waited / 1e6:.0f} ms of GPU time ({waited / late if late else 0:.1f} times as much); "
        f"{percent(share)} of the time GPUs waited there for a rank whose host was late.{shortage_note(lost)}",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="high",
        why="arrivals of each collective on all ranks are on one clock, and the late rank's launching thread is recorded at that moment",
        evidence=evidence_of_lost(results, lost),
        disproof="If the ranks' kernels before the collective take unequally long on the GPU itself, the host is not at fault.",
        advice=[
            "Mend what held up the late rank's launching thread (its cause stands in the evidence): each ms saved there counts on every rank.",
            "Pin each rank's launching thread to a CPU of its own on its GPU's NUMA node (taskset, numactl).",
            "CUDA graphs leave one launch a step in which ranks can drift apart.",
        ],
        verify=[
            f"Arrival skew at p95, {skew / 1e6:.2f} ms in this run, must fall; busy and useful share must come together."
        ],
        change="none",
        gain_ns=None,
    )
