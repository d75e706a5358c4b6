"""A Chrome trace's bytes, cut into pieces of whole events.

A trace is `{…, "traceEvents": [event, event, …], …}` or a bare `[event, …`, on one line or many, of any size.
The text before the list is its head, the text after it its tail (:mod:`document` reads both). A cut is made
where `}, {"key":` stands: the unescaped quote after the brace cannot be inside a JSON string, and an object
with a `"ph"` must end before the cut, so that a list of objects nested in some event's args, of any length,
does not pass for events.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tracelib.sources.files import Stream
from tracelib.sources.torch_profiler.repairs import UNDECODABLE, depth_of, repaired

#: Bytes 0 behind a chunk's text: the compiled scan stops at the first, and may look at the others.
PAD = 64
#: Measured on 500 MB: with 4 MiB a tenth slower, because each piece costs something; with 12 MiB no faster.
CHUNK = 8 << 20
#: No event is longer than this (a name of some MB is damage): a bound on memory.
LONGEST = 64 << 20

#: So many objects at the end of a piece without a sound event are looked at for a damaged one.
MOST_DAMAGED = 100

#: msgspec names the byte after the first one that is too much.
TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"[^"\\]{1,40}"\s*:')
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BARE_LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")


class _Phased(msgspec.Struct):
    ph: str


_is_event = msgspec.json.Decoder(_Phased).decode


@dataclass(frozen=True)
class Chunk:
    """Whole events, separated by commas: `data[:stop]`; `last` if the file ends with it."""

    data: bytearray
    stop: int
    last: bool

    @property
    def text(self) -> bytes:
        return bytes(memoryview(self.data)[: self.stop])


def _place(boundary: re.Match[bytes]) -> tuple[int, int]:
    return boundary.start() + 1, boundary.start() + boundary[0].index(b"{")


def boundaries(text: bytes | bytearray, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """Return (end of an object, start of the next) for each place in `text[start:stop]` to cut at."""
    return [_place(m) for m in BOUNDARY.finditer(text, start, len(text) if stop is None else stop)]


def _event_end(text: bytes | bytearray, start: int, stop: int) -> int:
    """Return where the event ends that begins at `start`, 0 if no whole one in valid JSON does."""
    try:
        _is_event(memoryview(text)[start:stop])
    except UNDECODABLE as error:
        behind = TRAILING.search(str(error))
        return text.rfind(b"}", start, start + int(behind[1]) - 1) + 1 if behind else 0
    return stop


def event_boundaries(text: bytes) -> list[tuple[int, int]]:
    """Return those of the `boundaries` that are not inside of a whole event in valid JSON."""
    between: list[tuple[int, int]] = []
    inside = _event_end(text, 0, len(text))
    for place in boundaries(text):
        if place[1] >= inside:
            between.append(place)
            inside = max(inside, _event_end(text, place[1], len(text)))
    return between


def _behind_events(data: bytearray, places: list[tuple[int, int]], stop: int) -> tuple[int, int] | None:
    """Return the last boundary in `data[:stop]` that follows an event, which begins at one of `places`."""
    for _, start in reversed(places):
        end = _event_end(data, start, stop)
        if end and (boundary := BOUNDARY.match(data, end - 1, stop)):
            return _place(boundary)
    return None


def _repairable(text: bytes) -> bool:
    for candidate in repaired(text):
        try:
            _is_event(candidate)
        except UNDECODABLE:
            continue
        return True
    return False


def _behind_damaged(data: bytearray, places: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the last of `places` that follows what a repair makes an event of; it may hold some of them."""
    last = places[-MOST_DAMAGED - 1 :]
    parts = [bytes(data[start:end]) for (_, start), (end, _) in itertools.pairwise(last)]
    depths = [depth_of(part) for part in parts]
    for first in reversed(range(len(parts))):
        totals = itertools.accumulate(depths[first:])
        closing = next(
            (place for place, depth in zip(last[first + 1 :], totals, strict=True) if depth <= 0), None
        )
        if closing and _repairable(bytes(data[last[first][1] : closing[0]])):
            return closing
    return None


def _cut(data: bytearray, stop: int) -> tuple[int, int] | None:
    """Return the last boundary in `data[:stop]` that follows an event, None if none surely does."""
    window = 1 << 12
    while True:
        begin = max(0, stop - window)
        places = boundaries(data, begin, stop)
        if not begin:  # the piece begins with an event as well
            places.insert(0, (0, 0))
        if (place := _behind_events(data, places, stop)) or not begin:
            return place or _behind_damaged(data, places)
        window *= 8


class Cutter:
    """The chunks of a stream, in order; `head`, known with the first, is the text before the list of events.

    `head` is None if there is no list of events.
    """

    def __init__(self, stream: Stream, size: int = CHUNK) -> None:
        self.stream, self.size = stream, size
        self.head: bytes | None = None
        self.skipped_bytes = 0

    def __iter__(self) -> Iterator[Chunk]:
        carry = self._find_list()
        size = self.size
        while self.head is not None:
            data, stop, ended = self._filled(carry, size)
            if ended:
                yield Chunk(data, stop, last=True)
                return
            place = _cut(data, stop)
            if place is None and stop < LONGEST:
                carry, size = bytes(data[:stop]), size * 2
                continue
            size = self.size
            if place is None:
                place = next(reversed(boundaries(data, 0, stop)), None)
            if place is None:  # an event of impossible length: drop what is there, go on at the next boundary
                self.skipped_bytes += stop - 64
                carry = bytes(data[stop - 64 : stop])
                continue
            end, start = place
            carry = bytes(data[start:stop])
            data[end:] = bytes(PAD)
            yield Chunk(data, end, last=False)

    def _find_list(self) -> bytes:
        """Read up to the list of events; return the bytes read beyond its bracket."""
        text = b""
        while len(text) < LONGEST:
            more = self.stream.read(min(self.size, 1 << 20))
            text += more or b""
            begin = BARE_LIST.match(text) or EVENTS_KEY.search(text)
            if begin:
                self.head = text[: begin.end() - 1]
                return text[begin.end() :]
            if not more:
                break
        return b""

    def _filled(self, carry: bytes, size: int) -> tuple[bytearray, int, bool]:
        """Return a padded buffer of `carry` and up to `size` bytes more, where it stops, and if it is all."""
        full = len(carry) + size
        data = bytearray(full + PAD)
        data[: len(carry)] = carry
        stop = len(carry)
        view = memoryview(data)
        while stop < full:
            count = self.stream.readinto(view[stop:full])
            if not count:
                view.release()
                data[stop:] = bytes(PAD)
                return data, stop, True
            stop += count
        view.release()
        data[stop:] = bytes(PAD)
        return data, stop, False
