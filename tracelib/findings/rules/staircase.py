"""GPU use rose and fell in steps: bursts, and starvation between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Evidence, Finding, exposed_share, percent, quantile, spent
from tracelib.findings.verdict import NOT_HOST, WORDS
from tracelib.intervals import overlay

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["staircase"]

#: Starved stretches between bursts, per GPU, and the share of the window that each level must take.
FEWEST, LEAST = 3, 0.15


def staircase(results: Results) -> Finding | None:
    """Report bursts and starvation in turn, where it is the host that starves the GPUs between bursts.

    Steps that come from missing requests are no staircase of this kind: there is nothing to mend in the server.
    """
    steps = results.utilisation_steps
    starved = steps.filter(pl.col("level") == "starved")
    cut = overlay(
        starved.select("gpu", "ts_ns", "dur_ns"),
        results.lost.select("gpu", "ts_ns", "dur_ns", "cause"),
        "gpu",
    )
    lost = cut.filter(pl.col("cause").is_not_null())
    host = lost.filter(~pl.col("cause").is_in(NOT_HOST))
    if not _in_steps(results) or spent(host) < spent(lost) / 2:
        return None
    devices = results.gpu_time["gpu"].n_unique()
    causes = (
        host.group_by("cause").agg(pl.col("dur_ns").sum()).sort("dur_ns", "cause", descending=[True, False])
    )
    mostly = ", ".join(
        f"{WORDS.get(cause, cause)} {100 * ns / spent(lost):.0f} %"
        for cause, ns in causes.head(3).iter_rows()
    )
    labels = dict(results.trace.gpus.select("gpu", pl.col("rank").fill_null(pl.col("device"))).iter_rows())
    worst = starved.sort("dur_ns", "ts_ns", "gpu", descending=[True, False, False]).head(5)
    return Finding(
        id="staircase",
        cause=None,
        claim=f"GPU use goes in steps: {starved.height // devices} stretches a GPU (median {(quantile(starved['dur_ns'], 0.5) or 0) / 1e6:.0f} ms, together {percent(exposed_share(results, starved))} of the "
        f"time) of nearly no useful work between bursts; while starved the GPUs waited for {mostly}.",
        exposed_ns=spent(host),
        exposed_share=exposed_share(results, host),
        confidence="medium",
        why="the levels are of bins of a hundredth of the window; another width moves the edges, not the picture",
        evidence=[
            Evidence(
                r["ts_ns"], r["dur_ns"], f"rank {labels[r['gpu']]}", "useful for at most 20 % of each bin"
            )
            for r in worst.iter_rows(named=True)
        ],
        disproof="If requests come in waves (the load generator, a batch client), the steps are theirs.",
        advice=[
            "Mend the causes named above; the steps are their picture in monitoring, and an alarm on mean GPU use hides them."
        ],
        verify=["The starved stretches must shorten, or vanish."],
        change="none",
        gain_ns=None,
    )


def _in_steps(results: Results) -> bool:
    """Return whether some GPU shows starved stretches between bursts, often enough and long enough."""
    for _, line in results.utilisation_steps.group_by("gpu"):
        rows = line.sort("ts_ns")
        starved, long = pl.col("level") == "starved", pl.col("dur_ns") >= results.window.duration_ns // 50
        between = (
            rows.slice(1, max(0, rows.height - 2)).filter(starved & long).height
        )  # levels alternate: bursts around each
        parts = [
            spent(rows.filter(pl.col("level") == level)) / results.window.duration_ns
            for level in ("burst", "starved")
        ]
        if between >= FEWEST and min(parts) >= LEAST:
            return True
    return False
