"""The GPUs were busy with useful work: the host is not what to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.findings.finding import Evidence, Finding
from tracelib.findings.verdict import shares

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["gpu_bound"]

USEFUL_ENOUGH = 0.85


def gpu_bound(results: Results) -> Finding | None:
    """Report that the devices did useful work nearly all the time."""
    if results.gpu_time.is_empty():
        return None
    share = shares(results)
    if share.useful < USEFUL_ENOUGH:
        return None
    window = results.window
    return Finding(
        id="gpu_bound",
        cause=None,
        claim=f"The GPUs computed, copied or transferred {100 * share.useful:.0f} % of the time: they are the limit, not the host.",
        exposed_ns=0,
        exposed_share=0.0,
        confidence="high",
        why="read off the GPUs' own record of every kernel",
        evidence=[
            Evidence(window.start_ns, window.duration_ns, "all GPUs", "useful work", round(share.useful, 3))
        ],
        disproof="If a run on a faster CPU is faster, the host mattered after all.",
        advice=[
            "Look at the kernels themselves: larger batches, faster attention and matrix kernels, lower precision, more GPUs."
        ],
        verify=["Throughput must follow GPU changes, not CPU changes."],
        change="none",
        gain_ns=None,
        leads=True,
        statement="It says what kind of run this was; nothing in the server is to be changed for it.",
    )
