"""The ordinary events of a chunk: which they are, and the values of their keys.

An event is ordinary if it is an interval, an instant or a flow with plain numbers. The others (metadata, counters,
begins and ends, ids as texts, collectives without arguments, odd numbers) are marked as slow: the plain decoder knows their rules.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tracelib.sources.torch_profiler.events import gpu_kind
from tracelib.sources.torch_profiler.native import ODD, OLDER, PLAIN, Refused, scanned
from tracelib.sources.torch_profiler.salvage import UNDECODABLE, repaired

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk
    from tracelib.sources.torch_profiler.native import Column

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

#: Phases of ordinary events: complete, instant; flows are only counted.
INTERVAL = ord("X")
IS_SPAN, IS_FLOW = (np.isin(np.arange(256), tuple(phases)) for phases in (b"XiI", b"stf"))
#: Above this share of slow events the plain decoder alone is quicker.
MOSTLY = 0.4
#: Of some events, all.
ALL = np.True_
#: Texts that have to be read as JSON: with escapes, or with characters that must be escaped.
ESCAPED = re.compile(r"[\x00-\x1f\\]")


@functools.lru_cache(1 << 14)
def meaning(text: str) -> str:
    """Return what a string of a JSON text means, repaired first if it must be."""
    if not ESCAPED.search(text):
        return text
    quoted = f'"{text}"'
    for candidate in (quoted, *repaired(quoted.encode())):
        try:
            return msgspec.json.decode(candidate, type=str)
        except UNDECODABLE:
            continue
    raise Refused("a string that cannot be repaired")


class Scan:
    """One chunk on its way to columns; `slow` marks the events that are left to the plain decoder.

    `host` and `device` are the numbers of the ordinary events that are no work of a GPU, and that are; reading their
    values marks those as slow whose values are not plain.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.found = scanned(chunk)
        every = np.arange(self.found.begins.size)
        self.slow = self.found.odd | (self.event("args").states == ODD)
        if self.found.mended.any() and (self.found.odd | (self.event("ph").states != PLAIN)).any():
            raise Refused("faults, and parts that may be no events")
        self.phase = self._phases(every)
        spans = IS_SPAN[self.phase]
        self.slow |= ~(spans | IS_FLOW[self.phase])
        if self.slow.mean() > MOSTLY:
            raise Refused("most events are the plain decoder's business")
        self.categories, self.category = self._categories(every)
        gpu = (self.phase == INTERVAL) & self.of_categories(lambda name: gpu_kind(name) is not None)
        self.slow |= self.of_categories(lambda name: name == "Trace")
        self._nameless_collectives(np.flatnonzero(gpu))
        self.host, self.device = (np.flatnonzero(spans & ~self.slow & those) for those in (~gpu, gpu))

    def event(self, name: str) -> Column:
        return self.found.column("event", name)

    def args(self, name: str) -> Column:
        return self.found.column("args", name)

    def _phases(self, rows: Integers) -> NDArray[np.uint8]:
        found, code = self._texts(self.event("ph"), rows)
        characters = [ord(phase) if len(phase) == 1 and phase.isascii() else 0 for phase in found]
        return np.array([*characters, 0], np.uint8)[code]

    def _categories(self, rows: Integers) -> tuple[list[str | None], Integers]:
        """Return the categories that occur, None first for "has none", and which of them each event has."""
        found, code = self._texts(self.event("cat"), rows)
        return [None, *found], code + 1

    def _texts(
        self, column: Column, rows: Integers, among: Flags | np.bool_ = ALL
    ) -> tuple[list[str], Integers]:
        """Return the distinct texts in the events `rows`, and which each has, -1 for none; others make events slow."""
        states = column.states[rows]
        self.slow[rows[(states == ODD) & among]] = True
        some = (states == PLAIN) & among
        numbers = np.where(some, column.values[rows], -1)
        occurs = np.bincount(numbers + 1)[1:] > 0
        code = np.append(np.cumsum(occurs) - 1, -1)[numbers]
        return [meaning(text) for text in self.found.strings(np.flatnonzero(occurs))], code

    def _nameless_collectives(self, rows: Integers) -> None:
        """Mark events that are collectives by name alone: what the name says is the plain decoder's business."""
        found, code = self._texts(self.event("name"), rows)
        named = np.array([*(name.startswith(("nccl", "rccl")) for name in found), False])[code]
        self.slow[rows[named & (self.args("Collective name").states[rows] == 0)]] = True

    def of_categories(self, chosen: Callable[[str | None], bool]) -> Flags:
        """Return which events have one of the `chosen` categories."""
        return np.array([chosen(name) for name in self.categories])[self.category]

    def _needed(self, column: Column, rows: Integers) -> Integers:
        self.slow[rows[column.states[rows] != PLAIN]] = True
        return column.values[rows]

    def ids(self, name: str, rows: Integers) -> Integers:
        """Return the ids `name` of the events `rows`."""
        return self._needed(self.event(name), rows)

    def arguments(self, name: str, rows: Integers) -> Integers:
        """Return the integers `name` in the args of the events `rows`."""
        return self._needed(self.args(name), rows)

    def starts(self, rows: Integers) -> Integers:
        """Return when the events `rows` begin, in ns."""
        return self._needed(self.event("ts"), rows)

    def durations(self, rows: Integers) -> Integers:
        """Return how long the events `rows` take, in ns; 0 for instants."""
        value = np.zeros(rows.size, np.int64)
        long = np.flatnonzero(self.phase[rows] == INTERVAL)
        value[long] = self._needed(self.event("dur"), rows[long])
        return value

    def optional(self, name: str, rows: Integers, among: Flags | np.bool_ = ALL) -> tuple[Integers, Flags]:
        """Return the integers `name` that args of the events `rows` may have, and which have; only `among` them."""
        column = self.args(name)
        states = column.states[rows]
        self.slow[rows[(states == ODD) & among]] = True
        has: Flags = (states == PLAIN) & among
        return np.where(has, column.values[rows], 0), has

    def strings(self, name: str, rows: Integers, among: Flags) -> tuple[list[str], Integers]:
        """Return the distinct texts `name` that args of the events `rows` may have, `among` them, and which each has."""
        return self._texts(self.args(name), rows, among)

    def collectives(self, rows: Integers) -> Flags:
        """Return which of the events `rows` have the arguments of a collective."""
        has: Flags = self.args("Collective name").states[rows] != 0
        return has

    def older(self, rows: Integers) -> Flags:
        """Return which of the events `rows` have args of a collective in the spellings of before."""
        has: Flags = np.any([self.args(name).states[rows] != 0 for name in OLDER], axis=0)
        return has

    def correlations(self, rows: Integers, among: Flags | np.bool_ = ALL) -> tuple[Integers, Flags]:
        """Return the correlation ids that the events `rows` may have, and which have; 0 means "none"."""
        value, has = self.optional("correlation", rows, among)
        return value, has & (value != 0)

    def names(self, rows: Integers) -> tuple[list[str], Integers]:
        """Return the distinct names of the events `rows`, and which each has; events without one become slow."""
        found, which = self._texts(self.event("name"), rows)
        self.slow[rows[which < 0]] = True
        return found, which
