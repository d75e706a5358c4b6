"""Rows of a damaged table: SQLite ends a scan at the first page that it cannot read, so each page is asked for by itself."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelib.sources.nsys.pages import Pages

__all__ = ["FAILURES", "row_ids", "rows_by_page"]

#: What goes wrong in a damaged file: SQLite says so, or runs out of memory for a value of a damaged length, or its words or
#: names are no text.
FAILURES = (sqlite3.Error, UnicodeError, MemoryError)

Row = tuple[Any, ...]


def row_ids(pages: Pages, root: int) -> tuple[list[tuple[int, int, int]], int]:
    """Return the first and the last row's id and the number of rows of each leaf page of the table at `root`.

    Also how many of its pages are damaged so that they cannot tell.

    Raises
    ------
    Unusual
        The table has no rows of its own (`WITHOUT ROWID`), or its first page is unreadable.

    """
    leaves, rows, damaged = pages.leaves(root)
    found = []
    for number, count in zip(leaves.tolist(), rows.tolist(), strict=True):
        page = os.pread(pages.descriptor, pages.size, (number - 1) * pages.size)
        first, last = _row_id(page, 0), _row_id(page, count - 1)
        if count and first is not None and last is not None:
            found.append((first, last, count))
        else:
            damaged += bool(count)
    return found, damaged


def _row_id(page: bytes, cell: int) -> int | None:
    """Return the id of a leaf page's row, None if the page has no such row: it stands behind the row's length."""
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

    `select` is a query that ends in the name of the row's id, `ranges` has the first and the last id on each page and the
    number of its rows (:func:`row_ids`).
    """
    query = f"{select} BETWEEN ? AND ? LIMIT ? OFFSET ?"
    rows: list[Row] = []
    torn = 0
    for first, last, count in ranges:
        found = _page(connection, query, first, last, count)
        torn += len(found) < count
        rows += found
    return rows, torn


def _page(connection: sqlite3.Connection, query: str, first: int, last: int, count: int) -> list[Row]:
    """Return the rows of one page: all at once, or one by one if that fails; the limit keeps SQLite off the next page."""
    with contextlib.suppress(*FAILURES):
        return connection.execute(query, (first, last, count, 0)).fetchall()
    rows: list[Row] = []
    for place in range(count):
        with contextlib.suppress(*FAILURES):
            rows += connection.execute(query, (first, last, 1, place)).fetchall()
    return rows
