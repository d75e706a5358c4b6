"""Scheduler events, from the source that saw most at each time.

perf and ftrace may record the same switches: taking both would count them twice, so each stretch of time is left to one
source per machine, the one with most events in it. Where none records, chains of events are cut (`segment`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["acts", "chosen_events", "covers", "sampling"]

TIMED_EVENT = "^(?:cpu|task)-clock"

COVERS = pl.Schema(
    {"source": pl.Int32(), "from_ns": pl.Int64(), "until_ns": pl.Int64(), "segment": pl.Int32()}
)


def covers(trace: Trace) -> pl.DataFrame:
    """Return which source is used when.

    Sources that name a thread in common watched the same machine. One row per stretch: `source` (Int32), `from_ns`,
    `until_ns` (Int64, half-open), `segment` (Int32: the same for stretches of one machine that touch). Sorted by `segment`,
    `from_ns`. Sources on a clock of their own are left out if any other source has scheduler events.
    """
    untied = trace.sources.filter(pl.col("tied_by").fill_null("") == "untied")["source"].to_list()
    found = trace.sched["source"].unique().sort().to_list()
    rows: list[tuple[int, int, int, int]] = []
    for machine in _machines(trace.sched, [s for s in found if s not in untied] or found):
        segment, until = rows[-1][3] if rows else -1, None
        for source, a, b in _densest({source: _told_times(trace.sched, source) for source in machine}):
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


def _told_times(sched: pl.DataFrame, source: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    own = sched.filter(pl.col("source") == source)
    return own.filter(pl.col("event") != _spare_wake(own))["ts_ns"].to_numpy()


def _spare_wake(own: pl.DataFrame) -> str:
    """Return the wake-up event that says nothing new: `waking` comes before each `wakeup` where both are recorded."""
    return "waking" if (own["event"] == "wakeup").any() else "wakeup"


def _densest(times: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]]) -> list[tuple[int, int, int]]:
    """Return (source, from, until): between any two begins or ends of recordings, the source with most events there."""
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
        told = kept["event"].is_in(["wakeup", "waking"]).any()
        parts.append(kept.with_columns(segment=pl.lit(segment, pl.Int32), wakes=pl.lit(told)))
    none = trace.sched.clear().with_columns(segment=pl.lit(None, pl.Int32), wakes=pl.lit(None, pl.Boolean))
    return pl.concat([*parts, none], rechunk=True)


def acts(trace: Trace, sched: pl.DataFrame) -> pl.DataFrame:
    """Return moments at which a thread certainly ran (it was sampled, or it woke another): thread, act_ns, by act_ns."""
    issued = sched.filter((pl.col("event") != "switch") & (pl.col("prev") >= 0)).select(
        thread="prev", act_ns="ts_ns"
    )
    sampled = _usable_samples(trace).select("thread", act_ns="ts_ns")
    return pl.concat([issued, sampled]).drop_nulls().unique().sort("act_ns")


def sampling(trace: Trace) -> tuple[int, int, int] | None:
    """Return (period, first, last) in ns of sampling by time, None = none: a thread that runs is sampled every period."""
    timed = _usable_samples(trace).filter(
        pl.col("event").cast(pl.String).str.contains(TIMED_EVENT) & (pl.col("period") > 0)
    )
    if timed.is_empty():
        return None
    period, first, last = timed.select(
        pl.col("period").median(), a=pl.col("ts_ns").min(), b=pl.col("ts_ns").max()
    ).row(0)
    return round(period), first, last


def _usable_samples(trace: Trace) -> pl.DataFrame:
    untied = trace.sources.filter(pl.col("tied_by").fill_null("") == "untied")["source"]
    return trace.samples.filter(~pl.col("source").is_in(untied.implode()))
