"""GPUs ran dry because the host waited for them before it launched more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import (
    Finding,
    evidence_of_lost,
    exposed,
    exposed_share,
    own_ns,
    percent,
    shortage_note,
    spent,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["host_synchronisation"]

WORTH_SAYING = 0.02


def host_synchronisation(results: Results) -> Finding | None:
    """Report lost GPU time inside synchronisations.

    A long synchronisation is mostly the victim: the host waits because the GPU works. Only the part counts in which the
    GPU had nothing left to do and the host had not yet noticed; and where it could not notice because it had no CPU, the
    lack of CPUs is to blame, not the synchronisation.
    """
    lost = exposed(results, pl.col("cause") == "sync")
    share = exposed_share(results, lost)
    own = own_ns(lost)
    if exposed_share(results, lost) * own < WORTH_SAYING * spent(lost) or not own:
        return None
    whole = spent(
        results.host_time.filter(pl.col("cause") == "sync").select(dur_ns=pl.col("total_ns").fill_null(0))
    )
    victim = (
        f" ({whole / 1e9:.2f} s in synchronisations altogether; while the GPU works they cost nothing.)"
        if whole
        else ""
    )
    return Finding(
        id="host_synchronisation",
        cause="sync",
        claim=f"For {percent(share)} of the time a GPU had run dry and its host was still inside a synchronisation or a blocking copy.{shortage_note(lost)}{victim}",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="medium",
        why="the waiting call is recorded on the launching thread while its GPU is idle; whether it could have launched ahead is not",
        evidence=evidence_of_lost(results, lost),
        disproof="If the thread had no CPU in these moments, the synchronisation is not at fault: it could not return.",
        advice=[
            "Launch the next step before reading back the last one's result (vLLM: --async-scheduling).",
            "Copy results with pinned memory and non_blocking=True, and wait for an event, once per step; no .item(), .cpu() or .tolist() in between.",
        ],
        verify=["The gap after each step must shrink to the launch latency."],
        change="code",
        gain_ns=own,
    )
