"""What of each format a redacted copy keeps; what no reader reads is not kept.

A line of `perf script` or ftrace is judged field by field, a database cell by cell.
"""

import itertools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tracelib.data import data
from tracelib.errors import BadTrace, TraceError
from tracelib.report import private
from tracelib.report.redact import LONGEST, Redactor
from tracelib.sources.ftrace.heads import HEAD as FTRACE
from tracelib.sources.ftrace.heads import LATENCY
from tracelib.sources.perf.heads import EVENT, HEAD, LOOSE_HEAD, TRACING

SQLITE = b"SQLite format 3\0"
GONE = "[removed]"
_MAC = re.compile(r"(?i)(?:.*_)?mac(?:_?addr(?:ess)?)?")
_NSYS = {name: re.compile(pattern) for name, pattern in data(__file__, "private.toml")["nsys"].items()}
#: The only blobs that are read (nsys/slices.py): NCCL's numbers, 32 bytes and some fields.
_NUMBERS, MOST_NUMBERS = ("NVTX_EVENTS", "binaryData"), 512
#: How gzip, zstd, xz, bzip2, LZ4, zip and zlib begin.
_PACKED = re.compile(
    rb"\x1f\x8b\x08|\x28\xb5\x2f\xfd|\xfd7zXZ|BZh|\x04\x22\x4d\x18|PK\x03\x04|x[\1^\x9c\xda]"
)
_TYPE = re.compile(r"(?i:INTEGER|INT|BIGINT|TEXT|REAL|FLOAT|DOUBLE|BLOB|NUMERIC|BOOLEAN)")
#: Text in a blob, in ASCII or as UTF-16.
_TEXT_IN_BLOB = re.compile(
    rb"[\x20-\x7e]{6,}|(?:[\x20-\x7e]\0){6,}|(?:\0[\x20-\x7e]){6,}|(?:[\x20-\x7e]\0{3}){6,}"
)

_TASK = re.compile(r"(.*?)(-)(\d+(?:\s+\(\s*[\d-]+\))?)")
#: Words in another script.
_LETTERS = re.compile(r"[^\W\d_\x00-\x7f]{4,}")


class _Table:
    """A table of the source; `columns` by name with their types, those left out whose names are private."""

    def __init__(self, database: sqlite3.Connection, schema: str, name: str, redactor: Redactor) -> None:
        self.schema, self.name, self.redactor = schema, name, redactor
        rows = database.execute(f"PRAGMA {schema}.table_xinfo({_quoted(name)})").fetchall()
        self.columns = {
            column: kind if _TYPE.fullmatch(kind) else ""
            for _, column, kind, _, _, _, hidden in rows
            if not hidden and not _is_private_name(column, redactor)
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
        """Return the expression of a cell redacted: of a value, the cell beside it says what it is."""
        cell, beside = _quoted(column), self._beside(column)
        named = _quoted(beside) if beside else _literal(column)
        call = f"cleaned({_literal(self.name)}, {named}, typeof({cell}), CAST({cell} AS BLOB), {self._id()})"
        number = f"CASE WHEN {call} IS NULL THEN NULL ELSE {cell} END"
        number = number if beside or self.judges_numbers(column) else cell
        return (
            f"CASE typeof({cell}) WHEN 'text' THEN CAST({call} AS TEXT) WHEN 'blob' THEN {call} "
            f"WHEN 'integer' THEN {number} WHEN 'real' THEN {number} ELSE {cell} END"
        )

    def _beside(self, column: str) -> str:
        """Return the column whose cells name those of this one, or ""."""
        names = [other for other in self.columns if other.lower() in ("name", "key")]
        return names[0] if names and column.lower() in ("value", "val", "v") else ""

    def judges_numbers(self, column: str) -> bool:
        """Say whether numbers in a column are more than numbers by its name."""
        return bool(self.redactor.names_secret(column) or _MAC.fullmatch(column))

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
            f"SELECT count(*) FROM {self._place()} WHERE typeof({cell}) != 'null' "
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


def _is_private_name(name: str, redactor: Redactor) -> bool:
    """Say whether a table's or column's name holds a secret, as a whole or between underscores."""
    parts = [part for part in re.split(r"[\W_]+", name) if part]
    spelled = any(private.kind_of_key(part) == "secret" for part in parts)
    odd = any(re.search(r"\d{6}" + (r"|[A-Za-z]\w*\d" if spelled else ""), part) for part in parts)
    spaced = " ".join(parts)
    return odd or redactor.text(name, recorded=True) != name or redactor.text(spaced) != spaced


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
        if _is_private_name(name, redactor):
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
    printed = _ids(database, schema, _NSYS["printed"])
    called = _ids(database, schema, _NSYS["names"]) - _ids(database, schema, _NSYS["texts"])

    def cleaned(table: str, name: Any, kind: str, value: bytes, row: Any) -> bytes | None:
        if kind == "blob":  # it keeps its length
            return value if (table, name) == _NUMBERS and _holds_numbers(value) else bytes(len(value))
        text = value.decode("utf-8", "replace")
        if kind != "text":  # nothing stands for a number
            secret = redactor.names_secret(str(name)) and redactor.value(str(name), text) != text
            return None if secret or _MAC.fullmatch(str(name)) else value
        if table == "StringIds" and row in printed:
            return GONE.encode()
        if table == "META_DATA_CAPTURE" and name != "name" and _NSYS["started"].fullmatch(str(name)):
            redactor.value("user_name" if "USER" in str(name).upper() else "", text)
            return GONE.encode()
        recorded = not (_NSYS["ours"].match(table) and private.is_own(text, redactor.level))
        code = row in called if table == "StringIds" else (table, name) == ("PROCESSES", "name")
        new = redactor.value(str(name), text, recorded=recorded, code=code)
        return new.encode("utf-8", "replace")

    database.create_function("cleaned", 5, cleaned)


def _holds_numbers(blob: bytes) -> bool:
    """Say whether a blob is short and holds neither text nor what may be unpacked to some."""
    codes = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
    letters = any(_LETTERS.search(blob.decode(code, "ignore")) for code in codes)
    return len(blob) <= MOST_NUMBERS and not (letters or _TEXT_IN_BLOB.search(blob) or _PACKED.search(blob))


def _ids(database: sqlite3.Connection, schema: str, columns: re.Pattern[str]) -> set[Any]:
    """Return the ids in all columns whose `table.column` matches."""
    tables = database.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table'").fetchall()
    return {
        value
        for (table,) in tables
        for row in database.execute(f"PRAGMA {schema}.table_info({_quoted(table)})").fetchall()
        if columns.fullmatch(f"{table}.{row[1]}")
        for (value,) in database.execute(
            f"SELECT DISTINCT {_quoted(row[1])} FROM {schema}.{_quoted(table)} "
            f"WHERE typeof({_quoted(row[1])}) = 'integer'"
        )
    }


_FTRACE = tuple(re.compile(pattern) for pattern in (FTRACE, LATENCY))
#: What only their lines hold: a process behind a dash, before the CPU.
_FTRACE_LIKE = re.compile(r".*?-\d+\s+[(\[\d]")
_PERF = tuple(re.compile(pattern) for pattern in (HEAD, LOOSE_HEAD))
_EVENT = re.compile(EVENT)
#: Before a time's point: the thread's name, and only numbers behind it.
_BASE = re.compile(
    r"(?P<comm>\s*(?:.*?\S)??)(?P<ids>(?:^|\s+)(?:(?:-1|\d+)(?:/(?:-1|\d+))?\s+)?(?:\[-?\d+\]\s+)?"
    r"(?:[KUHGgMESp]{1,6}\s+)?(?:\d{4}-\d\d-\d\d\s+[\d:.]+\s+)?\d+)"
)
_FRAME = re.compile(r"(?P<start>\s+[0-9a-f]+ )(?P<symbol>.*?)(?P<middle> \()(?P<library>.*)(?P<end>\)[^)]*)")
_COMMENT = re.compile(r"(?P<start>#[\s#]*)(?P<key>[\w ./-]*?)(?P<colon>\s*:\s*)(?P<value>.*)")
_OWN_KEYS, _OWN_COMMENT = (
    re.compile(data(__file__, "private.toml")["own"][name]) for name in ("keys", "comments")
)
#: An event among the calls of a function graph.
_GRAPH = re.compile(r"(?P<start>.*\|\s+/\* )(?P<rest>.*) \*/")
#: The start of a field of an event: `key=`, `key: `.
_FIELD = re.compile(r"(?:(?<=[^;,:]\s)|(?<=,\s)|(?<=\()|^)([A-Za-z_]\w*)(=|: )")
#: Fields of addresses of other machines; a probe's argument that is a string.
_ADDRESS = re.compile(r"[sd]addr(?:_?v?[46])?|[sd](?:rc|st)_?(?:addr|ip)")
_HEX_ADDRESS = re.compile(r"[0-9a-f]{8}|[0-9a-f]{32}")
_STRING = re.compile(r'"[^"/\[]+"')
#: Of perf's own command line: its tools, and the options whose values say what was recorded by which clock.
_TOOLS = {"record", *TRACING}
_SAYING = re.compile(r"-\w*[ek]|--(?:event|clockid|call-graph)")
_SAID = re.compile(r"[\w:*,/{}=.-]+")
_WRITTEN = re.compile(r"(?P<start>.*?\b(?:tracing_mark_write|print|bprint|bputs|0): )(?P<text>.*)")


def redacted_line(line: str, redactor: Redactor) -> str | None:
    """Return a line without its end redacted; None if it is nothing that a reader reads."""
    if len(line) > LONGEST:
        return None
    if not line.strip() or _OWN_COMMENT.fullmatch(line):
        return line
    if line.lstrip().startswith("#"):
        return _comment(line, redactor)
    if frame := _FRAME.fullmatch(line):
        symbol, library = (redactor.value(part, frame[part], code=True) for part in ("symbol", "library"))
        return f"{frame['start']}{symbol}{frame['middle']}{library}{frame['end']}"
    return _timed(line, redactor)


def _timed(line: str, redactor: Redactor) -> str | None:
    for pattern in _FTRACE if _FTRACE_LIKE.match(line) else ():
        if match := pattern.match(line):
            return _event(line, match, redactor)
    if (graph := _GRAPH.fullmatch(line)) and redactor.text(graph["start"], recorded=True, code=True) == graph[
        "start"
    ]:
        return graph["start"] + _says(graph["rest"], redactor) + " */"
    for pattern in _PERF:
        if match := pattern.match(line):
            return _sample(line, match, redactor)
    return line if redactor.text(line, recorded=True) == line else None


def _event(line: str, match: re.Match[str], redactor: Redactor) -> str:
    task, between = line[: match.end("task")], line[match.end("task") : match.start("rest")]
    return _task(task, redactor) + between + _says(match["rest"], redactor)


def _comment(line: str, redactor: Redactor) -> str | None:
    line = redactor.text(line)
    match = _COMMENT.fullmatch(line)
    if match is None or match["value"].startswith("\\"):  # no key, or the drive of a path
        return line if redactor.text(line, recorded=True) == line else None
    key, value = match["key"].strip(), match["value"]
    own = _OWN_KEYS.fullmatch(key) and private.is_own(key, redactor.level)
    if redactor.text(key, recorded=not own) != key:
        return None
    if key == "cmdline":
        new = _command(value, redactor)
    else:
        new = redactor.value(key, value, recorded=not (own and private.is_own(value, redactor.level)))
    return f"{match['start']}{match['key']}{match['colon']}{new}"


def _command(value: str, redactor: Redactor) -> str:
    """Return perf's own options; the program that it started, and its arguments, are nobody's business."""
    words = value.split(" ")
    kept = [redactor.text(words[0], recorded=True, code=True)]
    for before, word in itertools.pairwise(words):
        flag, equals, said = word.partition("=")
        if not word.startswith("-") and not before.startswith("-") and word not in _TOOLS:
            return " ".join([*kept, "[removed]"])
        if word == "--":
            return " ".join([*kept, "--", "[removed]"])
        if _SAYING.fullmatch(before):
            new = redactor.text(word, recorded=True, code=True) if _SAID.fullmatch(word) else "[removed]"
        elif equals and word.startswith("-"):
            new = f"{flag}={said if _SAYING.fullmatch(flag) and _SAID.fullmatch(said) else '[removed]'}"
        else:
            own = word in _TOOLS or private.is_plain(word) or re.fullmatch(r"-\w{1,5}|--[a-z-]+", word)
            new = redactor.text(word, recorded=True, code=True) if own else "[removed]"
        kept.append(new)
    return " ".join(kept)


def _task(task: str, redactor: Redactor) -> str:
    name, dash, number = _TASK.fullmatch(task).groups()  # type: ignore[union-attr]
    blanks = name[: len(name) - len(name.lstrip())]
    return f"{blanks}{redactor.text(name.strip(), recorded=True, code=True)}{dash}{number}"


def _sample(line: str, match: re.Match[str], redactor: Redactor) -> str | None:
    base = _BASE.fullmatch(match["base"])
    says = match["says"] or ""
    event = _EVENT.match(says)
    if base is None or event is None:
        return None
    comm = base["comm"]
    blanks = comm[: len(comm) - len(comm.lstrip())]
    rest = event["rest"]
    before = line[match.end("base") : len(line) - len(rest)]
    new = redactor.text(event["event"], recorded=True, code=True) if event["event"] else ""
    if event["event"] and new != event["event"]:
        return None
    name = redactor.text(comm.strip(), recorded=True, code=True)
    return f"{blanks}{name}{base['ids']}{before}{_fields(rest, redactor)}"


def _says(rest: str, redactor: Redactor) -> str:
    """Return an event's name with its fields redacted."""
    name = re.match(r"[\w.:/+-]+?(?:: |:$|\()", rest)
    if (
        name is None
        or private.kind_of_key(name[0].rstrip(": ("))
        or redactor.text(name[0], recorded=True, code=True) != name[0]
    ):
        return redactor.text(rest, recorded=True)
    return name[0] + _fields(rest[name.end() :], redactor, name[0])


def _fields(rest: str, redactor: Redactor, name: str = "") -> str:
    """Return an event's fields redacted; what a program wrote into the trace is its words."""
    if (written := _WRITTEN.fullmatch(name + rest)) and written.end("start") >= len(name):
        return written["start"][len(name) :] + _mark(written["text"], redactor)
    places = [(match.start(), match.end()) for match in _FIELD.finditer(rest)]
    starts = [0, *(end for _, end in places)]
    stops = [*(start for start, _ in places), len(rest)]
    keys = ["", *(rest[start:end].rstrip("=: ") for start, end in places)]
    marks = ["", *(rest[start:end] for start, end in places)]
    return "".join(
        mark + _value(key, rest[start:stop], redactor)
        for mark, key, start, stop in zip(marks, keys, starts, stops, strict=True)
    )


def _mark(text: str, redactor: Redactor) -> str:
    """Return what a program wrote into the trace redacted: "B|4711|name", "C|4711|counter|3".

    The bars make it an event. Each part stands for itself, or for the value of the part before it; parts
    that are free text together are so one by one.
    """
    parts = text.split("|")
    named = ["", *(part if private.kind_of_key(part) else "" for part in parts)]
    clean = [redactor.value(name, part) for name, part in zip(named, redactor.texts("", parts), strict=False)]
    return "|".join(clean)


def _value(key: str, text: str, redactor: Redactor) -> str:
    bare = text.rstrip(" ,)")
    if _ADDRESS.fullmatch(key) and _HEX_ADDRESS.fullmatch(bare):
        return "[address]" + text[len(bare) :]
    if redactor.level == "strict" and _STRING.fullmatch(bare) and not private.is_plain(bare[1:-1]):
        return redactor.value("prompt", bare) + text[len(bare) :]
    arrow = " ==>" if bare.endswith(" ==>") else ""
    bare = bare.removesuffix(arrow)
    return redactor.value(key, bare) + text[len(bare) :]
