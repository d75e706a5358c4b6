"""The second implementation of who sent whom messages, and of which processes are one replica.

As :mod:`second_ledgers`, of which it is a part, written from docs/numbers.md, "Ledger 2".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from tracelib.classify import slice_causes
from tracelib.slice_rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from second_ledgers import Meeting

    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

Row = dict[str, Any]
Message = tuple[int, int, int, str]  # from, until, thread, direction
Process = tuple[str | None, int | None, int | None]

SERVER = ("api_server", "engine", "worker")
#: Messages prove whose they are if no others came nearly as shortly before.
CLOSER = 2


def process_of(row: Row) -> Process:
    """Return what tells a thread's process from others."""
    return row["host"], row["pid"], row["thread"] if row["pid"] is None else None


def messages(trace: Trace, window: Window) -> list[Message]:
    """Return what was sent and taken in the window; of one inside another of its kind the outer."""
    meanings = {
        (r["name"], r["category"]): r for r in slice_causes(trace.slices, load_rules()).iter_rows(named=True)
    }
    found: dict[tuple[int, str], list[Message]] = defaultdict(list)
    for row in trace.slices.iter_rows(named=True):
        told, thread = meanings[row["name"], row["category"]], row["thread"]
        a, b = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
        inside = a < b and a < window.end_ns and b > window.start_ns
        if thread is not None and inside and not told["weak"] and told["direction"]:
            found[thread, told["direction"]].append((a, b, thread, told["direction"]))
    out: list[Message] = []
    for own in found.values():
        reach = None
        for message in sorted(own, key=lambda m: (m[0], -m[1])):
            if reach is None or message[1] > reach:
                out.append(message)
                reach = message[1]
    return sorted(out)


# --------------------------------------------------------------------------------------------------- replicas
def replicas(trace: Trace, sent: list[Message], met: list[Meeting]) -> list[set[int]]:
    """Return the threads of each replica; those of all, if there is one."""
    rows = [row for row in trace.threads.iter_rows(named=True) if row["role"] in SERVER]
    of: dict[Process, list[Row]] = defaultdict(list)
    for row in rows:
        of[process_of(row)].append(row)
    roles = {role: [p for p, own in of.items() if any(r["role"] == role for r in own)] for role in SERVER}
    numbers = {p: _number(own) for p, own in of.items()}
    teams = _teams(trace, roles["worker"], numbers, met)
    place = {row["thread"]: process_of(row) for row in rows}

    def narrowed(
        candidates: list[Process], near: list[Process], kinds: tuple[str, str] | None
    ) -> list[Process]:
        same = [c for c in candidates if numbers[c] is not None and numbers[c] in {numbers[p] for p in near}]
        candidates = same or candidates
        candidates = [c for c in candidates if c[0] in {p[0] for p in near}] or candidates
        return _by_messages(candidates, near, kinds, sent, place) if kinds else candidates

    groups: dict[Any, tuple[list[Process], list[Process]]] = {}
    for team in teams:
        engines = narrowed(roles["engine"], team, ("enqueue", "dequeue"))
        ranks = [row["rank"] for p in team for row in of[p][:1]]
        alike = (frozenset(numbers[p] for p in team), frozenset(p[0] for p in team))
        by = (
            engines[0] if len(engines) == 1 else (alike if not engines and None not in ranks else tuple(team))
        )
        members = groups.setdefault(by, ([], engines))[0]
        members += team
    if len(groups) < 2:
        return [set(trace.threads["thread"])]
    out = []
    apart = 1 < len(roles["engine"]) <= len(roles["api_server"])
    for team, engines in groups.values():
        front = narrowed(roles["api_server"], engines or team, None)
        front = _by_messages(front, engines, ("send", "recv"), sent, place) if apart else front
        own = {*team, *engines, *front}
        out.append({row["thread"] for row in rows if process_of(row) in own})
    return out


def _number(own: list[Row]) -> int | None:
    texts = " ".join(f"{row['name'] or ''} {row['process'] or ''}" for row in own)
    found = [int(n) for n in re.findall(r"DP_?(\d+)", texts)]
    return max(found, default=None)


def _teams(
    trace: Trace, workers: list[Process], numbers: dict[Process, int | None], met: list[Meeting]
) -> list[list[Process]]:
    """Workers whose collectives meet are of one team, unless their names carry different numbers."""
    host = {row["gpu"]: row["host"] for row in trace.gpus.iter_rows(named=True)}
    drives = defaultdict(set)
    for gpu, pid in trace.gpu_ops.select("gpu", "pid").unique().iter_rows():
        drives[gpu] |= {p for p in workers if p[:2] == (host.get(gpu), pid)}
    team = {p: {p} for p in workers}
    events = defaultdict(set)
    for meeting in met:
        if meeting.last is not None:
            events[meeting.event] |= drives[meeting.gpu]
    for together in {frozenset(event) for event in events.values()}:
        for a, b in pairwise(sorted(together, key=str)):
            if numbers[a] == numbers[b] and team[a] is not team[b]:
                joined = team[a] | team[b]
                team.update(dict.fromkeys(joined, joined))
    return [sorted(own, key=str) for own in {id(own): own for own in team.values()}.values()]


def _by_messages(
    candidates: list[Process],
    near: Iterable[Process],
    kinds: tuple[str, str],
    sent: list[Message],
    place: dict[int, Process],
) -> list[Process]:
    """Keep the process whose messages came shortest before the ends of those that were taken."""
    if len(candidates) < 2:
        return candidates
    ends = [b for _, b, thread, kind in sent if kind == kinds[1] and place.get(thread) in near]
    lags = {}
    for candidate in candidates:
        begins = [a for a, _, thread, kind in sent if kind == kinds[0] and place.get(thread) == candidate]
        before = [end - begins[at - 1] for end in ends if (at := bisect_right(begins, end))]
        lags[candidate] = median(before) if before else float("inf")
    first, second = sorted(lags.values())[:2]
    return [c for c in candidates if lags[c] == first] if first * CLOSER < second else candidates
