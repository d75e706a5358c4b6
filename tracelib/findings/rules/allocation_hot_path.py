"""GPUs waited while device or pinned memory was allocated or freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, percent, shortage_note

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["allocation_hot_path"]

WORTH_SAYING = 0.01


def allocation_hot_path(results: Results) -> Finding | None:
    """Report lost GPU time in allocation calls: a server in its steady state needs none.

    Only calls that reach the driver count; an allocation from PyTorch's cache is part of dispatch.
    """
    lost = exposed(results, (pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") == "alloc"))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    return Finding(
        id="allocation_hot_path",
        cause="kernel_launch",
        claim=f"The GPUs waited {percent(share)} of the time for memory to be allocated, freed or pinned.{shortage_note(lost)}",
        confidence="high",
        why="the allocation calls are recorded on the launching thread, while its GPU was idle",
        disproof="If PyTorch's memory snapshot shows no new segment in the window, the calls come from another library.",
        advice=[
            "Keep the caching allocator from giving memory back and asking again: leave headroom (vLLM: --gpu-memory-utilization), PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "Allocate pinned buffers once and reuse them; no pin_memory() and no empty_cache() per step.",
        ],
        verify=["cudaMalloc, cudaFree and cudaHostAlloc must be absent from the window of a warm server."],
        change="setting",
        **cost_of(results, lost),
    )
