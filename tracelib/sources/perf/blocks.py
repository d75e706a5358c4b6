"""Pieces of a `perf script` text that hold whole events, so that each can be scanned by itself, two at a time."""

from __future__ import annotations

import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from tracelib.sources.text import CHUNK, pieces

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

__all__ = ["blocks", "overlapped"]

LONGEST = 2 * CHUNK  # a piece without a place to cut is cut anywhere: memory stays bounded whatever the input
LOOK_BACK = 1 << 16
#: A line end before a line that can only be the head of an event: neither blank nor indented like a frame.
BEFORE_HEAD = re.compile(rb"\n(?=[ ]{0,16}[^\s])(?![ ]*[0-9a-f]+ )")
THREADS = 2

Made = TypeVar("Made")


def blocks(stream: io.RawIOBase, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the stream's bytes in pieces of about `size` that end between two events (the last: where the file ends)."""
    return pieces(stream, size, _between_events, LONGEST)


def _between_events(data: bytearray, filled: int) -> int:
    """Return how many of the `filled` bytes of `data` are whole events, 0 if no cut is found.

    Most recordings close each event with an empty line; those without call chains have one event a line.
    """
    for empty_line in (b"\n\n", b"\n\r\n"):
        if (at := data.rfind(empty_line, 0, filled)) >= 0:
            return at + len(empty_line)
    start = max(0, filled - LOOK_BACK)
    last = max((match.end() for match in BEFORE_HEAD.finditer(data, start, filled)), default=0)
    return last or data.rfind(b"\n", 0, filled) + 1 if filled >= LONGEST else last


def overlapped(work: Callable[[bytes], Made], pieces: Iterable[bytes]) -> Iterator[Made]:
    """Yield `work(piece)` for each piece, in order; the next ones are under way meanwhile (Polars runs without the GIL)."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        for piece in pieces:
            waiting.append(pool.submit(work, piece))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
