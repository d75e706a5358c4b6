"""Scheduler states summed up, per thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["SCHEDULING", "scheduling", "tells_shortage"]

_STATES = ("running", "runnable", "throttled", "blocked", "unknown")
SCHEDULING = pl.Schema(
    {
        "thread": pl.Int32(),
        "role": pl.String(),
        **{f"{state}_ns": pl.Int64() for state in _STATES},
        "migrations": pl.Int64(),
        "inferred_ns": pl.Int64(),
    }
)


def scheduling(trace: Trace, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return how long each thread was in each state.

    One row per thread of `thread_states`: `thread` (Int32), `role` (String), `running_ns`, `runnable_ns`, `throttled_ns`,
    `blocked_ns`, `unknown_ns` (Int64; they add up to the window; runnable, throttled and blocked are null where they cannot
    be told apart, see :func:`tells_shortage`), `migrations` (Int64: times it came to another CPU than
    the one it ran on before), `inferred_ns` (Int64: part of the states that is rebuilt, not recorded). Sorted by
    `runnable_ns` + `throttled_ns`, largest first.
    """
    ran = pl.col("cpu").filter(pl.col("state") == "running").drop_nulls()
    spent = [
        pl.col("dur_ns").filter(pl.col("state") == state).sum().alias(f"{state}_ns") for state in _STATES
    ]
    summed = thread_states.group_by("thread").agg(
        *spent,
        migrations=(ran.diff().drop_nulls() != 0).sum().cast(pl.Int64),
        inferred_ns=pl.col("dur_ns").filter("inferred").sum(),
    )
    named = (
        summed.join(trace.threads.select("thread", "role"), on="thread", how="left")
        .select(list(SCHEDULING))
        .match_to_schema(SCHEDULING)
    )
    if not tells_shortage(thread_states):
        hidden = [f"{state}_ns" for state in ("runnable", "throttled", "blocked")]
        return named.with_columns(pl.lit(None, pl.Int64).alias(name) for name in hidden).sort(
            "running_ns", "thread", descending=[True, False]
        )
    waited = pl.col("runnable_ns") + pl.col("throttled_ns")
    return named.sort(waited, "thread", descending=[True, False])


def tells_shortage(thread_states: pl.DataFrame) -> bool:
    """Return whether a thread that waits for a CPU can be told from one that sleeps.

    That takes wake-ups, or the state in which threads leave their CPU (nsys records neither): without them a thread is
    only ever seen running, and "no shortage" would be a guess.
    """
    seen = thread_states["state"].unique().cast(pl.String).to_list()
    return not {"runnable", "throttled", "blocked"}.isdisjoint(seen)
