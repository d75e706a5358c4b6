"""Tokenizer threads had the CPUs that threads feeding the GPUs wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import Evidence, Finding, exposed_share, percent, spent, thread_name

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["tokenization_starves"]

WORTH_SAYING = 0.02


def tokenization_starves(results: Results) -> Finding | None:
    """Report lost GPU time whose blamed thread was runnable while a tokenizer had its CPU.

    Tokenization that the GPUs wait for is another finding; this one is of tokenization that nobody waits for at that
    moment and that still takes the CPU away. Without scheduler events there is nothing to see (`cpu_shortage` abstains).
    """
    lost = results.cpu_contention.filter(
        (pl.col("doing") == "tokenization") & (pl.col("cause") != "tokenization")
    )
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return None
    threads = lost["by"].n_unique()
    worst = lost.sort("dur_ns", "ts_ns", "gpu", descending=[True, False, False]).unique(
        ["thread", "ts_ns"], keep="first", maintain_order=True
    )
    return Finding(
        id="tokenization_starves",
        cause="tokenization",
        claim=f"For {percent(share)} of the time a GPU waited for a thread that was ready to run while a tokenizer had its CPU ({threads} tokenizer threads).",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="high",
        why="scheduler events name the thread on that CPU at each moment, and its range or samples say that it tokenized",
        evidence=[
            Evidence(
                r["ts_ns"],
                r["dur_ns"],
                thread_name(results, r["thread"]),
                f"ready to run; {thread_name(results, r['by'])} tokenized on its CPU",
            )
            for r in worst.head(5).iter_rows(named=True)
        ],
        disproof="If pinning the tokenizers to CPUs of their own leaves the launching threads' waiting as it is, others take their CPUs.",
        advice=[
            "Keep tokenizers off the launching threads' CPUs (taskset, numactl, a CPU set), or run them at a lower priority (nice).",
            "Cap the tokenizer's threads (RAYON_NUM_THREADS, TOKENIZERS_PARALLELISM=false, vLLM's tokenizer pool) at the CPUs that are left.",
            "Cache tokenized prefixes, so that there is less of it.",
        ],
        verify=["Record again: no tokenizer may run on a CPU that a launching thread waits for."],
        change="setting",
        gain_ns=spent(lost),
    )
