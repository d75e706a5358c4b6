"""Where the events and their keys stand in a piece of JSON, found by numpy: no value is looked at here.

Three facts carry it. (1) Once quotes after an odd run of backslashes are unmarked, quotes alternate: opening, closing.
(2) A brace with an odd number of quotes before it is inside a string; the running sum of the others is the depth, and
an event is what lies between depth 1 and depth 0. (3) A closing quote followed by a colon ends a key; its opening quote
is the one before. Anything that does not fit is refused: the plain decoder then says what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelib.sources.torch_profiler.chunks import LEAD, PAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk

__all__ = ["Lexed", "Refused", "lexed", "skip_blanks"]

QUOTE, COMMA, COLON, BRACKET, BACKSLASH, OPEN, BAR = b'",:]\\{|'


#: What may stand behind a closing quote. Two stray quotes would otherwise turn the text between them inside out, unseen.
BEHIND_STRING = np.isin(np.arange(256), [*b":,}] \t\r\n"])


class Refused(Exception):
    """The vectorised decoder leaves this text to the plain one."""


@dataclass(frozen=True)
class Lexed:
    """The structure of a chunk. Arrays of positions index `text`; events are numbered from 0."""

    text: NDArray[np.uint8]
    words: NDArray[
        np.uint64
    ]  # words[i] = the 8 bytes from text[i] on: a compare or a parse of 8 characters at once
    starts: NDArray[np.int64]  # opening brace of each event
    ends: NDArray[np.int64]  # closing brace of each event
    opening: NDArray[np.int64]  # opening quote of each string
    closing: NDArray[np.int64]  # closing quote of each string
    keys: NDArray[np.int64]  # numbers of the strings that are keys in an event
    key_depth: NDArray[np.int32]
    key_event: NDArray[np.int64]  # number of the event it stands in
    objects: NDArray[np.int64]  # number of objects at depth 2 in each event: its args, as a rule
    tail: bytes | None  # what follows the list's end, None if it does not end here


def skip_blanks(text: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first position at or after each of `places` that is no white space."""
    for _ in range(PAD):
        blank = text[places] <= 32
        if not blank.any():
            return places
        places = places + blank
    raise Refused("a long run of blanks")


def _quotes(data: bytearray, text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions of all quotes that open or close a string."""
    marked = text == QUOTE
    if data.find(b"\\") >= 0:
        slashes = np.flatnonzero(text == BACKSLASH)
        first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of each run of them
        lengths = np.diff(np.append(first, slashes.size))
        marked[(slashes[first] + lengths)[lengths % 2 == 1]] = False
    return np.flatnonzero(marked)


def _braces(
    text: NDArray[np.uint8], quotes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the positions of the braces that are outside of strings, and the depth after each."""
    places = np.flatnonzero(text - np.uint8(OPEN) <= 2)  # "{", "|" and "}" are neighbours
    inside = np.searchsorted(quotes, places) % 2 == 1
    places = places[~inside & (text[places] != BAR)]
    depth = np.cumsum(np.where(text[places] == OPEN, np.int8(1), np.int8(-1)), dtype=np.int32)
    return places, depth


def _events(
    text: NDArray[np.uint8], braces: NDArray[np.int64], depth: NDArray[np.int32], *, last: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return where events start and end, and where the list ends (-1: not here); all between them must be commas."""
    opening = text[braces] == OPEN
    starts, ends = braces[opening & (depth == 1)], braces[~opening & (depth == 0)]
    count = min(starts.size, ends.size)
    if not count:
        raise Refused("no events")
    behind = skip_blanks(text, ends[:count] + 1)
    closed = np.flatnonzero(text[behind] == BRACKET)
    if closed.size:
        count = int(closed[0]) + 1
    elif last or starts.size != ends.size or depth[-1]:
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
    quotes = _quotes(data, text)
    if quotes.size % 2:
        raise Refused("a string does not end")
    braces, depth = _braces(text, quotes)
    starts, ends, close = _events(text, braces, depth, last=chunk.last)
    opening, closing = quotes[0::2], quotes[1::2]
    if not BEHIND_STRING[text[closing[: np.searchsorted(closing, ends[-1])] + 1]].all():
        raise Refused("a stray quote")
    keys = np.flatnonzero((text[closing + 1] == COLON) & (closing < ends[-1]))
    # Every key has the depth and the event of the last brace before it.
    before = np.append(np.searchsorted(closing[keys], braces), keys.size)
    runs = np.diff(before)
    event = np.minimum(np.cumsum((depth == 1) & (text[braces] == OPEN)), starts.size) - 1
    return Lexed(
        text=text,
        words=np.ndarray((text.size - 8,), dtype="<u8", buffer=data, strides=(1,)),
        starts=starts, ends=ends, opening=opening, closing=closing, keys=keys[before[0] :],
        key_depth=np.repeat(depth, runs), key_event=np.repeat(event, runs),
        objects=np.bincount(event[(depth == 2) & (text[braces] == OPEN)], minlength=starts.size)[: starts.size],
        tail=None if close < 0 else bytes(memoryview(data)[close + 1 : chunk.stop]),
    )  # fmt: skip
