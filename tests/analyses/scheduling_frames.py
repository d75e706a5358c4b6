"""Traces written by hand for the scheduler's analyses, and a slow second implementation of its states."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from itertools import pairwise

import polars as pl

from tracelib import schema
from tracelib.analyses.window import Window
from tracelib.trace import Trace

IDLE = schema.IDLE


def switch(
    ts: int, cpu: int, prev: int, state: str | None, after: int, source: int = 0
) -> tuple[object, ...]:
    return (source, ts, cpu, "switch", prev, state, after)


def loss(ts: int, cpu: int, source: int = 0) -> tuple[object, ...]:
    """Return a reader's mark that events of `cpu` were lost before `ts`."""
    return (source, ts, cpu, "switch", None, None, None)


def wakeup(
    ts: int, cpu: int, woken: int, waker: int = IDLE, source: int = 0, event: str = "wakeup"
) -> tuple[object, ...]:
    return (source, ts, cpu, event, waker, None, woken)


def trace(
    sched: list[tuple[object, ...]],
    samples: list[tuple[int, int]] = (),  # (time, thread)
    period: int | None = 2_000,
    roles: dict[int, str] | None = None,
    sources: int = 1,
) -> Trace:
    """Return a trace of scheduler events and CPU samples; threads are the numbers that occur."""
    numbers = {row[c] for row in sched for c in (4, 6)} | {thread for _, thread in samples}
    threads = sorted(n for n in numbers if n is not None and n >= 0)
    role = roles or {}
    return Trace.of(
        {
            "sched": pl.DataFrame(sched, schema=schema.SCHED, orient="row").sort(
                "ts_ns", maintain_order=True
            ),
            "samples": pl.DataFrame(
                [(0, thread, ts, 0, "cpu-clock", period, None) for ts, thread in samples],
                schema=schema.SAMPLES,
                orient="row",
            ),
            "threads": pl.DataFrame(
                [(n, "h", 1000 + n, 1000 + n, f"t{n}", None, role.get(n), None) for n in threads],
                schema=schema.THREADS,
                orient="row",
            ),
            "sources": pl.DataFrame(
                [{"source": s, "format": "perf", "tied_by": "declared"} for s in range(sources)],
                schema=schema.SOURCES,
            ),
        }
    )


def merged(told: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Join neighbouring rows of which nothing is known."""
    out: list[tuple[object, ...]] = []
    for row in told:
        if out and row[2] == "unknown" == out[-1][2]:
            out[-1] = (out[-1][0], *row[1:])
        else:
            out.append(row)
    return out


def window(start: int, end: int) -> Window:
    return Window(start, end, "test")


def rows(states: pl.DataFrame, thread: int) -> list[tuple[object, ...]]:
    """Return (ts, until, state, cpu, by, inferred) of one thread."""
    own = states.filter(pl.col("thread") == thread)
    return own.select(
        "ts_ns",
        (pl.col("ts_ns") + pl.col("dur_ns")).alias("until"),
        pl.col("state").cast(pl.String),
        "cpu",
        "by",
        "inferred",
    ).rows()


@dataclasses.dataclass
class Event:
    """Something that happened to a thread."""

    ts: int
    kind: str  # start, wake, in, out, end
    cpu: int | None = None
    state: str | None = None  # of an out
    lost: bool = False  # the CPU's neighbouring switch names another thread
    idle_since: int | None = None
    to_idle: bool = False
    other: int | None = None


def slow_states(of: Trace, first: int, last: int) -> list[tuple[object, ...]]:  # noqa: C901, PLR0912
    """Return (thread, ts, until, state, inferred), event by event, of a trace whose events are of one source.

    Written from ATTRIBUTION.md's "Scheduler states" and the bounds in thread_states' docstring, with loops
    and lists only. Throttling is not looked for. `first`, `last`: where the recording begins, and ends.
    """
    sched = list(of.sched.iter_rows(named=True))
    wake_kinds = (
        {"wakeup", "wakeup_new"} if any(r["event"] == "wakeup" for r in sched) else {"waking", "wakeup_new"}
    )
    wakes_recorded = any(r["event"] in ("wakeup", "waking") for r in sched)
    by_cpu: dict[int, list[int]] = defaultdict(list)
    for n, row in enumerate(sched):
        if row["event"] == "switch":
            by_cpu[row["cpu"]].append(n)
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for numbers in by_cpu.values():
        for a, b in pairwise(numbers):
            after[a], before[b] = b, a

    events: dict[int, list[Event]] = defaultdict(list)
    for n, row in enumerate(sched):
        if row["event"] == "switch":
            then, ago = sched[after[n]] if n in after else None, sched[before[n]] if n in before else None
            if row["prev"] is not None and row["prev"] >= 0:
                from_idle = ago is not None and ago["next"] == IDLE
                events[row["prev"]].append(
                    Event(
                        row["ts_ns"],
                        "out",
                        row["cpu"],
                        row["prev_state"],
                        to_idle=row["next"] == IDLE,
                        lost=ago is not None and not from_idle and _disagree(ago, ago["next"], row["prev"]),
                        idle_since=ago["ts_ns"] if ago is not None and from_idle else None,
                    )
                )
            if row["next"] is not None and row["next"] >= 0:
                lost = then is not None and _disagree(then, then["prev"], row["next"])
                events[row["next"]].append(Event(row["ts_ns"], "in", row["cpu"], lost=lost))
        elif row["event"] in wake_kinds and row["next"] is not None and row["next"] >= 0:
            events[row["next"]].append(Event(row["ts_ns"], "wake", row["cpu"]))

    acts: dict[int, list[int]] = defaultdict(list)
    for row in sched:
        if row["event"] in wake_kinds and row["prev"] is not None and row["prev"] >= 0:
            acts[row["prev"]].append(row["ts_ns"])
    samples = list(of.samples.iter_rows(named=True))
    for row in samples:
        acts[row["thread"]].append(row["ts_ns"])
    timed = sorted(r["ts_ns"] for r in samples if r["period"] and str(r["event"]).startswith("cpu-clock"))
    period = round(of.samples["period"].median()) if timed else None  # type: ignore[arg-type]

    chains: list[tuple[int, list[Event]]] = []
    for thread, told in events.items():
        chain = [Event(first, "start")]
        for event in told:
            if event.kind == "wake":
                here = chain[-1]
                if here.kind in ("in", "wake") or (here.kind == "out" and here.state == "R"):
                    continue
            chain.append(event)
        chain.append(Event(last, "end"))
        chains.append((thread, chain))
    out: list[tuple[object, ...]] = []
    for thread, chain in chains:
        for a, b in pairwise(chain):
            inside = [t for t in sorted(acts[thread]) if a.ts < t < b.ts]
            for ts, until, state, inferred in _between(a, b, inside, timed, period, wakes_recorded):
                if until > ts:
                    out.append((thread, ts, until, state, inferred))
    return sorted(out)  # type: ignore[type-var]


def _disagree(neighbour: dict[str, object], told: object, thread: int) -> bool:
    """Whether events of the CPU were lost between a switch and its neighbour, which `told` of some other
    thread.
    """
    marks_a_loss = neighbour["prev"] is None and neighbour["next"] is None
    return marks_a_loss or (told is not None and told != thread)


def _between(
    a: Event,
    b: Event,
    acts: list[int],
    timed: list[int],
    period: int | None,
    wakes_recorded: bool,  # noqa: FBT001
) -> list[tuple[int, int, str, bool]]:
    """Return (from, until, state, inferred) between two events of a thread."""
    sleeps = a.kind == "out" and a.state not in (None, "R", "X", "Z") and wakes_recorded
    waits = a.kind == "wake" or (a.kind == "out" and a.state == "R")
    if a.kind == "in":
        good = not a.lost and (b.kind == "end" or (b.kind == "out" and not b.lost and a.cpu == b.cpu))
        return [(a.ts, b.ts, "running" if good else "unknown", False)]
    if b.kind == "in":
        return [(a.ts, b.ts, "runnable" if waits else "unknown", False)]
    if b.kind == "wake":
        return [(a.ts, b.ts, "blocked" if sleeps else "unknown", False)]
    if b.kind == "out" and b.lost:
        return [(a.ts, b.ts, "unknown", False)]

    came = b.kind == "out" or bool(acts)
    if not came and sleeps:
        return [(a.ts, b.ts, "blocked", False)]
    latest = acts[0] if acts else b.ts
    earliest = a.ts if b.idle_since is None else max(a.ts, b.idle_since)
    if period is not None and timed[0] <= a.ts and latest <= timed[-1] + period:
        earliest = max(earliest, latest - 2 * period)
    earliest = min(earliest, latest)
    idle_at_wake = a.kind == "wake" and b.idle_since is not None and b.idle_since <= a.ts and a.cpu == b.cpu
    at_once = idle_at_wake and earliest == a.ts
    return [
        (a.ts, earliest, "runnable" if waits else "unknown", waits),
        (earliest, latest, "running" if at_once else "unknown", at_once),
        (latest, b.ts, "running", True),
    ]
