"""Who had the CPU while a thread that a GPU waited for was ready to run (ATTRIBUTION.md, "CPU state")."""

from __future__ import annotations

import polars as pl

from tracelib.intervals import innermost, overlay

__all__ = ["INSTEAD", "instead"]

INSTEAD = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "thread": pl.Int32(),
        "cause": pl.String(),
        "by": pl.Int32(),
        "by_role": pl.String(),
        "doing": pl.String(),
        "kind": pl.String(),
    }
)

#: More CPUs than a machine has.
CPUS = 2**16


def instead(
    lost: pl.DataFrame,
    thread_states: pl.DataFrame,
    activity: pl.DataFrame,
    spinning: pl.DataFrame,
    threads: pl.DataFrame,
) -> pl.DataFrame:
    """Return the lost GPU time whose blamed thread was runnable, with the thread that ran on its CPU and what that did.

    Takes the frames of the analyses of those names, and `threads` of the trace.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `thread` (Int32: the blamed one), `cause` (String: of the
    lost time), `by` (Int32: the thread that had the CPU; null = not known), `by_role` (String), `doing` (String: its cause;
    `spin` if it polled; null = nothing recorded), `kind` (String: the sub-cause, or how it polled). Adds up to the runnable
    part of `lost`. Sorted by `gpu`, `ts_ns`.
    """
    short = lost.filter(pl.col("cpu_state") == "runnable").select("gpu", "ts_ns", "dur_ns", "thread", "cause")
    waits = (pl.col("state") == "runnable") & pl.col("thread").is_in(short["thread"].unique().implode())
    waited = _with_place(thread_states.filter(waits), threads).select("thread", "ts_ns", "dur_ns", "_place")
    ran = _with_place(thread_states.filter(pl.col("state") == "running"), threads)
    known = overlay(overlay(short, waited, "thread"), _on_each_cpu(ran), "_place")
    polls = _of(known, spinning.rename({"kind": "_polls"}))
    works = _of(polls, activity.select("thread", "ts_ns", "dur_ns", _does="cause", _sub="sub_cause"))
    polled = pl.col("_polls").is_not_null()
    told = works.with_columns(
        doing=pl.when(polled).then(pl.lit("spin")).otherwise(pl.col("_does").cast(pl.String)),
        kind=pl.when(polled).then("_polls").otherwise(pl.col("_sub").cast(pl.String)),
    ).join(threads.select(by="thread", by_role="role"), on="by", how="left", maintain_order="left")
    return told.select(list(INSTEAD)).match_to_schema(INSTEAD).sort("gpu", "ts_ns")


def _with_place(states: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Add `_place`, a number per CPU and host; null where the CPU is not known."""
    host = pl.col("host").fill_null("").rank("dense").cast(pl.Int32)
    placed = states.select("thread", "ts_ns", "dur_ns", "cpu").join(
        threads.select("thread", _host=host), on="thread", how="left", maintain_order="left"
    )
    return placed.with_columns(_place=pl.col("_host") * CPUS + pl.col("cpu"))


def _on_each_cpu(running: pl.DataFrame) -> pl.DataFrame:
    """Return who ran on each CPU over time: _place, ts_ns, dur_ns, by."""
    placed = running.filter(pl.col("_place").is_not_null())
    at = innermost(placed, "_place")  # rebuilt stretches may overlap: the one that began last had the CPU
    return at.select("_place", "ts_ns", "dur_ns", by=placed["thread"].gather(at["row"]))


def _of(pieces: pl.DataFrame, timeline: pl.DataFrame) -> pl.DataFrame:
    """Cut the pieces by what their thread `by` did."""
    return overlay(pieces, timeline.rename({"thread": "by"}), "by")
