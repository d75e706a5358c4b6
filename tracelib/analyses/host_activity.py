"""What each host thread was doing at each moment, by its innermost slice that has a meaning.

A slice without a meaning of its own (an annotation that no rule knows) is looked through: the thread is then inside the
nearest enclosing slice that has one. Where no slice covers a thread, its CPU samples tell, each for the time since the
sample before it, at most one sampling period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.classify import slice_causes, stack_causes
from tracelib.intervals import clip, fill, innermost, overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.classify import Rules
    from tracelib.trace import Trace

__all__ = ["HOST_ACTIVITY", "host_activity"]

HOST_ACTIVITY = pl.Schema({
    "thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.Categorical(), "cause": pl.String,
    "sub_cause": pl.String, "waits_for": pl.String, "seen_by": pl.String,
})  # fmt: skip

#: A slice that may hide a wait is one when it lasts this many times the median of its name, and at least `LONG_NS`.
OUTLIER = 10
LONG_NS = 1_000_000


def host_activity(trace: Trace, window: Window, rules: Rules, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return what each thread did over time.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `name` (Categorical: the slice's name, the symbol
    of a sample is not kept: null), `cause`, `sub_cause` (String), `waits_for` (String: the role whose work this thread
    waits for, null = it does not wait), `seen_by` (String: slice or sample). Moments without slice or sample have no row.
    Sorted by `thread`, `ts_ns`.

    Source of the definitions: ATTRIBUTION.md, Ledger 2; the rules are data (`tracelib/rules.toml`).
    """
    meaning = slice_causes(trace.slices, rules)
    known = (
        _threads_of_overhead(trace)
        .join(meaning, on=["name", "category"], how="inner", maintain_order="left")
        .filter(pl.col("cause").is_not_null())
    )
    known = clip(known.with_columns(whole_ns="dur_ns"), window.start_ns, window.end_ns)
    at = innermost(known, "thread")
    told = known.select(
        "name", "cause", "sub_cause", "waits_for", "may_wait_for", "whole_ns"
    )[at["row"]]  # fmt: skip
    slices = pl.concat([at.drop("row"), told], how="horizontal")
    decided = _hidden_waits(slices, thread_states).with_columns(seen_by=pl.lit("slice"))
    return _with_samples(decided.select(list(HOST_ACTIVITY)), trace, window, rules)


def _threads_of_overhead(trace: Trace) -> pl.DataFrame:
    """Return the host slices; the recorder's own overhead, which names no thread, goes to the call that it delays."""
    host = trace.slices.filter(pl.col("category") != "gpu_annotation")
    adrift = host.filter(pl.col("thread").is_null())
    if adrift.is_empty():
        return host
    calls = host.filter(pl.col("category").is_in(["runtime", "driver"]) & pl.col("thread").is_not_null())
    found = (
        adrift.drop("thread")
        .sort("ts_ns")
        .join_asof(
            calls.select("source", "thread", "ts_ns", call_ns="ts_ns", call_end=pl.col("ts_ns") + pl.col("dur_ns")).sort("ts_ns"),
            on="ts_ns", by="source", strategy="backward",
        )
        .filter(pl.col("call_end") > pl.col("ts_ns"))
        .select(host.columns)
    )  # fmt: skip
    return pl.concat([host.filter(pl.col("thread").is_not_null()), found])


def _hidden_waits(slices: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Decide about slices that may wait inside (an engine's scheduler polling for requests): asleep = it waits.

    Where no scheduler event tells, a stretch is a wait if its slice lasts many times the median of its name.
    """
    maybe = slices.filter(pl.col("may_wait_for").is_not_null())
    if maybe.is_empty():
        return slices
    typical = maybe.group_by("thread", "name").agg(median_ns=pl.col("whole_ns").median())
    cut = overlay(maybe, thread_states.select("thread", "ts_ns", "dur_ns", "state"), "thread")
    cut = cut.join(typical, on=["thread", "name"], how="left", maintain_order="left")
    outlier = (pl.col("whole_ns") >= LONG_NS) & (pl.col("whole_ns") > OUTLIER * pl.col("median_ns"))
    state = pl.col("state").cast(pl.String)
    waits = (state == "blocked") | ((state.is_null() | (state == "unknown")) & outlier)
    decided = cut.with_columns(waits_for=pl.when(waits).then("may_wait_for").otherwise("waits_for"))
    sure = slices.filter(pl.col("may_wait_for").is_null())
    return pl.concat([sure, decided.select(slices.columns)]).sort("thread", "ts_ns")


def _with_samples(slices: pl.DataFrame, trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Fill the stretches that no slice covers with what CPU samples say."""
    sampled = _sampled(trace, window, rules)
    if sampled.is_empty():
        return slices.match_to_schema(HOST_ACTIVITY).sort("thread", "ts_ns")
    threads = sampled["thread"].unique().to_list()
    spans = fill(slices, "thread", threads, window.start_ns, window.end_ns)
    gaps = spans.filter(pl.col("seen_by").is_null()).select("thread", "ts_ns", "dur_ns")
    filled = overlay(gaps, sampled, "thread").filter(pl.col("seen_by").is_not_null())
    return pl.concat([slices, filled], how="diagonal").match_to_schema(HOST_ACTIVITY).sort("thread", "ts_ns")


def _sampled(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the samples of time-based events as stretches: thread, ts_ns, dur_ns, cause, sub_cause, seen_by."""
    by_time = trace.samples.filter(pl.col("event").cast(pl.String).str.contains(r"^(?:cpu|task)-clock") & (pl.col("period") > 0))
    if by_time.is_empty():
        return pl.DataFrame(schema=HOST_ACTIVITY)
    meaning = stack_causes(trace.stacks, rules).select("stack", "cause", "sub_cause")
    told = by_time.join(meaning, on="stack", how="inner").filter(pl.col("cause").is_not_null()).sort("thread", "ts_ns")
    before = pl.col("ts_ns").shift(1).over("thread", order_by="ts_ns")
    start = pl.max_horizontal(before, pl.col("ts_ns") - pl.col("period"))
    stretches = told.select(
        "thread", "cause", "sub_cause", ts_ns=start, dur_ns=pl.col("ts_ns") - start, name=pl.lit(None, pl.Categorical()),
        waits_for=pl.lit(None, pl.String), seen_by=pl.lit("sample"),
    )  # fmt: skip
    return clip(stretches, window.start_ns, window.end_ns).match_to_schema(HOST_ACTIVITY, missing_columns="raise")
