"""`tracelib redact`: a copy of a trace to give away, in its own format, events and times as they were.

Text formats are rewritten string by string: what is not a string (times, ids, numbers) stays as it is, byte
for byte. A database (an nsys export) is rewritten column by column: names, the programs' environment, their
arguments and what they printed. Every file is gone through twice: a name is often seen before the home
directory that shows it to be a user's.
"""

import contextlib
import gzip
import io
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

from tracelib.errors import BadParameter, BadTrace, TraceError, UnknownFormat
from tracelib.report.redact import Redactor
from tracelib.sources.discovery import recognised
from tracelib.sources.files import head, open_stream

SQLITE = b"SQLite format 3\0"
#: What Python cannot decode goes through unchanged.
AS_IT_IS = "surrogateescape"
_HOST_TEXTS = (
    re.compile(r"^# hostname : (\S+)\s*$", re.MULTILINE),
    re.compile(r'"(?:host_?name|hostname)"\s*:\s*"([^"\\]+)"', re.IGNORECASE),
)
_STRING = r'"((?:[^"\\]|\\.)*)"'
_STRINGS = re.compile(rf"{_STRING}(?:(\s*:\s*){_STRING})?")
_MARKER = re.compile(r"(?P<head>: tracing_mark_write: )(?P<text>.*)")
GONE = "[removed]"
#: Tables whose prose nsys wrote itself: it is nobody's prompt.
OURS = re.compile(r"ENUM_|DIAGNOSTIC_EVENT|META_DATA_EXPORT|TARGET_INFO_")
#: Settings of the recording that tell how the program was started.
STARTED = ("%ENV%", "%ARGUMENT%", "%COMMAND%", "%WORKING_DIR%", "%USER%")
_HOST_VALUES = (
    ("TARGET_INFO_SYSTEM_ENV", "name = 'Hostname'"),
    ("META_DATA_CAPTURE", "name = 'DEVICE_DISPLAY_NAME'"),
)


def redacted_copy(path: Path, target: Path) -> Redactor:
    """Write a redacted copy of the trace at `path` to `target` (packed if `.gz`); return what was removed.

    Raises UnknownFormat, BadTrace if the file is not a trace, or a database that cannot be read; BadParameter
    if `target` exists; TraceError if the trace is of a kind that cannot be rewritten.
    """
    if target.exists():
        raise BadParameter("-o", target, ["a file that does not exist yet"])
    if not path.is_file():
        raise UnknownFormat(path, (), reason="no such file: give one trace file")
    recognised(path)  # what is not a trace is refused
    start = head(path)
    with _whole_or_not(target) as half:
        if start.startswith(SQLITE):
            return _database(path, half, packed=target.suffix == ".gz")
        if b"\0" in start:
            raise TraceError(
                f"{path}: a binary recording cannot be redacted. "
                "Export it first (perf script, nsys export, trace-cmd report)."
            )
        return _text(
            path,
            half,
            _json_line if start.lstrip()[:1] in (b"{", b"[") else _plain_line,
            packed=target.suffix == ".gz",
        )


@contextlib.contextmanager
def _whole_or_not(target: Path) -> Iterator[Path]:
    """Give a file beside `target` to fill, which becomes it on success and vanishes on any error."""
    with tempfile.TemporaryDirectory(prefix=".tracelib-", dir=target.parent) as folder:
        half = Path(folder) / "half"
        yield half
        half.replace(target)


def _text(path: Path, half: Path, rewritten: Callable[[str, Redactor], str], *, packed: bool) -> Redactor:
    first = Redactor(hosts=_hosts(path))
    for line in _lines(path):
        rewritten(line, first)
    final = first.taught()
    with _opened(half, packed=packed) as file:
        for line in _lines(path):
            file.write(rewritten(line, final).encode("utf-8", AS_IT_IS))
    return final


def _opened(half: Path, *, packed: bool) -> BinaryIO:
    return cast("BinaryIO", gzip.GzipFile(half, "wb", mtime=0)) if packed else half.open("wb")


def _lines(path: Path) -> Iterator[str]:
    with open_stream(path) as stream:
        buffered = io.BufferedReader(stream, 1 << 20)
        yield from io.TextIOWrapper(buffered, encoding="utf-8", errors=AS_IT_IS, newline="\n")


def _hosts(path: Path) -> set[str]:
    return {name for line in _lines(path) for pattern in _HOST_TEXTS for name in pattern.findall(line)}


def _plain_line(line: str, redactor: Redactor) -> str:
    """Return a line of `perf script` or ftrace redacted; what a program wrote into the trace is its words."""
    marker = _MARKER.search(line)
    if marker is None:
        return redactor.text(line)
    text = marker["text"].rstrip("\r\n")
    end = line[marker.start("text") + len(text) :]
    # "B|4711|name", "C|4711|counter|3": the bars make it an event, each part stands for itself.
    parts = [redactor.text(part, recorded=True) for part in text.split("|")]
    return redactor.text(line[: marker.start("text")]) + "|".join(parts) + end


def _json_line(line: str, redactor: Redactor) -> str:
    """Return a piece of JSON with its strings redacted; a key counts as the name of the value after it."""

    def replaced(strings: re.Match[str]) -> str:
        key, colon, value = strings.groups()
        new_key = _literal(key, redactor, "")
        return new_key if colon is None else f"{new_key}{colon}{_literal(value, redactor, key)}"

    return _STRINGS.sub(replaced, line)


def _literal(raw: str, redactor: Redactor, key: str) -> str:
    """Return the JSON string of `raw`, which stands between its quotes, redacted; as it was if harmless."""
    try:
        text = json.loads(f'"{raw}"') if "\\" in raw else raw
    except ValueError:
        text = raw  # an escape that JSON does not know: damaged, and still to be looked at
    new = redactor.value(key, text) if key else redactor.text(text, recorded=True)
    return f'"{raw}"' if new == text else json.dumps(new, ensure_ascii=False)


def _database(path: Path, half: Path, *, packed: bool) -> Redactor:
    with tempfile.TemporaryDirectory(prefix="tracelib-", dir=half.parent) as folder:
        plain, made = Path(folder) / "in.sqlite", Path(folder) / "out.sqlite"
        with open_stream(path) as stream, plain.open("wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
        redactor = redacted_database(plain, made, path)
        with made.open("rb") as source, _opened(half, packed=packed) as file:
            shutil.copyfileobj(source, file, 1 << 20)
    return redactor


def redacted_database(source: Path, target: Path, called: Path) -> Redactor:
    """Write the database `source` to `target` with its texts redacted; `source` is changed on the way.

    What was replaced is nowhere in `target`: it is written anew, without the pages that SQLite left unused.

    Raises BadTrace if SQLite cannot read the file, which is called `called`.
    """
    try:
        with closing(sqlite3.connect(source)) as database:
            database.execute("PRAGMA secure_delete = ON")
            learned = Redactor(hosts=_database_hosts(database), users=_database_users(database))
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
    for table in _tables(database):
        for _, column, kind, *_ in database.execute(f"PRAGMA table_info({_quoted(table)})").fetchall():
            if not re.search("INT|REAL|FLOA|DOUB|NUM|BOOL", kind.upper()):
                yield table, column


def _each(database: sqlite3.Connection, table: str, column: str, redactor: Redactor, *, change: bool) -> None:
    """Redact one column; without `change` only look at it, so that the redactor learns."""
    recorded = OURS.match(table) is None

    def redacted(kind: str, value: bytes) -> bytes | None:
        if kind == "blob":  # nothing is known of its layout: it keeps its length
            text = value.decode("latin-1")
            return bytes(len(value)) if redactor.text(text) != text else None
        text = value.decode("utf-8", "surrogateescape")
        new = redactor.text(text, recorded=recorded)
        return new.encode("utf-8", "surrogateescape") if new != text else None

    database.create_function("redacted", 2, redacted)
    name, cell = _quoted(table), _quoted(column)
    new = f"redacted(typeof({cell}), CAST({cell} AS BLOB))"
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


def _database_hosts(database: sqlite3.Connection) -> set[str]:
    tables = set(_tables(database))
    rows = [
        value
        for table, where in _HOST_VALUES
        if table in tables
        for (value,) in database.execute(f"SELECT value FROM {table} WHERE {where}")
    ]
    return {value for value in rows if isinstance(value, str) and value}


def _database_users(database: sqlite3.Connection) -> set[str]:
    if "META_DATA_CAPTURE" not in _tables(database):
        return set()
    rows = database.execute("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%USER_NAME'")
    return {value for (value,) in rows if isinstance(value, str) and value}
