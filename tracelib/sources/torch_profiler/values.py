"""Where the values of keys stand in a lexed chunk, and what they are: numbers, strings, categories, names."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tracelib.sources.torch_profiler import numbers, plain
from tracelib.sources.torch_profiler.lex import BACKSLASH, QUOTE, Refused, skip_blanks, string_ends
from tracelib.sources.torch_profiler.salvage import UNDECODABLE, repaired

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.lex import Lexed

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["ODD", "Keys", "Values", "integers", "texts", "times", "unescaped"]

#: Texts that have to be read as JSON: with escapes, or damaged.
ODD = re.compile(r"[\x00-\x1f\\]")
#: Factors that mix the words of a text into one: powers of an odd number.
MIXERS = np.cumprod(np.full(1 << 10, 0x9E3779B97F4A7C15, np.uint64))
#: Size of the table in which equal texts meet, as a power of two.
SLOTS = 12


@dataclass
class Values:
    """Where the values of one key stand: a position per event, and if it has the key at all."""

    at: Integers
    has: Flags


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


class Keys:
    """The keys of all events at one depth, in the order of the text."""

    def __init__(self, lex: Lexed, depth: int) -> None:
        here = np.flatnonzero((lex.depth == depth) & (lex.kind == QUOTE))
        self.lex, self.close, self.event = lex, lex.tokens[here], lex.event[here]
        self.at = skip_blanks(lex.text, self.close + 2)  # where the values begin
        self.words = {8: lex.words[self.close - 8]}  # number of characters -> those before the closing quote
        self.found: dict[bytes, Values] = {}

    def _last(self, count: int) -> Words:
        if count not in self.words:
            self.words[count] = self.words[8] >> np.uint64(8 * (8 - count))
        return self.words[count]

    def find(self, name: bytes) -> Values:
        """Return the last value of the key `name` in each event."""
        if name not in self.found:
            self.found[name] = self._values(name)
        return self.found[name]

    def _values(self, name: bytes) -> Values:
        quoted, count = b'"' + name, self.lex.starts.size
        found = np.flatnonzero(self._last(min(len(quoted), 8)) == _word(quoted[-8:]))
        if len(quoted) > 8 or self.lex.escapes:
            found = found[self._same(self.close[found], quoted)]
        event = self.event[found]
        if event.size == count and (event[1:] > event[:-1]).all():  # the usual case: each event has it once
            return Values(self.at[found], np.ones(count, np.bool_))
        values = Values(np.zeros(count, np.int64), np.zeros(count, np.bool_))
        values.at[event] = self.at[found]
        values.has[event] = True
        return values

    def _same(self, close: Integers, quoted: bytes) -> Flags:
        """Say which keys, of which the last 8 characters agree, are `quoted`: the quote that opens it may be escaped."""
        opening = close - len(quoted)
        same: Flags = self.lex.text[opening - 1] != BACKSLASH
        for start in range(0, len(quoted) - 8, 8):
            same &= self.lex.words[opening + start] == _word(quoted[start : start + 8])
        return same


def integers(lex: Lexed, values: Values, rows: Integers) -> tuple[Integers, Flags]:
    """Return the integers in the events `rows`, and which of them are just that."""
    value, sound = numbers.integers(lex.text, lex.words, values.at[rows])
    return value, sound & values.has[rows]


def times(lex: Lexed, values: Values, rows: Integers) -> tuple[Integers, Flags]:
    """Return the times in the events `rows` in ns, and which of them are just that."""
    value, sound = numbers.nanoseconds(lex.text, lex.words, values.at[rows], plain.LARGEST)
    return value, sound & values.has[rows]


def _strings(lex: Lexed, values: Values, rows: Integers) -> tuple[Integers, Integers, Flags]:
    """Return the first character and the length of the strings in the events `rows`, and which of them are strings."""
    opening = values.at[rows]
    sound = values.has[rows] & (lex.text[opening] == QUOTE)
    end = string_ends(lex, np.where(sound, opening, 0))
    after = lex.text[skip_blanks(lex.text, end + 1)]
    sound &= (after == ord(",")) | (after == ord("}"))
    return opening + 1, np.where(sound, end - opening - 1, 0), sound


def _distinct(lex: Lexed, start: Integers, length: Integers) -> tuple[Integers, Integers]:
    """Return the first of each kind of equal texts, and of which kind each text is."""
    firsts, kind, count = [np.zeros(0, np.int64)], np.zeros(start.size, np.int64), 0
    widths = _widths(length)
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        rows = np.flatnonzero(widths == width)
        words = _words(lex, start[rows], length[rows], 1 << width)
        mixers = np.resize(MIXERS, words.shape[0])[:, None]
        stands = _representatives((words * mixers).sum(axis=0, dtype=np.uint64))
        if (words != words[:, stands]).any():
            raise Refused("two unequal texts with equal mixtures, one pair in 2**64")
        first = np.flatnonzero(stands == np.arange(rows.size))
        kind[rows] = np.searchsorted(first, stands) + count
        firsts.append(rows[first])
        count += first.size
    return np.concatenate(firsts), kind


def _representatives(mixed: Words) -> Integers:
    """Return for each number the place of one that is equal to it, the same for all that are equal (a hash table)."""
    stands = np.empty(mixed.size, np.int64)
    table = np.empty(1 << SLOTS, np.int64)
    left, hashed = np.arange(mixed.size), mixed
    while left.size:
        hashed = hashed * MIXERS[0]
        slot = hashed >> np.uint64(64 - SLOTS)
        table[slot] = left  # of several in one slot, the last one written stands for all that are equal to it
        there = table[slot]
        equal = mixed[left] == mixed[there]
        stands[left[equal]] = there[equal]
        left, hashed = left[~equal], hashed[~equal]
    return stands


def _widths(length: Integers) -> Integers:
    """Return by how many words of 8 characters each text is compared, as the exponent of a power of two."""
    return np.ceil(np.log2(np.maximum(length, 8) / 8)).astype(np.int64)


def _words(lex: Lexed, start: Integers, length: Integers, width: int) -> Words:
    """Return one column per text: its length and `width` words that cover it; the last of them is repeated."""
    words = np.empty((width + 1, start.size), np.uint64)
    words[0] = length
    steps = np.arange(0, 8 * width, 8)[:, None]
    words[1:] = lex.words[start + np.minimum(steps, np.maximum(length - 8, 0))]
    if width == 1:  # a short text: shift what follows it out
        words[1] <<= (np.maximum(8 - length, 0) << 3).astype(np.uint64)
        words[1, length == 0] = 0
    return words


def texts(lex: Lexed, values: Values, rows: Integers) -> tuple[list[str], Integers]:
    """Return the distinct texts in the events `rows` as they stand there, and which each has: -1 if it is no string."""
    start, length, sound = _strings(lex, values, rows)
    some = np.flatnonzero(sound)
    first, kind = _distinct(lex, start[some], length[some])
    places = zip(start[some[first]].tolist(), length[some[first]].tolist(), strict=True)
    code = np.full(rows.size, -1)
    code[some] = kind
    return [lex.text[at : at + size].tobytes().decode() for at, size in places], code


@functools.lru_cache(1 << 14)
def unescaped(text: str) -> tuple[str, bool]:
    """Return what a string of a JSON text means, and whether it had to be repaired first."""
    if not ODD.search(text):
        return text, False
    quoted = f'"{text}"'
    for candidate in (quoted, *repaired(quoted.encode())):
        try:
            return msgspec.json.decode(candidate, type=str), candidate is not quoted
        except UNDECODABLE:
            continue
    return text, True
