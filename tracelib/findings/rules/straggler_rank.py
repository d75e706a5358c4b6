"""One rank comes late to the collectives, and all others wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Evidence, Finding

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["straggler_rank"]

WORTH_SAYING = 0.03
#: How many times its fair share of the waiting one rank must cause to be called a straggler.
UNFAIR = 1.5


def straggler_rank(results: Results) -> Finding | None:
    """Report that one rank, more than the others, is the one that all wait for in collectives.

    Ranks that come late in turn are no stragglers: `launch_skew_amplified` and `rank_imbalance` say why they do.
    """
    met = results.collectives.filter("matched")
    if met.is_empty():
        return None
    devices = results.gpu_time["gpu"].n_unique()
    waited = results.gpu_time.filter(pl.col("state") == "collective_wait")["ns"].sum()
    share = int(waited) / (results.window.duration_ns * devices)
    if share < WORTH_SAYING:
        return None
    labels = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    caused = (
        met.group_by("straggler")
        .agg(pl.col("wait_ns").sum(), pl.col("event").n_unique())
        .sort("wait_ns", "straggler")
    )
    worst_rank = caused.row(-1, named=True)
    part, events = worst_rank["wait_ns"] / max(1, int(caused["wait_ns"].sum())), met["event"].n_unique()
    if part < UNFAIR / devices:
        return None
    who = labels[worst_rank["straggler"]]
    begun = met.filter(
        (pl.col("ts_ns") >= results.window.start_ns) & (pl.col("straggler") == worst_rank["straggler"])
    )  # the first may have begun before the window
    worst = begun.sort("wait_ns", "ts_ns", descending=[True, False]).head(5)
    return Finding(
        id="straggler_rank",
        cause=None,
        claim=f"Rank {who} came last in {worst_rank['event']} of {events} collectives and caused {100 * part:.0f} % of the waiting in them, in which the ranks spent "
        f"{100 * share:.1f} % of the time. GPU monitors count this as busy.",
        exposed_ns=int(waited),
        exposed_share=share,
        confidence="high",
        why="arrivals of the same collective on all ranks, on one clock",
        evidence=[
            Evidence(
                r["ts_ns"],
                r["wait_ns"],
                f"rank {labels[r['gpu']]}",
                f"waits in {r['collective']} for rank {labels[r['straggler']]}",
                f"{r['skew_ns'] / 1e6:.1f} ms apart",
            )
            for r in worst.iter_rows(named=True)
        ],
        disproof="If the skew follows a GPU when ranks are swapped between cores, it is that GPU (clocks, PCIe), not its host thread.",
        advice=[
            "Find what the late rank's launching thread did (the causes table asks exactly that) and mend it there.",
            "Pin each rank's launching thread to a core of its own on its GPU's NUMA node.",
            "CUDA graphs shrink the time in which launch jitter can add up.",
        ],
        verify=["Arrival skew at p95 must fall; useful and busy share must come together."],
        change="none",
        gain_ns=None,
    )
