"""Per thread: running, waiting for a CPU, asleep (docs/numbers.md, "Scheduler states").

Running is what lies between a switch to the thread and the switch that ends it on that CPU; after it the
thread is runnable if it left in state R, else blocked until a wake-up, then runnable until it is switched to.
If two switches in a row on one CPU name different threads, an event was lost between them: both threads'
stretches there are `unknown`.

Some kernels hardly ever record the switch from idle to a thread (count `next_pid=0` against `prev_pid=0`).
Then a thread leaves a CPU that had gone idle, and the moment at which it came is bounded:

- it ran at the latest from the first moment at which it *acts* (a CPU sample of it, a wake-up that it
  issues);
- not before its CPU went idle;
- not much longer than two sampling periods before its first sample, where samples by time are recorded;
- a thread that is woken while its CPU idles comes at once, unless the samples say otherwise.

Rows that stand on this are marked `inferred`; what lies between the bounds is `unknown`.
"""

import polars as pl

from tracelib.align.timeline import DEFAULT_MAX_ERROR_NS
from tracelib.analyses.scheduler_events import (
    END,
    IN,
    OUT,
    START,
    WAKE,
    acts,
    chosen_events,
    covers,
    event_keys,
    events_of,
    sampling,
    with_neighbours,
)
from tracelib.analyses.throttling import throttled
from tracelib.analyses.window import Window
from tracelib.intervals import clip, each, fill, in_order
from tracelib.trace import Trace
from tracelib.words import CPU_STATES

CPU_STATE = pl.Enum(list(CPU_STATES))
THREAD_STATES = pl.Schema(
    {
        "thread": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "state": CPU_STATE,
        "cpu": pl.Int32(),
        "by": pl.Int32(),
        "inferred": pl.Boolean(),
    }
)

#: A thread that ran for so many sampling periods without a sample did not run.
PERIODS = 2


def thread_states(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the scheduler states of every thread that a scheduler event names.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `state` (Enum: running, runnable,
    throttled, blocked, unknown), `cpu` (Int32: where it runs, or what it waits for, or last ran; null = not
    known), `by` (Int32: while runnable, the thread that had the CPU; null = none or not known), `inferred`
    (Boolean: rebuilt, not recorded). Per thread the rows cover the window without gap or overlap. Sorted by
    `thread`, `ts_ns`. Empty if there are no scheduler events.

    Without wake-ups, blocked and runnable cannot be told apart: such stretches are `unknown`. Where the
    events' clock is tied by less than single calls, so is what lies within that error of a change.
    """
    cover = covers(trace)
    sched = chosen_events(trace, cover)
    if sched.is_empty():
        return pl.DataFrame(schema=THREAD_STATES)
    rows = with_neighbours(sched)
    parts = each(lambda keys: _parts(events_of(keys, rows, cover), window), event_keys(sched))
    if not parts:
        return pl.DataFrame(schema=THREAD_STATES)
    recorded, off_idle, incomplete, edges = (pl.concat(frames) for frames in zip(*parts, strict=True))
    missing = _with_first_act(incomplete, acts(trace, sched))
    stopped = throttled(pl.concat([off_idle, _rebuilt(missing, sampling(trace))])).select(list(THREAD_STATES))
    others = clip(stopped, window.start_ns, window.end_ns)
    whole = pl.concat([recorded, others, _not_covered(edges, window)]).match_to_schema(THREAD_STATES)
    return in_order(_sure(whole, _error_ns(trace, sched), window), "thread")


def _error_ns(trace: Trace, sched: pl.DataFrame) -> int:
    """Return what the clock of the scheduler events is off by at most, 0 if single calls can be told."""
    used = trace.sources.filter(pl.col("source").is_in(sched["source"].unique().implode()))
    measured = used.filter(pl.col("tied_by") == "anchors", pl.col("error_ns") > DEFAULT_MAX_ERROR_NS)
    return max(measured["error_ns"].to_list(), default=0)


def _sure(states: pl.DataFrame, error_ns: int, window: Window) -> pl.DataFrame:
    """Return the states without what lies within the error of a change, which is unknown."""
    if not error_ns:
        return states
    inner = states.with_columns(pl.col("ts_ns") + error_ns, pl.col("dur_ns") - 2 * error_ns)
    threads = states["thread"].unique().to_list()
    kept = fill(inner.filter(pl.col("dur_ns") > 0), "thread", threads, window.start_ns, window.end_ns)
    return kept.with_columns(pl.col("state").fill_null("unknown"), pl.col("inferred").fill_null(value=False))


def _parts(
    events: pl.DataFrame, window: Window
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return some threads' recorded stretches in the window, those off an idle CPU, pairs of events, edges.

    The pairs are those between which a coming may be missing, the edges those of the threads' segments.
    """
    pairs = _pairs(events)
    recorded = _recorded(pairs)
    sure = recorded.filter(~pl.col("to_idle")).select(list(THREAD_STATES))
    return (
        clip(sure, window.start_ns, window.end_ns),
        recorded.filter("to_idle"),
        pairs.filter(pl.col("gap") | pl.col("open")),
        events.filter(pl.col("kind").is_in([START, END])).select("thread", "ts_ns", "kind"),
    )


def _not_covered(edges: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the parts of the window that no recording of the thread's machine covers."""
    spans = edges.with_columns(dur_ns=pl.col("ts_ns").shift(-1) - pl.col("ts_ns"), seen=pl.lit(value=True))
    recorded = spans.filter(pl.col("kind") == START).drop("kind")
    threads = recorded["thread"].unique().to_list()
    holes = fill(recorded, "thread", threads, window.start_ns, window.end_ns).filter(pl.col("seen").is_null())
    return holes.select(
        "thread",
        "ts_ns",
        "dur_ns",
        state=pl.lit("unknown").cast(CPU_STATE),
        cpu=pl.lit(None, pl.Int32),
        by=pl.lit(None, pl.Int32),
        inferred=pl.lit(value=False),
    )


def _pairs(events: pl.DataFrame) -> pl.DataFrame:
    """Join each event with the thread's next one (`then`, `until_ns`, …); say whether a coming is missing.

    A coming is missing where a thread leaves a CPU to which no switch brought it (`gap`). It may also be
    missing before the end of the segment, which only an act can show.
    """
    following = [pl.col(c).shift(-1).alias(f"then_{c}") for c in ("cpu", "idle_since", "broken", "other")]
    paired = events.with_columns(following, then=pl.col("kind").shift(-1), until_ns=pl.col("ts_ns").shift(-1))
    off = pl.col("kind").is_in([START, WAKE, OUT])
    return paired.filter(pl.col("kind") != END).with_columns(
        pl.col("ready", "asleep", "to_idle").fill_null(value=False),
        gap=(off & (pl.col("then") == OUT) & ~pl.col("then_broken")).fill_null(value=False),
        open=off & (pl.col("then") == END),
    )


def _recorded(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the stretches whose both ends are recorded."""
    kind, then, ready = pl.col("kind"), pl.col("then"), pl.col("ready")
    whole = (
        (kind == IN)
        & ~pl.col("broken")
        & ((then == END) | ((then == OUT) & ~pl.col("then_broken") & (pl.col("cpu") == pl.col("then_cpu"))))
    )
    state = (
        pl.when(whole)
        .then(pl.lit("running"))
        .when(((kind == OUT) & ready & (then == IN)) | ((kind == WAKE) & (then == IN)))
        .then(pl.lit("runnable"))
        .when(pl.col("asleep") & (then == WAKE))
        .then(pl.lit("blocked"))
        .otherwise(pl.lit("unknown"))
    )
    had_cpu = pl.when(kind == OUT).then("other").otherwise("then_other")
    return (
        pairs.filter(~pl.col("gap") & ~pl.col("open"))
        .select(
            "thread",
            "ts_ns",
            dur_ns=pl.col("until_ns") - pl.col("ts_ns"),
            state=state.cast(CPU_STATE),
            cpu=pl.when(kind == WAKE).then("then_cpu").otherwise("cpu"),
            by=pl.when(state == "runnable").then(had_cpu),
            inferred=pl.lit(value=False),
            to_idle=pl.col("to_idle") & ready,
            latest_ns="until_ns",
            waited_ns=pl.col("until_ns") - pl.col("ts_ns"),
        )
        .filter(pl.col("dur_ns") > 0)
    )


def _with_first_act(gaps: pl.DataFrame, acted: pl.DataFrame) -> pl.DataFrame:
    """Add `act_ns`: the first moment between the event and the next one at which the thread certainly ran."""
    acting = gaps.sort("ts_ns").join_asof(
        acted,
        left_on="ts_ns",
        right_on="act_ns",
        by="thread",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
        coalesce=False,
    )
    return acting.with_columns(act_ns=pl.when(pl.col("act_ns") < pl.col("until_ns")).then("act_ns"))


def _rebuilt(gaps: pl.DataFrame, sampled: tuple[int, int, int] | None) -> pl.DataFrame:
    """Return the stretches before, around and after a thread's coming to its CPU that was not recorded."""
    bounded = _bounded(gaps, sampled)
    idle = pl.when(pl.col("kind") == OUT).then(pl.col("to_idle") & pl.col("ready")).otherwise("idle_at_wake")
    none, no = pl.lit(None, pl.Int32), pl.lit(value=False)
    before = bounded.select(
        "thread",
        "ts_ns",
        dur_ns=pl.col("earliest") - pl.col("ts_ns"),
        state=pl.col("state").cast(CPU_STATE),
        cpu="cpu",
        by=pl.when((pl.col("state") == "runnable") & (pl.col("kind") == OUT)).then("other"),
        inferred=pl.col("state") == "runnable",
        to_idle=idle,
        latest_ns="latest",
        waited_ns="waited_ns",
    )
    around = bounded.select(
        "thread",
        ts_ns="earliest",
        dur_ns=pl.col("latest") - pl.col("earliest"),
        state=pl.when("at_once").then(pl.lit("running")).otherwise(pl.lit("unknown")).cast(CPU_STATE),
        cpu="then_cpu",
        by=none,
        inferred="at_once",
        to_idle=idle & ~pl.col("at_once"),
        latest_ns="latest",
        waited_ns="waited_ns",
    )
    after = bounded.select(
        "thread",
        ts_ns="latest",
        dur_ns=pl.col("until_ns") - pl.col("latest"),
        state=pl.lit("running").cast(CPU_STATE),
        cpu="then_cpu",
        by=none,
        inferred=pl.lit(value=True),
        to_idle=no,
        latest_ns="latest",
        waited_ns="waited_ns",
    )
    return pl.concat([before, around, after]).filter(pl.col("dur_ns") > 0)


def _bounded(gaps: pl.DataFrame, sampled: tuple[int, int, int] | None) -> pl.DataFrame:
    """Bound the moment at which the thread came: `earliest`, `latest`; `state` is what it was before that.

    `latest` is its first act, or its leaving; where neither shows that it came at all, the end of the
    recording. `at_once`: it was woken on an idle CPU, and came at `earliest`.
    """
    kind, begin, until = pl.col("kind"), pl.col("ts_ns"), pl.col("until_ns")
    comes = pl.col("gap") | pl.col("act_ns").is_not_null()
    waits = (kind == WAKE) | ((kind == OUT) & pl.col("ready"))
    latest = pl.col("act_ns").fill_null(until)
    lowest = pl.max_horizontal(begin, "then_idle_since")
    period, first, last = sampled or (0, 0, 0)
    watched = (begin >= first) & (latest <= last + period) if sampled else pl.lit(value=False)
    unseen = pl.when(watched).then(pl.max_horizontal(lowest, latest - PERIODS * period)).otherwise(lowest)
    stays = ~comes & pl.col("asleep")
    state = (
        pl.when(waits)
        .then(pl.lit("runnable"))
        .when(stays)
        .then(pl.lit("blocked"))
        .otherwise(pl.lit("unknown"))
    )
    idle_at_wake = (
        (kind == WAKE) & (pl.col("then_idle_since") <= begin) & (pl.col("cpu") == pl.col("then_cpu"))
    )
    bounded = gaps.with_columns(
        state=state,
        latest=latest,
        earliest=pl.when(stays).then(until).otherwise(pl.min_horizontal(unseen, latest)),
        idle_at_wake=idle_at_wake.fill_null(value=False),
    )
    return bounded.with_columns(
        at_once=pl.col("idle_at_wake") & (pl.col("earliest") == begin), waited_ns=pl.col("earliest") - begin
    )
