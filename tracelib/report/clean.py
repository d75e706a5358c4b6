"""`tracelib redact`: a copy of a trace that can be given away, in its own format, with the same events at the same times.

Text formats are rewritten string by string: what is no string (times, ids, numbers) stays as it is, byte for byte. A
database is rewritten column by column (:mod:`tracelib.report.clean_sqlite`). Every file is gone through twice: a name is
often seen before the home directory that shows it to be a user's.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from tracelib.errors import BadParameter, TraceError, UnknownFormat
from tracelib.report.clean_sqlite import cleaned_database
from tracelib.report.redact import Redactor
from tracelib.sources.discovery import recognised
from tracelib.sources.files import head, open_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["clean"]

SQLITE = b"SQLite format 3\0"
#: What Python cannot decode goes through unchanged.
AS_IT_IS = "surrogateescape"
_HOSTS = (
    re.compile(r"^# hostname : (\S+)\s*$", re.MULTILINE),
    re.compile(r'"(?:host_?name|hostname)"\s*:\s*"([^"\\]+)"', re.IGNORECASE),
)
_STRING = r'"((?:[^"\\]|\\.)*)"'
_STRINGS = re.compile(rf"{_STRING}(?:(\s*:\s*){_STRING})?")
_MARKER = re.compile(r"(?P<head>: tracing_mark_write: )(?P<text>.*)")


def clean(path: Path, target: Path) -> Redactor:
    """Write a redacted copy of the trace at `path` to `target` (gzip where its name ends in `.gz`); return what was removed.

    Raises
    ------
    UnknownFormat, BadTrace
        The file is no trace, or a database that cannot be read.
    BadParameter
        `target` exists.
    TraceError
        The trace is of a kind that cannot be rewritten.

    """
    if target.exists():
        raise BadParameter("-o", target, ["a file that does not exist yet"])
    if not path.is_file():
        raise UnknownFormat(path, (), reason="no such file: give one trace file")
    recognised(path)  # whatever is not a trace is refused
    start = head(path)
    with _whole_or_not(target) as half:
        if start.startswith(SQLITE):
            return _database(path, half, packed=target.suffix == ".gz")
        if b"\0" in start:
            raise TraceError(
                f"{path}: a binary recording cannot be redacted. Export it first (perf script, nsys export, trace-cmd report)."
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
    """Return the hosts that the file names as such."""
    return {name for line in _lines(path) for pattern in _HOSTS for name in pattern.findall(line)}


def _plain_line(line: str, redactor: Redactor) -> str:
    """Return a line of `perf script` or ftrace redacted; what a program wrote to the trace itself counts as its words."""
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

    def replaced(found: re.Match[str]) -> str:
        key, colon, value = found.groups()
        new_key = _literal(key, redactor, "")
        return new_key if colon is None else f"{new_key}{colon}{_literal(value, redactor, key)}"

    return _STRINGS.sub(replaced, line)


def _literal(raw: str, redactor: Redactor, key: str) -> str:
    """Return the JSON string whose text between the quotes is `raw`, redacted; as it stood if there is nothing to hide."""
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
            while block := stream.read(1 << 20):
                file.write(block)
        redactor = cleaned_database(plain, made, path)
        with made.open("rb") as source, _opened(half, packed=packed) as file:
            while block := source.read(1 << 20):
                file.write(block)
    return redactor
