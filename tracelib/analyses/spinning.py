"""When a thread was on a CPU only to ask again: busy polling (ATTRIBUTION.md, Ledger 3, "spin")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import fill, merge_equal, overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window

__all__ = ["POLLS", "SPINNING", "polls", "spinning"]

SPINNING = pl.Schema({"thread": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "kind": pl.String()})

POLLS = pl.Schema(
    {
        "kind": pl.String(),
        "count": pl.Int64(),
        "p50_ns": pl.Int64(),
        "p95_ns": pl.Int64(),
        "max_ns": pl.Int64(),
        "total_ns": pl.Int64(),
    }
)


def spinning(
    window: Window, activity: pl.DataFrame, thread_states: pl.DataFrame, stretches: pl.DataFrame
) -> pl.DataFrame:
    """Return when each thread polled.

    Takes the frames `host_activity`, `thread_states` and `clock_stretches`. A thread polls while its innermost slice waits for another process
    or for the device and the scheduler saw it on a CPU; elsewhere while its samples say so, one period at most each.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `kind` (String: `poll` = another process's message,
    `device_wait`, and from samples also `yield`, `openmp`, `nccl_proxy`). Sorted by `thread`, `ts_ns`.
    """
    by_slice = _on_cpu_while_waiting(activity, thread_states)
    samples = stretches.filter(pl.col("cause") == "spin")
    sampled = samples.select("thread", "ts_ns", "dur_ns", kind="sub_cause")
    threads = sampled["thread"].drop_nulls().unique().to_list()
    free = fill(by_slice, "thread", threads, window.start_ns, window.end_ns).filter(pl.col("kind").is_null())
    added = overlay(free.drop("kind"), sampled, "thread").filter(pl.col("kind").is_not_null())
    rows = pl.concat([by_slice, added.select(by_slice.columns)]).sort("thread", "ts_ns")
    return merge_equal(rows, ["thread", "kind"]).select(list(SPINNING)).match_to_schema(SPINNING)


def polls(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return how long polls last on a CPU at a time.

    Takes the frame `spinning`; a poll ends when its thread leaves the CPU or has what it waits for. Of kinds that only samples
    show, a length is a number of sampling periods.

    One row per kind: `kind` (String), `count`, `p50_ns`, `p95_ns`, `max_ns` (nearest rank), `total_ns` (Int64). Sorted by
    `total_ns`, largest first.
    """
    length = pl.col("dur_ns")
    summed = stretches.group_by("kind").agg(
        count=pl.len(),
        p50_ns=length.quantile(0.5, "nearest"),
        p95_ns=length.quantile(0.95, "nearest"),
        max_ns=length.max(),
        total_ns=length.sum(),
    )
    told = summed.select(pl.col(name).cast(dtype) for name, dtype in POLLS.items())
    return told.sort("total_ns", "kind", descending=[True, False])


def _on_cpu_while_waiting(activity: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    waits, device = pl.col("waits_for").is_not_null(), pl.col("cause") == "sync"
    waiting = activity.filter((waits | device) & (pl.col("seen_by") == "slice")).select(
        "thread", "ts_ns", "dur_ns", kind=pl.when(waits).then(pl.lit("poll")).otherwise(pl.lit("device_wait"))
    )
    states = thread_states.select("thread", "ts_ns", "dur_ns", "state")
    running = overlay(waiting, states, "thread").filter(pl.col("state") == "running")
    return running.drop("state").sort("thread", "ts_ns")
