"""Scheduler events: from the source that saw most at each time, and for each thread in order.

perf and ftrace may record the same switches: taking both would count them twice, so each stretch of time is
left to one source per machine, the one with most events in it. Where none records, chains of events are cut
(`segment`).

There may be tens of millions of events. They are sorted by thread as one integer each (thread, row, kind),
which is several times as quick as sorting rows; the rows are then put together for a few threads at a time,
in memory that is used again.
"""

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.cpu_samples import BY_CLOCK
from tracelib.analyses.window import Window
from tracelib.intervals import key_by_key, whole_keys
from tracelib.schema import IDLE
from tracelib.trace import Trace

Ints = NDArray[np.int64]

#: Kinds of a thread's events, in the order in which those of one row stand: its segment begins, it leaves its
#: CPU, comes to one, is woken, its segment ends.
START, OUT, IN, WAKE, END = range(5)
#: Bits of a key for the kind, and for the row above it; the thread has the rest.
KIND, ROW = 3, 37
EVERY_KIND = 2**KIND - 1
#: No thread was recorded; `schema.IDLE` is another such number.
NONE = -2
NEVER = np.iinfo(np.int64).min

COVERS = pl.Schema(
    {"source": pl.Int32(), "from_ns": pl.Int64(), "until_ns": pl.Int64(), "segment": pl.Int32()}
)


def covers(trace: Trace) -> pl.DataFrame:
    """Return which source is used when.

    Sources that name a thread in common watched the same machine. One row per stretch: `source` (Int32),
    `from_ns`, `until_ns` (Int64, half-open), `segment` (Int32: the same for stretches of one machine that
    touch). Sorted by `segment`, `from_ns`. Sources on a clock of their own are left out if any other source
    has scheduler events.
    """
    untied = trace.sources.filter(pl.col("tied_by").fill_null("") == "untied")["source"].to_list()
    sources = trace.sched["source"].unique().sort().to_list()
    rows: list[tuple[int, int, int, int]] = []
    for machine in _machines(trace.sched, [s for s in sources if s not in untied] or sources):
        segment, until = rows[-1][3] if rows else -1, None
        for source, a, b in _densest({source: _event_times(trace.sched, source) for source in machine}):
            segment += a != until
            until = b
            rows.append((source, a, b, segment))
    return pl.DataFrame(rows, schema=COVERS, orient="row").sort("segment", "from_ns")


def _machines(sched: pl.DataFrame, sources: list[int]) -> list[list[int]]:
    """Group the sources that have threads in common."""
    groups: list[tuple[list[int], set[int]]] = []
    for source in sources:
        own = sched.filter(pl.col("source") == source)
        threads = {t for c in ("prev", "next") for t in own[c].drop_nulls().unique().to_list() if t >= 0}
        shared = [group for group in groups if group[1] & threads]
        merged = (
            [s for group in shared for s in group[0]] + [source],
            threads.union(*(group[1] for group in shared)),
        )
        groups = [group for group in groups if group not in shared] + [merged]
    return [sorted(group[0]) for group in groups]


def _event_times(sched: pl.DataFrame, source: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    own = sched.filter(pl.col("source") == source)
    return own.filter(pl.col("event") != _spare_wake(own))["ts_ns"].to_numpy()


def _spare_wake(own: pl.DataFrame) -> str:
    """Return the wake-up event that says nothing new: `waking` precedes each `wakeup` that is recorded."""
    return "waking" if (own["event"] == "wakeup").any() else "wakeup"


def _densest(times: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> list[tuple[int, int, int]]:
    """Return (source, from, until): between two begins or ends of recordings, the source with most events."""
    spans = {source: (int(ts[0]), int(ts[-1]) + 1) for source, ts in times.items() if len(ts)}
    edges = sorted({edge for span in spans.values() for edge in span})
    out: list[tuple[int, int, int]] = []
    for a, b in pairwise(edges):
        seen = {
            source: int(np.searchsorted(times[source], b) - np.searchsorted(times[source], a))
            for source, (first, last) in spans.items()
            if first <= a and b <= last
        }
        if not seen:
            continue
        best = max(seen, key=lambda source: (seen[source], -source))
        if out and out[-1][0] == best and out[-1][2] == a:
            out[-1] = (best, out[-1][1], b)
        else:
            out.append((best, a, b))
    return out


def chosen_events(trace: Trace, cover: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `trace.sched` that `cover` selects, in the order of time.

    Added: `segment` (Int32), `wakes` (Boolean: its source records wake-ups).
    """
    parts = []
    for source, a, b, segment in cover.iter_rows():
        own = trace.sched.filter(
            (pl.col("source") == source) & pl.col("ts_ns").is_between(a, b, closed="left")
        )
        kept = own.filter(pl.col("event") != _spare_wake(own))
        wakes = kept["event"].is_in(["wakeup", "waking"]).any()
        parts.append(kept.with_columns(segment=pl.lit(segment, pl.Int32), wakes=pl.lit(wakes)))
    none = trace.sched.clear().with_columns(segment=pl.lit(None, pl.Int32), wakes=pl.lit(None, pl.Boolean))
    return pl.concat([*parts, none], rechunk=True)


def acts(trace: Trace, sched: pl.DataFrame) -> pl.DataFrame:
    """Return when a thread certainly ran (it was sampled, or woke another): thread, act_ns; by act_ns."""
    issued = sched.filter((pl.col("event") != "switch") & (pl.col("prev") >= 0)).select(
        thread="prev", act_ns="ts_ns"
    )
    sampled = _usable_samples(trace).select("thread", act_ns="ts_ns")
    return pl.concat([issued, sampled]).drop_nulls().unique().sort("act_ns")


def sleeps(trace: Trace, window: Window) -> tuple[int, int]:
    """Return how many times threads slept and went on in the window, and how often a wake-up was recorded."""
    sched = chosen_events(trace, covers(trace)).with_row_index("_at")
    inside = sched.filter(pl.col("ts_ns").is_between(window.start_ns, window.end_ns))
    switch, asleep = pl.col("event") == "switch", ~pl.col("prev_state").is_in(["R", "X", "Z"])
    left = inside.filter(switch & (pl.col("prev") >= 0)).select(
        "_at", thread="prev", sleeps=asleep, woken=pl.lit(value=False)
    )
    came = inside.filter(pl.col("next") >= 0).select(
        "_at", thread="next", sleeps=pl.lit(value=False), woken=~switch
    )
    line = (
        pl.concat([left, came])
        .sort("thread", "_at")
        .with_columns(then=pl.col("woken").shift(-1).over("thread"))
    )
    ended = line.filter(pl.col("sleeps") & pl.col("then").is_not_null())["then"]
    return ended.len(), int(ended.sum())


def sampling(trace: Trace) -> tuple[int, int, int] | None:
    """Return (period, first, last) in ns of sampling by a clock, None = none.

    A thread that runs is sampled every period.
    """
    timed = _usable_samples(trace).filter(BY_CLOCK)
    if timed.is_empty():
        return None
    period, first, last = timed.select(
        pl.col("period").median(), a=pl.col("ts_ns").min(), b=pl.col("ts_ns").max()
    ).row(0)
    return round(period), first, last


def _usable_samples(trace: Trace) -> pl.DataFrame:
    untied = trace.sources.filter(pl.col("tied_by").fill_null("") == "untied")["source"]
    return trace.samples.filter(~pl.col("source").is_in(untied.implode()))


def event_keys(sched: pl.DataFrame) -> list[Ints]:
    """Return the events of threads as integers in order of thread, row of `sched` and kind.

    Each part holds some whole threads.
    """
    switch = (sched["event"] == "switch").to_numpy()
    before, after = (sched[c].fill_null(NONE).to_numpy() for c in ("prev", "next"))
    wakes = sched["event"].is_in(["wakeup", "waking", "wakeup_new"]).to_numpy()
    kinds = ((OUT, before, switch), (IN, after, switch), (WAKE, after, wakes))
    keys = np.concatenate(
        [_packed(kind, thread, np.flatnonzero(of & (thread >= 0))) for kind, thread, of in kinds]
    )
    keys.sort()
    thread = keys >> ROW + KIND
    return [keys[a:b] for a, b in whole_keys(thread)]


def _packed(kind: int, thread: NDArray[np.int32], rows: Ints) -> Ints:
    return (thread[rows].astype(np.int64) << ROW | rows) << KIND | kind


def with_neighbours(sched: pl.DataFrame) -> pl.DataFrame:
    """Add to each switch what the switches before and after it on its CPU say.

    Added: `left_broken`, `came_broken` (Boolean: the switch before tells of another thread than the one that
    left; the one after, of another than came), `idle_since` (Int64: since when the CPU had been idle by the
    switch before; null = it was not).

    A switch from nothing known to nothing known is a reader's mark that events of that CPU were lost before
    it: whoever was there before it, and whoever is there after it, may have come and gone in between.
    """
    rows = np.flatnonzero((sched["event"] == "switch").to_numpy() & sched["cpu"].is_not_null().to_numpy())
    rows = rows[key_by_key(sched["cpu"].gather(rows).to_numpy())]
    few = sched.select(
        pl.col("prev", "next").fill_null(NONE).gather(rows), pl.col("cpu", "segment", "ts_ns").gather(rows)
    )
    left, came, cpu, segment, ts = (few[c].to_numpy() for c in ("prev", "next", "cpu", "segment", "ts_ns"))
    same = (cpu[1:] == cpu[:-1]) & (segment[1:] == segment[:-1])  # as the one before
    mark = (left == NONE) & (came == NONE)
    idle = same & (came[:-1] == IDLE)
    other_left = mark[:-1] | ((came[:-1] >= 0) & (came[:-1] != left[1:]))
    other_came = mark[1:] | ((left[1:] != NONE) & (left[1:] != came[:-1]))
    left_broken, came_broken = np.zeros((2, sched.height), bool)
    left_broken[rows[1:]], came_broken[rows[:-1]] = same & other_left, same & other_came
    since = np.full(sched.height, NEVER)
    since[rows[1:][idle]] = ts[:-1][idle]
    return sched.with_columns(
        left_broken=pl.Series(left_broken),
        came_broken=pl.Series(came_broken),
        idle_since=pl.Series(since).set(pl.Series(since == NEVER), None),
    )


def events_of(keys: Ints, rows: pl.DataFrame, cover: pl.DataFrame) -> pl.DataFrame:
    """Return the events of some whole threads, each between a START and an END of its segment.

    Takes a part of :func:`event_keys`, and the frames of :func:`with_neighbours` and :func:`covers`.

    One row per event of a thread: `thread`, `segment` (Int32), `ts_ns` (Int64), `kind` (UInt8: START, OUT,
    IN, WAKE, END), `cpu` (Int32), `ready`, `asleep` (Boolean: it left in state R; in one that a wake-up
    ends), `broken` (Boolean: the CPU's neighbouring switch tells of another thread, so an event was lost),
    `idle_since` (Int64: of an OUT, since when the CPU had been idle by the switch before it: the thread's
    coming was not recorded; null = it was), `to_idle` (Boolean: an OUT to an idle CPU), `other` (Int32: the
    thread that came as this one left, or left as it came; null = none).

    Wake-ups of a thread that runs, that is ready, or that was woken before, change nothing and are dropped.
    """
    keys = _with_edges(keys, rows["segment"])
    threaded = rows.select(pl.all().gather((keys >> KIND) & (1 << ROW) - 1)).with_columns(
        thread=pl.Series((keys >> KIND + ROW).astype(np.int32)),
        kind=pl.Series((keys & EVERY_KIND).astype(np.uint8)),
    )
    spans = cover.group_by("segment").agg(pl.col("from_ns").min(), pl.col("until_ns").max()).sort("segment")
    kind, state = pl.col("kind"), pl.col("prev_state")
    left, came, edge = kind == OUT, kind == IN, kind.is_in([START, END])
    other = pl.when(left).then("next").when(came).then("prev")
    events = threaded.select(
        "thread",
        "segment",
        "kind",
        ts_ns=pl.when(kind == START)
        .then(_of_segment(spans["from_ns"]))
        .when(kind == END)
        .then(_of_segment(spans["until_ns"]))
        .otherwise("ts_ns"),
        cpu=pl.when(~edge).then("cpu"),
        ready=left & state.eq_missing("R"),
        asleep=left & (~state.is_in(["R", "X", "Z"])).fill_null(value=False) & pl.col("wakes"),
        broken=(left & pl.col("left_broken")) | (came & pl.col("came_broken")),
        idle_since=pl.when(left).then("idle_since"),
        to_idle=left & (pl.col("next") == IDLE).fill_null(value=False),
        other=pl.when(other >= 0).then(other),
    )
    before = kind.shift(1)
    off = (before == START) | ((before == OUT) & ~pl.col("ready").shift(1))
    return events.filter((kind != WAKE) | off)


def _of_segment(moments: pl.Series) -> pl.Expr:
    return pl.lit(moments).gather(pl.col("segment"))


def _with_edges(keys: Ints, segments: pl.Series) -> Ints:
    """Put a START before the first event of each thread and segment, and an END after the last."""
    thread, segment = keys >> KIND + ROW, segments.gather((keys >> KIND) & (1 << ROW) - 1).to_numpy()
    new = np.flatnonzero((thread[1:] != thread[:-1]) | (segment[1:] != segment[:-1])) + 1
    first, after = np.append(0, new), np.append(new, len(keys))
    starts, ends = keys[first] & ~EVERY_KIND | START, keys[after - 1] & ~EVERY_KIND | END
    return np.insert(keys, np.concatenate([after, first]), np.concatenate([ends, starts]))
