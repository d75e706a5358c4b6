"""One rank comes late to the collectives, and all others wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Abstained, Evidence, Finding

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["straggler_rank"]

WORTH_SAYING = 0.03


def straggler_rank(results: Results) -> Finding | Abstained | None:
    """Report time that ranks spent waiting in collectives, which monitoring counts as busy, and who was last."""
    met = results.collectives.filter("matched")
    if met.is_empty():
        if results.collectives.is_empty():
            return None
        return Abstained(
            "straggler_rank",
            "collectives could not be matched across ranks",
            "record all ranks at the same time, on tied clocks",
        )
    devices = results.gpu_time["gpu"].n_unique()
    waited = results.gpu_time.filter(pl.col("state") == "collective_wait")["ns"].sum()
    share = int(waited) / (results.window.duration_ns * devices)
    if share < WORTH_SAYING:
        return None
    labels = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    last = met.unique("event").group_by("straggler").len().sort("len", "straggler")
    who, times, events = labels[last["straggler"][-1]], int(last["len"][-1]), int(last["len"].sum())
    begun = met.filter(
        pl.col("ts_ns") >= results.window.start_ns
    )  # the first may have begun before the window
    worst = begun.sort("wait_ns", "ts_ns", descending=[True, False]).head(5)
    return Finding(
        id="straggler_rank", cause="imbalance",
        claim=f"The ranks spent {100 * share:.1f} % of the time spinning in collectives for the rank that came last; rank {who} was last in {100 * times / events:.0f} % "
        f"of {events} collectives. GPU monitors count this as busy.",
        exposed_ns=int(waited), exposed_share=share, confidence="high", why="arrivals of the same collective on all ranks, on one clock",
        evidence=[Evidence(r["ts_ns"], r["wait_ns"], f"rank {labels[r['gpu']]}", f"waits in {r['collective']} for rank {labels[r['straggler']]}", f"{r['skew_ns'] / 1e6:.1f} ms apart") for r in worst.iter_rows(named=True)],
        disproof="If the skew follows a GPU when ranks are swapped between cores, it is that GPU (clocks, PCIe), not its host thread.",
        advice=[
            "Find what the late rank's launching thread did (the causes table asks exactly that) and mend it there.",
            "Pin each rank's launching thread to a core of its own on its GPU's NUMA node.",
            "CUDA graphs shrink the time in which launch jitter can add up.",
        ],
        verify=["Arrival skew at p95 must fall; useful and busy share must come together."],
    )  # fmt: skip
