"""GPUs waited for a prompt to be tokenized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Finding, cost_of, exposed, exposed_share, percent, shortage_note, spent

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["tokenization_exposed"]

WORTH_SAYING = 0.02


def tokenization_exposed(results: Results) -> Finding | None:
    """Report lost GPU time that ends up at tokenization after following waits upstream."""
    lost = exposed(results, pl.col("cause") == "tokenization")
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    whole = results.host_time.filter(pl.col("cause") == "tokenization")
    total, together = int(whole["total_ns"].sum()), int(whole["union_ns"].sum())
    waited = spent(lost) / results.gpu_time["gpu"].n_unique()
    hidden = max(0.0, 1 - waited / together) if together else 0.0
    return Finding(
        id="tokenization_exposed",
        cause="tokenization",
        claim=f"The GPUs waited for tokenization {100 * share:.1f} % of the time: the workers waited for the engine, the engine for a request, and the "
        f"API server was tokenizing. ({total / 1e9:.2f} s of tokenization on all threads; for {100 * hidden:.0f} % of it no GPU waited{_in_the_way(results)}.){shortage_note(lost)}",
        confidence="high",
        why="the waits of worker and engine and the tokenizer's range are recorded at the same moments",
        disproof="If pre-tokenized prompts (token ids sent instead of text) leave these gaps as they are, the wait has another reason.",
        advice=[
            "Cache tokenized prefixes (system prompts, earlier turns): agents send the whole context again each turn.",
            "Tokenize long prompts in parallel chunks; give tokenizer workers cores of their own.",
            "Let clients send token ids, or tokenize in a separate tier in front of the server.",
        ],
        verify=["Record again: this share must fall and TTFT with it."],
        change="code",
        **cost_of(results, lost),
    )


def _in_the_way(results: Results) -> str:
    """Say that tokenization which no GPU waited for cost something all the same: it had the CPU that others wanted."""
    taken = results.cpu_contention.filter(
        (pl.col("doing") == "tokenization") & (pl.col("cause") != "tokenization")
    )
    share = exposed_share(results, taken)
    return (
        f", but for {percent(share)} of the time it had the CPU of a thread that one did wait for"
        if share >= 0.005
        else ""
    )
