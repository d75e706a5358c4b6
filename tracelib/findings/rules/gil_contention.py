"""GPUs likely waited for a thread that wanted the interpreter lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.findings.finding import (
    Abstained,
    Evidence,
    Finding,
    exposed,
    exposed_share,
    percent,
    spent,
    thread_name,
)

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["gil_contention"]

WORTH_SAYING = 0.01
#: Sleep inside framework code that asks for an answer.
ASLEEP = 0.05


def gil_contention(results: Results) -> Finding | Abstained | None:
    """Report lost GPU time that fits a wait for the interpreter lock: likely, never certain."""
    lost = results.gil_waits
    share = exposed_share(results, lost)
    if share < WORTH_SAYING:
        return _unseen(results)
    worst = lost.sort("dur_ns", "ts_ns", descending=[True, False]).head(5)
    sampled = spent(lost.filter(pl.col("cause") == "gil"))
    return Finding(
        id="gil_contention",
        cause="gil",
        claim=f"For {percent(share)} of the time GPUs likely waited for a thread that wanted Python's interpreter lock while another thread of its process held it.",
        exposed_ns=spent(lost),
        exposed_share=share,
        confidence="medium" if sampled > spent(lost) / 2 else "low",
        why="samples lie in the lock's own wait"
        if sampled > spent(lost) / 2
        else "the thread slept inside framework code while a sibling ran the interpreter; it may have slept for something else",
        evidence=[
            Evidence(
                r["ts_ns"],
                r["dur_ns"],
                thread_name(results, r["thread"]),
                "asleep while another thread of its process ran Python",
            )
            for r in worst.iter_rows(named=True)
        ],
        disproof="If py-spy dump --gil, or perf's futex addresses, show the thread waiting for another lock, it is not the interpreter's.",
        advice=[
            "Move other Python threads (output, metrics, detokenizing) out of the launching process.",
            "Shorten what holds the lock: native code that releases it, fewer small Python objects a step.",
        ],
        verify=["py-spy record --gil on the worker: the launching thread's share must rise."],
        change="code",
        gain_ns=spent(lost),
    )


def _unseen(results: Results) -> Abstained | None:
    """Abstain where launching threads slept inside framework code and no sample says for what."""
    asleep = exposed(results, (pl.col("cpu_state") == "blocked") & (pl.col("sub_cause") == "dispatch"))
    if results.cpu_time.height or exposed_share(results, asleep) < ASLEEP:
        return None
    return Abstained(
        "gil_contention",
        f"launching threads slept inside framework code for {percent(exposed_share(results, asleep))} of the time; without samples nothing says for what",
        "perf record -k mono -a -g -e cpu-clock/freq=499/, or py-spy record --gil",
    )
