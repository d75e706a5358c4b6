"""The fast decoder: columns of a chunk's ordinary events, straight from the positions that :mod:`lex` finds.

An event is ordinary if it is an interval, an instant or a flow with plain numbers. The text of all others (metadata,
counters, begins and ends, ids as texts, collectives, odd numbers) goes to the plain decoder, so that only that one
knows their rules; a chunk whose structure does not fit is refused as a whole. Both give the same rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from tracelib.sources.torch_profiler import numbers, plain
from tracelib.sources.torch_profiler.events import COUNTERS, GPU, MARKS, SPANS, Batch, gpu_kind, joined, slice_category
from tracelib.sources.torch_profiler.lex import QUOTE, Refused, lexed, skip_blanks
from tracelib.sources.torch_profiler.salvage import UNDECODABLE, repaired
from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk
    from tracelib.sources.torch_profiler.lex import Lexed

__all__ = ["fast_batch"]

#: Phases of ordinary events: complete, instant; flows are only counted.
INTERVAL, INSTANTS, FLOWS = ord("X"), tuple(b"iI"), tuple(b"stf")
CALLS = ("runtime", "driver", "sync")
_ODD_NAME = r'[\x00-\x1f\\]'


@dataclass
class _Column:
    """Values of one key: `at` are positions of the values, `has` tells which events have the key."""

    at: NDArray[np.int64]
    has: NDArray[np.bool_]


class _Keys:
    """Finds keys of events by name."""

    def __init__(self, lex: Lexed, depth: int) -> None:
        here = np.flatnonzero(lex.key_depth == depth)
        self.lex = lex
        self.close, self.event = lex.key_close[here], lex.key_event[here]
        self.first = lex.key_open[here] + 1
        self.length = self.close - self.first
        self.ending = lex.words[self.close - 8]

    def find(self, name: bytes) -> _Column:
        """Return the last value of the key `name` in each event (of up to 16 characters: two words are compared)."""
        size = min(len(name), 8)
        same = self.ending >> np.uint64(64 - 8 * size) == np.uint64(int.from_bytes(name[-size:], "little"))
        found = np.flatnonzero(same & (self.length == len(name)))
        if len(name) > 8:
            found = found[self.lex.words[self.first[found]] == np.uint64(int.from_bytes(name[:8], "little"))]
        at = np.zeros(self.lex.starts.size, np.int64)
        has = np.zeros(self.lex.starts.size, bool)
        at[self.event[found]] = skip_blanks(self.lex.text, self.close[found] + 2)
        has[self.event[found]] = True
        return _Column(at, has)


class _Scan:
    """One chunk on its way to columns; `slow` marks the events that the plain decoder is to read."""

    def __init__(self, chunk: Chunk) -> None:
        self.lex = lexed(chunk)
        self.binary = pl.Series([bytes(chunk.data)], dtype=pl.Binary)
        outer, self.inner = _Keys(self.lex, 1), _Keys(self.lex, 2)
        self.keys = {key: outer.find(key.encode()) for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")}
        self.slow = self._odd_args()
        self.phase = self._phases()
        interval = self.phase == INTERVAL
        self.used = interval | np.isin(self.phase, INSTANTS)
        self.slow |= ~self.used & ~np.isin(self.phase, FLOWS)
        self.pid, self.tid = self._integers(self.keys["pid"], self.used), self._integers(self.keys["tid"], self.used)
        self.ts = self._times(self.keys["ts"], self.used)
        self.dur = self._times(self.keys["dur"], interval)
        self.code, self.categories = self._categories()

    def _odd_args(self) -> NDArray[np.bool_]:
        """Events in which an object at depth 2 may be something else than the value of args."""
        args = self.keys["args"]
        plain_args = args.has & (self.lex.text[args.at] == ord("{"))
        return (self.lex.objects != plain_args) | (args.has & ~plain_args)

    def _phases(self) -> NDArray[np.uint8]:
        at, text = self.keys["ph"].at, self.lex.text
        fits = self.keys["ph"].has & (text[at] == QUOTE) & (text[at + 2] == QUOTE)
        return np.where(fits, text[at + 1], 0)

    def _integers(self, column: _Column, needed: NDArray[np.bool_], *, optional: bool = False) -> NDArray[np.int64]:
        """Return the values of `column`; events that need one and have none, or an odd one, become slow."""
        value, sound = numbers.integers(self.lex.text, self.lex.words, column.at)
        sound &= column.has
        self.slow |= needed & ~sound & (column.has if optional else True)
        return np.where(sound, value, 0)

    def _times(self, column: _Column, needed: NDArray[np.bool_]) -> NDArray[np.int64]:
        value, sound = numbers.nanoseconds(self.lex.text, self.lex.words, column.at, plain.LARGEST)
        sound &= column.has
        self.slow |= needed & ~sound
        return np.where(sound & needed, value, 0)

    def texts(self, column: _Column, rows: NDArray[np.int64]) -> pl.Series:
        """Return the strings of `column` in the events `rows`, as written; what is no plain string is null."""
        start = column.at[rows] + 1
        quotes = self.lex.quotes
        end = quotes[np.minimum(np.searchsorted(quotes, start), quotes.size - 1)]
        after = self.lex.text[skip_blanks(self.lex.text, end + 1)]
        fits = column.has[rows] & (self.lex.text[start - 1] == QUOTE) & ((after == ord(",")) | (after == ord("}")))
        views = pl.DataFrame({"text": self.binary.new_from_index(0, rows.size), "from": start, "size": np.where(fits, end - start, 0), "fits": fits})
        return views.select(pl.when("fits").then(pl.col("text").bin.slice("from", "size").cast(pl.String)))["text"]

    def _categories(self) -> tuple[NDArray[np.int64], list[str | None]]:
        """Return the number of each event's category, and their names; the first one is None: no category."""
        rows = np.flatnonzero(self.keys["cat"].has)
        found = self.texts(self.keys["cat"], rows)
        distinct = [text for text in found.unique().to_list() if text is not None and "\\" not in text]
        code = np.zeros(self.lex.starts.size, np.int64)
        numbered = found.replace_strict(distinct, range(1, len(distinct) + 1), default=-1, return_dtype=pl.Int64) if distinct else pl.repeat(-1, rows.size, eager=True)
        code[rows] = numbered.fill_null(-1).to_numpy()
        self.slow |= code < 0
        return np.maximum(code, 0), [None, *distinct]

    def names(self, rows: NDArray[np.int64]) -> tuple[pl.Series, NDArray[np.bool_]]:
        """Return the names of the events `rows` as Categorical, and which of them are no strings (they are slow)."""
        text = self.texts(self.keys["name"], rows)
        names = text.cast(pl.Categorical())
        distinct = names.unique().cast(pl.String).drop_nulls()
        odd = distinct.filter(distinct.str.contains(_ODD_NAME))
        if odd.len():
            names = text.replace({name: _unescaped(name) for name in odd.to_list()}).cast(pl.Categorical())
        return names, names.is_null().to_numpy()


def _unescaped(text: str) -> str:
    quoted = f'"{text}"'
    for candidate in (quoted, *repaired(quoted.encode())):
        try:
            return msgspec.json.decode(candidate, type=str)
        except UNDECODABLE:
            continue
    return text
