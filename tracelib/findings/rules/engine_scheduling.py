"""GPUs waited for the engine's scheduler or input preparation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, percent, shortage_note

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["engine_scheduling"]

WORTH_SAYING = 0.03


def engine_scheduling(results: Results) -> Finding | None:
    """Report lost GPU time in the engine's scheduling; what overlaps with a running step costs nothing."""
    lost = exposed(results, pl.col("cause") == "scheduling")
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    return Finding(
        id="engine_scheduling",
        cause="scheduling",
        claim=f"The GPUs waited {percent(share)} of the time for the engine to schedule and prepare the next step.{shortage_note(lost)}",
        confidence="high",
        why="the workers wait for their next step while the engine's own ranges say that it schedules",
        disproof="If the engine's ranges enclose a wait for requests, there was nothing to schedule.",
        advice=[
            "Schedule the next step while this one runs (vLLM: --async-scheduling).",
            "Several steps per schedule, fewer requests per engine, or data parallelism with an engine each.",
        ],
        verify=["The gap between steps must shrink by the scheduler's time."],
        change="setting",
        **cost_of(results, lost),
    )
