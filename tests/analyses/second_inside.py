"""The second implementation of what names mark beyond themselves, and of what samples say inside slices.

As :mod:`second_ledgers`, of which it is a part, written from the head of `tracelib/rules.toml` and from
docs/numbers.md, "Ledger 2".
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from second_lines import Span, covered, cut

from tracelib.slice_rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = dict[str, Any]

MANY_TIMES, LONG_NS, SIBLINGS = 10, 1_000_000, 3
#: What a name leaves open, what samples put in its place, and what they name besides.
OPEN, EXACT = ("dispatch", "api", "module_load"), ("jit_compile", "module_load", "alloc")
OTHER, MEANT = ("tokenization", "gc", "gil", "profiler"), ("host_work", "scheduling", "tokenization", "ipc")
NEARLY_ALL, ENOUGH_NS = 0.75, 5_000_000


def marked(rows: list[Row], launches: list[int], number: int) -> Iterator[Row]:
    """Yield a slice for each stretch of a thread between two names that `[[span]]` rules speak of.

    `rows` are the thread's slices, `launches` the begins of its launches; numbers go from `number` on.
    """
    framed = any(row["category"] == "python" for row in rows)
    for rule in load_rules().spans:
        if rule.bare and framed:
            continue
        begins = sorted((r for r in rows if re.search(rule.begin, r["name"] or "")), key=lambda r: r["begin"])
        ends = sorted(r["begin"] for r in rows if re.search(rule.end, r["name"] or ""))
        made = []
        for n, row in enumerate(begins):
            at = bisect_right(ends, row["begin"])
            again = begins[n + 1]["begin"] if n + 1 < len(begins) else None
            if at == len(ends) or (again is not None and ends[at] > again):
                continue
            if rule.inside and ends[at] > row["end"]:
                continue
            launch = bisect_left(launches, row["begin"])
            if not rule.launches and launch < len(launches) and launches[launch] < ends[at]:
                continue
            made.append((row["begin"], ends[at], row["name"]))
        usual = median(b - a for a, b, _ in made) if made else 0
        for a, b, name in made:
            if a < b and (not rule.bare or b - a <= MANY_TIMES * usual):
                told = {
                    key: getattr(rule, key) for key in ("cause", "sub_cause", "waits_for", "weak", "covers")
                }
                yield {**told, "may_wait_for": None, "begin": a, "end": b, "n": number, "name": name}
                number += 1


# ----------------------------------------------------------------------------- what samples say inside slices
class Inside:
    """The samples of one thread, and what they say of its slices."""

    def __init__(
        self, sampled: list[Span], told: list[Span], states: list[Span], compilers: list[Span]
    ) -> None:
        self.states, self.compilers = states, compilers
        # A thread is not ready because of the recorder: its interrupts come between other work.
        self.named = sorted(
            (
                (x, y, what)
                for a, b, what in sampled
                for x, y, state in (cut(states, a, b) if what.cause == "profiler" else [(a, b, None)])
                if state in (None, "running", "unknown")
            ),
            key=lambda span: span[:2],
        )
        self.seen = covered(told)
        self.telling = covered([span for span in told if span[2] in ("named", "library")])
        alone = [span for span in self.named if _names(span[2])]
        self.alone = [(a, b, (what.cause, what.sub)) for a, b, what in alone]
        self.agreed = sorted(self._agreed(), key=lambda span: span[:2])

    def _agreed(self) -> Iterator[Span]:
        """All between two samples in a row that agree is of one cost; of one alone, what the thread ran."""
        for before, (a, b, what) in pairwise([None, *self.named]):
            if not _names(what):
                continue
            cost = what.cause, what.sub
            if before and (before[2].cause, before[2].sub) == cost and what.cause != "profiler":
                yield before[1], b, cost
            else:
                ran = (span for span in cut(self.states, a, b) if span[2] in (None, "running", "unknown"))
                yield from ((x, y, cost) for x, y, _ in ran)

    def refine(self, line: list[Span], names: dict[int, str]) -> list[Span]:
        """Return the line with what samples say of its long slices; `names` are the slices'."""
        siblings: dict[str | None, list[int]] = defaultdict(list)
        for a, b, what in line:
            siblings[names.get(what.which)].append(b - a)
        usual = {name: (len(own), median(own)) for name, own in siblings.items()}
        out: list[Span] = []
        for a, b, what in line:
            count, typical = usual[names.get(what.which)]
            works = what.waits_for is None and what.which >= 0 and b - a >= LONG_NS
            outlasts = count < SIBLINGS or b - a > MANY_TIMES * typical
            launching = what.cause == "kernel_launch" and what.sub in OPEN
            if works and (what.cause in MEANT or (launching and outlasts)):
                out += self._looked_into(a, b, what)
            else:
                out.append((a, b, what))
        return out

    def _looked_into(self, a: int, b: int, what: Any) -> list[Span]:
        costs = self.alone if what.cause in MEANT else self.agreed
        cuts = [(x, y, _put(what, told) if told else what) for x, y, told in cut(costs, a, b)]
        slept = [span for x, y, now in cuts for span in self._compiled(x, y, now)]
        parts = [(x, y, now, bool(told)) for p, q, now in slept for x, y, told in cut(self.telling, p, q)]
        named = [(y - x, now) for x, y, now, told in parts if told or (now.which < 0 and now.sub in EXACT)]
        exact: Counter[tuple[str, str]] = Counter()
        for ns, now in named:
            if now.which < 0 and now.sub in EXACT:
                exact[now.cause, now.sub] += ns
        main, most = max(exact.items(), key=lambda item: item[1], default=(None, 0))
        whole = main and most >= ENOUGH_NS and most >= NEARLY_ALL * sum(ns for ns, _ in named)
        return [
            (x, y, _put(now, main) if whole and now.which >= 0 and not told else now)
            for x, y, now, told in parts
        ]

    def _compiled(self, a: int, b: int, what: Any) -> Iterator[Span]:
        """What sleeps while a compiler runs as a process of its own waits for that."""
        if what.cause not in ("kernel_launch", "host_work") or not self.compilers or not self.states:
            yield a, b, what
            return
        for p, q, runs in cut(self.compilers, a, b):
            for x, y, state in cut(self.states, p, q):
                for c, d, awake in cut([(s, e, True) for s, e, _ in self.seen], x, y):
                    sleeps = state == "blocked" or (state in (None, "unknown") and not awake)
                    yield c, d, _put(what, ("kernel_launch", "jit_compile")) if runs and sleeps else what


def _names(what: Any) -> bool:
    return (what.cause == "kernel_launch" and what.sub in EXACT) or what.cause in OTHER


def _put(what: Any, cost: tuple[str, str | None]) -> Any:
    """Put a cost in the place of what a slice means, if it is another; what loads code only compiles it."""
    if what.sub == "module_load" and cost[1] != "jit_compile":
        return what
    if what.cause in MEANT and cost[0] == what.cause:
        return what
    return what._replace(cause=cost[0], sub=cost[1], which=-1)
