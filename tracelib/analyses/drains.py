"""Who emptied the launch queue: what let a device run dry before late launches (docs/numbers.md, "Ledger 2").

Launch after launch is late because something drained the queue before: a synchronisation, a blocking copy, a
long stretch on the host. The ledger charges each gap by itself; this names, for each burst of late launches,
the event in front of it.
"""

import polars as pl

from tracelib.analyses.dispatch import LONGEST_NS, TIMES_USUAL
from tracelib.classify import slice_meanings
from tracelib.intervals import in_parts, overlay
from tracelib.slice_rules import Rules
from tracelib.trace import Trace

DRAINS = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "thread": pl.Int32(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "what": pl.String(),
        "event_ns": pl.Int64(),
        "late": pl.Int64(),
        "lost_ns": pl.Int64(),
        "caught_up": pl.Boolean(),
    }
)
#: What makes each built-in method's name another.
OBJECT = r" object at 0x[0-9a-f]+"
#: Sub-causes of kernel_launch that are the price of launching itself.
LAUNCHING = ("api", "dispatch", "latency")
#: Those of calls that may return only when the device has nothing left to do.
MAY_BLOCK = ("alloc", "module_load")
#: By so much the device's clock and the host's may differ: such a call may seem to return before the device
#: ran dry.
EDGE_NS = 10_000
_LAUNCHES = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(LAUNCHING).fill_null(value=False)


def drains(
    trace: Trace,
    rules: Rules,
    gpu_states: pl.DataFrame,
    launches: pl.DataFrame,
    host_activity: pl.DataFrame,
    lost: pl.DataFrame,
) -> pl.DataFrame:
    """Return each burst of late launches, with the event that let the device run dry before it.

    Takes the frames of the analyses of those names. A burst is late launches (`late` of :func:`launches`)
    without one in time among them; another event begins another burst. The event is the call that waits for
    the device (a synchronisation, a blocking copy, an allocation) in which the launching thread was when the
    device ran dry; else what took most of a long time between its launches on both sides, waits followed
    upstream by the ledger.

    One row per burst: `gpu` (Int32), `ts_ns` (Int64: the device ran dry), `dur_ns` (Int64: from then to the
    start of the burst's last operation), `thread` (Int32: which launched), `cause`, `sub_cause`, `what`
    (String) of the event, `event_ns` (Int64: its length), `late` (Int64: launches), `lost_ns` (Int64: idle
    time in it), `caught_up` (Boolean: the next launch came in time, so the launches themselves keep up). An
    event that is launching itself (kernel_launch: api, dispatch, latency) drained nothing: the launches are
    too slow, and it has no name. Sorted by `gpu`, `ts_ns`.
    """
    calls, gaps = _late_calls(gpu_states, launches)
    if gaps.is_empty():
        return pl.DataFrame(schema=DRAINS)
    blocking = _blocking(gaps, trace, rules, host_activity)
    others = gaps.filter("long").join(blocking, on="gap", how="anti")
    events = pl.concat([blocking, _between(others, host_activity, lost)])
    named = gaps.join(events, on="gap", how="left")
    launching = pl.col("cause").is_null()  # nothing was done but that
    return _bursts(
        named.with_columns(
            cause=pl.coalesce("cause", pl.lit("kernel_launch")),
            sub_cause=pl.when(launching).then(pl.lit("dispatch")).otherwise("sub_cause"),
            event_ns=pl.coalesce("event_ns", pl.lit(0)),
        ),
        calls,
    )


def behind(lost: pl.DataFrame, drains: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of `lost` that are launching in the wake of an event, in bursts that caught up.

    One row per piece: the columns of `lost`, and `of`, `of_sub`, `event` (String): cause, sub-cause and name
    of the event in front. What is lost at every launch, drained queue or not, is in none.
    """
    wakes = drains.filter(pl.col("caught_up") & ~_LAUNCHES).select(
        "gpu", "ts_ns", "dur_ns", of="cause", of_sub="sub_cause", event="what"
    )
    pieces = lost.filter((pl.col("lost") == "idle") & _LAUNCHES)
    return overlay(pieces, wakes, "gpu").filter(pl.col("of").is_not_null())


def _late_calls(gpu_states: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return launch calls in order (gpu, call, run: of late ones in a row), and the gaps that late ones end.

    A gap: gap (its number), gpu, thread, dry, until, since (the thread's launch before it returned), call
    (the first in it), late, run, long (from `since` to `call`: not between two launches of one burst, as
    `dispatch` has them).
    """
    calls = (
        launches.filter(pl.col("call_ts_ns").is_not_null())
        .select(
            "gpu",
            "late",
            thread="call_thread",
            call="call_ts_ns",
            back=pl.col("call_ts_ns") + pl.col("call_dur_ns"),
        )
        .unique(["gpu", "thread", "call"])
        .sort("gpu", "call", "thread")
        .with_columns(
            since=pl.col("back").shift(1).over("thread", order_by="call"),
            run=(~pl.col("late")).cum_sum().over("gpu"),
        )
    )
    apart = pl.col("call") - pl.col("since")
    long = apart >= pl.min_horizontal(TIMES_USUAL * apart.median().over("thread"), LONGEST_NS)
    idle = gpu_states.filter(pl.col("state") == "idle").select(
        "gpu", dry="ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")
    )
    within = (
        calls.with_columns(long=long.fill_null(value=True))
        .filter("late")
        .join_asof(
            idle, left_on="call", right_on="dry", by="gpu", strategy="backward", check_sortedness=False
        )
    )
    gaps = (
        within.filter(pl.col("call") < pl.col("until"))
        .group_by("gpu", "dry", "until", maintain_order=True)
        .agg(pl.col("thread", "since", "call", "run", "long").first(), late=pl.len().cast(pl.Int64))
        .with_row_index("gap")
    )
    return calls, gaps


def _blocking(gaps: pl.DataFrame, trace: Trace, rules: Rules, host_activity: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that waited for the device as it ran dry: gap, cause, sub_cause, what, event_ns."""
    cause, sub_cause = (pl.col(name).cast(pl.String) for name in ("cause", "sub_cause"))
    blocks = (cause == "sync") | sub_cause.is_in(MAY_BLOCK).fill_null(value=False)
    waits = host_activity.filter(blocks & pl.col("waits_for").is_null()).select(
        "thread", "ts_ns", "name", end=pl.col("ts_ns") + pl.col("dur_ns"), cause=cause, sub_cause=sub_cause
    )
    at_dry = (
        gaps.select("gap", "thread", "dry")
        .sort("dry")
        .join_asof(
            waits.sort("ts_ns"),
            left_on="dry",
            right_on="ts_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
    )
    drained = at_dry.filter(pl.col("end") + EDGE_NS >= pl.col("dry"))
    outer = _outermost(drained, trace, rules)
    return drained.join(outer, on="gap", how="left").select(
        "gap",
        "cause",
        "sub_cause",
        what=pl.coalesce("outer", pl.col("name").cast(pl.String)),
        event_ns=pl.coalesce("outer_ns", pl.col("end") - pl.col("ts_ns")),
    )


def _outermost(drained: pl.DataFrame, trace: Trace, rules: Rules) -> pl.DataFrame:
    """Return the outermost slice that means the wait, and the operator around it: gap, outer, outer_ns.

    `aten::item` tells more than the `cudaStreamSynchronize` in it.
    """
    moments = drained.select("gap", "thread", at="ts_ns").sort("at")

    def around(part: pl.DataFrame) -> pl.DataFrame:
        begun = part.filter(pl.col("thread").is_in(moments["thread"].unique().implode())).sort("ts_ns")
        next_one = begun.join_asof(
            moments, left_on="ts_ns", right_on="at", by="thread", strategy="forward", check_sortedness=False
        )
        return next_one.filter(pl.col("at") < pl.col("ts_ns") + pl.col("dur_ns"))

    slices = in_parts(around, trace.slices.select("thread", "ts_ns", "dur_ns", "name", "category"))
    number, meanings = slice_meanings(slices, rules)
    waits = (pl.col("cause") == "sync").fill_null(value=False)
    operator = (pl.col("category") == "op") & ~waits
    name = pl.col("name").cast(pl.String).str.replace(OBJECT, "")
    named = slices.select("gap", "ts_ns", "dur_ns", "category", name, cause=meanings["cause"].gather(number))
    return (
        named.sort("gap", "ts_ns")
        .group_by("gap")
        .agg(
            outer=pl.col("name").filter(waits).first(),
            outer_ns=pl.col("dur_ns").filter(waits).first(),
            inside=pl.col("name").filter(operator).last(),
        )
        .with_columns(outer=pl.coalesce(pl.format("{} in {}", "outer", "inside"), "outer"))
    )


def _between(gaps: pl.DataFrame, host_activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return what took most of the time between two launches: gap, cause, sub_cause, what, event_ns.

    Before the device ran dry by what the thread did, but for its waits; after that by the ledger.
    """
    before = gaps.with_columns(ts_ns=pl.min_horizontal("since", "dry"), to=pl.min_horizontal("dry", "call"))
    own = before.select("gap", "thread", "ts_ns", dur_ns=pl.col("to") - pl.col("ts_ns")).drop_nulls()
    activity = host_activity.select(
        "thread", "ts_ns", "dur_ns", "cause", "sub_cause", "waits_for", what="name"
    )
    after = gaps.select("gap", "gpu", ts_ns="dry", dur_ns=pl.col("call") - pl.col("dry")).sort("gpu", "ts_ns")
    blamed = lost.filter(pl.col("lost") == "idle").select(
        "gpu", "ts_ns", "dur_ns", "cause", "sub_cause", "what"
    )
    works = pl.col("waits_for").is_null()
    words = [pl.col(name).cast(pl.String) for name in ("cause", "sub_cause", "what")]
    pieces = pl.concat(
        [
            overlay(own, activity, "thread").filter(works).select("gap", "dur_ns", *words),
            overlay(blamed, after, "gpu").drop_nulls("gap").select("gap", "dur_ns", *words),
        ]
    ).drop_nulls("cause")
    key = ["gap", "cause", "sub_cause"]
    named = pieces.group_by(*key, "what").agg(pl.col("dur_ns").sum()).sort("dur_ns", "what", descending=True)
    whole = named.group_by(key, maintain_order=True).agg(
        pl.col("what").first(), event_ns=pl.col("dur_ns").sum()
    )
    return whole.sort("gap", "event_ns", "cause", "sub_cause", descending=[False, True, False, False]).unique(
        "gap", keep="first"
    )


def _bursts(gaps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Join gaps in a row that nothing but launching separates."""
    ordered = gaps.sort("gpu", "dry")
    first = (pl.col("run") != pl.col("run").shift(1).over("gpu")).fill_null(value=True)
    begins = first | ~_LAUNCHES.fill_null(value=False)
    numbered = ordered.with_columns(burst=begins.cum_sum())
    bursts = numbered.group_by("gpu", "burst", maintain_order=True).agg(
        pl.col("thread", "cause", "sub_cause", "what", "event_ns").first(),
        pl.col("late").sum(),
        ts_ns=pl.col("dry").first(),
        dur_ns=pl.col("until").last() - pl.col("dry").first(),
        lost_ns=(pl.col("until") - pl.col("dry")).sum(),
        run=pl.col("run").last(),
    )
    # A launch in time ends a run, so the last burst of a run that is not the GPU's last one caught up.
    last_run = calls.group_by("gpu").agg(last=pl.col("run").max())
    more = pl.col("run") < pl.col("last")
    next_run = pl.col("run").shift(-1).over("gpu")
    caught = more & ((next_run != pl.col("run")) | next_run.is_null())
    return (
        bursts.join(last_run, on="gpu", how="left", maintain_order="left")
        .with_columns(caught_up=caught)
        .select(list(DRAINS))
        .match_to_schema(DRAINS)
        .sort("gpu", "ts_ns")
    )
