"""Lines of text files, in pieces of bounded size: what the readers of `perf script` and ftrace texts share."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CHUNK", "ahead", "chunks", "lines"]

Item = TypeVar("Item")

CHUNK = 16 << 20
LONGEST = 8  # a piece without a cut grows to this many times its size, then it is handed out as it is


def chunks(stream: io.RawIOBase, size: int = CHUNK, cut: bytes = b"\n") -> Iterator[bytes]:
    """Yield the stream's bytes in pieces of about `size` that end with `cut`; only the last may lack it.

    A file without line ends is handed out in slices of `LONGEST * size` rather than held in memory.
    """
    reader = io.BufferedReader(stream, 1 << 20)
    pending = b""
    while block := reader.read(size):
        pending += block
        end = pending.rfind(cut)
        if end < 0 and len(pending) < LONGEST * size:
            continue
        end = len(pending) if end < 0 else end + len(cut)
        yield pending[:end]
        pending = pending[end:]
    reader.detach()  # the stream stays open: its owner asks it for damage, and closes it
    if pending:
        yield pending


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items`, each made in another thread while the one before it is used; an error comes where its item would."""
    nothing_more = object()
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, nothing_more)
        while (item := coming.result()) is not nothing_more:
            coming = worker.submit(next, items, nothing_more)
            yield item  # type: ignore[misc]  # an Item: only the end is anything else


def lines(chunk: bytes) -> tuple[pl.Series, int]:
    """Return the lines of `chunk` without their ends (LF or CRLF), and how many places in it were no UTF-8.

    What is no UTF-8 becomes U+FFFD. Empty lines stay: a line's index is its place in the chunk.
    """
    if b"\r" in chunk:
        chunk = chunk.replace(b"\r\n", b"\n")
    damaged = 0
    try:
        chunk.decode()
    except UnicodeDecodeError:
        text = chunk.decode(errors="replace")
        damaged = text.count("\ufffd")
        chunk = text.encode()
    return pl.read_lines(io.BytesIO(chunk), name="line")["line"], damaged
