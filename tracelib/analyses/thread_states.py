"""Per thread: running, waiting for a CPU, asleep (ATTRIBUTION.md, "Scheduler states").

Running is what lies between a switch to the thread and the next switch on that CPU, if that one leaves the same thread;
after it the thread is runnable if it left in state R, else blocked until a wake-up, then runnable until it is switched to.

Recorders lose events without saying so; some kernels hardly ever record the switch from idle to a thread. Such a thread
is known to run from the first moment at which it *acts* (a CPU sample of it, a wake-up that it issues), or from its
wake-up on if its CPU had been idle. Rows that stand on this are marked `inferred`; what cannot be proven is `unknown`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.throttling import throttled
from tracelib.intervals import clip, fill
from tracelib.schema import IDLE

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

__all__ = ["THREAD_STATES", "thread_states"]

STATE = pl.Enum(["running", "runnable", "throttled", "blocked", "unknown"])
THREAD_STATES = pl.Schema({
    "thread": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "state": STATE, "cpu": pl.Int32(), "by": pl.Int32(),
    "inferred": pl.Boolean(),
})  # fmt: skip


def thread_states(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the scheduler states of every thread that a scheduler event names.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `state` (Enum: running, runnable, throttled, blocked,
    unknown), `cpu` (Int32: where it runs, or last ran; null = not known), `by` (Int32: while runnable, the thread that had
    the CPU; null = none or not known), `inferred` (Boolean: rebuilt, not recorded). Per thread the rows cover the window
    without gap or overlap. Sorted by `thread`, `ts_ns`. Empty if there are no scheduler events.

    Without wake-ups, blocked and runnable cannot be told apart: such stretches are `unknown`.
    """
    sched = _one_source(trace, window)
    if sched.is_empty():
        return pl.DataFrame(schema=THREAD_STATES)
    pairs = _pairs(_events(sched), _acts(trace, sched), last_ns=int(sched["ts_ns"].to_numpy().max()))
    rows = throttled(_states(pairs)).select(list(THREAD_STATES)).match_to_schema(THREAD_STATES)
    threads = rows["thread"].unique().sort().to_list()
    whole = fill(
        clip(rows, window.start_ns, window.end_ns), "thread", threads, window.start_ns, window.end_ns
    )
    return whole.with_columns(pl.col("state").fill_null("unknown"), pl.col("inferred").fill_null(value=False))


def _one_source(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the scheduler events of one source per host: the one that saw most switches in the window.

    perf and ftrace both record the same switches: taking both would count them twice.
    """
    inside = trace.sched.filter(pl.col("ts_ns").is_between(window.start_ns, window.end_ns))
    hosts = trace.sources.select("source", "host")
    seen = (
        inside.group_by("source")
        .len()
        .join(hosts, on="source", how="left")
        .sort("len", "source", descending=[True, False])
    )
    best = seen.unique("host", keep="first", maintain_order=True)["source"]
    return trace.sched.filter(pl.col("source").is_in(best.implode()))


def _events(sched: pl.DataFrame) -> pl.DataFrame:
    """Return what happened to each thread: thread, ts_ns, kind (in, out, wake), and what its CPU did around it.

    `ready`: it left in state R. `sound`: the next switch on this CPU leaves this thread. `idle_since`: for an out, since
    when its CPU had been idle by the last switch recorded there (null = it was not). `other`: who came (out), who left (in).
    """
    switch = sched.filter(pl.col("event") == "switch").with_columns(
        after=pl.col("prev").shift(-1).over("cpu"),
        since=pl.col("ts_ns").shift(1).over("cpu"),
        before=pl.col("next").shift(1).over("cpu"),
    )
    came = switch.filter(pl.col("next") >= 0).select(
        "ts_ns",
        "cpu",
        thread="next",
        kind=pl.lit("in"),
        sound=(pl.col("after") == pl.col("next")) | pl.col("after").is_null(),
        other=_thread("prev"),
    )
    left = switch.filter(pl.col("prev") >= 0).select(
        "ts_ns", "cpu", thread="prev", kind=pl.lit("out"), ready=(pl.col("prev_state") == "R").fill_null(value=False), known=pl.col("prev_state").is_not_null(),
        idle_since=pl.when(pl.col("before") == IDLE).then("since"), to_idle=(pl.col("next") == IDLE).fill_null(value=False), other=_thread("next"),
    )  # fmt: skip
    kind = "wakeup" if (sched["event"] == "wakeup").any() else "waking"
    woken = sched.filter(pl.col("event").is_in([kind, "wakeup_new"]) & (pl.col("next") >= 0)).select(
        "ts_ns", "cpu", thread="next", kind=pl.lit("wake")
    )
    # At one moment: a thread is woken, then comes, then leaves.
    order = pl.col("kind").replace_strict({"wake": 0, "in": 1, "out": 2}, return_dtype=pl.Int8)
    events = pl.concat([woken, came, left], how="diagonal").sort(
        "thread", "ts_ns", order, maintain_order=True
    )
    return _without_idle_talk(events)


def _thread(column: str) -> pl.Expr:
    return pl.when(pl.col(column) >= 0).then(column)


def _without_idle_talk(events: pl.DataFrame) -> pl.DataFrame:
    """Drop wake-ups that change nothing: of a thread that runs, that is runnable, or that was woken already."""
    last = pl.when(pl.col("kind") != "wake").then(pl.struct("kind", "ready")).forward_fill().over("thread")
    running = (last.struct.field("kind") == "in").fill_null(value=False)
    runnable = ((last.struct.field("kind") == "out") & last.struct.field("ready")).fill_null(value=False)
    kept = events.filter((pl.col("kind") != "wake") | ~(running | runnable))
    again = (pl.col("kind") == "wake") & (pl.col("kind").shift(1).over("thread") == "wake").fill_null(
        value=False
    )
    return kept.filter(~again)


def _acts(trace: Trace, sched: pl.DataFrame) -> pl.DataFrame:
    """Return moments at which a thread certainly ran: thread, act_ns; sorted by act_ns."""
    issued = sched.filter((pl.col("event") != "switch") & (pl.col("prev") >= 0)).select(
        thread="prev", act_ns="ts_ns"
    )
    hosts = sched["source"].unique()
    sampled = trace.samples.filter(pl.col("source").is_in(hosts.implode())).select("thread", act_ns="ts_ns")
    return pl.concat([issued, sampled]).unique().sort("act_ns")


def _pairs(events: pl.DataFrame, acts: pl.DataFrame, last_ns: int) -> pl.DataFrame:
    """Put each event beside the thread's next one, and the first act between them (`act_ns`, null = none)."""
    following = [
        pl.col(c).shift(-1).over("thread").alias(f"next_{c}")
        for c in ("kind", "ts_ns", "cpu", "idle_since", "other")
    ]
    paired = events.with_columns(following).with_columns(pl.col("next_ts_ns").fill_null(last_ns))
    joined = paired.sort("ts_ns").join_asof(
        acts,
        left_on="ts_ns",
        right_on="act_ns",
        by="thread",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
        coalesce=False,
    )
    return joined.with_columns(act_ns=pl.when(pl.col("act_ns") < pl.col("next_ts_ns")).then("act_ns")).sort(
        "thread", "ts_ns"
    )


def _states(pairs: pl.DataFrame) -> pl.DataFrame:
    """Turn each pair of events into states: one part, or two where the switch to the thread was not recorded."""
    kind, then = pl.col("kind"), pl.col("next_kind")
    ready = pl.col("ready").fill_null(value=False)
    asleep = (kind == "out") & ~ready & pl.col("known").fill_null(value=False)
    missing = ((then == "out") & (kind != "in")).fill_null(value=False)
    on_idle = missing & (kind == "wake") & pl.col("next_idle_since").is_not_null()
    # It ran at the end: from its wake-up on if its CPU was idle, else at least from its first act on.
    ran_from = (
        pl.when(on_idle)
        .then(pl.max_horizontal("ts_ns", "next_idle_since"))
        .otherwise("act_ns")
        .fill_null(pl.col("next_ts_ns"))
    )
    first = (
        pl.when((kind == "in") & pl.col("sound") & ((then == "out") | then.is_null())).then(pl.lit("running"))
        .when((kind == "out") & ready).then(pl.lit("runnable"))
        .when(((kind == "wake") & (then == "in")) | on_idle).then(pl.lit("runnable"))
        .when(asleep & ((then == "wake") | then.is_null())).then(pl.lit("blocked"))
        .otherwise(pl.lit("unknown"))
    )  # fmt: skip
    other = pl.when(kind == "out").then("other").otherwise("next_other")
    cut = pairs.with_columns(
        cut_ns=pl.when(missing).then(ran_from).otherwise("next_ts_ns"), missing=missing, state=first,
        by=pl.when(first == "runnable").then(other), to_idle=(pl.col("to_idle") & ready).fill_null(value=False),
    )  # fmt: skip
    head = cut.with_columns(
        dur_ns=pl.col("cut_ns") - pl.col("ts_ns"),
        inferred=pl.col("missing") & (pl.col("state") == "runnable"),
    )
    tail = cut.filter("missing").with_columns(
        ts_ns="cut_ns", dur_ns=pl.col("next_ts_ns") - pl.col("cut_ns"), cpu="next_cpu", state=pl.lit("running"), by=pl.lit(None, pl.Int32),
        inferred=pl.lit(value=True), to_idle=pl.lit(value=False),
    )  # fmt: skip
    columns = [*THREAD_STATES, "to_idle"]
    rows = pl.concat([head.select(columns), tail.select(columns)]).filter(pl.col("dur_ns") > 0)
    return rows.with_columns(pl.col("state").cast(STATE)).sort("thread", "ts_ns")
