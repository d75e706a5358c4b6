"""An nsys SQLite export as tables of typed columns, whatever of it is there and whole.

Which tables and columns exist differs by nsys version, by what was recorded and by who trimmed the file, so
everything is probed: a column that the file lacks is all null, a table that it lacks has no rows. The file is
untrusted: only real tables are read (no views, virtual tables or generated columns, which could run any
expression), it is opened read-only and `immutable`, so that no journal or lock file appears beside it. A
packed or shortened file is completed in a copy.
"""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream
from tracelib.sources.nsys.pages import FAILURES, Pages, Unusual, row_ids, rows_by_page
from tracelib.sources.nsys.tables import SQLITE, Tables, shown_name
from tracelib.sources.programs import Scratch

CHUNK = 1 << 16
#: Longer texts are cut: a name of this length is an attack or an accident, and each distinct one is kept in
#: memory.
LONGEST_NAME = 1 << 16
_PLAIN_TABLE = "CREATE TABLE"
#: What `PRAGMA table_xinfo` calls a generated column that is not stored.
_VIRTUAL = 2
_NUMBERS = (pl.Int64, pl.Float64)
_VIEWS_NAMED = 20
#: SQLite's names of a row's id; a column of that name hides it.
_ROW_IDS = ("rowid", "_rowid_", "oid")


class Database(Tables):
    """The tables of one open export; `cut_bytes` are missing at the file's end."""

    def __init__(self, path: Path, connection: sqlite3.Connection, pages: Pages) -> None:
        super().__init__([path])
        self.cut_bytes = 0
        self._unread_pages: dict[str, int] = {}  # of each damaged table: some are read more than once
        self._connection = connection
        self._pages = pages
        connection.text_factory = lambda text: text[:LONGEST_NAME].decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        self._roots = dict(self._plain_tables())
        self._definitions = {name: self._definition(name) for name in self._roots}
        self.tables = {name: tuple(places) for name, places in self._definitions.items()}
        self._note_views()

    def _plain_tables(self) -> Iterator[tuple[str, int]]:
        rows = self._connection.execute(
            "SELECT name, sql, rootpage FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for name, sql, root in rows:
            if (
                isinstance(name, str)
                and isinstance(sql, str)
                and sql[: len(_PLAIN_TABLE)].upper() == _PLAIN_TABLE
            ):
                yield name, root if isinstance(root, int) else 0

    def _definition(self, table: str) -> dict[str, int | None]:
        """Return the table's columns, each with its place in a stored row: None for a name of the row's id.

        Generated columns are left out; one that is stored takes a place all the same.
        """
        try:
            rows = self._connection.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
        except FAILURES as error:
            self.note(f"table {table}: {_line(error)}")
            return {}
        keys = sum(bool(row[5]) for row in rows)
        is_id = {row[1]: keys == 1 and bool(row[5]) and str(row[2]).upper() == "INTEGER" for row in rows}
        stored = [(row[1], row[6]) for row in rows if row[6] != _VIRTUAL]
        return {name: None if is_id[name] else at for at, (name, hidden) in enumerate(stored) if not hidden}

    def _note_views(self) -> None:
        """Say which views are left out: they could run any expression."""
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
        for (name,) in rows[:_VIEWS_NAMED]:
            self.note(f"{shown_name(str(name))} is a view, which is never read: give the table that it shows")

    @property
    def lost_bytes(self) -> int:
        """How many bytes of the file are missing or belong to pages that could not be read."""
        # what is cut off is among the pages that cannot be read
        return max(self.cut_bytes, sum(self._unread_pages.values()) * self._pages.size)

    def _lose(self, table: str, pages: int) -> None:
        self._unread_pages[table] = max(pages, self._unread_pages.get(table, 0))

    def read(self, table: str, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` (name to dtype: Int64, Float64 or String) of `table`, in the file's order.

        A value of another type than asked for is null. What a damaged page holds is left out and told in
        `damage`.
        """
        schema = {name: columns[name] for name in columns if self.has(table, name)}
        if not schema:
            return pl.DataFrame(schema=dict(columns))
        frame = self._by_page(table, schema)
        if frame is None:
            frame = self._by_query(table, schema)
        absent = [
            pl.lit(None, dtype=dtype).alias(name) for name, dtype in columns.items() if name not in schema
        ]
        return frame.with_columns(absent).select(list(columns))

    def _by_page(self, table: str, schema: Mapping[str, Any]) -> pl.DataFrame | None:
        """Return the columns by the fast path, None where it does not fit."""
        places = [place for name in schema if (place := self._definitions[table][name]) is not None]
        if len(places) < len(schema) or any(dtype not in _NUMBERS for dtype in schema.values()):
            return None
        try:
            frame, damaged = self._pages.read(self._roots[table], places, list(schema))
        except Unusual:
            return None
        if damaged:
            self._lose(table, damaged)
            size = self._pages.size
            self.note(f"table {table}: {damaged} pages of {size} bytes cannot be read; the other rows were")
        # floats are asked for where nsys may write either; what holds one that is not an integer is not
        # decoded here
        return frame.cast({name: dtype for name, dtype in schema.items() if dtype != pl.Int64})

    def _by_query(self, table: str, schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return the columns as SQLite gives them; of a damaged table, all rows that it gives of any page."""
        parts, error = self._scan(table, schema, "")
        if error is not None:
            by_page = self._page_by_page(table, schema)
            if by_page is None:
                by_page = self._from_both_ends(table, schema, parts)
                self._lose(table, 1)
            parts = by_page
            read = sum(part.height for part in parts)
            self.note(f"table {table}: {_line(error)}; {read} rows before and behind that were read")
        return pl.concat([pl.DataFrame(schema=dict(schema)), *parts])

    def _page_by_page(self, table: str, schema: Mapping[str, Any]) -> list[pl.DataFrame] | None:
        """Return what can be read of each of the table's pages, None if it has no pages of its own."""
        names = {name.lower() for name in self.tables[table]}
        row_id = next((name for name in _ROW_IDS if name not in names), None)
        try:
            ranges, damaged = row_ids(self._pages, self._roots[table])
        except Unusual:
            return None
        if row_id is None or not ranges:
            return None
        columns = ", ".join(_quoted(name) for name in schema)
        select = f"SELECT {columns} FROM {_quoted(table)} WHERE {row_id}"  # noqa: S608  (quoted)
        rows, torn = rows_by_page(self._connection, select, ranges)
        self._lose(table, damaged + torn)
        return [_frame(rows, schema)] if rows else []

    def _from_both_ends(
        self, table: str, schema: Mapping[str, Any], before: list[pl.DataFrame]
    ) -> list[pl.DataFrame]:
        """Return the rows `before` the damage, and those behind it as they come from the other end."""
        rest, _ = self._scan(table, schema, "ORDER BY rowid DESC")
        return before + [part.reverse() for part in reversed(rest)]

    def _scan(
        self, table: str, schema: Mapping[str, Any], order: str
    ) -> tuple[list[pl.DataFrame], Exception | None]:
        """Return the chunks up to the table's end or up to the first error, and that error."""
        parts: list[pl.DataFrame] = []
        names = ", ".join(_quoted(name) for name in schema)
        query = f"SELECT {names} FROM {_quoted(table)} {order}"  # noqa: S608  (quoted)
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(CHUNK):
                parts.append(_frame(rows, schema))
        except FAILURES as error:
            return [*parts, *self._last_rows(query, schema, sum(part.height for part in parts))], error
        return parts, None

    def _last_rows(self, query: str, schema: Mapping[str, Any], after: int) -> list[pl.DataFrame]:
        """Return the rows from `after` up to the damage: `fetchmany` drops those of its last chunk."""
        rows: list[tuple[Any, ...]] = []
        with contextlib.suppress(*FAILURES):  # the error that ended the scan: the caller reports it
            for row in self._connection.execute(f"{query} LIMIT {CHUNK} OFFSET {after}"):
                rows.append(row)  # noqa: PERF402  (rows that came before the error must stay)
        return [_frame(rows, schema)] if rows else []


def _frame(rows: list[tuple[Any, ...]], schema: Mapping[str, Any]) -> pl.DataFrame:
    columns = zip(*rows, strict=True)
    return pl.DataFrame(
        [
            pl.Series(name, column, dtype, strict=False)
            for (name, dtype), column in zip(schema.items(), columns, strict=True)
        ]
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open the export at `path`, compressed or not, whole or cut short.

    A compressed or shortened one is copied into a private temporary folder, which is removed afterwards;
    nothing is ever written beside the input.

    Raises BadTrace if SQLite cannot read the file's schema.
    """
    with contextlib.ExitStack() as cleanup:
        plain, lost, damage = plain_file(path, cleanup)
        descriptor = os.open(plain, os.O_RDONLY)
        cleanup.callback(os.close, descriptor)
        try:
            pages = Pages.of(descriptor)
            database = _tolerant(path, plain, pages, cleanup)
        except (*FAILURES, Unusual) as error:
            reason = _line(error) or "the header makes no sense"
            advice = "Export it again from its .nsys-rep: nsys export -t sqlite."
            raise BadTrace(path, "nsys", "the schema", reason, advice=advice) from error
        if damage:
            database.damage.append(damage)
            database.cut_bytes = lost
        database.damage += unmerged(path)
        yield database


def _tolerant(path: Path, plain: Path, pages: Pages, cleanup: contextlib.ExitStack) -> Database:
    """Return the open database; where a definition in it is damaged, without the tables so defined.

    SQLite skips what it cannot understand of a schema only while that is declared writable; the file stays
    read-only.
    """

    def opened() -> sqlite3.Connection:
        connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        cleanup.callback(connection.close)
        return connection

    try:
        return Database(path, opened(), pages)
    except FAILURES as error:
        connection = opened()
        connection.execute("PRAGMA writable_schema = ON")
        database = Database(path, connection, pages)
        database.damage.append(f"the schema: {_line(error)}; tables with a damaged definition are left out")
        return database


def _line(error: Exception) -> str:
    """Return the first line of an error: SQLite quotes definitions, which have many."""
    if isinstance(error, MemoryError):
        return "a value of a damaged length is larger than memory"
    return next(iter(str(error).splitlines()), "")


#: A header may promise anything: what is filled up takes no room on disk, but SQLite walks through it.
_LARGEST_GAP = 1 << 36
_LOG_HEADER = 32


def unmerged(path: Path) -> list[str]:
    """Say which files beside `path` hold changes that SQLite has not merged into it (they are not read)."""
    logs = [path.with_name(path.name + ending) for ending in ("-wal", "-journal")]
    return [
        f"{file.name} beside it holds changes that are not read: open the database once with sqlite3, "
        "which merges them"
        for file in logs
        if _has_changes(file)
    ]


def _has_changes(file: Path) -> bool:
    """Say whether the log or journal is more than a header; one that is done with may start with zeros."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_LOG_HEADER + 1)
    except OSError:
        return False
    return len(head) > _LOG_HEADER and any(head[:8])


def plain_file(path: Path, cleanup: contextlib.ExitStack) -> tuple[Path, int, str | None]:
    """Return the file to open in place of `path`, how many bytes of it are lost, and why."""
    with path.open("rb") as file:
        head = file.read(100)
    if head.startswith(SQLITE) and _missing_bytes(head, path) <= 0:
        return path, 0, None
    copy = Path(cleanup.enter_context(Scratch())) / "export.sqlite"
    try:
        damage, lost = _unpacked(path, copy)
    except OSError as error:
        reason = f"it cannot be unpacked into {copy.parent.parent} ({error.strerror or error})"
        raise BadTrace(path, "nsys", "", reason, advice="Set TMPDIR to a folder with room for it.") from error
    return copy, lost, damage


def _unpacked(path: Path, copy: Path) -> tuple[str | None, int]:
    with open_stream(path) as stream, copy.open("wb") as unpacked:
        shutil.copyfileobj(stream, unpacked, 1 << 20)
        damage, lost = stream.damage, stream.lost_bytes
    with copy.open("rb") as file:
        missing = _missing_bytes(file.read(100), copy)
    if missing > 0:  # SQLite refuses a file that is shorter than its header says: fill it up with empty pages
        size = copy.stat().st_size
        os.truncate(copy, size + missing)
        damage = damage or f"the file ends after {size} of {size + missing} bytes"
        lost = lost or missing
    return damage, lost


def _missing_bytes(head: bytes, path: Path) -> int:
    """Return how many bytes the database's header promises beyond the file's end."""
    size = int.from_bytes(head[16:18], "big")
    promised = int.from_bytes(head[28:32], "big") * (65536 if size == 1 else size)
    return min(promised - path.stat().st_size, _LARGEST_GAP)
