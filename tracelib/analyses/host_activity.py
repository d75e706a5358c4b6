"""What each host thread was doing at each moment, by its innermost slice that has a meaning.

A slice without a meaning of its own (an annotation that no rule knows) is looked through: the thread is then inside the
nearest enclosing slice that has one. A slice that covers what is inside it (run-time compilation) leaves the inner ones
their names only. Where no slice covers a thread, its CPU samples tell, each for the time since the sample before it, at
most one sampling period; they also tell of slices that outlast their siblings (:mod:`tracelib.analyses.look_inside`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.look_inside import LONG_NS, OUTLIER, look_inside
from tracelib.classify import sample_causes, slice_meaning
from tracelib.intervals import clip, fill, innermost, overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.classify import Rules
    from tracelib.trace import Trace

__all__ = ["HOST_ACTIVITY", "host_activity"]

HOST_ACTIVITY = pl.Schema({
    "thread": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "name": pl.Categorical(), "cause": pl.String(),
    "sub_cause": pl.String(), "waits_for": pl.String(), "seen_by": pl.String(),
})  # fmt: skip


def host_activity(trace: Trace, window: Window, rules: Rules, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return what each thread did over time.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `name` (Categorical: the slice's name; null for a
    sample), `cause`, `sub_cause` (String), `waits_for` (String: the role whose work this thread waits for, "upstream" =
    the one before its own; null = it does not wait), `seen_by` (String: slice or sample). Moments without slice or sample
    have no row. Sorted by `thread`, `ts_ns`.

    Source of the definitions: ATTRIBUTION.md, Ledger 2; the rules are data (`tracelib/rules.toml`).
    """
    host = clip(_threads_of_overhead(trace).with_columns(whole_ns="dur_ns"), window.start_ns, window.end_ns)
    meaning = slice_meaning(host.with_columns(dur_ns="whole_ns"), rules)
    known = pl.concat(
        [host.select("thread", "ts_ns", "dur_ns", "name", "whole_ns"), meaning], how="horizontal"
    )
    known = known.filter(pl.col("cause").is_not_null())
    strong = _covered(_timeline(known.filter(~pl.col("weak")), thread_states), known.filter("covers"))
    weak = _timeline(known.filter("weak"), thread_states)
    sampled = _awake(_sampled(trace, window, rules), thread_states)
    told = look_inside(_filled(strong, weak, window), sampled, _compilers(trace, sampled), thread_states)
    return _filled(told, sampled, window)


def _timeline(slices: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    at = innermost(slices, "thread")
    told = slices.drop("thread", "ts_ns", "dur_ns").select(pl.all().gather(at["row"]))
    decided = _waits(pl.concat([at.drop("row"), told], how="horizontal"), thread_states)
    return (
        decided.with_columns(seen_by=pl.lit("slice"))
        .select(list(HOST_ACTIVITY))
        .match_to_schema(HOST_ACTIVITY)
    )


def _covered(timeline: pl.DataFrame, covering: pl.DataFrame) -> pl.DataFrame:
    """Give what lies inside a covering slice that slice's cause."""
    if covering.is_empty():
        return timeline
    at = innermost(covering, "thread")
    told = covering.select(_cause="cause", _sub="sub_cause").select(pl.all().gather(at["row"]))
    cut = overlay(timeline, pl.concat([at.drop("row"), told], how="horizontal"), "thread")
    inside = pl.col("_cause").is_not_null() & (pl.col("cause") != "profiler")
    return cut.with_columns(
        cause=pl.when(inside).then("_cause").otherwise("cause"),
        sub_cause=pl.when(inside).then("_sub").otherwise("sub_cause"),
        waits_for=pl.when(~inside).then("waits_for"),
    ).select(timeline.columns)


def _compilers(trace: Trace, sampled: pl.DataFrame) -> pl.DataFrame:
    """Return when run-time compilers ran as processes of their own: samples of them on threads that are not the server's."""
    other = trace.threads.filter(pl.col("role").is_null())["thread"]
    compiles = (pl.col("sub_cause") == "jit_compile") & pl.col("thread").is_in(other.implode())
    return sampled.filter(compiles).select("ts_ns", "dur_ns")


def _waits(stretches: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Decide about slices that may wait inside (an engine's scheduler polling for requests): asleep = it waits.

    Where no scheduler event tells, a slice is a wait if it lasts many times the median of its name.
    """
    maybe = stretches.filter(pl.col("may_wait_for").is_not_null())
    typical = maybe.group_by("thread", "name").agg(median_ns=pl.col("whole_ns").median())
    cut = overlay(maybe, thread_states.select("thread", "ts_ns", "dur_ns", "state"), "thread")
    cut = cut.join(typical, on=["thread", "name"], how="left", maintain_order="left")
    outlier = (pl.col("whole_ns") >= LONG_NS) & (pl.col("whole_ns") > OUTLIER * pl.col("median_ns"))
    state = pl.col("state").cast(pl.String).fill_null("unknown")
    asleep = (state == "blocked") | ((state == "unknown") & outlier)
    decided = cut.with_columns(waits_for=pl.when(asleep).then("may_wait_for").otherwise("waits_for"))
    return pl.concat([stretches.filter(pl.col("may_wait_for").is_null()), decided.select(stretches.columns)])


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
            on="ts_ns", by="source", strategy="backward", check_sortedness=False,
        )
        .filter(pl.col("call_end") > pl.col("ts_ns"))
        .select(host.columns)
    )  # fmt: skip
    return pl.concat([host.filter(pl.col("thread").is_not_null()), found])


def _filled(first: pl.DataFrame, second: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return `first`, and `second` at the moments that it does not cover."""
    threads = second["thread"].drop_nulls().unique().to_list()
    spans = fill(first, "thread", threads, window.start_ns, window.end_ns)
    gaps = spans.filter(pl.col("seen_by").is_null()).select("thread", "ts_ns", "dur_ns")
    added = overlay(gaps, second, "thread").filter(pl.col("seen_by").is_not_null())
    return pl.concat([first, added.select(first.columns)]).sort("thread", "ts_ns")


def _sampled(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the samples of time-based events as stretches, one sampling period at most each."""
    by_clock = pl.col("event").cast(pl.String).str.contains("^(?:cpu|task)-clock") & (pl.col("period") > 0)
    told = sample_causes(trace.samples.filter(by_clock), trace.threads, trace.stacks, rules).sort(
        "thread", "ts_ns"
    )
    before = pl.col("ts_ns").shift(1).over("thread", order_by="ts_ns")
    start = pl.max_horizontal(before, pl.col("ts_ns") - pl.col("period"))
    stretches = told.with_columns(
        ts_ns=start, dur_ns=pl.col("ts_ns") - start, name=pl.lit(None, pl.Categorical()),
        waits_for=pl.lit(None, pl.String), seen_by=pl.lit("sample"),
    )  # fmt: skip
    # Spinning burns CPU time (Ledger 3); as a cause of lost GPU time it is what the spinner waits for.
    spins, kind = pl.col("cause") == "spin", pl.col("sub_cause")
    awaited = pl.when(kind == "yield").then(pl.lit("ipc")).when(kind == "device_wait").then(pl.lit("sync"))
    named = stretches.with_columns(
        cause=pl.when(spins).then(awaited).otherwise("cause"),
        sub_cause=pl.when(spins & (kind == "yield")).then(pl.lit("wait")).when(~spins).then("sub_cause"),
    ).filter(pl.col("cause").is_not_null() & (pl.col("cause") != "other"))
    return (
        clip(named, window.start_ns, window.end_ns).select(list(HOST_ACTIVITY)).match_to_schema(HOST_ACTIVITY)
    )


def _awake(stretches: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Leave out the time before a sample in which its thread slept: what it did then, the sample cannot have seen."""
    asleep = thread_states.filter(pl.col("state") == "blocked").select(
        "thread", "ts_ns", "dur_ns", _asleep=pl.lit(value=True)
    )
    cut = overlay(stretches, asleep, "thread")
    return cut.filter(pl.col("_asleep").is_null()).select(stretches.columns).sort("thread", "ts_ns")
