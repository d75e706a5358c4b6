"""An nsys export with every text in it redacted: names, the programs' environment, their arguments and what they printed."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace
from tracelib.report.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["cleaned_database"]

GONE = "[removed]"
#: Tables whose prose nsys wrote itself: it is nobody's prompt.
OURS = re.compile(r"ENUM_|DIAGNOSTIC_EVENT|META_DATA_EXPORT|TARGET_INFO_")
#: Settings of the recording that tell how the program was started.
STARTED = ("%ENV%", "%ARGUMENT%", "%COMMAND%", "%WORKING_DIR%", "%USER%")
_HOSTS = (
    ("TARGET_INFO_SYSTEM_ENV", "name = 'Hostname'"),
    ("META_DATA_CAPTURE", "name = 'DEVICE_DISPLAY_NAME'"),
)


def cleaned_database(source: Path, target: Path, called: Path) -> Redactor:
    """Write the database `source` to `target` with its texts redacted; `source` is changed on the way.

    What was replaced is nowhere in `target`: it is written anew, without the pages that SQLite left unused.

    Raises
    ------
    BadTrace
        SQLite cannot read the file, which is called `called`.

    """
    try:
        with closing(sqlite3.connect(source)) as database:
            database.execute("PRAGMA secure_delete = ON")
            learned = Redactor(hosts=_hosts(database), users=_users(database))
            _forget_the_start(database)
            for table, column in _texts(database):
                _each(database, table, column, learned, change=False)
            redactor = learned.taught()
            for table, column in _texts(database):
                _each(database, table, column, redactor, change=True)
            database.commit()
            database.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.DatabaseError as error:
        raise BadTrace(
            called, "nsys", "", str(error), advice="Export it again: nsys export -t sqlite."
        ) from error
    return redactor


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(database: sqlite3.Connection) -> list[str]:
    return [
        name
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]


def _texts(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield each table's columns that may hold text or bytes."""
    for table in _tables(database):
        for _, column, kind, *_ in database.execute(f"PRAGMA table_info({_quoted(table)})").fetchall():
            if not re.search("INT|REAL|FLOA|DOUB|NUM|BOOL", kind.upper()):
                yield table, column


def _each(database: sqlite3.Connection, table: str, column: str, redactor: Redactor, *, change: bool) -> None:
    """Redact one column; without `change` only look at it, so that the redactor learns."""
    recorded = OURS.match(table) is None

    def cleaned(kind: str, value: bytes) -> bytes | None:
        if kind == "blob":  # nothing is known of its layout: it keeps its length
            text = value.decode("latin-1")
            return bytes(len(value)) if redactor.text(text) != text else None
        text = value.decode("utf-8", "surrogateescape")
        new = redactor.text(text, recorded=recorded)
        return new.encode("utf-8", "surrogateescape") if new != text else None

    database.create_function("cleaned", 2, cleaned)
    name, cell = _quoted(table), _quoted(column)
    new = f"cleaned(typeof({cell}), CAST({cell} AS BLOB))"
    where = f"typeof({cell}) IN ('text', 'blob') AND {new} IS NOT NULL"
    if change:
        as_before = f"CASE typeof({cell}) WHEN 'blob' THEN {new} ELSE CAST({new} AS TEXT) END"
        database.execute(f"UPDATE {name} SET {cell} = {as_before} WHERE {where}")
    else:
        database.execute(f"SELECT count(*) FROM {name} WHERE {where}").fetchone()


def _forget_the_start(database: sqlite3.Connection) -> None:
    """Blank how the program was started and what it printed: no question that a trace answers needs them."""
    tables = set(_tables(database))
    if "META_DATA_CAPTURE" in tables:
        for pattern in STARTED:
            database.execute("UPDATE META_DATA_CAPTURE SET value = ? WHERE name LIKE ?", (GONE, pattern))
    if {"ProcessStreams", "StringIds"} <= tables:
        columns = {row[1] for row in database.execute("PRAGMA table_info(ProcessStreams)")}
        for column in columns & {"contentId", "filenameId"}:
            printed = f"SELECT {_quoted(column)} FROM ProcessStreams"
            database.execute(f"UPDATE StringIds SET value = ? WHERE id IN ({printed})", (GONE,))


def _hosts(database: sqlite3.Connection) -> set[str]:
    tables = set(_tables(database))
    rows = [
        value
        for table, where in _HOSTS
        if table in tables
        for (value,) in database.execute(f"SELECT value FROM {table} WHERE {where}")
    ]
    return {value for value in rows if isinstance(value, str) and value}


def _users(database: sqlite3.Connection) -> set[str]:
    if "META_DATA_CAPTURE" not in _tables(database):
        return set()
    rows = database.execute("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%USER_NAME'")
    return {value for (value,) in rows if isinstance(value, str) and value}
