"""The recorders themselves took so much that the figures are not the server's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import (
    Evidence,
    Finding,
    evidence_of_lost,
    exposed,
    exposed_share,
    own_ns,
    percent,
    spent,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["profiler_overhead"]

WORTH_SAYING = 0.05
LAUNCHING = ("dispatch", "api")


def profiler_overhead(results: Results) -> Finding | None:
    """Report lost GPU time that the recorders made.

    What they record of themselves (cause `profiler`), and their part in launching: of the CPU time of the workers' launch
    path, samples tell how much lies in the profiler; that part of the GPUs' waiting for launches is the profiler's too.
    """
    seen = exposed(results, pl.col("cause") == "profiler")
    launching = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(LAUNCHING)
    slow = exposed(results, launching)
    worker = results.cpu_time.filter(pl.col("role") == "worker")
    recorder = int(worker.filter(pl.col("cause") == "profiler")["cpu_ns"].sum())
    path = int(worker.filter(launching)["cpu_ns"].sum())
    part = recorder / (recorder + path) if recorder else 0.0
    total = spent(seen) + round(part * own_ns(slow))
    share = exposed_share(results, pl.DataFrame({"dur_ns": [total]}))
    if share < WORTH_SAYING:
        return None
    sampled = (
        f" Of the CPU time of the workers' launch path {percent(part)} is the profiler's own, so kernel launch is shown too long by about that part."
        if part
        else ""
    )
    window = results.window
    proof = (
        [
            Evidence(
                window.start_ns,
                window.duration_ns,
                "workers",
                "CPU time in the profiler",
                f"{recorder / 1e6:.0f} ms of {(recorder + path) / 1e6:.0f} ms",
            )
        ]
        if recorder
        else []
    )
    return Finding(
        id="profiler_overhead",
        cause="profiler",
        claim=f"The recorders themselves cost the GPUs about {percent(share)} of the time: without them the server is that much faster.{sampled}",
        exposed_ns=total,
        exposed_share=share,
        confidence="medium" if part else "high",
        why="estimated from the share of samples in the profiler's code"
        if part
        else "the recorder's own ranges lie in the gaps",
        evidence=[*proof, *evidence_of_lost(results, seen, 3)],
        disproof="If tokens per second are the same with the profiler off, it costs nothing.",
        advice=[
            "Record less: no with_stack, no record_shapes, no profile_memory; a window of a few seconds; annotations and CUDA activities only.",
            "Compare tokens per second with and without recording before quoting launch figures.",
        ],
        verify=["Record with fewer options: kernel launch must shrink, everything else stay."],
        change="none",
        gain_ns=None,
        statement="It says how far the other figures can be trusted.",
    )
