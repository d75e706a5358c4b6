"""Rules on several ranks: one that comes late, one that computes more, launches that all others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.collectives import clock_error_ns, waiting_caused
from tracelib.analyses.results import Results
from tracelib.findings.finding import (
    NOT_HOST,
    Evidence,
    Finding,
    evidence_rows,
    exposed_share,
    gpus_named,
    moments,
    quantile,
    rank_labels,
    share_of,
    shortage_note,
)
from tracelib.words import counted, duration, share

if TYPE_CHECKING:
    from tracelib.findings.rules import Rule

#: How many times its fair share of the waiting one rank must cause to be called a straggler.
UNFAIR = 1.5


def straggler_rank(rule: Rule, results: Results) -> Finding | None:
    """Report that one rank, more than the others, is the one that all wait for in collectives.

    Ranks that come late in turn are not stragglers: `launch_skew_amplified` and `rank_imbalance` say why they
    do.
    """
    told = results.collectives.filter("order_known")
    waited = int(results.gpu_time.filter(pl.col("state") == "collective_wait")["ns"].sum())
    part = share_of(results, waited)
    if told.is_empty() or part < rule.threshold:
        return None
    worst = waiting_caused(told).row(0, named=True)
    if worst["part"] < UNFAIR / results.gpu_time["gpu"].n_unique():
        return None
    labels = rank_labels(results)
    return rule.finding(
        results,
        waited,
        claim=f"Rank {labels[worst['straggler']]} came last in {worst['events']:,} of "
        f"{_told(results, told)} and caused {share(worst['part'])} of the waiting in them. The GPUs waited "
        f"in collectives for {share(part)} of GPU time; monitoring counts that as busy.",
        evidence=_waits(results, told.filter(pl.col("straggler") == worst["straggler"]), labels),
    )


def _told(results: Results, told: pl.DataFrame) -> str:
    """Say in how many collectives the clocks can tell which rank came last."""
    events, error = told["event"].n_unique(), clock_error_ns(results.trace)
    apart = f" with an arrival skew above the clock error ({duration(error)})"
    return f"{counted(events, 'collective')}{apart if error else ''}"


def _waits(results: Results, matched: pl.DataFrame, labels: dict[int, int]) -> list[Evidence]:
    """Return the longest waits in collectives that began in the window."""
    begun = matched.filter(pl.col("ts_ns") >= results.window.start_ns)
    return evidence_rows(
        moments(begun.with_columns(dur_ns="wait_ns"), of="event"),
        lambda row: gpus_named(results, row["gpus"]),
        lambda row: f"waiting in {row['collective']} for rank {labels[row['straggler']]}",
        lambda row: f"{duration(row['skew_ns'])} apart",
    )


def launch_skew_amplified(rule: Rule, results: Results) -> Finding | None:
    """Report waiting in collectives that goes back to the late rank's host.

    Amplification = GPU time that all ranks wait per time that the last one is late: with N ranks up to N - 1.
    Waiting for a rank whose device computed is another finding (`rank_imbalance`).
    """
    lost = results.lost.filter((pl.col("lost") == "collective_wait") & ~pl.col("cause").is_in(NOT_HOST))
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    told = results.collectives.filter("order_known")
    skews = told.unique("event")["skew_ns"]
    late, waited = int(skews.sum()), int(told["wait_ns"].sum())
    # Of two ranks one waits as long as the other is late.
    cost = (
        f", which cost {duration(waited)} of GPU time ({waited / late if late else 0:.1f} times as much)"
        if results.gpu_time["gpu"].n_unique() > 2
        else ""
    )
    p95 = quantile(results.collectives.filter("matched").unique("event")["skew_ns"], 0.95) or 0
    return rule.finding(
        results,
        lost,
        claim=f"In {_told(results, told)} ranks came late by {duration(late)} in all{cost}. For "
        f"{share(part)} of GPU time the GPUs waited there for a rank whose host was "
        f"late.{shortage_note(lost)}",
        verify=[text.format(skew=duration(p95)) for text in rule.verify],
    )


def rank_imbalance(rule: Rule, results: Results) -> Finding | None:
    """Report waiting in collectives while the late rank's device computed: the host is not to blame."""
    lost = results.lost.filter(pl.col("cause") == "imbalance")
    part = exposed_share(results, lost)
    if part < rule.threshold:
        return None
    labels, window = rank_labels(results), results.window.duration_ns
    computed = results.gpu_time.filter(pl.col("state") == "compute").sort("ns", "gpu")
    (least, least_ns), (most, most_ns) = (computed.select("gpu", "ns").row(n) for n in (0, -1))
    return rule.finding(
        results,
        lost,
        claim=f"For {share(part)} of GPU time the GPUs waited in a collective for a rank that was still "
        f"computing. Rank {labels[most]} computed for {share(most_ns / window)} of the window, rank "
        f"{labels[least]} for {share(least_ns / window)}.",
        evidence=evidence_rows(
            moments(lost),
            lambda row: gpus_named(results, row["gpus"]),
            lambda _: "waiting in a collective while the late rank computes",
        ),
    )
