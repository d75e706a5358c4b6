"""The second implementation of waits that are followed upstream, to those who sent what was waited for.

As :mod:`second_ledgers`, of which it is a part, written from docs/numbers.md, "Ledger 2".
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from second_lines import Doing, Span, covered, cut
from second_replicas import process_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from second_replicas import Message, Process

    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

Row = dict[str, Any]

ABOVE = {"worker": "engine", "engine": "api_server", "api_server": "clients"}
LONGEST_CHAIN = 4
#: Of several processes of this role one is asked.
RANKS = "worker"
AWAKE = ("running", "runnable", "throttled")
#: Who pauses for longer had nothing to do with the next message before it.
PAUSE_NS = 1_000_000


# --------------------------------------------------------------------------------------------------- upstream
class Upstream:
    """One replica: what its threads did, and who waits for whom."""

    def __init__(
        self,
        trace: Trace,
        window: Window,
        of: set[int],
        doing: dict[int, list[Span]],
        cpu: dict[int, list[Span]],
        sent: list[Message],
    ) -> None:
        rows = [row for row in trace.threads.iter_rows(named=True) if row["thread"] in of]
        self.cpu, self.window, self.rows = cpu, window, rows
        self.sent = [message for message in sent if message[2] in of]
        self.role = {row["thread"]: row["role"] for row in rows}
        self.process = {row["thread"]: process_of(row) for row in rows}
        self.threads: dict[Any, list[int]] = defaultdict(list)
        for thread, role in self.role.items():
            self.threads[role].append(thread)
            self.threads[self.process[thread]].append(thread)
        self.alone = {thread: doing.get(thread, []) for thread in of}
        self.doing = dict(self.alone)
        self._end_waits_that_were_served()
        recorded = set()
        for column in (
            trace.slices["thread"],
            trace.samples["thread"],
            trace.sched["prev"],
            trace.sched["next"],
        ):
            recorded |= set(column.drop_nulls().unique())
        self.recorded = {self.role[thread] for thread in recorded if thread in of}
        categories = trace.slices.select("thread", "category").unique().drop_nulls()
        pairs = [(thread, str(category)) for thread, category in categories.iter_rows() if thread in of]
        keys = list(self.threads)
        ranged = {thread for thread, _ in pairs}
        annotated = {thread for thread, category in pairs if category == "annotation"}
        self.ranged = {key for key in keys if ranged & set(self.threads[key])}
        self.annotates = {key for key in keys if annotated & set(self.threads[key])}
        self.parts = _parts(trace, rows)
        self.main = {key: self._main(self.threads[key]) for key in keys}
        self.last_: dict[int, dict[Process, tuple[int, int, int]]] = {}
        self.works_: dict[int, list[Span]] = {}
        self.busy_: dict[Any, list[Span]] = {}
        self.idle_: dict[int, list[tuple[int, int]]] = {}

    def _end_waits_that_were_served(self) -> None:
        """From the first enqueue on that ended inside a dequeue, its thread waits for nobody."""
        for role, above in ABOVE.items():
            sent: dict[Process, list[Span]] = defaultdict(list)
            taken: dict[int, list[Span]] = defaultdict(list)
            for a, b, thread, direction in self.sent:
                if direction == "enqueue" and self.role[thread] == above:
                    sent[self.process[thread]].append((a, b, None))
                if direction == "dequeue" and self.role[thread] == role:
                    taken[thread].append((a, b, None))
            if len(sent) != 1:
                continue
            arrived = sorted(b for spans in sent.values() for _, b, _ in covered(spans))
            for thread, spans in taken.items():
                for a, b, _ in covered(spans):
                    at = bisect_right(arrived, a)
                    if at < len(arrived) and arrived[at] < b:
                        self.doing[thread] = _served(self.doing.get(thread, []), arrived[at], b)

    def _main(self, threads: list[int]) -> int:
        """Return the thread that did most; where none did anything, the process's first."""
        first = {row["thread"] for row in self.rows if row["pid"] == row["tid"]}
        spent = {t: sum(b - a for a, b, _ in self.alone.get(t, [])) for t in threads}
        busy = [t for t in threads if spent[t]]
        if busy:
            return max(busy, key=lambda t: (spent[t], t))
        return min([t for t in threads if t in first] or threads)

    def asked(self, thread: int | None, a: int, b: int) -> list[Span]:
        """Return what held `thread` up in [a, b): (from, until, (cause, sub-cause, thread))."""
        out: list[Span] = []
        for x, y, what in cut(self.doing.get(thread, []), a, b):  # type: ignore[arg-type]
            if what is None:
                out.append((x, y, ("unattributed", None, thread)))
            elif what.waits_for is None:
                out.append((x, y, (what.cause, what.sub, thread)))
            else:
                out += self._upstream(thread, what.waits_for, x, y, LONGEST_CHAIN, self.process.get(thread))
        return out

    def _whom(self, thread: int, waits_for: str) -> Any:
        """Return the role or the process that the thread waits for."""
        own = self.role.get(thread)
        if waits_for != "upstream":
            return waits_for
        if own == "worker" and "engine" not in self.threads:
            if "api_server" not in self.threads:
                return self.process[thread]
            schedules = any(self.process[t] == self.process[thread] for t in self.parts["scheduler"])
            return "api_server" if schedules else "engine"
        return ABOVE.get(own or "")

    def _upstream(
        self, thread: int | None, waits_for: str, a: int, b: int, steps: int, origin: Process | None
    ) -> list[Span]:
        """Say what the process that `thread` waits for was doing in [a, b); `origin` is who asked first."""
        role = self._whom(thread, waits_for)  # type: ignore[arg-type]
        if steps == 0:
            return [(a, b, ("ipc", "wait", thread))]
        if role == "clients":
            return [(a, b, ("no_work", None, thread))]
        alone = isinstance(role, tuple)
        if role is None or (not alone and role not in self.recorded):
            return [(a, b, ("ipc", "upstream not recorded", thread))]
        edges = {a, b}
        for t in self.threads[role]:
            for x, y, _ in cut(self.doing.get(t, []), a, b):
                edges |= {x, y}
        messages = [] if alone else list(self._awaited(thread, role, a, b))  # type: ignore[arg-type]
        edges |= {edge for x, y, _ in messages for edge in (x, y)}
        wait = (thread, role, a, b, origin)
        lasts = [] if alone else list(self._last_at_work(*wait))  # type: ignore[arg-type]
        edges |= {edge for x, y, _ in lasts for edge in (x, y)}
        out: list[Span] = []
        for x, y in pairwise(sorted(edges)):
            sender, under_way = next((what for p, q, what in messages if p <= x < q), (None, True))
            last = next((of for p, q, of in lasts if p <= x < q), None)
            if alone:
                out += self._of_process(role, x, y)
                continue
            process = self.process[sender] if sender is not None and role == RANKS else last
            if process == origin and last is not None:
                process = last
            if sender is not None and process is not None and self.process[sender] != process:
                sender, under_way = None, True
            asked = [t for t in self.threads[role] if process in (None, self.process[t])]
            out += self._moment((role, asked), x, y, steps, sender, under_way, origin)
        return out

    def _last_at_work(
        self, thread: int | None, role: str, a: int, b: int, origin: Process | None
    ) -> Iterator[tuple[int, int, Process]]:
        """Yield (from, until, the other rank that was at work last before the wait ended)."""
        if role != RANKS or thread is None or self.role.get(thread) == RANKS:
            return
        for p, q in self._idle(thread):
            if p < b and q > a and (seen := self._works_before(q)):
                others = [of for of in seen if of != origin]
                if others and len({self.process[t] for t in self.threads[RANKS]}) > 1:
                    yield max(p, a), min(q, b), max(others, key=lambda of: seen[of])

    def _works_before(self, moment: int) -> dict[Process, tuple[int, int, int]]:
        """Return of each rank until when, up to the moment, it was at work last, and since when."""
        if moment not in self.last_:
            found: dict[Process, tuple[int, int, int]] = {}
            for t in self.threads[RANKS]:
                works = self._works(t)
                at = bisect_left(works, moment, key=lambda span: span[0]) - 1
                if at >= 0:
                    begun, ended, _ = works[at]
                    of = self.process[t]
                    found[of] = max(found.get(of, (-1, -1, -1)), (min(ended, moment), begun, t))
            self.last_[moment] = found
        return self.last_[moment]

    def _works(self, thread: int) -> list[Span]:
        if thread not in self.works_:
            self.works_[thread] = [s for s in self.alone.get(thread, []) if s[2].waits_for is None]
        return self.works_[thread]

    def _present(self, threads: list[int], a: int) -> list[tuple[int, int, int, Doing]]:
        present = []
        for t in threads:
            line = self.doing.get(t, [])
            at = bisect_right(line, a, key=lambda span: span[0]) - 1
            if at >= 0 and line[at][1] > a:
                present.append((line[at][0], line[at][0] - line[at][1], t, line[at][2]))
        return present

    def _of_process(self, process: Process, a: int, b: int) -> list[Span]:
        """Say what the threads of a process do that has nobody upstream."""
        present = self._present(self.threads[process], a)
        works = [p for p in present if p[3].waits_for is None]
        tokenizes = [p for p in works if p[3].cause == "tokenization"]
        _, _, t, what = max(tokenizes or works or present, key=lambda p: p[:3], default=(0, 0, None, None))
        if what is not None and what.waits_for is None and what.cause != "ipc":
            return [(a, b, (what.cause, what.sub, t))]
        t = self.main[process] if t is None else t
        serves = set(self.threads[process]) & self.parts["entrance"]
        return [(a, b, ("no_work", None, t) if serves else ("ipc", "upstream not recorded", t))]

    def _moment(
        self,
        of: tuple[str, list[int]],
        a: int,
        b: int,
        steps: int,
        sender: int | None,
        under_way: object,
        origin: Process | None,
    ) -> list[Span]:
        """Say what threads of a role do where none changes what it is at: the sender first."""
        present = self._present(of[1], a)
        own = [p for p in present if p[2] == sender]
        if not under_way:
            present = own
        works, own_work = ([p for p in of if p[3].waits_for is None] for of in (present, own))
        tokenizes = [p for p in works if p[3].cause == "tokenization"]
        if present:
            _, _, t, what = max(own_work or tokenizes or works or own or present, key=lambda p: p[:3])
            if what.waits_for is None:
                return [(a, b, (what.cause, what.sub, t))]
            return self._upstream(t, what.waits_for, a, b, steps - 1, origin)
        return self._silent(of, a, b, steps, sender, origin)

    def _silent(
        self,
        of: tuple[str, list[int]],
        a: int,
        b: int,
        steps: int,
        sender: int | None,
        origin: Process | None,
    ) -> list[Span]:
        """Nothing of those asked was recorded then: they sleep, or nobody knows."""
        role, threads = of
        main, ranged = self._main(threads) if sender is None else sender, role in self.ranged
        out: list[Span] = []
        seen = cut(self.cpu.get(main, []), a, b)
        for x, y, state in seen if ranged else [d for span in seen for d in self._doubted(role, *span)]:
            asleep = state == "blocked"
            if role == "api_server" and (asleep or (state in (None, "unknown") and role in self.annotates)):
                out.append((x, y, ("no_work", None, main)))
            elif asleep and role != "api_server":
                out += self._upstream(main, "upstream", x, y, steps - 1, origin)
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

    # ------------------------------------------------------------------------------------ who sent a message
    def _awaited(self, thread: int, role: str, a: int, b: int) -> Iterator[tuple[int, int, Any]]:
        """Yield (from, until, (sender, whether the message was under way)) where that is known in [a, b)."""
        if self.role.get(thread) == role:
            return
        sent = [m for m in self.sent if m[3] in ("enqueue", "send") and self.role[m[2]] == role]
        if thread in self.takers and any(m[3] == "enqueue" for m in sent):
            sent = [m for m in sent if m[3] == "enqueue"]
        begins = [m[0] for m in sent]
        for p, q in self._idle(thread):
            if not (sent and p < b and q > a):
                continue
            at = bisect_left(begins, q)
            if at and sent[at - 1][1] > p:
                message = sent[at - 1]
            elif at < len(sent) and begins[at] <= q + PAUSE_NS:
                message = sent[at]
            else:
                continue
            busy = self._busy(role, {m[2] for m in sent}, message[2])
            last = bisect_right(busy, message[0], key=lambda span: span[0]) - 1
            since = min(max(busy[last][0], p), q) if last >= 0 else p
            for x, y, under_way in ((p, since, False), (since, q, True)):
                if max(x, a) < min(y, b):
                    yield max(x, a), min(y, b), (message[2], under_way)

    @cached_property
    def takers(self) -> set[int]:
        return {m[2] for m in self.sent if m[3] == "dequeue"}

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Return first and last moment at which any thread of the server was seen to do something."""
        return self.window.start_ns, self.window.end_ns

    def _idle(self, thread: int) -> list[tuple[int, int]]:
        """Return when the thread did nothing itself."""
        if thread not in self.idle_:
            works = covered([span for span in self.alone.get(thread, []) if span[2].waits_for is None])
            start, stop = self.ends
            edges = [start, *(edge for a, b, _ in works for edge in (a, b)), stop]
            self.idle_[thread] = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
        return self.idle_[thread]

    def _busy(self, role: str, senders: set[int], sender: int) -> list[Span]:
        """Return when the role, or the sender's rank, was at work, short pauses counted in."""
        process = self.process[sender] if role == RANKS else None
        if (role, process) not in self.busy_:
            spans = []
            for thread in self.threads[role]:
                if process not in (None, self.process[thread]):
                    continue
                line = self.alone.get(thread, [])
                spans += [span for span in line if span[2].waits_for is None]
                for a, b, state in self.cpu.get(thread, []) if thread in senders else []:
                    if state in ("runnable", "throttled"):
                        spans.append((a, b, None))
                    if state == "running":
                        spans += [s for s in cut(line, a, b) if s[2] is None or s[2].waits_for is None]
            longer = covered([(a, b + PAUSE_NS, None) for a, b, _ in spans])
            self.busy_[role, process] = [(a, b - PAUSE_NS, None) for a, b, _ in longer]
        return self.busy_[role, process]


def _served(line: list[Span], since: int, until: int) -> list[Span]:
    """Return what a thread did, its waiting for others between the two moments its own."""
    out: list[Span] = []
    for a, b, what in line:
        if b <= since or a >= until or not what.waits_for:
            out.append((a, b, what))
            continue
        for x, y, inside in cut([(since, until, True)], a, b):
            out.append((x, y, what._replace(waits_for=None) if inside else what))
    return out


def _parts(trace: Trace, rows: list[Row]) -> dict[str, set[int]]:
    """Return the threads whose names, ranges or frames show that their process has a part besides."""
    data = tomllib.loads(files("tracelib.align").joinpath("roles.toml").read_text(encoding="utf-8"))
    names: dict[int, set[str]] = defaultdict(set)
    kept = trace.slices.select("thread", "name", "category").unique()
    for thread, name, category in kept.iter_rows():
        if thread is not None and str(category) in ("python", "annotation") and name:
            names[thread].add(name)
    for row in rows:
        names[row["thread"]] |= {text for text in (row["name"], row["process"]) if text}
    own = {row["thread"] for row in rows}
    return {
        part: {
            t
            for t, texts in names.items()
            if t in own and any(map(re.compile(data[part]["match"]).search, texts))
        }
        for part in ("entrance", "scheduler")
    }
