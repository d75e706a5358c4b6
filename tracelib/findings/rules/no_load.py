"""Nothing was asked of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, evidence_of_lost, exposed, exposed_share
from tracelib.findings.verdict import Thresholds, shares

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["no_load"]

WORTH_SAYING = 0.1


def no_load(results: Results) -> Finding | None:
    """Report time in which every process waited for requests."""
    lost = exposed(results, pl.col("cause") == "no_work")
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    return Finding(
        id="no_load",
        cause="no_work",
        claim=f"For {100 * share:.0f} % of the time there was no work: workers waited for the engine, the engine for requests, and the API server had none.",
        exposed_ns=int(lost["dur_ns"].sum()),
        exposed_share=share,
        confidence="medium",
        why="every process upstream was asleep or had no range open",
        evidence=evidence_of_lost(results, lost),
        disproof="If the load generator or the proxy in front reports queued requests at these moments, they were held up before the server.",
        advice=[
            "Record under the load that is slow, or look at what is in front of this server (proxy, load balancer, client limits)."
        ],
        verify=["Record again with requests waiting at all times."],
        change="none",
        gain_ns=None,
        leads=_most_of_all(results),
        statement="It says what kind of run this was; nothing in the server is to be changed for it.",
    )


def _most_of_all(results: Results) -> bool:
    """Return whether the verdict is "no load" by its own measure."""
    share = shares(results)
    return share.no_work > Thresholds.no_load * share.lost
