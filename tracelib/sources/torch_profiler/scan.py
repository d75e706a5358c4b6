"""The ordinary events of a chunk: which they are, and the values of their keys.

An event is ordinary if it is an interval, an instant or a flow with plain numbers. The others (metadata, counters,
begins and ends, ids as texts, collectives without arguments, odd numbers) are marked as slow: the plain decoder knows their rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelib.sources.torch_profiler.events import gpu_kind
from tracelib.sources.torch_profiler.lex import OPEN, QUOTE, Lexed, Refused, lexed
from tracelib.sources.torch_profiler.values import ODD, Keys, integers, texts, times, unescaped

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk
    from tracelib.sources.torch_profiler.values import Values

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

__all__ = ["Scan"]

#: Phases of ordinary events: complete, instant; flows are only counted.
INTERVAL, INSTANTS, FLOWS = ord("X"), tuple(b"iI"), tuple(b"stf")
#: Above this share of slow events the plain decoder alone is quicker.
MOSTLY = 0.4
XCCL = tuple(int.from_bytes(start, "little") for start in (b"nccl", b"rccl"))


class Scan:
    """One chunk on its way to columns; `slow` marks the events that are left to the plain decoder.

    `host` and `device` are the numbers of the ordinary events that are no work of a GPU, and that are; reading their
    values marks those as slow whose values are not plain.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.lex = lexed(chunk)
        self.outer, self.inner = Keys(self.lex, 1), Keys(self.lex, 2)
        self.name = self.outer.find(b"name")
        self.slow = self._odd_args()
        self.phase = self._phases()
        spans = (self.phase == INTERVAL) | np.isin(self.phase, INSTANTS)
        self.slow |= ~spans & ~np.isin(self.phase, FLOWS)
        if self.slow.mean() > MOSTLY:
            raise Refused("most events are the plain decoder's business")
        self.categories, self.category = self._categories()
        gpu = (self.phase == INTERVAL) & self.of_categories(lambda name: gpu_kind(name) is not None)
        self.slow |= self.of_categories(lambda name: name == "Trace") | (gpu & self._nameless_collectives())
        self.host, self.device = (np.flatnonzero(spans & ~self.slow & those) for those in (~gpu, gpu))

    def _odd_args(self) -> Flags:
        """Events in which an object inside may be something else than the value of args."""
        args = self.outer.find(b"args")
        objects = args.has & (self.lex.text[args.at] == OPEN)
        odd: Flags = (self.lex.objects() != objects) | (args.has & ~objects)
        return odd

    def _phases(self) -> NDArray[np.uint8]:
        ph, text = self.outer.find(b"ph"), self.lex.text
        single = ph.has & (text[ph.at] == QUOTE) & (text[ph.at + 2] == QUOTE)
        return np.where(single, text[ph.at + 1], np.uint8(0))

    def _categories(self) -> tuple[list[str | None], Integers]:
        """Return the categories that occur, None first for "has none", and which of them each event has."""
        found, code = self._plain(self.outer.find(b"cat"), np.arange(self.slow.size))
        return [None, *found], code + 1

    def _plain(
        self, values: Values, rows: Integers, among: Flags | None = None
    ) -> tuple[list[str], Integers]:
        """Return the distinct texts in the events `rows`, and which each has, -1 for none; odd ones make events slow."""
        some = np.flatnonzero(values.has[rows] if among is None else values.has[rows] & among)
        found, which = texts(self.lex, values, rows[some])
        odd = [
            *(bool(ODD.search(text)) for text in found),
            True,
        ]  # the last one is for -1, which is no string
        self.slow[rows[some[np.array(odd)[which]]]] = True
        code = np.full(rows.size, -1)
        code[some] = which
        return found, code

    def _nameless_collectives(self) -> Flags:
        """Events that are collectives by name alone: what the name says is the plain decoder's business."""
        start = self.lex.words[self.name.at + 1] & np.uint64(0xFFFFFFFF)
        return ~self.inner.find(b"Collective name").has & np.isin(start, np.array(XCCL, np.uint64))

    def of_categories(self, chosen: Callable[[str | None], bool]) -> Flags:
        """Return which events have one of the `chosen` categories."""
        return np.array([chosen(name) for name in self.categories])[self.category]

    def _needed(
        self, read: Callable[[Lexed, Values, Integers], tuple[Integers, Flags]], keys: Keys, name: str, rows: Integers
    ) -> Integers:  # fmt: skip
        value, sound = read(self.lex, keys.find(name.encode()), rows)
        self.slow[rows[~sound]] = True
        return value

    def ids(self, name: str, rows: Integers) -> Integers:
        """Return the ids `name` of the events `rows`."""
        return self._needed(integers, self.outer, name, rows)

    def arguments(self, name: str, rows: Integers) -> Integers:
        """Return the integers `name` in the args of the events `rows`."""
        return self._needed(integers, self.inner, name, rows)

    def starts(self, rows: Integers) -> Integers:
        """Return when the events `rows` begin, in ns."""
        return self._needed(times, self.outer, "ts", rows)

    def durations(self, rows: Integers) -> Integers:
        """Return how long the events `rows` take, in ns; 0 for instants."""
        value = np.zeros(rows.size, np.int64)
        long = np.flatnonzero(self.phase[rows] == INTERVAL)
        value[long] = self._needed(times, self.outer, "dur", rows[long])
        return value

    def optional(self, name: str, rows: Integers, among: Flags | None = None) -> tuple[Integers, Flags]:
        """Return the integers `name` that args of the events `rows` may have, and which have; only `among` them."""
        values = self.inner.find(name.encode())
        has = values.has[rows] if among is None else values.has[rows] & among
        some = np.flatnonzero(has)
        value = np.zeros(rows.size, np.int64)
        value[some], sound = integers(self.lex, values, rows[some])
        self.slow[rows[some[~sound]]] = True
        return value, has

    def strings(self, name: str, rows: Integers, among: Flags) -> tuple[list[str], Integers]:
        """Return the distinct texts `name` that args of the events `rows` may have, `among` them, and which each has."""
        return self._plain(self.inner.find(name.encode()), rows, among)

    def collectives(self, rows: Integers) -> Flags:
        """Return which of the events `rows` have the arguments of a collective."""
        return self.inner.find(b"Collective name").has[rows]

    def correlations(self, rows: Integers, among: Flags | None = None) -> tuple[Integers, Flags]:
        """Return the correlation ids that the events `rows` may have, and which have; 0 means "none"."""
        value, has = self.optional("correlation", rows, among)
        return value, has & (value != 0)

    def names(self, rows: Integers) -> tuple[list[str], Integers, Flags]:
        """Return the distinct names of the events `rows`, which each has, and which of these had to be repaired."""
        found, which = texts(self.lex, self.name, rows)
        self.slow[rows[which < 0]] = True
        meant = [unescaped(text) for text in found]
        mended = np.array([*(damaged for _, damaged in meant), False])[which]
        return [name for name, _ in meant], which, mended
