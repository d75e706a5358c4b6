"""A database (an nsys export), written anew without what is private.

Only plain tables are copied, their columns by name and type: no view, index, trigger, default, constraint or
generated column, and no page that SQLite left unused. A cell is looked at by what it holds, whatever its
column is declared to hold.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tracelib.errors import BadTrace, TraceError
from tracelib.report.redact import Redactor

SQLITE = b"SQLite format 3\0"
GONE = "[removed]"
#: Tables whose prose nsys wrote itself: it is nobody's prompt.
OURS = re.compile(r"ENUM_|DIAGNOSTIC_EVENT|META_DATA_EXPORT|TARGET_INFO_GPU")
#: Settings of the recording that tell how the program was started.
STARTED = re.compile(r".*(?:ENV|ARGUMENT|COMMAND|WORKING_DIR|USER).*", re.IGNORECASE | re.DOTALL)
_TYPE = re.compile(r"(?i:INTEGER|INT|BIGINT|TEXT|REAL|FLOAT|DOUBLE|BLOB|NUMERIC|BOOLEAN)")
#: Text in a blob, in ASCII or as UTF-16.
_TEXT_IN_BLOB = re.compile(rb"[\x20-\x7e]{6,}|(?:[\x20-\x7e]\0){6,}|(?:\0[\x20-\x7e]){6,}")

#: Words in another script.
_LETTERS = re.compile(r"[^\W\d_\x00-\x7f]{4,}")


class _Table:
    """A table of the source; `columns` by name with their types, those left out whose names are private."""

    def __init__(self, database: sqlite3.Connection, schema: str, name: str, redactor: Redactor) -> None:
        self.schema, self.name = schema, name
        self.own = OURS.match(name) is not None
        rows = database.execute(f"PRAGMA {schema}.table_xinfo({_quoted(name)})").fetchall()
        self.columns = {
            column: kind if _TYPE.fullmatch(kind) else ""
            for _, column, kind, _, _, _, hidden in rows
            if not hidden and redactor.text(column, recorded=True) == column
        }
        self.key = [row[1] for row in rows if row[5] == 1 and row[2].upper() == "INTEGER"]
        self.key = self.key if sum(row[5] > 0 for row in rows) == 1 else []

    def definition(self) -> str:
        """Return the statement that makes the table."""
        columns = ", ".join(
            f"{_quoted(column)} {kind}{' PRIMARY KEY' if column in self.key else ''}"
            for column, kind in self.columns.items()
        )
        return f"CREATE TABLE main.{_quoted(self.name)} ({columns})"

    def cleaned(self, column: str) -> str:
        """Return the expression of a cell redacted: of a value, the cell `name` beside it says what it is."""
        cell = _quoted(column)
        named = _quoted("name") if column == "value" and "name" in self.columns else _literal(column)
        call = f"cleaned({_literal(self.name)}, {named}, typeof({cell}), CAST({cell} AS BLOB), {self._id()})"
        return (
            f"CASE typeof({cell}) WHEN 'text' THEN CAST({call} AS TEXT) "
            f"WHEN 'blob' THEN {call} ELSE {cell} END"
        )

    def _id(self) -> str:
        return _quoted("id") if "id" in self.columns else "NULL"

    def copy(self) -> str:
        """Return the statement that fills the new table."""
        names = ", ".join(map(_quoted, self.columns))
        cells = ", ".join(map(self.cleaned, self.columns))
        return f"INSERT INTO main.{_quoted(self.name)} ({names}) SELECT {cells} FROM {self._place()}"

    def changed(self, column: str) -> str:
        """Return the query that counts the column's cells that are not clean."""
        cell = _quoted(column)
        return (
            f"SELECT count(*) FROM {self._place()} WHERE typeof({cell}) IN ('text', 'blob') "
            f"AND {self.cleaned(column)} IS NOT {cell}"
        )

    def _place(self) -> str:
        return f"{self.schema}.{_quoted(self.name)}"


def redacted_database(source: Path, target: Path, called: Path, level: str = "strict") -> Redactor:
    """Write the database `source` to the new file `target` with its texts redacted.

    Raises
    ------
    BadTrace
        SQLite cannot read the file, which is called `called`.
    TraceError
        The copy cannot be shown to be clean.

    """
    try:
        with closing(sqlite3.connect(target)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("ATTACH ? AS source", (str(source),))
            learned = Redactor(level=level)
            _count_changed(database, "source", learned)
            redactor = learned.taught()
            _clean_with(database, "source", redactor)
            for table in _tables(database, "source", redactor):
                database.execute(table.definition())
                database.execute(table.copy())
            database.commit()
            database.execute("DETACH source")
            if _count_changed(database, "main", redactor.taught()):
                raise TraceError(
                    f"{called}: its copy could not be proven clean, so none was written. Please report this."
                )
    except sqlite3.DatabaseError as error:
        raise BadTrace(
            called, "nsys", "", str(error), advice="Export it again: nsys export -t sqlite."
        ) from error
    return redactor


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _tables(database: sqlite3.Connection, schema: str, redactor: Redactor) -> Iterator[_Table]:
    """Yield the plain tables; one whose own name is private is left out."""
    rows = database.execute(
        f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
        "AND upper(substr(sql, 1, 12)) = 'CREATE TABLE' ORDER BY name"
    )
    for (name,) in rows.fetchall():
        table = _Table(database, schema, name, redactor)
        if redactor.text(name, recorded=True) != name:
            redactor.leave_out(name)
        elif table.columns:
            yield table


def _count_changed(database: sqlite3.Connection, schema: str, redactor: Redactor) -> int:
    """Return how many cells `redactor` changes; on the way it learns the names in them."""
    _clean_with(database, schema, redactor)
    return sum(
        database.execute(table.changed(column)).fetchone()[0]
        for table in _tables(database, schema, redactor)
        for column in table.columns
    )


def _clean_with(database: sqlite3.Connection, schema: str, redactor: Redactor) -> None:
    """Define the function `cleaned` of a cell: table, name, type, bytes and the row's id."""
    printed = _printed(database, schema)

    def cleaned(table: str, name: Any, kind: str, value: bytes, row: Any) -> bytes:
        if kind == "blob":  # nothing is known of its layout: it keeps its length
            return bytes(len(value)) if _holds_text(value) else value
        text = value.decode("utf-8", "replace")
        if table == "StringIds" and row in printed:
            return GONE.encode()
        if table == "META_DATA_CAPTURE" and name != "name" and STARTED.fullmatch(str(name)):
            redactor.value("user_name" if "USER" in str(name).upper() else "", text)
            return GONE.encode()
        if OURS.match(table):
            new = redactor.value(str(name), text, recorded=False)
        else:
            new = redactor.value(str(name), text)
        return new.encode("utf-8", "replace")

    database.create_function("cleaned", 5, cleaned)


def _holds_text(blob: bytes) -> bool:
    texts = (blob.decode(code, "ignore") for code in ("utf-8", "utf-16-le", "utf-16-be"))
    return _TEXT_IN_BLOB.search(blob) is not None or any(map(_LETTERS.search, texts))


def _printed(database: sqlite3.Connection, schema: str) -> set[Any]:
    """Return the ids of the texts that programs printed: no question that a trace answers needs them."""
    columns = {row[1] for row in database.execute(f"PRAGMA {schema}.table_info(ProcessStreams)")}
    return {
        value
        for column in columns & {"contentId", "filenameId"}
        for (value,) in database.execute(f"SELECT {_quoted(column)} FROM {schema}.ProcessStreams")
    }
