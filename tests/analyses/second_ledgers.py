"""A second, slow, obvious implementation of Ledgers 1 and 2: loops over sorted lists, written from
ATTRIBUTION.md.

It shares with tracelib the tables of what a name means (that is data) and the frame of thread states (which
has a second implementation of its own, in scheduling_frames.py). Samples tell what a thread did where no
slice covers it; second_inside.py looks with them into long slices, second_upstream.py follows waits,
second_replicas.py says who belongs together.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from second_inside import Inside, marked
from second_lines import Doing, Span, covered, cut, merged
from second_replicas import SERVER, messages, replicas
from second_samples import BETWEEN, sampled
from second_upstream import ABOVE, Upstream

from tracelib.classify import slice_causes
from tracelib.slice_rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

PEERS = ("send", "recv", "send_recv")
COPIES = ("memcpy", "memset")
Row = dict[str, Any]
#: A slice that may hide a wait is one from so many times the median of its name on, where no scheduler event
#: tells.
MANY_TIMES, LONG_NS = 10, 1_000_000
#: A loop asks again within so long.
POLL_NS = 200_000
WORKING = ("compute", "copy", "collective_transfer", "collective")

Row = dict[str, Any]


# --------------------------------------------------------------------------------------------------- Ledger 1
@dataclass
class Meeting:
    """A collective on one GPU, and the moment at which the last rank of its group arrived."""

    gpu: int
    start: int
    stop: int
    last: int | None  # None: the ranks could not be matched
    straggler: int | None
    event: int


def meetings(ops: list[Row]) -> list[Meeting]:
    """Pair each group's collectives: those that are open at the same time on all ranks, in their order.

    Transfers between two ranks are not paired, nor what a rank of the group is missing of.
    """
    groups: dict[Any, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for op in sorted(ops, key=lambda op: op["ts_ns"]):
        if op["collective"]:
            groups[op["group"]][op["gpu"]].append(op)
    out: list[Meeting] = []
    events = count()
    for ranks in groups.values():
        heads = dict.fromkeys(ranks, 0)
        while True:
            open_ = {g: ranks[g][heads[g]] for g in ranks if heads[g] < len(ranks[g])}
            if not open_:
                break
            last = max(op["ts_ns"] for op in open_.values())
            first_end = min(open_, key=lambda g: open_[g]["ts_ns"] + open_[g]["dur_ns"])
            members = open_[first_end]["group_size"] or len(ranks)
            met = (
                len(ranks) > 1
                and len(open_) == len(ranks) == members
                and not any(op["collective"] in PEERS for op in open_.values())
                and last <= open_[first_end]["ts_ns"] + open_[first_end]["dur_ns"]
            )
            event = next(events)
            for gpu in list(open_) if met else [first_end]:
                op = open_[gpu]
                late = max(open_, key=lambda g: (open_[g]["ts_ns"], g))
                end = op["ts_ns"] + op["dur_ns"]
                out.append(
                    Meeting(gpu, op["ts_ns"], end, last if met else None, late if met else None, event)
                )
                heads[gpu] += 1
    return out


def gpu_states(trace: Trace, window: Window) -> dict[int, list[Span]]:
    """Return (from, until, state) per GPU."""
    ops = list(trace.gpu_ops.iter_rows(named=True))
    classes: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        if not op["collective"]:
            state = "copy" if op["kind"] in COPIES else "compute"
            classes[op["gpu"]][state].append((op["ts_ns"], op["ts_ns"] + op["dur_ns"]))
    for m in meetings(ops):
        own = classes[m.gpu]
        if m.last is None:
            own["collective"].append((m.start, m.stop))
        else:
            arrived = min(m.last, m.stop)
            own["collective_wait"].append((m.start, arrived))
            own["collective_transfer"].append((arrived, m.stop))
    return {gpu: _by_rank(own, window) for gpu, own in sorted(classes.items())}


def _by_rank(own: dict[str, list[tuple[int, int]]], window: Window) -> list[Span]:
    changes: dict[int, Counter[str]] = defaultdict(Counter)
    for state, spans in own.items():
        for a, b in spans:
            begin, end = max(a, window.start_ns), min(b, window.end_ns)
            if begin < end:
                changes[begin][state] += 1
                changes[end][state] -= 1
    changes[window.start_ns].update()
    changes[window.end_ns].update()
    running: Counter[str] = Counter()
    out: list[Span] = []
    times = sorted(changes)
    for a, b in pairwise(times):
        for state, change in changes[a].items():
            running[state] += change
        order = ("compute", "copy", "collective_transfer", "collective", "collective_wait")
        out.append((a, b, next((state for state in order if running[state]), "idle")))
    return merged(out)


# ----------------------------------------------------------------------------------- what threads were doing
def doing(
    trace: Trace,
    window: Window,
    states: dict[int, list[Span]],
    launched: dict[int, list[int]],
    teams: list[set[int]],
) -> dict[int, list[Span]]:
    """Return (from, until, Doing) per thread: its innermost slice that has a meaning of its own.

    `launched` is when each thread began its launches, `teams` are the threads of each replica.
    """
    threads = _slices(trace, window)
    number = trace.slices.height
    ends = _ends(trace, teams)
    told, first_span = {}, number
    for thread, rows in threads.items():
        spans = list(marked(rows, launched.get(thread, []), number))
        number += len(spans)
        rows += [row for row in spans if row["end"] > window.start_ns and row["begin"] < window.end_ns]
        own = [row for row in rows if row["cause"]]
        told[thread] = _doing(own, window, states.get(thread, []), ends[thread]) if own else []
    samples = sampled(trace, window, states)
    taken = samples.taken
    seen: dict[int, list[Span]] = {}
    for thread in {*told, *samples.said}:
        line, slices = told.get(thread, []), {row["n"]: row for row in threads[thread]}
        waiting = [
            (a, b, _waiting_too(what, taken[what.which], line, slices))
            for a, b, what in samples.said.get(thread, [])
        ]
        # An unnamed range in which the sample was not taken is not what it saw.
        seen[thread] = [
            (x, y, what)
            for a, b, what in waiting
            for x, y, at in cut(line, a, b)
            if at is None or at.sub != BETWEEN or _holds(slices[at.which], taken[what.which])
        ]
        told[thread] = _polled(_layered(line, seen[thread], first_span, slices))
    roles = {row["thread"]: row["role"] for row in trace.threads.iter_rows(named=True)}
    compilers = covered(
        [
            span
            for thread, spans in seen.items()
            for span in spans
            if span[2].sub == "jit_compile" and thread not in _server(trace)
        ]
    )
    for thread, line in told.items():
        earned = _earned(line, thread, launched, states.get(thread, []), roles)
        names = {row["n"]: row["name"] for row in threads[thread]}
        inside = Inside(seen[thread], samples.tiers[thread], states.get(thread, []), compilers)
        told[thread] = merged(inside.refine(earned, names) if samples.said else earned)
    return told


def _holds(row: Row, at: int) -> bool:
    return row["begin"] <= at <= row["end"]


def _slices(trace: Trace, window: Window) -> dict[int, list[Row]]:
    """Return the host slices per thread with what they mean, those without a meaning, too."""
    meanings = {
        (r["name"], r["category"]): r for r in slice_causes(trace.slices, load_rules()).iter_rows(named=True)
    }
    threads: dict[int, list[Row]] = defaultdict(list)
    aside = _helpers(trace)
    for n, row in enumerate(_on_threads(list(trace.slices.iter_rows(named=True)))):
        if row["thread"] in aside:
            continue
        end = row["ts_ns"] + row["dur_ns"]
        told = dict(meanings[row["name"], row["category"]])
        if told["between_launches"]:
            told["sub_cause"] = BETWEEN
        if told["long_ns"] is not None and row["dur_ns"] >= told["long_ns"]:
            told["cause"], told["sub_cause"] = told["long_cause"], told["long_sub_cause"]
            told["waits_for"] = told["waits_for"] if told["cause"] == "ipc" else None
        inside = row["dur_ns"] and end > window.start_ns and row["ts_ns"] < window.end_ns
        cause = told["cause"] if inside else None
        threads[row["thread"]].append(
            {**told, "cause": cause, "begin": row["ts_ns"], "end": end, "n": n, "name": row["name"]}
        )
    return threads


def _waiting_too(what: Doing, at: int, line: list[Span], slices: dict[int, Row]) -> Doing:
    """A sample that names no work, taken in a slice that waits, waits like that."""
    if what.sub != BETWEEN and (what.cause, what.sub) != ("ipc", "wait"):
        return what
    inside = next(cut(line, at, at + 1))[2]
    row = slices[inside.which] if inside else None
    if row is None or not row["waits_for"]:
        return what
    return Doing(row["cause"], row["sub_cause"], row["waits_for"], what.which)


def _layered(line: list[Span], seen: list[Span], first_span: int, slices: dict[int, Row]) -> list[Span]:
    """Return what slices say, and samples where these say nothing or leave it open."""

    def strong(what: Doing) -> bool:
        return not slices[what.which]["weak"]

    def faint(what: Doing) -> bool:
        return what.sub == BETWEEN or what.waits_for is not None

    layers = [
        [s for s in line if strong(s[2])],
        [s for s in line if s[2].which < first_span and s[2].sub != BETWEEN],
        [s for s in seen if not faint(s[2])],
        [s for s in line if s[2].which >= first_span],
        line,
        [s for s in seen if faint(s[2])],
    ]
    whole: list[Span] = []
    for layer in layers:
        free = [(x, y, what) for a, b, what in layer for x, y, full in cut(whole, a, b) if full is None]
        whole = sorted(whole + free, key=lambda span: span[:2])
    return whole


def _polled(line: list[Span]) -> list[Span]:
    """Between two polls without a gap, what no slice names for a moment is the loop around them."""
    out = list(line)
    for k in range(1, len(line) - 1):
        (_, before, asked), (a, b, what), (after, _, again) = line[k - 1 : k + 2]
        short = (what.sub == BETWEEN or what.which < 0) and b - a < POLL_NS
        if short and before == a and after == b and asked.waits_for and again.waits_for:
            out[k] = (a, b, what._replace(cause=asked.cause, sub=asked.sub, waits_for=asked.waits_for))
    return out


def _server(trace: Trace) -> set[int]:
    return {row["thread"] for row in trace.threads.iter_rows(named=True) if row["role"] in SERVER}


def bursts(begins: list[int], states: list[Span]) -> list[Span]:
    """Return the stretches between two launches that are close together, time without a CPU left out."""
    gaps = []
    for a, b in pairwise(begins):
        off = sum(y - x for x, y, s in cut(states, a, b) if s in ("runnable", "throttled"))
        gaps.append((a, b, b - a - off))
    longest = min(MANY_TIMES * median(own for *_, own in gaps), LONG_NS) if gaps else 0
    return [(a, b, True) for a, b, own in gaps if own < longest]


def _earned(
    line: list[Span],
    thread: int,
    launched: dict[int, list[int]],
    states: list[Span],
    roles: dict[int, str | None],
) -> list[Span]:
    """Decide what is dispatch: between launches of a burst, and nothing on threads that launch nothing."""
    role = roles.get(thread)
    close = bursts(launched.get(thread, []), states)
    out: list[Span] = []
    for a, b, what in line:
        dispatch = (what.cause, what.sub) == ("kernel_launch", "dispatch")
        unowned = (what.cause, what.sub) == ("host_work", None)
        if what.sub != BETWEEN and not (dispatch and thread not in launched) and not unowned:
            out.append((a, b, what))
            continue
        for x, y, burst in cut(close, a, b):
            cause, sub = (
                ("kernel_launch", "dispatch") if burst and not unowned else ("host_work", role or "other")
            )
            out.append((x, y, what._replace(cause=cause, sub=sub)))
    return out


def _helpers(trace: Trace) -> set[int]:
    """Return the threads for which nobody waits: what they do says nothing of their process."""
    aside = set()
    for row in trace.threads.iter_rows(named=True):
        rule = next((r for r in load_rules().threads if re.search(r.name, row["name"] or "")), None)
        if rule and rule.cause in ("spin", "other"):
            aside.add(row["thread"])
    return aside


def _ends(trace: Trace, teams: list[set[int]]) -> dict[int, dict[str, list[int]]]:
    """Return per thread, and per word for whom a slice of it may wait, when those ended a slice of theirs."""
    role = {row["thread"]: row["role"] for row in trace.threads.iter_rows(named=True)}
    team = {thread: n for n, own in reversed(list(enumerate(teams))) for thread in own}
    by_role: dict[int | None, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in trace.slices.iter_rows(named=True):
        thread = row["thread"]
        for n, own in enumerate(teams):
            if thread in own and role.get(thread):
                by_role[n][role[thread]].append(row["ts_ns"] + row["dur_ns"])
    for of in by_role.values():
        for ended in of.values():
            ended.sort()
    return {
        thread: {
            **by_role[team.get(thread)],
            "upstream": by_role[team.get(thread)].get(ABOVE.get(own or "", ""), []),
        }
        for thread, own in role.items()
    }


def _waited_until(top: Row, ended: list[int]) -> int:
    """A wait that no scheduler event shows lasts until the last thing in it that whom it waits for ended."""
    if not ended:
        return top["end"]
    last = bisect_right(ended, top["end"]) - 1
    return max(top["begin"], ended[last]) if last >= 0 else top["begin"]


def _on_threads(rows: list[Row]) -> Iterator[Row]:
    """Yield host slices; the recorder's overhead, without a thread, goes to the call in which it lies."""
    calls = defaultdict(list)
    for row in rows:
        if row["category"] in ("runtime", "driver") and row["thread"] is not None:
            calls[row["source"]].append(row)
    for own in calls.values():
        own.sort(key=lambda row: row["ts_ns"])
    for row in rows:
        if row["category"] == "gpu_annotation":
            continue
        if row["thread"] is not None:
            yield row
            continue
        own = calls[row["source"]]
        at = bisect_right(own, row["ts_ns"], key=lambda call: call["ts_ns"]) - 1
        if at >= 0 and own[at]["ts_ns"] + own[at]["dur_ns"] > row["ts_ns"]:
            yield {**row, "thread": own[at]["thread"]}


def _doing(  # noqa: C901  (as plain as can be)
    rows: list[Row], window: Window, states: list[Span], ends: dict[str, list[int]]
) -> list[Span]:
    times = sorted(
        {max(r["begin"], window.start_ns) for r in rows} | {min(r["end"], window.end_ns) for r in rows}
    )
    begins = sorted(rows, key=lambda r: r["begin"])
    seen: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row["may_wait_for"]:
            seen[row["name"]].append(row["end"] - row["begin"])
    typical = {name: median(lengths) for name, lengths in seen.items()}
    open_: list[Row] = []
    out: list[Span] = []
    coming = 0
    for a, b in pairwise(times):
        while coming < len(begins) and begins[coming]["begin"] <= a:
            open_.append(begins[coming])
            coming += 1
        open_ = [row for row in open_ if row["end"] > a]
        counted = _without_means([row for row in open_ if not row["weak"]]) or open_
        if not counted:
            continue
        top = max(counted, key=_innermost)
        covers = [row for row in open_ if row["covers"]]
        if covers and not top["weak"] and top["cause"] != "profiler":
            over = max(covers, key=_innermost)
            out.append((a, b, Doing(over["cause"], over["sub_cause"], over["waits_for"], top["n"])))
            continue
        for x, y, state in cut(states, a, b) if top["may_wait_for"] else [(a, b, None)]:
            long = top["end"] - top["begin"]
            guess = (
                state in (None, "unknown")
                and long >= LONG_NS
                and (
                    long > MANY_TIMES * typical.get(top["name"], 0) or typical.get(top["name"], 0) >= LONG_NS
                )
            )
            until = x
            if state == "blocked":
                until = y
            elif top["may_wait_for"] and guess:
                until = max(x, min(y, _waited_until(top, ends.get(top["may_wait_for"], []))))
            for c, d, waits in ((x, until, True), (until, y, False)):
                whom = top["may_wait_for"] if waits else top["waits_for"]
                if c < d:
                    out.append((c, d, Doing(top["cause"], top["sub_cause"], whom, top["n"])))
    return merged(out)


def _without_means(open_: list[Row]) -> list[Row]:
    """Leave out collectives over the CPU by which a receive around them gets what it waits for."""
    others = [row for row in open_ if row["sub_cause"] != "cpu_collective"]
    return others if others and max(others, key=_innermost)["waits_for"] else open_


def _innermost(row: Row) -> tuple[int, int, int]:
    """Of the open slices, the one that began last; the shorter of two that began together; then the later
    row.
    """
    return row["begin"], row["begin"] - row["end"], row["n"]


# --------------------------------------------------------------------------------------------------- Ledger 2
class Blame:
    """Who held a GPU up, moment by moment."""

    def __init__(self, trace: Trace, window: Window, thread_states: pl.DataFrame) -> None:
        self.window = window
        self.cpu: dict[int, list[Span]] = defaultdict(list)
        for row in thread_states.sort("thread", "ts_ns").iter_rows(named=True):
            self.cpu[row["thread"]].append((row["ts_ns"], row["ts_ns"] + row["dur_ns"], row["state"]))
        self.ops = [
            r for r in trace.gpu_ops.iter_rows(named=True) if window.start_ns <= r["ts_ns"] < window.end_ns
        ]
        self.calls = _launch_calls(trace)
        called = [call for op in self.ops if (call := self._call(op))]
        self.of_call: dict[int, list[Row]] = defaultdict(list)
        for op in self.ops:
            self.of_call[id(self._call(op))].append(op)
        launched: dict[int, list[int]] = defaultdict(list)
        for thread, at in sorted({(call["thread"], call["ts_ns"]) for call in called}):
            launched[thread].append(at)
        self.states = gpu_states(trace, window)
        self.met_: dict[int, list[Meeting]] = {}
        self.meetings = meetings(list(trace.gpu_ops.iter_rows(named=True)))
        sent = messages(trace, window)
        teams = replicas(trace, sent, self.meetings)
        self.doing = doing(trace, window, self.cpu, dict(launched), teams)
        self.replicas = [Upstream(trace, window, own, self.doing, self.cpu, sent) for own in teams]
        self.bound = self._latency(trace)
        self.held = {gpu: self._crossed(self._idle(gpu)) for gpu in self.states}

    def ledger(self, gpu: int) -> list[Span]:
        """Return (from, until, (lost, cause, sub-cause, CPU state)) of every nanosecond that the GPU lost."""
        out: list[Span] = []
        out += [(a, b, ("idle", *what)) for a, b, what in self.held[gpu]]
        out += [(a, b, ("collective_wait", *what)) for a, b, what in self._waiting(gpu)]
        return merged(out)

    def _crossed(self, told: list[Span]) -> list[Span]:
        """Add the CPU state of the blamed thread, in its place."""
        return [
            (x, y, (cause, sub, state or "unknown"))
            for a, b, (cause, sub, thread) in told
            for x, y, state in cut(self.cpu.get(thread, []), a, b)
        ]

    def _idle(self, gpu: int) -> list[Span]:
        own = [op for op in self.ops if op["gpu"] == gpu]
        launched = Counter(call["thread"] for op in own if (call := self._call(op)))
        most = max(launched, key=lambda t: (launched[t], t), default=None)
        starts: dict[int, list[Row]] = defaultdict(list)
        for op in own:
            starts[op["ts_ns"]].append(op)
        out: list[Span] = []
        for g0, g1, state in self.states[gpu]:
            if state != "idle":
                continue
            ending = starts.get(g1, [])
            calls = sorted(
                (call for op in ending if (call := self._call(op))), key=lambda call: call["ts_ns"]
            )
            if not ending:
                out += self._asked(most, g0, g1)
            elif not calls:
                out.append((g0, g1, ("unattributed", "no launch found", None)))
            elif self._within_a_graph(gpu, calls[0], g0, g1):
                out.append((g0, g1, ("device", "inside a graph", None)))
            else:
                out += self._launched(calls[0], g0, g1)
        return sorted(out, key=lambda span: span[:2])

    def _latency(self, trace: Trace) -> int:
        """Return how long a launched operation takes to start on an idle device at most."""
        every = sorted(
            (op["gpu"], op["ts_ns"], op["ts_ns"] + op["dur_ns"]) for op in trace.gpu_ops.iter_rows(named=True)
        )
        running: dict[int, list[Span]] = defaultdict(list)
        for gpu, start, end in every:
            running[gpu].append((start, end, None))
        running = {gpu: covered(spans) for gpu, spans in running.items()}
        delays = []
        for op in self.ops:
            if (call := self._call(op)) is None:
                continue
            at, back = call["ts_ns"], call["ts_ns"] + call["dur_ns"]
            before = bisect_right(running[op["gpu"]], at, key=lambda span: span[0]) - 1
            busy = before >= 0 and running[op["gpu"]][before][1] > at
            if not busy and op["ts_ns"] > back:
                delays.append(op["ts_ns"] - back)
        return min(LONG_NS, round(MANY_TIMES * median(delays))) if delays else LONG_NS

    def _launched(self, call: Row, g0: int, g1: int) -> list[Span]:
        begin = min(max(call["ts_ns"], g0), g1)
        back = min(max(call["ts_ns"] + call["dur_ns"], begin), g1)
        out = self._asked(call["thread"], g0, begin)
        for a, b, what in cut(self.doing.get(call["thread"], []), begin, back):
            exact = what and (
                what.cause == "profiler"
                or (what.cause == "kernel_launch" and what.sub not in (None, "dispatch"))
            )
            cause, sub = (what.cause, what.sub) if exact else ("kernel_launch", "api")
            out.append((a, b, (cause, sub, call["thread"])))
        started = min(g1, back + self.bound)
        if back < started:
            out.append((back, started, ("kernel_launch", "latency", call["thread"])))
        if started < g1:
            out.append((started, g1, ("unattributed", "launched, not started", None)))
        return out

    def _within_a_graph(self, gpu: int, call: Row, g0: int, g1: int) -> bool:
        """Whether the gap lies between two nodes of one graph launch."""

        own = [op for op in self.of_call[id(call)] if op["gpu"] == gpu and op["graph"] is not None]
        ended = any(op["ts_ns"] + op["dur_ns"] == g0 for op in own)
        return ended and any(op["ts_ns"] == g1 for op in own)

    def _call(self, op: Row) -> Row | None:
        return self.calls.get((op["source"], op["pid"], op["correlation"]))

    def _asked(self, thread: int | None, a: int, b: int) -> list[Span]:
        own = next((one for one in self.replicas if thread in one.role), self.replicas[0])
        return own.asked(thread, a, b)

    def _waiting(self, gpu: int) -> list[Span]:
        """Ask the straggler of the collective in which the GPU waits."""
        own = self._met(gpu)
        starts = [m.start for m in own]
        out: list[Span] = []
        working: dict[int, list[Span]] = defaultdict(list)
        for a, b, state in self.states[gpu]:
            if state != "collective_wait":
                continue
            edges = sorted({a, b, *starts[bisect_right(starts, a) : bisect_left(starts, b)]})
            for x, y in pairwise(edges):
                at = bisect_right(starts, x) - 1
                late = own[at].straggler
                for p, q, theirs in cut(self.states[late], x, y):  # type: ignore[index]
                    if theirs == "idle":
                        out += cut(self.held[late], p, q)  # type: ignore[index]
                    elif theirs == "collective_wait":
                        out.append(
                            (p, q, ("unattributed", "straggler waits in another collective", "unknown"))
                        )
                    else:
                        working[at].append((p, q, None))
        return out + [span for at, spans in working.items() for span in self._late(own[at], spans)]

    def _met(self, gpu: int) -> list[Meeting]:
        if gpu not in self.met_:
            inside = (
                m for m in self.meetings if m.start < self.window.end_ns and m.stop > self.window.start_ns
            )
            own = [m for m in inside if m.gpu == gpu and m.last is not None]
            self.met_[gpu] = sorted(own, key=lambda m: m.start)
        return self.met_[gpu]

    @cached_property
    def left(self) -> dict[int, list[int]]:
        """When the ranks of an event left the collective before it."""
        out: dict[int, list[int]] = defaultdict(list)
        for gpu in self.states:
            for a, b in pairwise(self._met(gpu)):
                out[b.event].append(a.stop)
        return out

    def _since(self, meeting: Meeting) -> int:
        """Return when the last rank of the event left the collective before it."""
        return max([self.window.start_ns, *self.left[meeting.event]])

    def _late(self, meeting: Meeting, spans: list[Span]) -> list[Span]:
        """The straggler works meanwhile: late for what it idled while the other worked, or it has more."""
        late = meeting.straggler
        behind: list[Span] = []
        ahead = 0
        for a, b, mine in cut(self.states[meeting.gpu], self._since(meeting), meeting.start):
            for x, y, theirs in cut(self.states[late], a, b):  # type: ignore[index]
                if mine in WORKING and theirs == "idle":
                    behind += cut(self.held[late], x, y)  # type: ignore[index]
                elif mine not in WORKING and theirs in WORKING:
                    ahead += y - x
        worked, missed = (sum(b - a for a, b, _ in told) for told in (spans, behind))
        owed = max(0, min(worked, missed - ahead))
        out: list[Span] = []
        causes = [(b - a, what) for a, b, what in reversed(behind)]
        for a, b, _ in sorted(spans, key=lambda span: span[:2]):
            at = a
            while at < b and owed and causes:
                long, what = causes.pop(0)
                here = min(long, b - at, owed)
                out.append((at, at + here, what))
                at, owed = at + here, owed - here
                if long > here:
                    causes.insert(0, (long - here, what))
            if at < b:
                out.append((at, b, ("imbalance", None, "unknown")))
        return out


def _launch_calls(trace: Trace) -> dict[tuple[int, int, int], Row]:
    """Return the outermost call of each correlation id within its process."""
    pids = {row["thread"]: row["pid"] for row in trace.threads.iter_rows(named=True)}
    out: dict[tuple[int, int, int], Row] = {}
    for row in trace.slices.iter_rows(named=True):
        if row["category"] in ("runtime", "driver") and row["correlation"] is not None:
            key = (row["source"], pids.get(row["thread"]), row["correlation"])
            before = out.get(key)
            if before is None or (row["ts_ns"], -row["dur_ns"]) < (before["ts_ns"], -before["dur_ns"]):
                out[key] = row
    return out
