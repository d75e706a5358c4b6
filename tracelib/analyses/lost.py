"""Ledger 2: why each GPU did no useful work, for every nanosecond that it lost (docs/numbers.md, "causes").

An idle gap is put to the thread that launched the operation which ends it: what that thread did until its launch call
began, the call itself, and the device's own latency after it. While that thread waits for another process, the question
goes upstream, to what that process did at the same moment. A collective's waiting is put to the rank that arrived last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.gpu_states import USEFUL
from tracelib.intervals import each, in_order, innermost, merge_equal, overlay, union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelib.analyses.upstream import Upstream

CPU_STATE = pl.Enum(["running", "runnable", "throttled", "blocked", "unknown"])
LOST_KIND = pl.Enum(["idle", "collective_wait"])

LOST_FRAME = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "lost": LOST_KIND,
        "thread": pl.Int32(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "cpu_state": CPU_STATE,
        "what": pl.Categorical(),
    }
)

_TOLD = ["thread", "cause", "sub_cause", "what"]


def lost(
    states: pl.DataFrame,
    launches: pl.DataFrame,
    collectives: pl.DataFrame,
    upstream: Upstream,
    thread_states: pl.DataFrame,
) -> pl.DataFrame:
    """Return every piece of lost GPU time with its cause.

    Takes the frames of the analyses of the same names and :class:`tracelib.analyses.upstream.Upstream`.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `lost` (Enum: idle, collective_wait), `thread` (Int32:
    the thread blamed, after following waits upstream; null = none known), `cause`, `sub_cause` (String), `cpu_state`
    (Enum: what the blamed thread's CPU state was), `what` (Categorical: its innermost slice). Per GPU the pieces add up
    to `idle` + `collective_wait` exactly. Sorted by `gpu`, `ts_ns`.
    """
    idle = _idle(states, launches, upstream)
    waiting = _collective_wait(states, collectives, idle)
    pieces = pl.concat(
        [
            idle.with_columns(lost=pl.lit("idle", LOST_KIND)),
            waiting.with_columns(lost=pl.lit("collective_wait", LOST_KIND)),
        ]
    )
    cpu = thread_states.select("thread", "ts_ns", "dur_ns", cpu_state=pl.col("state").cast(CPU_STATE))
    crossed = overlay(pieces, cpu, "thread").with_columns(pl.col("cpu_state").fill_null("unknown"))
    return in_order(crossed.select(list(LOST_FRAME)).match_to_schema(LOST_FRAME), "gpu")


def _idle(states: pl.DataFrame, launches: pl.DataFrame, upstream: Upstream) -> pl.DataFrame:
    gaps = states.filter(pl.col("state") == "idle").select(
        "gpu", "ts_ns", "dur_ns", g1=pl.col("ts_ns") + pl.col("dur_ns")
    )
    ended = gaps.join(
        launches.select("gpu", "call_thread", "call_ts_ns", "call_dur_ns", g1="ts_ns", op=pl.lit(1)),
        on=["gpu", "g1"],
        how="left",
        maintain_order="left",
    )
    if ended.height > gaps.height:
        # Several operations start together at a gap's end: the one launched first had the gap to itself.
        ended = ended.sort("gpu", "g1", "call_ts_ns", nulls_last=True).unique(
            ["gpu", "g1"], keep="first", maintain_order=True
        )
    main = _main_thread(launches)
    edge = ended.filter(pl.col("op").is_null()).join(main, on="gpu", how="left").with_columns(thread="main")
    launched = ended.filter(pl.col("call_ts_ns").is_not_null()).with_columns(thread="call_thread")
    unknown = ended.filter(pl.col("op").is_not_null() & pl.col("call_ts_ns").is_null())
    before, call, after = _parts(launched)
    told = upstream.blame(pl.concat([before, edge.select("gpu", "thread", "ts_ns", "dur_ns")]))
    return pl.concat(
        [
            told.select("gpu", "ts_ns", "dur_ns", *_TOLD),
            upstream.within_call(call).select("gpu", "ts_ns", "dur_ns", *_TOLD),
            _named(after, "kernel_launch", "latency"),
            _named(unknown.with_columns(thread=pl.lit(None, pl.Int32)), "unattributed", "no launch found"),
        ]
    )


def _main_thread(launches: pl.DataFrame) -> pl.DataFrame:
    """Return per GPU the thread that launched most on it: gpu, main."""
    counted = launches.drop_nulls("call_thread").group_by("gpu", main="call_thread").len()
    return (
        counted.sort("gpu", "len", "main")
        .unique("gpu", keep="last", maintain_order=True)
        .select("gpu", "main")
    )


def _parts(launched: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Cut gaps at the launch call: before it, the call, after it; each (gpu, thread, ts_ns, dur_ns), empty ones dropped."""
    g0, g1 = pl.col("ts_ns"), pl.col("g1")
    begin = pl.max_horizontal(g0, pl.min_horizontal("call_ts_ns", g1))
    returned = pl.max_horizontal(begin, pl.min_horizontal(pl.col("call_ts_ns") + pl.col("call_dur_ns"), g1))
    cuts = ((g0, begin), (begin, returned), (returned, g1))
    before, call, after = (
        launched.select("gpu", "thread", ts_ns=a, dur_ns=b - a).filter(pl.col("dur_ns") > 0) for a, b in cuts
    )
    return before, call, after


def _named(pieces: pl.DataFrame, cause: str, sub_cause: str | None) -> pl.DataFrame:
    return pieces.select(
        "gpu",
        "ts_ns",
        "dur_ns",
        "thread",
        cause=pl.lit(cause),
        sub_cause=pl.lit(sub_cause, pl.String),
        what=pl.lit(None, pl.Categorical()),
    )


def _collective_wait(states: pl.DataFrame, collectives: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """Ask the straggler: its own cause while its device was idle, `imbalance` while that was computing."""
    waits = states.filter(pl.col("state") == "collective_wait").select("gpu", "ts_ns", "dur_ns")
    whose = (
        collectives.filter(pl.col("matched") & (pl.col("wait_ns") > 0))
        .select("gpu", "ts_ns", dur_ns="wait_ns", straggler="straggler")
        .sort("gpu", "ts_ns")
    )
    pieces = overlay(waits, _disjoint(whose), "gpu").rename({"gpu": "waiter", "straggler": "gpu"})
    asked = overlay(pieces, states.select("gpu", "ts_ns", "dur_ns", "state"), "gpu")
    at_idle = asked.filter(pl.col("state") == "idle").drop("state")
    told = overlay(at_idle, in_order(idle.select("gpu", "ts_ns", "dur_ns", *_TOLD), "gpu"), "gpu")
    busy = asked.filter(pl.col("state").is_in([*USEFUL, "collective"])).with_columns(
        thread=pl.lit(None, pl.Int32)
    )
    other = asked.filter(pl.col("state").is_null() | (pl.col("state") == "collective_wait"))
    other = other.with_columns(thread=pl.lit(None, pl.Int32))
    columns = ["gpu", "ts_ns", "dur_ns", *_TOLD]
    return pl.concat(
        [
            told.drop("gpu").rename({"waiter": "gpu"}).select(columns),
            _named(busy.drop("gpu").rename({"waiter": "gpu"}), "imbalance", None),
            _named(
                other.drop("gpu").rename({"waiter": "gpu"}),
                "unattributed",
                "straggler waits in another collective",
            ),
        ]
    )


def _disjoint(waits: pl.DataFrame) -> pl.DataFrame:
    """Cut a wait where the next one on the same GPU begins, so that they form a timeline."""
    until = pl.col("ts_ns").shift(-1).over("gpu", order_by="ts_ns")
    return waits.with_columns(dur_ns=pl.min_horizontal("dur_ns", until - pl.col("ts_ns"))).filter(
        pl.col("dur_ns") > 0
    )


def causes(
    pieces: pl.DataFrame, by: Sequence[str] = ("gpu", "cause", "sub_cause", "cpu_state")
) -> pl.DataFrame:
    """Return `lost` summed up.

    One row per distinct combination of `by`: those columns and `ns` (Int64). Adds up to `lost`. Sorted by GPU, then
    largest first.
    """
    return (
        pieces.group_by(*by)
        .agg(ns=pl.col("dur_ns").sum())
        .sort("gpu", "ns", *by[1:], descending=[False, True, *[False] * (len(by) - 1)])
    )


CPU_CONTENTION = pl.Schema(
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


def cpu_contention(
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
    return told.select(list(CPU_CONTENTION)).match_to_schema(CPU_CONTENTION).sort("gpu", "ts_ns")


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


HOST_TIME = pl.Schema(
    {
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "total_ns": pl.Int64(),
        "union_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "count": pl.Int64(),
    }
)

#: Rows that are looked at at a time.
PART = 2**17


def host_time(activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return how much host time each cause took, and how much lost GPU time it exposed.

    Takes the frames of `host_activity` and `lost`.

    One row per cause and sub-cause: `cause`, `sub_cause` (String, null = none), `total_ns` (Int64, summed over threads),
    `union_ns` (Int64, time in which at least one thread did it), `exposed_ns` (Int64, lost GPU time given to it, summed
    over GPUs), `count` (Int64, stretches). Time in which a thread waits
    for another process is nobody's work and not counted on the host's side: the frame `ipc` has it. Causes that only the GPU side knows (latency, imbalance, no_work) have null
    host columns. Sorted by `exposed_ns`, largest first.
    """
    key = ["cause", "sub_cause"]
    parts = each(lambda part: _worked(part, key), list(activity.iter_slices(PART)) or [activity])
    total = pl.concat([summed for summed, _ in parts]).group_by(key).agg(pl.col("total_ns", "count").sum())
    numbers = total.select(*key, _key=pl.int_range(pl.len(), dtype=pl.Int32))
    named = pl.concat(
        [
            stretches.join(numbers, on=key, nulls_equal=True).select("_key", "ts_ns", "dur_ns")
            for _, stretches in parts
        ]
    )
    covered = union(named, "_key").group_by("_key").agg(union_ns=pl.col("dur_ns").sum())
    total = (
        total.join(numbers.join(covered, on="_key"), on=key, nulls_equal=True)
        .drop("_key")
        .with_columns(pl.col(key).cast(pl.String))
    )
    exposed = lost.group_by(key).agg(exposed_ns=pl.col("dur_ns").sum())
    joined = total.join(exposed, on=key, how="full", nulls_equal=True, coalesce=True)
    filled = (
        joined.with_columns(pl.col("exposed_ns").fill_null(0))
        .select(list(HOST_TIME))
        .match_to_schema(HOST_TIME)
    )
    return filled.sort(
        "exposed_ns", "total_ns", "cause", "sub_cause", descending=[True, True, False, False], nulls_last=True
    )


def _worked(activity: pl.DataFrame, key: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was nobody's waiting, summed up, and as stretches: neighbours of one cause are one, which leaves far fewer."""
    told = activity.filter(pl.col("cause").is_not_null() & pl.col("waits_for").is_null())
    summed = told.group_by(key).agg(total_ns=pl.col("dur_ns").sum(), count=pl.len().cast(pl.Int64))
    return summed, merge_equal(told, ["thread", *key])
