"""A Chrome trace's bytes, cut into pieces of whole events.

A trace is `{…, "traceEvents": [event, event, …], …}` or a bare `[event, …`, on one line or many, of any size. The text
before the list is its head, the text after it its tail (:mod:`document` reads both). A cut is made where `}, {"key":`
stands: the unescaped quote after the brace cannot be inside a JSON string, and the object before the cut must have a
`"ph"`, so a list of objects nested in some event's args does not pass for events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelib.sources.files import Stream

__all__ = ["PAD", "Chunk", "Cutter", "boundaries"]

#: Bytes 0 behind a chunk's text: the compiled scan stops at the first, and may look at the others.
PAD = 64
#: Measured on 500 MB: with 4 MiB a tenth slower, because what is done once a piece costs more; with 12 MiB no faster.
CHUNK = 8 << 20
#: No event is longer than this (a name of some MB is damage): a bound on memory.
LONGEST = 64 << 20

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


def boundaries(text: bytes | bytearray, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
    """Return (end of an event, start of the next) for each place between `start` and `stop` where a cut may be."""
    found = BOUNDARY.finditer(text, start, len(text) if stop is None else stop)
    return [(m.start() + 1, text.index(b"{", m.start())) for m in found]


def _cut(data: bytearray, stop: int) -> tuple[int, int] | None:
    """Return the last boundary in `data[:stop]` that follows an event, else the last one at all."""
    window = 1 << 12
    while True:
        places = boundaries(data, max(0, stop - window), stop)
        for before, here in zip(reversed(places[:-1]), reversed(places[1:]), strict=True):
            try:
                _is_event(memoryview(data)[before[1] : here[0]])
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            return here
        if window >= stop:
            return places[-1] if places else None
        window *= 8


class Cutter:
    """The chunks of a stream, in order; `head` is the text before the list of events, known when the first is out.

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
            if (
                place is None
            ):  # one event of impossible length: drop what is there, go on at the next boundary
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
            found = BARE_LIST.match(text) or EVENTS_KEY.search(text)
            if found:
                self.head = text[: found.end() - 1]
                return text[found.end() :]
            if not more:
                break
        return b""

    def _filled(self, carry: bytes, size: int) -> tuple[bytearray, int, bool]:
        """Return a padded buffer that holds `carry` and up to `size` bytes more, where it stops, and if that is all."""
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
