"""GPUs waited while the interpreter collected garbage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, percent, shortage_note

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["gc_pauses"]

WORTH_SAYING = 0.01


def gc_pauses(results: Results) -> Finding | None:
    """Report lost GPU time in garbage collection; collections that no GPU waits for cost nothing."""
    lost = exposed(results, pl.col("cause") == "gc")
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    return Finding(
        id="gc_pauses",
        cause="gc",
        claim=f"The GPUs waited {percent(share)} of the time for the interpreter's garbage collection.{shortage_note(lost)}",
        confidence="high",
        why="collections are ranges, or samples in the collector's own functions, on the thread that the GPUs waited for",
        disproof="If gc.disable() for a test run leaves these gaps as they are, they have another reason.",
        advice=[
            "Call gc.freeze() after the model and the caches are loaded, so that collections skip what never dies (vLLM does).",
            "Raise the thresholds (gc.set_threshold), or collect by hand between steps.",
        ],
        verify=["Record again: no collection inside a gap."],
        change="code",
        **cost_of(results, lost),
    )
