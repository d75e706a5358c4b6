"""Workers got their next step late: the engine's broadcast or another message between processes took long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import (
    Abstained,
    Finding,
    cost_of,
    exposed,
    exposed_share,
    own_ns,
    quantile,
    shortage_note,
    spent,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["ipc_stretched"]

WORTH_SAYING = 0.02


def ipc_stretched(results: Results) -> Finding | Abstained | None:
    """Report lost GPU time in messages between processes; where the other side was not recorded, abstain."""
    blind = exposed(
        results,
        (pl.col("cause") == "ipc") & (pl.col("sub_cause") == "upstream not recorded").fill_null(value=False),
    )
    lost = exposed(
        results,
        (pl.col("cause") == "ipc") & (pl.col("sub_cause") != "upstream not recorded").fill_null(value=True),
    )
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        if exposed_share(results, blind) < WORTH_SAYING:
            return None
        return Abstained(
            "ipc_stretched",
            f"workers waited for their next step {100 * exposed_share(results, blind):.0f} % of the time, but no source recorded what the "
            "engine and the API server did meanwhile; an idle server looks the same",
            "profile the engine and the API server too (vLLM's /start_profile covers workers only), or perf record -a -g",
        )
    dequeue = results.ipc.filter(pl.col("kind") == "dequeue")["dur_ns"]
    middle, p95 = quantile(dequeue, 0.5), quantile(dequeue, 0.95)
    spread = ""
    if middle is not None and p95 is not None:
        spread = f" A worker's dequeue took {middle / 1e6:.1f} ms at the median, {p95 / 1e6:.1f} ms at p95."
    return Finding(
        id="ipc_stretched",
        cause="ipc",
        claim=f"The GPUs waited for messages between the server's processes {100 * share:.1f} % of the time.{spread}{shortage_note(lost)}",
        confidence="medium",
        why="the waiting side is recorded; that nothing else held the message up follows from the other side being busy with it or silent",
        disproof="If the readers get cores of their own and the dequeue times stay, the message itself is slow (size, serialisation).",
        advice=_advice(lost),
        verify=["p95 of the dequeue time must fall to well under a step."],
        change="code",
        **cost_of(results, lost),
    )


def _advice(lost: pl.DataFrame) -> list[str]:
    """Return what to change: where the messages mostly waited for a CPU, that comes first, and no other transport helps."""
    if own_ns(lost) < spent(lost) / 2:
        return [
            "Mend the lack of CPUs first: most of this time the sender or reader was ready and had none, and no other transport changes that.",
            "Give every polling reader a core: a reader that shares one waits a scheduler slice (2 to 4 ms) for each poll.",
        ]
    return [
        "Use blocking sockets (Unix domain) instead of polled shared memory where latency must be steady.",
        "Send less per step: metadata only, no tensors, no pickled objects.",
        "Give every polling reader a core of its own.",
    ]
