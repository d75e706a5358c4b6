"""An nsys SQLite export as tables of typed columns, whatever of it is there and whole.

Which tables and columns exist differs by nsys version, by what was recorded and by who trimmed the file, so everything
is probed: a column that the file lacks is all null, a table that it lacks has no rows. The file is untrusted: only real
tables are read (no views, virtual tables or generated columns, which could run any expression), it is opened read-only
and `immutable`, so that no journal or lock file appears beside it.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["SQLITE", "Database", "open_database"]

SQLITE = b"SQLite format 3\0"
CHUNK = 1 << 16
#: Longer texts are cut: a name of this length is an attack or an accident, and each distinct one is kept in memory.
LONGEST_NAME = 1 << 16
_PLAIN_TABLE = "CREATE TABLE"


class Database:
    """The tables of one open export.

    `tables` maps each table's name to its columns. `damage` grows while tables are read: what could not be, in words.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self.damage: list[str] = []
        self.lost_bytes = 0
        self._connection = connection
        connection.text_factory = lambda text: text[:LONGEST_NAME].decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA mmap_size = 8589934592")
        self.tables = {name: self._columns(name) for name in self._table_names()}

    def _table_names(self) -> list[str]:
        rows = self._connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        return [
            name
            for name, sql in rows
            if isinstance(name, str)
            and isinstance(sql, str)
            and sql[: len(_PLAIN_TABLE)].upper() == _PLAIN_TABLE
        ]

    def _columns(self, table: str) -> tuple[str, ...]:
        try:
            return tuple(row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})"))
        except sqlite3.DatabaseError as error:
            self.damage.append(f"table {table}: {error}")
            return ()

    def has(self, table: str, *columns: str) -> bool:
        """Say whether `table` is there and has all `columns`."""
        return set(columns) <= set(self.tables.get(table, ())) and table in self.tables

    def read(self, table: str, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` (name to dtype: Int64, Float64 or String) of `table`, in the file's order.

        A value of another type than asked for is null. Rows behind a damaged page are read from the table's other end;
        what stays unread is told in `damage`.
        """
        wanted = [name for name in columns if name in self.tables.get(table, ())]
        if not wanted:
            return pl.DataFrame(schema=dict(columns))
        schema = {name: columns[name] for name in wanted}
        parts, error = self._scan(table, schema, "")
        if error is not None:
            rest, _ = self._scan(table, schema, "ORDER BY rowid DESC")
            read = sum(part.height for part in parts) + sum(part.height for part in rest)
            self.damage.append(f"table {table}: {error}; {read} rows around the damage were read")
            parts += [part.reverse() for part in reversed(rest)]
        frame = pl.concat(parts) if parts else pl.DataFrame(schema=schema)
        absent = [
            pl.lit(None, dtype=dtype).alias(name) for name, dtype in columns.items() if name not in schema
        ]
        return frame.with_columns(absent).select(list(columns))

    def _scan(
        self, table: str, schema: Mapping[str, Any], order: str
    ) -> tuple[list[pl.DataFrame], sqlite3.Error | None]:
        """Return the chunks up to the table's end or up to the first error, and that error."""
        parts: list[pl.DataFrame] = []
        names = ", ".join(_quoted(name) for name in schema)
        query = f"SELECT {names} FROM {_quoted(table)} {order}"  # noqa: S608  (quoted)
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(CHUNK):
                parts.append(_frame(rows, schema))
        except sqlite3.Error as error:
            return [*parts, *self._last_rows(query, schema, sum(part.height for part in parts))], error
        return parts, None

    def _last_rows(self, query: str, schema: Mapping[str, Any], after: int) -> list[pl.DataFrame]:
        """Return the whole rows after the first `after` up to the damage: `fetchmany` drops those of the chunk it fails in."""
        rows: list[tuple[Any, ...]] = []
        with contextlib.suppress(
            sqlite3.Error
        ):  # the very error that ended the scan, which the caller reports
            rows.extend(self._connection.execute(f"{query} LIMIT {CHUNK} OFFSET {after}"))
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
    """Open the export at `path`, compressed or not.

    A compressed one is unpacked into a private temporary file, which is removed afterwards.

    Raises
    ------
    BadTrace
        SQLite cannot read the file's schema.

    """
    with contextlib.ExitStack() as cleanup:
        plain, damage, lost = path, None, 0
        with path.open("rb") as file:
            is_plain = file.read(len(SQLITE)) == SQLITE
        if not is_plain:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="tracelib-nsys-")))
            plain = folder / "export.sqlite"
            with open_stream(path) as stream, plain.open("wb") as unpacked:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
                damage, lost = stream.damage, stream.lost_bytes
        connection = sqlite3.connect(f"{plain.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        cleanup.callback(connection.close)
        try:
            database = Database(connection, path)
        except sqlite3.Error as error:
            raise BadTrace(
                path, "nsys", "its schema", str(error), advice=" Export it again from the .nsys-rep."
            ) from error
        if damage:
            database.damage.append(damage)
            database.lost_bytes = lost
        yield database
