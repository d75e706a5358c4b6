"""Rows straight from the pages of an SQLite file: fast for a whole table, and around the damage of another.

Python's `sqlite3` makes an object of every value, which takes ten times as long as SQLite's own scan. The
file format is simple and frozen (https://www.sqlite.org/fileformat2.html, sections 1.5 to 2.1), so here numpy
decodes thousands of rows at once: find a table's leaf pages from its root, each row's place from the page's
pointers, each value's width from the row's header, then read the values of a column with one gather.

Only what nsys writes is decoded: integers and NULLs in rows that fit into their page. Anything else raises
`Unusual`, and the caller reads that table through `sqlite3`. A damaged page costs its own rows only; it is
counted. `sqlite3` ends a scan at the first page that it cannot read, so :func:`rows_by_page` asks it for each
page by itself.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import polars as pl

_Integers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
_Bytes: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint8]]"
_Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

_INTERIOR, _LEAF = 0x05, 0x0D
#: Pages that one thread decodes at a time: their rows and what is computed of them stay in its cache.
_BATCH = 256
#: Bytes behind the last page, so that reading 8 bytes at any value's place stays inside.
_PAD = 16
#: Serial types: 0 NULL, 1-6 big-endian integers of these widths, 7 a float, 8 and 9 the integers 0 and 1; 10
#: and 11 are not in use, from 12 on they are blobs and texts.
_WIDTH = np.array([0, 1, 2, 3, 4, 6, 8, 8, *[0] * 248], dtype=np.uint8)
#: How far to shift the 8 bytes that start with the value, to leave it alone.
_SHIFT = np.array([63, 56, 48, 40, 32, 16, 0, 0, 63, 63], dtype=np.uint8)
_FLOAT, _ZERO, _LAST = 7, 8, 9
#: Multiplied by this, each byte of a word becomes the sum of itself and those before it (as long as that
#: stays below 256).
_RUNNING_SUM = np.uint64(0x0101010101010101)


class Unusual(Exception):
    """The table holds something that this module does not decode."""


@dataclass(frozen=True)
class Pages:
    """The pages of one SQLite file, open for reading as `descriptor`."""

    descriptor: int
    size: int
    usable: int
    count: int

    @classmethod
    def of(cls, descriptor: int) -> Pages:
        """Return the pages of the open file, by its 100-byte header."""
        head = os.pread(descriptor, 100, 0)
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        if len(head) < 100 or size < 512 or size & (size - 1):
            raise Unusual
        return cls(descriptor, size, size - head[20], os.fstat(descriptor).st_size // size)

    def read(self, root: int, columns: Sequence[int], names: Sequence[str]) -> tuple[pl.DataFrame, int]:
        """Return integer `columns` (places in its definition) of the table at `root`, and the damaged pages.

        Raises Unusual if a value is not an integer, a row does not fit into its page, or the table has no
        rows of its own.
        """
        leaves, rows, damaged = self.leaves(root)
        starts = np.cumsum(rows) - rows
        values = [np.empty(int(rows.sum()), dtype=np.int64) for _ in names]
        valid = [np.ones(len(column), dtype=np.bool_) for column in values]

        def decode(at: int) -> tuple[slice, int]:
            batch = slice(at, at + _BATCH)
            begin = int(starts[at])
            columns_of, bad = self._decode(leaves[batch], columns)
            count = len(columns_of[0][0]) if columns_of else 0
            whole = slice(begin, begin + count)
            for place, (numbers, not_null) in enumerate(columns_of):
                values[place][whole], valid[place][whole] = numbers, not_null
            return whole, bad

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            done = list(pool.map(decode, range(0, len(leaves), _BATCH)))
        kept = [whole for whole, _ in done] if any(bad for _, bad in done) else None
        frame = pl.DataFrame([_series(name, values.pop(0), valid.pop(0), kept) for name in names])
        return frame, damaged + sum(bad for _, bad in done)

    def leaves(self, root: int) -> tuple[_Integers, _Integers, int]:
        """Return the leaf pages below `root` in order, the rows of each, and how many are damaged."""
        leaves: list[int] = []
        rows: list[int] = []
        seen: set[int] = set()
        waiting, damaged = [root], 0
        while waiting:
            number = waiting.pop()
            if number in seen or not 1 < number <= self.count:
                damaged += 1
                continue
            seen.add(number)
            head = os.pread(self.descriptor, 5, (number - 1) * self.size)
            if head[0] == _LEAF:
                leaves.append(number)
                rows.append(min(int.from_bytes(head[3:5], "big"), self.size // 4))
            elif head[0] == _INTERIOR:
                waiting += reversed(self._children(number))
            elif number == root and head[0]:
                raise Unusual
            else:
                damaged += 1
        return np.array(leaves, dtype=np.int64), np.array(rows, dtype=np.int64), damaged

    def _children(self, number: int) -> list[int]:
        page = os.pread(self.descriptor, self.size, (number - 1) * self.size)
        cells = int.from_bytes(page[3:5], "big")
        places = np.frombuffer(page[12 : 12 + 2 * cells][: 2 * (len(page) // 2 - 6)], dtype=">u2").tolist()
        return [int.from_bytes(page[at : at + 4], "big") for at in [*places, 8]]

    def _decode(
        self, numbers: _Integers, columns: Sequence[int]
    ) -> tuple[list[tuple[_Integers, _Flags]], int]:
        """Return values and validity of the `columns` on the pages `numbers`, and how many are damaged."""
        data = self._bytes(numbers)
        rows, ends, damaged = self._rows(data, len(numbers))
        payload, at = _varint(data, rows)
        _, at = _varint(data, at)  # the row's id
        if (payload > self.usable - 35).any():
            raise Unusual
        whole = at + payload <= ends
        if not whole.all():
            damaged += len(np.unique(ends[~whole]))
            at, payload = at[whole], payload[whole]
        if not len(at):
            return [], damaged
        try:
            return _columns(data, at, payload, columns), damaged
        except IndexError as error:  # a damaged header points out of the file
            raise Unusual from error

    def _bytes(self, numbers: _Integers) -> _Bytes:
        """Return the pages' bytes, one after the other: read in one go if they lie close together."""
        data = np.empty(len(numbers) * self.size + _PAD, dtype=np.uint8)
        data[-_PAD:] = 0
        pages = data[:-_PAD].reshape(len(numbers), self.size)
        first, last = int(numbers.min()), int(numbers.max())
        if last - first < 4 * len(numbers):
            span = os.pread(self.descriptor, (last - first + 1) * self.size, (first - 1) * self.size)
            pages[:] = np.frombuffer(span, dtype=np.uint8).reshape(-1, self.size)[numbers - first]
        else:
            for page, number in zip(pages, numbers.tolist(), strict=True):
                page[:] = np.frombuffer(
                    os.pread(self.descriptor, self.size, (number - 1) * self.size), dtype=np.uint8
                )
        return data

    def _rows(self, data: _Bytes, pages: int) -> tuple[_Integers, _Integers, int]:
        """Return where each row starts, where its page ends, and how many pages list their rows wrongly."""
        start = np.arange(pages, dtype=np.int64) * self.size
        cells = data[start + 3].astype(np.int64) * 256 + data[start + 4]
        sound = (data[start] == _LEAF) & (8 + 2 * cells <= self.usable)
        cells[~sound] = 0
        page = np.repeat(start, cells)
        first = np.repeat(np.cumsum(cells) - cells, cells)
        entry = page + 8 + 2 * (np.arange(len(page)) - first)
        place = data[entry].astype(np.int64) * 256 + data[entry + 1]
        inside = (place >= 8) & (place <= self.usable - 4)
        bad = len(np.unique(page[~inside])) + int((~sound).sum())
        return page[inside] + place[inside], page[inside] + self.usable, bad


def _varint(data: _Bytes, at: _Integers) -> tuple[_Integers, _Integers]:
    """Return the variable-length integers at `at` (7 bits a byte, high bit = more), and what is behind."""
    byte = data[at].astype(np.int64)
    value, at, more = byte & 0x7F, at + 1, byte >= 0x80
    for _ in range(7):
        if not more.any():
            break
        byte = data[at].astype(np.int64)
        value = np.where(more, value << 7 | byte & 0x7F, value)
        at = at + more
        more &= byte >= 0x80
    if more.any():
        raise Unusual  # nine bytes: an id or length of 2^56 and more
    return value, at


def _columns(
    data: _Bytes, at: _Integers, payload: _Integers, columns: Sequence[int]
) -> list[tuple[_Integers, _Flags]]:
    """Return the values of `columns` and which are not NULL, given where each row's header starts."""
    header, types = _varint(data, at)
    words = np.ndarray((len(data) - 7,), dtype=np.int64, buffer=data.data, strides=(1,))
    count = max(columns) + 1
    if (header - (types - at) < count).any():
        raise Unusual  # rows written before a column was added
    kinds = np.stack([words[types + eight] for eight in range(0, count, 8)], axis=1).view(np.uint8)
    if (kinds[:, :count] > _LAST).any():
        raise Unusual  # a text among the columns up to the last wanted one
    widths = (np.take(_WIDTH, kinds).view(np.uint64) * _RUNNING_SUM).view(np.uint8)
    values: dict[int, tuple[_Integers, _Flags]] = {}
    group = at + header
    for eight in range(0, count, 8):
        for column in range(eight, min(eight + 8, count)):
            if column in columns:
                values[column] = _values(words, kinds[:, column], group + widths[:, column])
        group = group + widths[:, min(eight + 7, count - 1)]
    if (group > at + payload).any():
        raise Unusual
    return [values[column] for column in columns]


def _values(words: _Integers, kind: _Bytes, end: _Integers) -> tuple[_Integers, _Flags]:
    """Return the integers of the serial types `kind` that end at `end`, and which of them are not NULL."""
    shift = np.take(_SHIFT, kind)
    values = words[end - np.take(_WIDTH, kind)].byteswap(inplace=True)
    values >>= shift
    small = kind >= _FLOAT
    if small.any():
        if (kind == _FLOAT).any():
            raise Unusual
        values[small] = kind[small] - _ZERO
    return values, kind != 0


def _series(name: str, values: _Integers, valid: _Flags, kept: list[slice] | None) -> pl.Series:
    """Return a column; `kept` names the stretches that were filled, if there are others."""
    if kept is not None:
        values, valid = (
            np.concatenate([values[part] for part in kept]),
            np.concatenate([valid[part] for part in kept]),
        )
    series = pl.Series(name, values)
    if valid.all():
        return series
    return pl.DataFrame({name: series, "valid": valid}).select(pl.when("valid").then(name)).to_series()


#: What goes wrong in a damaged file: SQLite says so, or runs out of memory for a value of a damaged length,
#: or its words or names are not text.
FAILURES = (sqlite3.Error, UnicodeError, MemoryError)

Row = tuple[Any, ...]


def row_ids(pages: Pages, root: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the first and the last row's id and the number of rows of each leaf page of the table at `root`.

    Also how many of its pages are damaged so that they cannot tell.

    Raises Unusual if the table has no rows of its own (`WITHOUT ROWID`), or its first page is unreadable.
    """
    leaves, rows, damaged = pages.leaves(root)
    ranges = []
    for number, count in zip(leaves.tolist(), rows.tolist(), strict=True):
        page = os.pread(pages.descriptor, pages.size, (number - 1) * pages.size)
        first, last = _row_id(page, 0), _row_id(page, count - 1)
        if count and first is not None and last is not None:
            ranges.append((first, last, count))
        else:
            damaged += bool(count)
    return ranges, damaged


def _row_id(page: bytes, cell: int) -> int | None:
    """Return the id of a leaf page's row, which follows its length; None if the page has no such row."""
    at = int.from_bytes(page[8 + 2 * cell : 10 + 2 * cell], "big")
    for _ in range(8):
        if page[at : at + 1] < b"\x80":
            break
        at += 1
    value = 0
    for byte in page[at + 1 : at + 9]:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    whole = page[at + 1 : at + 10]  # a ninth byte counts whole
    number = value << 8 | whole[-1] if len(whole) == 9 else None
    return number if number is None or number < 1 << 63 else number - (1 << 64)


def rows_by_page(
    connection: sqlite3.Connection, select: str, ranges: Sequence[tuple[int, int, int]]
) -> tuple[list[Row], int]:
    """Return the rows of each page that can be read, and of how many pages not all rows came.

    `select` is a query that ends in the name of the row's id, `ranges` has the first and the last id on each
    page and the number of its rows (:func:`row_ids`).
    """
    query = f"{select} BETWEEN ? AND ? LIMIT ? OFFSET ?"
    rows: list[Row] = []
    torn = 0
    for first, last, count in ranges:
        page = _page(connection, query, first, last, count)
        torn += len(page) < count
        rows += page
    return rows, torn


def _page(connection: sqlite3.Connection, query: str, first: int, last: int, count: int) -> list[Row]:
    """Return the rows of one page, if need be one by one; the limit keeps SQLite off the next page."""
    with contextlib.suppress(*FAILURES):
        return connection.execute(query, (first, last, count, 0)).fetchall()
    rows: list[Row] = []
    for place in range(count):
        with contextlib.suppress(*FAILURES):
            rows += connection.execute(query, (first, last, 1, place)).fetchall()
    return rows
