"""Text files for the readers of `perf script` and ftrace: read in pieces, looked at once per distinct text.

The pieces are of bounded size and end with a line. Columns repeat few texts: looking up by number is nearly
free.
"""

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


#: Where more of the first texts than this differ, as arguments of system calls may, looking for equal ones
#: costs more than it saves.
TRIED, MOST_DISTINCT = 1000, 600
EACH = pl.col("text")


class Texts:
    """Texts numbered as they come, also from several threads; `kind` is the type of columns of them."""

    def __init__(self) -> None:
        self.kind = pl.Categorical(pl.Categories.random())
        self._held = pl.Series([], dtype=self.kind)  # Polars forgets the texts of a type that no column has

    def codes(self, texts: pl.Series) -> pl.Series:
        """Return the number of each text, UInt32; null for null."""
        return codes_of(texts.cast(self.kind))

    def all(self) -> pl.Series:
        """Return the texts; the place of each is its number."""
        return self.kind.categories.to_series().alias("text")


class Listed:
    """One list of the texts of several columns; what hardly repeats is listed as often as it comes."""

    def __init__(self) -> None:
        self._parts: list[pl.Series] = []
        self._count = 0

    def add(self, texts: pl.Series, made: pl.Expr = EACH) -> pl.Series:
        """List what `made` makes of `text`; return its place for each of `texts`, null where it is null."""
        different, places = distinct(texts)
        different = different.to_frame().select(made).to_series()
        if different.null_count():
            places = places.set(different.is_null()[places], None)
        first, self._count = self._count, self._count + different.len()
        self._parts.append(different.fill_null(""))
        return (places + first).cast(pl.UInt32)

    def all(self) -> pl.Series:
        """Return the texts in the list."""
        return pl.concat(self._parts) if self._parts else pl.Series("text", [], pl.String)


def codes_of(interned: pl.Series) -> pl.Series:
    """Return the numbers that stand for the texts of a Categorical column, UInt32."""
    return interned.to_physical()


def distinct(texts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the distinct texts, and for each of `texts` its place among them.

    Texts that hardly repeat are returned as they are: equal ones may occur more than once.
    """
    if texts.head(TRIED).n_unique() > MOST_DISTINCT:
        return texts.alias("text"), pl.int_range(texts.len(), dtype=pl.UInt32, eager=True)
    interned = Texts()
    places = interned.codes(texts)
    return interned.all(), places


def per_distinct(texts: pl.Series, *made: pl.Expr) -> pl.DataFrame:
    """Return what the expressions make of `text`, one row per text, each distinct one looked at once."""
    different, places = distinct(texts)
    return different.to_frame().select(*made)[places]
