"""A second, slow, obvious implementation of Ledgers 1 and 2: loops over sorted lists, written from
ATTRIBUTION.md.

It shares with tracelib the table of what a name means (that is data) and the frame of thread states (which
has a second implementation of its own, in scheduling_frames.py). Samples tell what a thread did where no
slice covers it; slices that outlast their siblings by milliseconds, into which tracelib looks with samples,
are not followed here.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import count, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from tracelib.classify import sample_causes, slice_causes
from tracelib.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

COPIES = ("memcpy", "memset")
BETWEEN = "between launches"
ABOVE = {"worker": "engine", "engine": "api_server", "api_server": "clients"}
#: A slice that may hide a wait is one from so many times the median of its name on, where no scheduler event
#: tells.
MANY_TIMES, LONG_NS = 10, 1_000_000
LONGEST_CHAIN = 4
AWAKE = ("running", "runnable", "throttled")
WORKING = ("compute", "copy", "collective_transfer", "collective")

Row = dict[str, Any]
Span = tuple[int, int, Any]


def cut(line: list[Span], a: int, b: int) -> Iterator[Span]:
    """Yield [a, b) in parts, each with what the sorted, disjoint `line` says there (None = nothing)."""
    if a >= b:
        return
    at = a
    first = max(0, bisect_right(line, a, key=lambda span: span[0]) - 1)
    for start, stop, what in line[first:]:
        if start >= b:
            break
        if stop > at:
            if start > at:
                yield at, start, None
            yield max(start, at), min(stop, b), what
            at = min(stop, b)
    if at < b:
        yield at, b, None


def merged(spans: list[Span]) -> list[Span]:
    """Join neighbours that touch and say the same."""
    out: list[Span] = []
    for a, b, what in sorted(spans, key=lambda span: span[:2]):
        if out and out[-1][1] == a and out[-1][2] == what:
            out[-1] = (out[-1][0], b, what)
        else:
            out.append((a, b, what))
    return out


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
    """Pair each group's collectives: those that are open at the same time on all ranks, in their order."""
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
            met = (
                len(ranks) > 1
                and len(open_) == len(ranks)
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
@dataclass(frozen=True)
class Doing:
    """What a thread was at."""

    cause: str
    sub: str | None
    waits_for: str | None
    which: int  # the slice; of a sample, a negative number


def doing(
    trace: Trace, window: Window, states: dict[int, list[Span]], launched: dict[int, list[int]]
) -> dict[int, list[Span]]:
    """Return (from, until, Doing) per thread: its innermost slice that has a meaning of its own.

    `launched` is when each thread began its launches.
    """
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
        if row["dur_ns"] and end > window.start_ns and row["ts_ns"] < window.end_ns and told["cause"]:
            threads[row["thread"]].append(
                {**told, "begin": row["ts_ns"], "end": end, "n": n, "name": row["name"]}
            )
    ends = _ends(trace)
    told = {
        thread: _doing(rows, window, states.get(thread, []), ends[thread]) for thread, rows in threads.items()
    }
    sampled = _sampled(trace, window)
    taken = {what.which: b for spans in sampled.values() for _, b, what in spans}
    for thread in {*told, *sampled}:
        awake = [
            (x, y, what)
            for a, b, what in sampled.get(thread, [])
            for x, y, s in cut(states.get(thread, []), a, b)
            if s != "blocked"
        ]
        line = told.get(thread, [])
        until = {row["n"]: row["end"] for row in threads[thread]}
        # What follows an unnamed range is not seen in it.
        awake = [
            (x, y, what)
            for a, b, what in awake
            for x, y, at in cut(line, a, b)
            if at is None or at.sub != BETWEEN or until[at.which] >= taken[what.which]
        ]
        layers = [
            [span for span in spans if (span[2].sub == BETWEEN) == open_]
            for open_ in (False, True)
            for spans in (line, awake)
        ]
        whole: list[Span] = []
        for layer in layers:
            free = [
                (x, y, what) for a, b, what in layer for x, y, covered in cut(whole, a, b) if covered is None
            ]
            whole = sorted(whole + free, key=lambda span: span[:2])
        told[thread] = merged(_earned(whole, thread, launched, states.get(thread, []), trace))
    return told


def bursts(begins: list[int], states: list[Span]) -> list[Span]:
    """Return the stretches between two launches that are close together, time without a CPU left out."""
    gaps = []
    for a, b in pairwise(begins):
        off = sum(y - x for x, y, s in cut(states, a, b) if s in ("runnable", "throttled"))
        gaps.append((a, b, b - a - off))
    longest = min(MANY_TIMES * median(own for *_, own in gaps), LONG_NS) if gaps else 0
    return [(a, b, True) for a, b, own in gaps if own < longest]


def _earned(
    line: list[Span], thread: int, launched: dict[int, list[int]], states: list[Span], trace: Trace
) -> list[Span]:
    """Decide what is dispatch: between launches of a burst, and nothing on threads that launch nothing."""
    role = next((r["role"] for r in trace.threads.iter_rows(named=True) if r["thread"] == thread), None)
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
            out.append((x, y, replace(what, cause=cause, sub=sub)))
    return out


def _sampled(trace: Trace, window: Window) -> dict[int, list[Span]]:
    """Return what samples say per thread: each back to the one before it, at most what it stands for."""
    spinning = {"yield": ("ipc", "wait"), "device_wait": ("sync", None)}
    before: dict[int, int] = {}
    out: dict[int, list[Span]] = defaultdict(list)
    rows = sample_causes(trace.samples, trace.threads, trace.stacks, load_rules())
    rows = rows.sort("ts_ns", maintain_order=True)
    between = _between(rows)
    inside: dict[int, list[tuple[int, int, int, Row]]] = defaultdict(list)
    for n, row in enumerate(rows.iter_rows(named=True)):
        thread, at = row["thread"], row["ts_ns"]
        stands = row["period"] if "clock" in (row["event"] or "") else between
        begin = max(before.get(thread, at - stands), at - stands, window.start_ns)
        before[thread] = at
        if begin < min(at, window.end_ns):
            inside[thread].append((begin, min(at, window.end_ns), n, row))
    for thread, k in ((thread, k) for thread, own in inside.items() for k in range(len(own))):
        begin, end, n, row = inside[thread][k]
        beside = [inside[thread][m][3] for m in (k - 1, k + 1) if 0 <= m < len(inside[thread])]
        cause, sub = (
            (row["cause"], row["sub_cause"])
            if row["cause"] != "spin"
            else spinning.get(row["sub_cause"], (None, None))
        )
        nothing = cause is None and row["cause"] is None and row["stack"] is not None
        nothing |= cause == "other" and sub in ("python", "kernel")
        polls = any(r["cause"] == "spin" or (r["cause"], r["sub_cause"]) == ("ipc", "wait") for r in beside)
        if (cause, sub) == ("kernel_launch", "dispatch") or (
            nothing and row["role"] in ("api_server", "engine", "worker") and not polls
        ):
            cause, sub = "host_work", BETWEEN
        if cause not in (None, "other"):
            out[thread].append((begin, end, Doing(cause, sub, None, -1 - n)))
    return out


def _between(rows: pl.DataFrame) -> int:
    """Return the median time between two samples in a row on one CPU, if of one thread."""
    last: dict[int, tuple[int, int]] = {}
    gaps = []
    for thread, cpu, at in rows.select("thread", "cpu", "ts_ns").iter_rows():
        if cpu in last and last[cpu][0] == thread:
            gaps.append(at - last[cpu][1])
        last[cpu] = thread, at
    return round(median(gaps)) if gaps else 0


def _helpers(trace: Trace) -> set[int]:
    """Return the threads for which nobody waits: what they do says nothing of their process."""
    aside = set()
    for row in trace.threads.iter_rows(named=True):
        rule = next((r for r in load_rules().threads if re.search(r.name, row["name"] or "")), None)
        if rule and rule.cause in ("spin", "other"):
            aside.add(row["thread"])
    return aside


def _ends(trace: Trace) -> dict[int, dict[str, list[int]]]:
    """Return per thread, and per word for whom a slice of it may wait, when those ended a slice of theirs."""
    role = {row["thread"]: row["role"] for row in trace.threads.iter_rows(named=True)}
    by_role: dict[str, list[int]] = defaultdict(list)
    for row in trace.slices.iter_rows(named=True):
        if role.get(row["thread"]):
            by_role[role[row["thread"]]].append(row["ts_ns"] + row["dur_ns"])
    for ended in by_role.values():
        ended.sort()
    return {
        thread: {**by_role, "upstream": by_role.get(ABOVE.get(own or "", ""), [])}
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
        counted = [row for row in open_ if not row["weak"]] or open_
        if not counted:
            continue
        top = max(counted, key=_innermost)
        covers = [row for row in open_ if row["covers"]]
        if covers and not top["weak"] and top["cause"] != "profiler":
            over = max(covers, key=_innermost)
            out.append((a, b, Doing(over["cause"], over["sub_cause"], None, top["n"])))
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
        launched: dict[int, list[int]] = defaultdict(list)
        for thread, at in sorted({(call["thread"], call["ts_ns"]) for call in called}):
            launched[thread].append(at)
        self.doing = doing(trace, window, self.cpu, dict(launched))
        self._end_waits_that_were_served(trace)
        self.role = {row["thread"]: row["role"] for row in trace.threads.iter_rows(named=True)}
        self.threads: dict[str, list[int]] = defaultdict(list)
        for thread, role in self.role.items():
            self.threads[role].append(thread)
        self.recorded = {
            self.role.get(thread)
            for column in (
                trace.slices["thread"],
                trace.samples["thread"],
                trace.sched["prev"],
                trace.sched["next"],
            )
            for thread in column.drop_nulls().unique()
        }
        annotated = {r["thread"] for r in trace.slices.iter_rows(named=True) if r["category"] == "annotation"}
        ranged = set(trace.slices["thread"].drop_nulls().unique())
        self.ranged = {role for role, own in self.threads.items() if ranged & set(own)}
        self.annotates = {role for role, own in self.threads.items() if annotated & set(own)}
        first = {r["thread"] for r in trace.threads.iter_rows(named=True) if r["pid"] == r["tid"]}
        self.main = {role: self._main(own, first) for role, own in self.threads.items()}
        self.states = gpu_states(trace, window)
        self.meetings = meetings(list(trace.gpu_ops.iter_rows(named=True)))
        self.bound = self._latency(trace)
        self.held = {gpu: self._crossed(self._idle(gpu)) for gpu in self.states}

    def _end_waits_that_were_served(self, trace: Trace) -> None:
        """From the first enqueue on that ended inside a dequeue, its thread waits for nobody."""
        threads = {
            r["thread"]: (r["role"], (r["host"], r["pid"])) for r in trace.threads.iter_rows(named=True)
        }
        messages: dict[tuple[str, str], dict[Any, list[Span]]] = defaultdict(lambda: defaultdict(list))
        meanings = {
            (r["name"], r["category"]): r
            for r in slice_causes(trace.slices, load_rules()).iter_rows(named=True)
        }
        for row in trace.slices.iter_rows(named=True):
            told, thread = meanings[row["name"], row["category"]], row["thread"]
            a, b = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
            inside = a < b and a < self.window.end_ns and b > self.window.start_ns
            if thread is not None and inside and not told["weak"] and told["direction"]:
                role, process = threads[thread]
                whose = thread if told["direction"] == "dequeue" else process
                messages[role, told["direction"]][whose].append((a, b, None))
        for role, above in ABOVE.items():
            sent = messages[above, "enqueue"]
            if len(sent) != 1:
                continue
            arrived = sorted(b for spans in sent.values() for _, b, _ in _covered(spans))
            for thread, spans in messages[role, "dequeue"].items():
                for a, b, _ in _covered(spans):
                    there = next((t for t in arrived if a < t < b), None)
                    if there is not None:
                        self.doing[thread] = _served(self.doing.get(thread, []), there, b)

    def _main(self, threads: list[int], first: set[int]) -> int:
        """Return the thread that did most; where none did anything, the process's first."""
        spent = {t: sum(b - a for a, b, _ in self.doing.get(t, [])) for t in threads}
        busy = [t for t in threads if spent[t]]
        if busy:
            return max(busy, key=lambda t: (spent[t], t))
        return min([t for t in threads if t in first] or threads)

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
        delays = []
        for op in self.ops:
            if (call := self._call(op)) is None:
                continue
            at, back = call["ts_ns"], call["ts_ns"] + call["dur_ns"]
            busy = any(gpu == op["gpu"] and start <= at < end for gpu, start, end in every)
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

        def of_it(op: Row) -> bool:
            return op["gpu"] == gpu and op["graph"] is not None and self._call(op) == call

        ended = any(of_it(op) and op["ts_ns"] + op["dur_ns"] == g0 for op in self.ops)
        return ended and any(of_it(op) and op["ts_ns"] == g1 for op in self.ops)

    def _call(self, op: Row) -> Row | None:
        return self.calls.get((op["source"], op["pid"], op["correlation"]))

    def _asked(self, thread: int | None, a: int, b: int) -> list[Span]:
        out: list[Span] = []
        for x, y, what in cut(self.doing.get(thread, []), a, b):  # type: ignore[arg-type]
            if what is None:
                out.append((x, y, ("unattributed", None, thread)))
            elif what.waits_for is None:
                out.append((x, y, (what.cause, what.sub, thread)))
            else:
                out += self._upstream(thread, what.waits_for, x, y, LONGEST_CHAIN)
        return out

    def _upstream(self, thread: int | None, waits_for: str, a: int, b: int, steps: int) -> list[Span]:
        """Say what the process that `thread` waits for was doing in [a, b)."""
        above = ABOVE.get(self.role.get(thread) or "")  # type: ignore[arg-type]
        role = above if waits_for == "upstream" else waits_for
        if steps == 0:
            return [(a, b, ("ipc", "wait", thread))]
        if role == "clients":
            return [(a, b, ("no_work", None, thread))]
        if role is None or role not in self.recorded:
            return [(a, b, ("ipc", "upstream not recorded", thread))]
        edges = {a, b}
        for t in self.threads[role]:
            for x, y, _ in cut(self.doing.get(t, []), a, b):
                edges |= {x, y}
        times = sorted(edges)
        out: list[Span] = []
        for x, y in pairwise(times):
            out += self._moment(role, x, y, steps)
        return out

    def _moment(self, role: str, a: int, b: int, steps: int) -> list[Span]:
        """Say the same where no thread of the role changes what it is at."""
        present = []
        for t in self.threads[role]:
            line = self.doing.get(t, [])
            at = bisect_right(line, a, key=lambda span: span[0]) - 1
            if at >= 0 and line[at][1] > a:
                present.append((line[at][0], line[at][0] - line[at][1], t, line[at][2]))
        works = [p for p in present if p[3].waits_for is None]
        tokenizes = [p for p in works if p[3].cause == "tokenization"]
        if present:
            _, _, t, what = max(tokenizes or works or present, key=lambda p: p[:3])
            if what.waits_for is None:
                return [(a, b, (what.cause, what.sub, t))]
            return self._upstream(t, what.waits_for, a, b, steps - 1)
        return self._silent(role, a, b, steps)

    def _silent(self, role: str, a: int, b: int, steps: int) -> list[Span]:
        """Nothing of the role was recorded then: it sleeps, or nobody knows."""
        main, ranged = self.main[role], role in self.ranged
        out: list[Span] = []
        seen = cut(self.cpu.get(main, []), a, b)
        for x, y, state in seen if ranged else [d for span in seen for d in self._doubted(role, *span)]:
            asleep = state == "blocked"
            if role == "api_server" and (asleep or (state in (None, "unknown") and role in self.annotates)):
                out.append((x, y, ("no_work", None, main)))
            elif asleep and role != "api_server":
                out += self._upstream(main, "upstream", x, y, steps - 1)
            else:
                out.append((x, y, ("ipc", "wait" if ranged else "upstream not recorded", main)))
        return out

    def _doubted(self, role: str, a: int, b: int, state: str | None) -> list[Span]:
        """A role without any range sleeps for nobody knows whom while a thread of it is awake, or a worker
        works.
        """
        if state != "blocked":
            return [(a, b, state)]
        awake = [s for t in self.threads[role] for s in cut(self.cpu.get(t, []), a, b) if s[2] in AWAKE]
        if role != "api_server":
            workers = [s for t in self.threads["worker"] for s in cut(self.doing.get(t, []), a, b)]
            awake += [s for s in workers if s[2] is not None and s[2].waits_for is None]
        times = sorted({a, b} | {t for span in awake for t in span[:2]})
        return [
            (x, y, "unknown" if any(s[0] <= x < s[1] for s in awake) else state) for x, y in pairwise(times)
        ]

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
        inside = (m for m in self.meetings if m.start < self.window.end_ns and m.stop > self.window.start_ns)
        return sorted((m for m in inside if m.gpu == gpu and m.last is not None), key=lambda m: m.start)

    def _since(self, meeting: Meeting) -> int:
        """Return when the last rank of the event left the collective before it."""
        left = [self.window.start_ns]
        for gpu in self.states:
            own = self._met(gpu)
            left += [a.stop for a, b in pairwise(own) if b.event == meeting.event]
        return max(left)

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


def _covered(spans: list[Span]) -> list[Span]:
    """Return the time that they cover together; those that touch are one."""
    out: list[Span] = []
    for a, b, what in sorted(spans, key=lambda span: span[:2]):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]), what)
        else:
            out.append((a, b, what))
    return out


def _served(line: list[Span], since: int, until: int) -> list[Span]:
    """Return what a thread did, its waiting for others between the two moments its own."""
    out: list[Span] = []
    for a, b, what in line:
        edges = sorted({a, b, min(max(since, a), b), min(max(until, a), b)})
        for x, y in pairwise(edges):
            own = what.waits_for and since <= x < until
            out.append((x, y, replace(what, waits_for=None) if own else what))
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
