"""The second implementation of which of its thread's time a sample tells of, and what it says of that.

As :mod:`second_ledgers`, of which it is a part, written from docs/numbers.md, "Ledger 3".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from second_lines import Doing, Span, cut
from second_replicas import SERVER

from tracelib.classify import sample_causes
from tracelib.slice_rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

Row = dict[str, Any]
#: Periods of its thread's own time on a CPU up to which a sample tells.
REACH = 2
BETWEEN = "between launches"


class Sampled(NamedTuple):
    """What the samples say per thread, how much each says, and when each was taken, by its number."""

    said: dict[int, list[Span]]
    tiers: dict[int, list[Span]]
    taken: dict[int, int]


def sampled(trace: Trace, window: Window, states: dict[int, list[Span]]) -> Sampled:
    """Return what samples say; numbers of samples are negative, so that no slice has one."""
    rows = sample_causes(trace.samples, trace.threads, trace.stacks, load_rules())
    rows = rows.sort("ts_ns", maintain_order=True)
    between = _between(rows)
    threads: dict[int, list[Row]] = defaultdict(list)
    for n, row in enumerate(rows.iter_rows(named=True)):
        stands = row["period"] if "clock" in (row["event"] or "") else between
        threads[row["thread"]].append({**row, "stands": stands, "n": -1 - n})
    out = Sampled(defaultdict(list), defaultdict(list), {})
    for thread, own in threads.items():
        says = {row["n"]: _says(row, own[max(0, k - 1) : k + 2]) for k, row in enumerate(own)}
        tier = {row["n"]: row["tier"] for row in own}
        out.taken.update((row["n"], row["ts_ns"]) for row in own)
        spans = (*_by_clock(own, states.get(thread, [])), *_by_turns(own, states.get(thread, [])))
        for begin, end, n in sorted(spans):
            a, b = max(begin, window.start_ns), min(end, window.end_ns)
            if a < b:
                out.tiers[thread].append((a, b, tier[n]))
                if says[n]:
                    out.said[thread].append((a, b, says[n]))
    return out


def _says(row: Row, beside: list[Row]) -> Doing | None:
    """Return what a sample says; `beside` are it, the one before and the one after it."""
    awaits = {"yield": ("ipc", "wait"), "poll": ("ipc", "wait"), "device_wait": ("sync", None)}
    cause, sub = row["cause"], row["sub_cause"]
    if cause == "spin":
        cause, sub = awaits.get(sub, (None, None))
    nothing = row["cause"] is None and row["stack"] is not None
    nothing |= cause == "other" and sub in ("python", "kernel")
    polls = any(
        r["cause"] == "spin" or (r["cause"], r["sub_cause"]) == ("ipc", "wait")
        for r in beside
        if r is not row
    )
    if (cause, sub) == ("kernel_launch", "dispatch") or (nothing and row["role"] in SERVER and not polls):
        cause, sub = "host_work", BETWEEN
    return None if cause in (None, "other") else Doing(cause, sub, None, row["n"])


def _by_clock(own: list[Row], states: list[Span]) -> Iterator[Span]:
    """Where nobody knows whether the thread ran, a sample tells of the time since the one before it."""
    for before, row in pairwise([None, *own]):
        begin = row["ts_ns"] - row["stands"]
        begin = max(begin, before["ts_ns"]) if before else begin
        for a, b, state in cut(states, begin, row["ts_ns"]):
            if state in (None, "unknown"):
                yield a, b, row["n"]


def _by_turns(own: list[Row], states: list[Span]) -> Iterator[Span]:
    """A moment on a CPU goes to the sample nearest in the thread's own time, and so does waiting for it."""
    known = _own_time(states)
    begins = [a for a, _, _ in states]
    places: dict[int, dict[int, Row]] = defaultdict(dict)
    for row in own:
        last = bisect_left(begins, row["ts_ns"]) - 1
        if last < 0 or known[last] is None:
            continue
        (a, b, state), (line, at) = states[last], known[last]
        into = min(row["ts_ns"], b) - a if state == "running" else 0
        places[line].setdefault(at + into, row)
    reaches = {line: list(_reaches(sorted(of.items()))) for line, of in places.items()}
    for (a, b, state), where in zip(states, known, strict=True):
        if where is not None:
            yield from _told(a, b, state, where[1], reaches.get(where[0], []))


def _own_time(states: list[Span]) -> list[tuple[int, int] | None]:
    """Return of each state how long the thread had been on a CPU, and since which gap in what is known."""
    line = spent = 0
    out: list[tuple[int, int] | None] = []
    for a, b, state in states:
        line += state == "unknown"
        out.append(None if state == "unknown" else (line, spent))
        spent += b - a if state == "running" else 0
    return out


def _told(a: int, b: int, state: str, at: int, reaches: list[Span]) -> Iterator[Span]:
    first = max(0, bisect_left(reaches, at, key=lambda reach: reach[1]) - 1)
    for low, high, n in reaches[first:]:
        if low > at + b - a:
            return
        if state == "running":
            x, y = max(low, at), min(high, at + b - a)
            if x < y:
                yield a + x - at, a + y - at, n
        elif state in ("runnable", "throttled") and low <= at < high:
            yield a, b, n


def _reaches(places: list[tuple[int, Row]]) -> Iterator[Span]:
    for k, (at, row) in enumerate(places):
        reach = REACH * row["stands"]
        low = max(at - reach, (places[k - 1][0] + at) // 2) if k else at - reach
        high = min(at + reach, (places[k + 1][0] + at) // 2) if k + 1 < len(places) else at + reach
        yield low, high, row["n"]


def _between(rows: pl.DataFrame) -> int:
    """Return the median time between two samples in a row on one CPU, if of one thread."""
    last: dict[int, tuple[int, int]] = {}
    gaps = []
    for thread, cpu, at in rows.select("thread", "cpu", "ts_ns").iter_rows():
        if cpu in last and last[cpu][0] == thread:
            gaps.append(at - last[cpu][1])
        last[cpu] = thread, at
    return round(median(gaps)) if gaps else 0
