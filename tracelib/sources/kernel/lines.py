"""Lines of text files, in pieces of bounded size, for the readers of `perf script` and ftrace texts."""

import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import polars as pl

from tracelib.sources.files import keep_freed_memory

Item = TypeVar("Item")

#: Measured: with smaller pieces the threads wait for each other more often, larger ones take memory and give
#: nothing.
CHUNK = 16 << 20
LINE_END = re.compile(rb"\r+\n")
LONGEST = 4  # a piece without a cut grows to this many times its size, then it is handed out as it is


def pieces(
    stream: io.RawIOBase, size: int, whole: Callable[[bytearray, int], int], longest: int
) -> Iterator[bytes]:
    """Yield the stream's bytes in pieces of about `size`, cut where `whole(data, filled)` says.

    `whole` returns how many of the `filled` bytes of `data` are whole lines or events, 0 if none. A piece of
    `longest` bytes in which there is no place to cut is handed out as it is: memory stays bounded whatever
    the input.
    """
    keep_freed_memory()
    buffer, filled = bytearray(2 * size), 0
    while count := _fill(stream, memoryview(buffer)[filled : filled + size]):
        filled += count
        end = whole(buffer, filled) or (filled if filled >= longest else 0)
        if end:
            yield bytes(memoryview(buffer)[:end])
            buffer[: filled - end] = buffer[end:filled]
            filled -= end
        if len(buffer) < filled + size:
            buffer.extend(bytes(filled))
    if filled:
        yield bytes(memoryview(buffer)[:filled])


def _fill(stream: io.RawIOBase, room: memoryview) -> int:
    """Fill `room` and return how much was filled, less only at the end: a decompressor gives small pieces."""
    filled = 0
    while filled < len(room) and (count := stream.readinto(room[filled:])):
        filled += count
    return filled


def chunks(stream: io.RawIOBase, size: int = CHUNK) -> Iterator[bytes]:
    """Yield the stream's bytes in pieces of about `size` that end with a line; only the last may end without.

    A file without line ends is handed out in slices of `LONGEST * size` rather than held in memory.
    """
    return pieces(stream, size, lambda data, filled: data.rfind(b"\n", 0, filled) + 1, LONGEST * size)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items`, each made in another thread while the one before is used; errors come in place."""
    nothing_more = object()
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, nothing_more)
        while (item := coming.result()) is not nothing_more:
            coming = worker.submit(next, items, nothing_more)
            yield item  # type: ignore[misc]  # an Item: only the end is anything else


def lines(chunk: bytes) -> tuple[pl.Series, int]:
    """Return the lines of `chunk` without their ends (LF, CRLF), and how many places in it were not UTF-8.

    A file that was converted twice has CRCRLF. What is not UTF-8 becomes U+FFFD. Empty lines stay: a line's
    index is its place in the chunk.
    """
    if b"\r" in chunk:
        chunk = LINE_END.sub(b"\n", chunk)
    damaged = 0
    try:
        chunk.isascii() or chunk.decode()
    except UnicodeDecodeError:
        text = chunk.decode(errors="replace")
        damaged = text.count("\ufffd")
        chunk = text.encode()
    return pl.read_lines(io.BytesIO(chunk), name="line")["line"], damaged
