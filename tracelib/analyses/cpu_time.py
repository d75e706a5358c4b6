"""Ledger 3: what the CPUs were spent on, by role and cause, from CPU samples (ATTRIBUTION.md, "CPU time")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.classify import sample_causes, slice_causes, slices_named

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.rules import Rules
    from tracelib.trace import Trace

__all__ = ["CPU_TIME", "cpu_time"]

CPU_TIME = pl.Schema(
    {
        "role": pl.String(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "samples": pl.Int64(),
        "cpu_ns": pl.Int64(),
        "share": pl.Float64(),
        "ci_low": pl.Float64(),
        "ci_high": pl.Float64(),
    }
)

#: Causes of a stack that do not contradict polling: nothing in it says what the thread is at.
VAGUE = ("other", "ipc", "gil")
#: Two-sided 95 % of the normal distribution.
Z = 1.96


def cpu_time(trace: Trace, window: Window, thread_states: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return CPU time by role and cause.

    A sample of a clock event weighs its period; where scheduler events prove a thread's running time, its samples are
    scaled to that. Idle and system threads are left out.

    `spin` is busy polling: `yield` (sched_yield), `device_wait` (the driver polls inside a synchronous call), `openmp`
    (idle OpenMP threads), `poll` (any other code of a thread whose open range waits for another process: it is on a CPU, so
    it asks again and again).

    One row per role, cause and sub-cause: `role`, `cause`, `sub_cause` (String; role null = unknown), `samples` (Int64),
    `cpu_ns` (Int64), `share` (Float64, of all `cpu_ns`), `ci_low`, `ci_high` (Float64: Wilson's 95 % interval of the
    share, from the number of samples). Sorted by `cpu_ns`, largest first. Empty without clock samples.
    """
    timed = trace.samples.filter(
        pl.col("event").cast(pl.String).str.contains("^(?:cpu|task)-clock")
        & (pl.col("period") > 0)
        & pl.col("ts_ns").is_between(window.start_ns, window.end_ns)
    )
    idle = trace.threads.filter(pl.col("tid") == 0)["thread"]
    told = sample_causes(
        timed.filter(~pl.col("thread").is_in(idle.implode())), trace.threads, trace.stacks, rules
    ).filter(pl.col("role").fill_null("") != "system")
    if told.is_empty():
        return pl.DataFrame(schema=CPU_TIME)
    vague = pl.col("cause").fill_null("other").is_in(VAGUE) | (pl.col("tier") == "fallback")
    polls = (pl.col("waiting") & vague).fill_null(value=False)
    scaled = _waiting(_scaled(told, thread_states), trace, rules).with_columns(
        cause=pl.when(polls).then(pl.lit("spin")).otherwise("cause").fill_null("unattributed"),
        sub_cause=pl.when(polls).then(pl.lit("poll")).otherwise("sub_cause"),
    )
    rows = scaled.group_by("role", "cause", "sub_cause").agg(
        samples=pl.len().cast(pl.Int64), cpu_ns=pl.col("weight").sum().round().cast(pl.Int64)
    )
    return (
        _with_shares(rows)
        .select(list(CPU_TIME))
        .match_to_schema(CPU_TIME)
        .sort("cpu_ns", "role", "cause", "sub_cause", descending=[True, False, False, False])
    )


def _waiting(samples: pl.DataFrame, trace: Trace, rules: Rules) -> pl.DataFrame:
    """Add `waiting`: the thread is inside a range that waits for another process."""
    meaning = slice_causes(trace.slices, rules).filter(pl.col("waits") & ~pl.col("weak"))
    ranges = slices_named(trace.slices, meaning)
    begun = ranges.filter(pl.col("thread").is_not_null()).select(
        "thread", begin="ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")
    )
    last = samples.sort("ts_ns").join_asof(
        begun.sort("begin"),
        left_on="ts_ns",
        right_on="begin",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    return last.with_columns(waiting=(pl.col("until") > pl.col("ts_ns")).fill_null(value=False)).drop(
        "begin", "until"
    )


def _scaled(samples: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Add `weight` in ns: the period, scaled per thread to the running time where all of that is known."""
    ran = thread_states.group_by("thread").agg(
        running=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        unknown=pl.col("dur_ns").filter(pl.col("state") == "unknown").sum(),
    )
    sampled = samples.group_by("thread").agg(sampled=pl.col("period").sum())
    known = ran.filter((pl.col("unknown") * 50 < pl.col("running")) & (pl.col("running") > 0)).join(
        sampled, on="thread"
    )
    factor = known.select("thread", factor=pl.col("running") / pl.col("sampled"))
    return samples.join(factor, on="thread", how="left").with_columns(
        weight=pl.col("period") * pl.col("factor").fill_null(1.0)
    )


def _with_shares(rows: pl.DataFrame) -> pl.DataFrame:
    """Add each row's share of all CPU time and Wilson's interval, as if the samples were drawn one by one."""
    n, share = int(rows["samples"].sum()), pl.col("cpu_ns") / pl.col("cpu_ns").sum()
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    spread = Z / (1 + Z * Z / n) * (share * (1 - share) / n + Z * Z / (4 * n * n)).sqrt()
    return rows.with_columns(
        share=share, ci_low=(middle - spread).clip(0, 1), ci_high=(middle + spread).clip(0, 1)
    )
