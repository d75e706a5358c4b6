"""GPUs waited while code for them was loaded on its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, percent, shortage_note

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["module_loading"]

WORTH_SAYING = 0.01


def module_loading(results: Results) -> Finding | None:
    """Report lost GPU time in lazy module loading: CUDA loads a kernel's code when it is launched for the first time."""
    lost = exposed(results, (pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") == "module_load"))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    return Finding(
        id="module_loading",
        cause="kernel_launch",
        claim=f"The GPUs waited {percent(share)} of the time while GPU code was loaded on its first use.{shortage_note(lost)}",
        confidence="high",
        why="the recorder names the loading (CUPTI's overhead records, or the loading calls themselves) on the launching thread",
        disproof="If it does not shrink in a second recording of the same process, it is no first use: something unloads modules.",
        advice=[
            "Load at start instead of at first launch: CUDA_MODULE_LOADING=EAGER (longer start, more device memory), or warm up with the traffic's shapes."
        ],
        verify=["Record again after the warm-up: this share must vanish."],
        change="setting",
        **cost_of(results, lost),
    )
