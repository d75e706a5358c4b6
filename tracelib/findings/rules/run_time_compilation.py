"""GPUs waited while code for them was compiled at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.long_slices import lost_in_long_slices
from tracelib.findings.finding import (
    Abstained,
    Finding,
    evidence_of_lost,
    exposed,
    exposed_share,
    gain_of,
    percent,
    shortage_note,
    spent,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["run_time_compilation"]

WORTH_SAYING = 0.02


def run_time_compilation(results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in nvrtc, Triton, Inductor, ptxas and engine builds.

    Compilation that the GPUs do not wait for (another batch runs meanwhile) costs them nothing and is not counted.
    """
    lost = exposed(results, (pl.col("cause") == "kernel_launch") & (pl.col("sub_cause") == "jit_compile"))
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return _unseen(results)
    evidence = evidence_of_lost(results, lost)
    return Finding(
        id="run_time_compilation",
        cause="kernel_launch",
        claim=f"The GPUs waited {percent(share)} of the time for code that was compiled at run time, up to {evidence[0].dur_ns / 1e6:.0f} ms at once.{shortage_note(lost)}",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="high",
        why="the compiler's own ranges, or samples in its library, lie on the thread that launches next",
        evidence=evidence,
        disproof="If a second run with the same inputs and a kept cache compiles again as long, it is not first use: look for changing shapes that force a recompilation.",
        advice=[
            "Warm the server up with the shapes and batch sizes of its traffic before it takes requests.",
            "Keep the compilers' caches between starts (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR, CUDA_CACHE_PATH on a volume that lives on).",
            "Avoid recompilation for new shapes: pad to fixed sizes or mark them dynamic (TORCH_LOGS=recompiles names the guard that failed).",
            "Ship binaries for this GPU's architecture, so that no PTX is compiled on loading.",
        ],
        verify=["Record again after the warm-up: no compiler range may lie in the window."],
        change="setting",
        gain_ns=gain_of(lost),
    )


def _unseen(results: Results) -> Abstained | None:
    """Abstain where ops outlast their siblings by far and no sample says what they did."""
    share = exposed_share(results, lost_in_long_slices(results.trace, results.host_activity, results.lost))
    if share < WORTH_SAYING:
        return None
    return Abstained(
        "run_time_compilation",
        f"for {percent(share)} of the time GPUs waited for framework ops that lasted over ten times their siblings; without CPU samples "
        "nothing says whether they compiled, loaded code or had no CPU",
        "perf record -k mono -a -g -e cpu-clock/freq=499/, then perf script --header --ns -F +pid",
    )
