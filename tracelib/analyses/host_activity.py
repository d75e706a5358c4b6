"""What each host thread was doing at each moment, by its innermost slice that has a meaning.

A slice without a meaning of its own (an annotation that no rule knows) is looked through: the thread is then inside the
nearest enclosing slice that has one. A slice that covers what is inside it (run-time compilation) leaves the inner ones
their names only. Where no slice covers a thread, its CPU samples tell, each for the time since the sample before it, at
most one sampling period; they also tell of slices that outlast their siblings (:mod:`tracelib.analyses.look_inside`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.arrivals import waits_until
from tracelib.analyses.demand import SERVER
from tracelib.analyses.look_inside import LONG_NS, OUTLIER, look_inside
from tracelib.classify import helper_threads, sample_causes, slice_meanings
from tracelib.intervals import beneath, clip, in_order, innermost, overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.classify import Rules
    from tracelib.trace import Trace

__all__ = ["HOST_ACTIVITY", "clock_stretches", "host_activity"]

HOST_ACTIVITY = pl.Schema({
    "thread": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "name": pl.Categorical(), "cause": pl.Categorical(),
    "sub_cause": pl.Categorical(), "waits_for": pl.Categorical(), "seen_by": pl.Categorical(),
})  # fmt: skip


def host_activity(
    trace: Trace, window: Window, rules: Rules, thread_states: pl.DataFrame, stretches: pl.DataFrame
) -> pl.DataFrame:
    """Return what each thread did over time.

    Takes the frames `thread_states` and :func:`clock_stretches`.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `name` (Categorical: the slice's name; null for a
    sample), `cause`, `sub_cause` (Categorical), `waits_for` (Categorical: the role whose work this thread waits for,
    "upstream" = the one before its own; null = it does not wait), `seen_by` (Categorical: slice or sample). Moments without
    slice or sample have no row. Sorted by `thread`, `ts_ns`.

    Source of the definitions: ATTRIBUTION.md, Ledger 2; the rules are data (`tracelib/rules.toml`).
    """
    slices, meanings = _with_meanings(trace, window, rules)
    strong, weak = (_timeline(slices, meanings, flag, trace, window, thread_states) for flag in _TIERS)
    strong = _covered(strong, slices, meanings)
    sampled = _awake(_sampled(stretches), thread_states)
    told = beneath(strong, beneath(weak, sampled, "thread"), "thread")
    del slices, strong, weak  # the largest frames of all
    told = look_inside(told, sampled, stretches, _compilers(trace, sampled), thread_states)
    return told.match_to_schema(HOST_ACTIVITY)


#: Slices whose meaning counts, and those whose meaning counts only where no enclosing slice has one.
_TIERS = (~pl.col("weak"), pl.col("weak"))


def _with_meanings(trace: Trace, window: Window, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the host slices that overlap the window (thread, ts_ns, dur_ns, name, meaning), and the table of meanings.

    `meaning` is the row of that table: a number instead of the words of it, for there may be tens of millions of slices.
    """
    end = pl.col("ts_ns") + pl.col("dur_ns")
    inside = (pl.col("ts_ns") < window.end_ns) & (end > window.start_ns)
    host = trace.slices.filter(inside & (pl.col("category") != "gpu_annotation"))
    host = _threads_of_overhead(host).select("thread", "ts_ns", "dur_ns", "name", "category")
    helpers = helper_threads(trace.threads, rules)
    if helpers.len():
        host = host.filter(~pl.col("thread").is_in(helpers.implode()))
    number, meanings = slice_meanings(host, rules)
    words = pl.col("cause", "sub_cause", "waits_for", "may_wait_for").cast(pl.Categorical)
    return host.drop("category").with_columns(number.alias("meaning")), meanings.with_columns(words)


def _having(slices: pl.DataFrame, meanings: pl.DataFrame, flag: pl.Expr) -> pl.DataFrame:
    """Return the slices that have a cause and whose meaning is `flag`."""
    kept = meanings.select(flag & pl.col("cause").is_not_null()).to_series()
    return slices.filter(kept.gather(slices["meaning"]))


def _timeline(
    slices: pl.DataFrame,
    meanings: pl.DataFrame,
    flag: pl.Expr,
    trace: Trace,
    window: Window,
    thread_states: pl.DataFrame,
) -> pl.DataFrame:
    """Return what the innermost slices of those kinds say over time, in the columns of `HOST_ACTIVITY`."""
    chosen = _having(slices, meanings, flag)
    at = clip(innermost(chosen, "thread"), window.start_ns, window.end_ns)
    at = at.with_columns(chosen[c].gather(at["row"]) for c in ("name", "meaning"))
    told = at.with_columns(
        *(meanings[c].gather(at["meaning"]) for c in ("cause", "sub_cause", "waits_for")), seen_by=pl.lit("slice").cast(pl.Categorical)
    )  # fmt: skip
    may_wait = meanings["may_wait_for"].gather(at["meaning"])
    if may_wait.null_count() == may_wait.len():
        return told.select(list(HOST_ACTIVITY))
    whole = {"whole_ts": chosen["ts_ns"].gather(at["row"]), "whole_ns": chosen["dur_ns"].gather(at["row"])}
    maybe = told.with_columns(may_wait, **whole).filter(may_wait.is_not_null())
    decided = _waits(maybe, trace, thread_states)
    kept = [frame.select(list(HOST_ACTIVITY)) for frame in (told.filter(may_wait.is_null()), decided)]
    return in_order(pl.concat(kept), "thread")


def _waits(maybe: pl.DataFrame, trace: Trace, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Decide about slices that may wait inside (an engine's scheduler polling for requests): asleep = it waits.

    Where no scheduler event tells, a slice that lasts many times the median of its name waits until what it waits for came.
    """
    typical = maybe.group_by("thread", "name").agg(median_ns=pl.col("whole_ns").median())
    cut = overlay(maybe, thread_states.select("thread", "ts_ns", "dur_ns", "state"), "thread")
    cut = cut.join(typical, on=["thread", "name"], how="left", maintain_order="left")
    outlier = (pl.col("whole_ns") >= LONG_NS) & (pl.col("whole_ns") > OUTLIER * pl.col("median_ns"))
    state = pl.col("state").cast(pl.String).fill_null("unknown")
    doubt = (state == "unknown") & outlier
    asleep = cut.with_columns(
        waits_for=pl.when(state == "blocked").then("may_wait_for").otherwise("waits_for")
    )
    return pl.concat([asleep.filter(~doubt), *_cut_at_arrival(cut.filter(doubt), trace)])


def _cut_at_arrival(doubtful: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the stretches of slices that may have waited, up to what came for them, and after it."""
    end = pl.col("ts_ns") + pl.col("dur_ns")
    came = waits_until(doubtful, trace).alias("_came")
    middle = pl.max_horizontal("ts_ns", pl.min_horizontal("_came", end))
    before = doubtful.with_columns(came).with_columns(
        dur_ns=middle - pl.col("ts_ns"), waits_for="may_wait_for"
    )
    after = doubtful.with_columns(came).with_columns(ts_ns=middle, dur_ns=end - middle)
    long = pl.col("dur_ns") > 0
    return before.filter(long).drop("_came"), after.filter(long).drop("_came")


def _covered(timeline: pl.DataFrame, slices: pl.DataFrame, meanings: pl.DataFrame) -> pl.DataFrame:
    """Give what lies inside a covering slice that slice's cause."""
    covering = _having(slices, meanings, pl.col("covers"))
    if covering.is_empty():
        return timeline
    at = innermost(covering, "thread")
    number = covering["meaning"].gather(at["row"])
    line = at.drop("row").with_columns(
        meanings[c].gather(number).alias(f"_{c}") for c in ("cause", "sub_cause")
    )
    touched = pl.col("thread").is_in(line["thread"].unique().implode())
    inside = pl.col("_cause").is_not_null() & (pl.col("cause") != "profiler")
    cut = overlay(timeline.filter(touched), line, "thread").with_columns(
        cause=pl.when(inside).then("_cause").otherwise("cause"),
        sub_cause=pl.when(inside).then("_sub_cause").otherwise("sub_cause"),
        waits_for=pl.when(~inside).then("waits_for"),
    )  # fmt: skip
    return in_order(pl.concat([timeline.filter(~touched), cut.select(timeline.columns)]), "thread")


def _compilers(trace: Trace, sampled: pl.DataFrame) -> pl.DataFrame:
    """Return when run-time compilers ran as processes of their own: samples of them on threads that are not the server's."""
    server = trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    compiles = (pl.col("sub_cause") == "jit_compile") & ~pl.col("thread").is_in(server.implode())
    return sampled.filter(compiles).select("ts_ns", "dur_ns")


def _threads_of_overhead(host: pl.DataFrame) -> pl.DataFrame:
    """Return the slices; the recorder's own overhead, which names no thread, goes to the call that it delays."""
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


def clock_stretches(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the samples of time-based events as the stretches that they stand for.

    One row per sample: the columns of `samples`, `role`, `cause`, `sub_cause`, `tier` as of
    :func:`tracelib.classify.sample_causes`; `ts_ns`, `dur_ns` = the time since the thread's sample before it, one period at
    most, cut to the window. Sorted by `thread`, `ts_ns`.
    """
    by_clock = pl.col("event").cast(pl.String).str.contains("^(?:cpu|task)-clock") & (pl.col("period") > 0)
    told = sample_causes(trace.samples.filter(by_clock), trace.threads, trace.stacks, rules).sort(
        "thread", "ts_ns"
    )
    before = pl.col("ts_ns").shift(1).over("thread", order_by="ts_ns")
    start = pl.max_horizontal(before, pl.col("ts_ns") - pl.col("period"))
    stretches = told.with_columns(ts_ns=start, dur_ns=pl.col("ts_ns") - start)
    return clip(stretches, window.start_ns, window.end_ns)


def _sampled(stretches: pl.DataFrame) -> pl.DataFrame:
    """Return what the samples say a thread was at, in the columns of `HOST_ACTIVITY`."""
    # Spinning burns CPU time (Ledger 3); as a cause of lost GPU time it is what the spinner waits for.
    spins, kind = pl.col("cause") == "spin", pl.col("sub_cause")
    awaited = pl.when(kind == "yield").then(pl.lit("ipc")).when(kind == "device_wait").then(pl.lit("sync"))
    named = stretches.with_columns(
        cause=pl.when(spins).then(awaited).otherwise("cause"),
        sub_cause=pl.when(spins & (kind == "yield")).then(pl.lit("wait")).when(~spins).then("sub_cause"),
        name=pl.lit(None, pl.Categorical()), waits_for=pl.lit(None, pl.String), seen_by=pl.lit("sample"),
    ).filter(pl.col("cause").is_not_null() & (pl.col("cause") != "other"))  # fmt: skip
    return named.select(pl.col(c).cast(t) for c, t in HOST_ACTIVITY.items())


def _awake(stretches: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Leave out the time before a sample in which its thread slept: what it did then, the sample cannot have seen."""
    asleep = thread_states.filter(pl.col("state") == "blocked").select(
        "thread", "ts_ns", "dur_ns", _asleep=pl.lit(value=True)
    )
    cut = overlay(stretches, asleep, "thread")
    return cut.filter(pl.col("_asleep").is_null()).select(stretches.columns).sort("thread", "ts_ns")
