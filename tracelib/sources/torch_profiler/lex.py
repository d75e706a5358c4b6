"""Where the events and their keys stand in a piece of JSON, found by numpy: no value is looked at here.

One bit stands for one character, 64 to a word, as in simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per
Second", 2019). Three facts carry it. (1) Once quotes after an odd run of backslashes are unmarked, quotes alternate:
opening, closing; so the running exclusive-or of the quotes' bits is 1 from each opening quote up to the closing one.
(2) The running sum of the braces outside of strings is the depth, and an event is what lies between depth 1 and depth 0.
(3) A closing quote followed by a colon ends a key. Anything that does not fit is refused: the plain decoder then says
what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelib.sources.torch_profiler.chunks import LEAD, PAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk

    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]
    Words = NDArray[np.uint64]

__all__ = ["Lexed", "Refused", "lexed", "skip_blanks", "string_ends"]

QUOTE, COMMA, COLON, BRACKET, BACKSLASH, OPEN, BAR, CLOSE = b'",:]\\{|}'
ALL, ONE, TOP = np.uint64(2**64 - 1), np.uint64(1), np.uint64(63)


class Refused(Exception):
    """The vectorised decoder leaves this text to the plain one."""


@dataclass(frozen=True)
class Lexed:
    """The structure of a chunk. Arrays of positions index `text`; events are numbered from 0.

    A token is a brace outside of strings or the closing quote of a key.
    """

    text: Bytes
    words: Words  # words[i] = the 8 bytes from text[i] on: a compare or a parse of 8 characters at once
    inside: Words  # bit i % 64 of word i // 64 is set if text[i] is in a string or opens one
    escapes: bool  # whether there is a backslash anywhere
    starts: Integers  # opening brace of each event
    ends: Integers  # closing brace of each event
    tokens: Integers  # position of each token of these events
    kind: Bytes  # its character
    depth: NDArray[np.int32]  # number of objects that are open after it
    event: NDArray[np.int32]  # number of the event that it stands in
    tail: bytes | None  # what follows the list's end, None if it does not end here

    def objects(self) -> Integers:
        """Return how many objects each event holds at depth 2: its args, as a rule."""
        inner = self.event[(self.depth == 2) & (self.kind == OPEN)]
        return np.bincount(inner, minlength=self.starts.size)


def skip_blanks(text: Bytes, places: Integers) -> Integers:
    """Return the first position at or after each of `places` that is no white space."""
    for _ in range(PAD):
        blank = text[places] <= 32
        if not blank.any():
            return places
        places = places + blank
    raise Refused("a long run of blanks")


def string_ends(lex: Lexed, opening: Integers) -> Integers:
    """Return the closing quote of each string that opens at `opening`: the first bit from there on that is not set."""
    ends = opening.copy()
    left = np.arange(opening.size)
    at = opening
    while left.size:
        outside = ~lex.inside[at >> 6] >> (at & 63).astype(np.uint64)
        ends[left] = at + np.bitwise_count(
            (outside & (~outside + ONE)) - ONE
        )  # the zeros below the lowest one
        on = np.flatnonzero(outside == 0)
        left, at = left[on], (at[on] | 63) + 1
    return ends


def _bits(flags: Flags) -> Words:
    packed = np.packbits(flags, bitorder="little")
    words = np.zeros(-(-flags.size // 64), "<u8")
    words.view(np.uint8)[: packed.size] = packed
    return words


def _places(bits: Words) -> Integers:
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little").view(np.bool_))


def _running(bits: Words) -> Words:
    """Return the exclusive-or of all bits up to and with each one."""
    result = bits.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        result ^= result << np.uint64(shift)
    odd = np.bitwise_xor.accumulate(result >> TOP)  # whether the words so far hold an odd number of bits
    result[1:] ^= odd[:-1] * ALL
    return result


def _before(bits: Words) -> Words:
    """Return the bits of the characters that stand before those that are marked."""
    result = bits >> ONE
    result[:-1] |= bits[1:] << TOP
    return result


def _quotes(text: Bytes, *, escapes: bool) -> Flags:
    """Return which characters are quotes that open or close a string."""
    marked: Flags = text == QUOTE
    if escapes:
        slashes = np.flatnonzero(text == BACKSLASH)
        first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of each run of them
        lengths = np.diff(np.append(first, slashes.size))
        marked[(slashes[first] + lengths)[lengths % 2 == 1]] = False
    return marked


def _tokens(text: Bytes, *, escapes: bool) -> tuple[Integers, Words]:
    """Return the positions of the braces outside of strings and of the closing quotes of keys, and what is in strings."""
    quotes = _bits(_quotes(text, escapes=escapes))
    inside = _running(quotes)
    if inside[-1] >> TOP:
        raise Refused("a string does not end")
    keys = quotes & _before(_bits(text == COLON))
    if (
        keys & inside
    ).any():  # an opening quote before a colon: two stray quotes turn the text between them inside out
        raise Refused("a stray quote, or a string that starts with a colon")
    above = text - np.uint8(OPEN)
    braces = _bits(np.less_equal(above, 2, out=above.view(np.bool_)))  # "{", "|" and "}" are neighbours
    return _places(keys | (braces & ~inside)), inside


def _events(text: Bytes, starts: Integers, ends: Integers, *, whole: bool) -> tuple[Integers, Integers, int]:
    """Return where events start and end, and where the list ends (-1: not here); all between them must be commas.

    The list must end here unless the events are `whole` and more may follow.
    """
    count = min(starts.size, ends.size)
    if not count:
        raise Refused("no events")
    behind = skip_blanks(text, ends[:count] + 1)
    closed = np.flatnonzero(text[behind] == BRACKET)
    if closed.size:
        count = int(closed[0]) + 1
    elif not whole or starts.size != ends.size:
        raise Refused("cut short, or braces do not balance")
    starts, ends, behind = starts[:count], ends[:count], behind[:count]
    expected = np.append(LEAD, behind[:-1] + 1)
    if (text[behind[:-1]] != COMMA).any() or (skip_blanks(text, expected) != starts).any():
        raise Refused("something else than a comma between events")
    return starts, ends, int(behind[-1]) if closed.size else -1


def lexed(chunk: Chunk) -> Lexed:
    """Return the structure of `chunk`.

    Raises
    ------
    Refused
        It is not a sequence of whole events, or is no UTF-8.

    """
    data = chunk.data
    try:
        data.isascii() or data.decode()
    except UnicodeDecodeError as error:
        raise Refused("no UTF-8") from error
    text = np.frombuffer(data, np.uint8)
    escapes = data.find(b"\\") >= 0
    tokens, inside = _tokens(text, escapes=escapes)
    kind = text[tokens]
    opens, shuts = kind == OPEN, kind == CLOSE
    depth = np.cumsum(opens.view(np.int8) - shuts.view(np.int8), dtype=np.int32)
    opens &= depth == 1
    whole = not chunk.last and depth.size > 0 and int(depth[-1]) == 0
    starts, ends, close = _events(text, tokens[opens], tokens[shuts & (depth == 0)], whole=whole)
    stop = int(np.searchsorted(tokens, ends[-1])) + 1
    if (kind[:stop] == BAR).any():
        raise Refused("a bar outside of strings")
    return Lexed(
        text=text,
        words=np.ndarray((text.size - 8,), dtype="<u8", buffer=data, strides=(1,)),
        inside=inside, escapes=escapes, starts=starts, ends=ends,
        tokens=tokens[:stop], kind=kind[:stop], depth=depth[:stop],
        event=np.cumsum(opens[:stop], dtype=np.int32) - np.int32(1),
        tail=None if close < 0 else bytes(memoryview(data)[close + 1 : chunk.stop]),
    )  # fmt: skip
