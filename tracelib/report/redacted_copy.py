"""`tracelib redact`: a copy of a trace to give away, in its own format, events and times as they were.

A copy holds what a reader reads: JSON is parsed and written anew, numbers digit for digit; of lines of
`perf script` and ftrace text each field stands for itself; a database is written anew
(:mod:`redacted_database`). What cannot be parsed is left out, and counted. A file is gone through twice, for
a name is often seen before the home directory that shows it to be a user's, and then the copy is: redacting
it again must change nothing, and no secret that was removed may be in its bytes.
"""

import contextlib
import gzip
import io
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import polars as pl

from tracelib.errors import BadParameter, TraceError, UnknownFormat
from tracelib.options import LEVELS
from tracelib.report import private
from tracelib.report.private import words_of_command
from tracelib.report.redact import SHORTEST, WRITTEN, Redactor
from tracelib.report.redacted_formats import SQLITE, redacted_database, redacted_line
from tracelib.sources.discovery import recognised
from tracelib.sources.files import head, open_stream
from tracelib.sources.programs import Scratch
from tracelib.sources.torch_profiler.chunks import Cutter, event_boundaries
from tracelib.sources.torch_profiler.events import gpu_kind, slice_category
from tracelib.sources.torch_profiler.repairs import repaired

#: Yields a file's copy, piece by piece.
Rewritten = Callable[[Path, Redactor], Iterator[bytes]]

#: Where a list of events may end; so many such places at the end of a file are looked at.
_LIST_END = re.compile(rb'(?:^|[}\]\[,"\w])\s*\]')
MOST_ENDS = 50
_TAIL = re.compile(rb'\s*(?:,\s*"[^"]{1,80}"\s*:|\}\s*$|$)')
#: So many pieces of a copy are looked at together.
LOOKED_AT = 1 << 14
#: A document that is not a list of events is parsed in one go: a bound on memory.
LARGEST_DOCUMENT = 1 << 30
_HOSTNAME = re.compile(r"^# hostname : (\S+)\s*$", re.MULTILINE)
_encoder = msgspec.json.Encoder()
_DECODER = json.JSONDecoder(strict=False)


def redacted_copy(path: Path, target: Path, level: str = "strict") -> Redactor:
    """Write a redacted copy of the trace at `path` to `target` (packed if `.gz`); return what was removed.

    Raises
    ------
    UnknownFormat, BadTrace
        The file is not a trace, or a database that cannot be read.
    BadParameter
        `target` exists; `level` is none.
    TraceError
        The trace is of a kind that cannot be rewritten, or its copy cannot be shown to be clean.

    """
    if level not in LEVELS[:-1]:
        raise BadParameter("--level", level, LEVELS[:-1])
    if target.exists():
        raise BadParameter("-o", target, ["a file that does not exist yet"])
    if not path.is_file():
        raise UnknownFormat(path, (), reason="no such file: give one trace file")
    recognised(path)  # what is not a trace is refused
    start = head(path)
    with _whole_or_not(target) as half:
        if start.startswith(SQLITE):
            return _database(path, half, level, packed=target.suffix == ".gz")
        if b"\0" in start:
            raise TraceError(
                f"{path}: a binary recording cannot be redacted. "
                "Export it first (perf script, nsys export, trace-cmd report)."
            )
        rewritten = _json if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else _lines
        return _text(path, half, rewritten, level, packed=target.suffix == ".gz")


@contextlib.contextmanager
def copies(
    files: Sequence[Path], names: Mapping[str, str], level: str
) -> Iterator[tuple[list[Path], list[str]]]:
    """Give copies of `files` by their new `names`, and why others have none; if `off`, the files."""
    if level == "off":
        yield list(files), []
        return
    with Scratch() as folder:
        made, left = [], []
        for path in files:
            target = Path(folder) / names.get(path.name, path.name)
            try:
                redacted_copy(path, target, level)
            except TraceError as error:
                left.append(str(error))
            else:
                made.append(target)
        yield made, left


@contextlib.contextmanager
def _whole_or_not(target: Path) -> Iterator[Path]:
    """Give a file beside `target` to fill, which becomes it on success and vanishes on any error."""
    with Scratch(target.parent) as folder:
        half = Path(folder) / "half"
        yield half
        half.replace(target)


def _text(path: Path, half: Path, rewritten: Rewritten, level: str, *, packed: bool) -> Redactor:
    first = Redactor(level=level)
    for _ in rewritten(path, first):
        pass
    final = first.taught()
    with _opened(half, packed=packed) as file:
        for piece in rewritten(path, final):
            file.write(piece)
    _prove(half, rewritten(half, final.taught()), final)
    return final


def _opened(half: Path, *, packed: bool) -> BinaryIO:
    return cast("BinaryIO", gzip.GzipFile(half, "wb", mtime=0)) if packed else half.open("wb")


def _prove(copy: Path, again: Iterator[bytes], redactor: Redactor) -> None:
    """Raise TraceError unless redacting the copy `again` gives the copy, and it holds no removed secret."""
    with open_stream(copy) as stream:
        file = io.BufferedReader(stream, 1 << 20)
        for pieces in _batched(again):
            whole = b"".join(pieces)
            written = file.read(len(whole))
            if written != whole or _holds_any(written, redactor.secrets()):
                raise not_clean(copy)
        if file.read(1):
            raise not_clean(copy)


def _batched(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    while some := list(itertools.islice(pieces, LOOKED_AT)):
        yield some


def not_clean(copy: Path) -> TraceError:
    """Return the error of a copy that is not proven to be clean."""
    return TraceError(
        f"{copy.name}: the copy could not be proven clean, so none was written. Please report this."
    )


def _holds_any(data: bytes, secrets: set[str]) -> bool:
    """Say whether one of the secrets is in `data`, as it is or as JSON writes it."""
    known = {each.encode("utf-8", "replace").decode() for each in secrets if len(each) >= SHORTEST}
    known |= {_encode(each)[1:-1].decode() for each in known}
    text = pl.Series([data.decode("utf-8", "replace")])
    return bool(known) and bool(text.str.contains_any(sorted(known))[0])


def _lines(path: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield the lines that a reader understands, redacted."""
    with open_stream(path) as stream:
        buffered = io.BufferedReader(stream, 1 << 20)
        for line in io.TextIOWrapper(buffered, encoding="utf-8", errors="replace", newline="\n"):
            for host in _HOSTNAME.findall(line):
                redactor.host(host)
            text = line.rstrip("\r\n")
            new = redacted_line(text, redactor)
            if new is None:
                redactor.leave_out(text)
            else:
                yield (new + line[len(text) :]).encode()


def _json(path: Path, redactor: Redactor) -> Iterator[bytes]:
    """Yield a document of JSON, redacted: the events of its list one by one, if it has one."""
    with open_stream(path) as stream:
        cutter = Cutter(stream)
        chunks = iter(cutter)
        first = next(chunks, None)
        if first is None:
            yield from _document(path, redactor)
            return
        yield _head(cutter.head or b"", redactor)
        comma, tail = b"\n", None
        while first is not None:
            events, tail = _events(first.text, redactor, last=first.last)
            for event in events:
                yield comma + event
                comma = b",\n"
            first = next(chunks, None)
        if tail is not None:
            yield b"\n]" + _tail(tail, redactor, cutter.head or b"")


def _document(path: Path, redactor: Redactor) -> Iterator[bytes]:
    with open_stream(path) as stream:
        text = io.BufferedReader(stream).read(LARGEST_DOCUMENT)
    document = _parsed(text)
    if document is None:
        raise TraceError(
            f"{path}: not JSON that can be read whole, so no copy of it can be shown to be clean."
        )
    yield _encode(_clean(document, redactor))


def _parsed(text: bytes) -> Any:
    """Return a value of JSON with fractions as they are written; None if it is none."""
    try:
        return json.loads(
            text.decode("utf-8-sig", "replace"), parse_float=_raw, parse_constant=_raw, strict=False
        )
    except (ValueError, RecursionError):
        return None


def _raw(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except OverflowError:  # a whole number beyond 64 bits
        return _encoder.encode(_with_raw_numbers(value))


def _with_raw_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_raw_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_raw_numbers(item) for item in value]
    return _raw(str(value)) if isinstance(value, int) and not isinstance(value, bool) else value


def _clean(value: Any, redactor: Redactor, key: str = "") -> Any:
    """Return `value` redacted; a key, or the flag before it in a list, is the name of a text."""
    if isinstance(value, str):
        return redactor.value(key, value) if value else value
    if isinstance(value, dict):
        return {
            redactor.value("", name): _clean(item, redactor, said)
            for (name, item), said in zip(value.items(), _names(value, key), strict=True)
        }
    if isinstance(value, list):
        return _clean_list(value, redactor, key)
    if redactor.names_secret(key) and not isinstance(value, bool):
        text = bytes(value).decode() if isinstance(value, msgspec.Raw) else str(value)
        return value if redactor.value(key, text) == text else redactor.value(key, text)
    return value


def _clean_event(event: Any, redactor: Redactor) -> Any:
    """Return an event redacted: by its category, its name is one of code; that of a thread is so always."""
    clean = _clean(event, redactor)
    name = event.get("name") if isinstance(event, dict) else None
    if not isinstance(name, str):
        return clean
    said, category = event.get("args"), event.get("cat")
    own = said.get("name") if name in ("thread_name", "process_name") and isinstance(said, dict) else None
    if isinstance(own, str):
        clean["args"]["name"] = redactor.text(own, recorded=True, code=True)
    elif isinstance(category, str) and (gpu_kind(category) or slice_category(category) not in WRITTEN):
        clean["name"] = redactor.text(name, recorded=True, code=True)
    return clean


def _names(value: Mapping[str, Any], key: str) -> list[str]:
    """Return what names each item: its key, one above that names a secret, the item `name` beside `value`."""
    beside = next((value[name] for name in ("name", "key") if isinstance(value.get(name), str)), "")
    if private.kind_of_key(key) in ("secret", "number", "prompt"):
        return [name if private.kind_of_key(name) else key for name in value]
    return [beside if beside and name.lower() in ("value", "val", "v") else name for name in value]


def _clean_list(value: list[Any], redactor: Redactor, key: str) -> Any:
    if not any(isinstance(item, str) for item in value):
        if private.kind_of_key(key) == "prompt" and any(type(item) is int for item in value):
            return redactor.value(key, f"prompt {value}")
        return [_clean(item, redactor, key) for item in value]
    if redactor.level == "strict" and key.lower() in ("cmdline", "argv", "command"):
        value = words_of_command([str(item) for item in value])
    flags = [key, *(item.lstrip("-") if isinstance(item, str) and item[:1] == "-" else key for item in value)]
    if all(isinstance(item, str) for item in value) and len(set(flags)) == 1:
        return redactor.texts(key, value)
    return [_clean(item, redactor, flag) for item, flag in zip(value, flags, strict=False)]


def _events(text: bytes, redactor: Redactor, *, last: bool) -> tuple[Iterator[bytes], bytes | None]:
    """Return the events of a piece of the list, and what follows the list's end if it ends there."""
    body, tail = _ended(text) if last else (text, None)
    events = _parsed(b"[" + body + b"]")
    found = _readable(body, redactor) if events is None else events
    return (_encode(_clean_event(event, redactor)) for event in found), tail


def _ended(text: bytes) -> tuple[bytes, bytes | None]:
    """Return the last piece up to the list's end, and what follows it; None if the list does not end."""
    exact = _exact_end(text)
    if exact and (not text[exact:].strip() or _tail_value(text[exact:]) is not None):
        return text[: exact - 1], text[exact:]
    ends = [match.end() for match in _LIST_END.finditer(text) if _TAIL.match(text, match.end())][-MOST_ENDS:]
    tails = [end for end in ends if _tail_value(text[end:]) is not None]
    tails = tails or [end for end in ends if not text[end:].strip()]
    whole = (end for end in tails if _parsed(b"[" + text[:end]) is not None)
    end = next(whole, tails[0] if tails else exact)
    return (text, None) if end is None else (text[: end - 1], text[end:])


def _exact_end(text: bytes) -> int | None:
    """Return where the list ends whose elements, whatever they are, begin `text`; None if one is damaged."""
    whole = "[" + text.decode("utf-8", "surrogateescape")
    try:
        _, end = _DECODER.raw_decode(whole)
    except (ValueError, RecursionError):
        return None
    return len(whole[1:end].encode("utf-8", "surrogateescape"))


def _tail_value(text: bytes) -> Any:
    return _mended(b"{" + text.strip().lstrip(b", "))


def _mended(text: bytes) -> Any:
    """Return the value that `text` is, or is after a repair that the reader makes too; None if it is none."""
    value = _parsed(text)
    repairs = repaired(text) if value is None and text else ()
    mended = (_parsed(each.encode("utf-8", "replace")) for each in repairs)
    return next((each for each in mended if each is not None), value)


def _readable(text: bytes, redactor: Redactor) -> Iterator[Any]:
    """Yield the events of a damaged piece that can be parsed; the others are left out."""
    places = event_boundaries(text)
    starts = [0, *(start for _, start in places)]
    ends = [*(end for end, _ in places), len(text)]
    for start, end in zip(starts, ends, strict=True):
        part = text[start:end].strip(b", \t\r\n")
        event = _mended(part)
        several = (
            _parsed(b"[" + part + b"]") if event is None else None
        )  # an event, and what is none behind it
        if isinstance(event, dict) and "ph" in event:
            yield event
        elif several:
            yield from several
        elif part:
            redactor.leave_out(part.decode("utf-8", "replace"))


def _head(text: bytes, redactor: Redactor) -> bytes:
    """Return what stands before the list of events."""
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n"):
        return b"["
    before = _mended(text + b"[]}")
    if before is None:
        redactor.leave_out(text.decode("utf-8", "replace"))
        return b'{"traceEvents":['
    cleaned = _clean({**{key: item for key, item in before.items() if key != "traceEvents"}}, redactor)
    return _encode({**cleaned, "traceEvents": []})[:-2]


def _tail(text: bytes, redactor: Redactor, head_text: bytes) -> bytes:
    """Return what stands behind the list of events."""
    rest = text.strip().lstrip(b", \t\r\n")
    if not head_text.lstrip(b"\xef\xbb\xbf \t\r\n"):
        if rest:
            redactor.leave_out(rest.decode("utf-8", "replace"))
        return b""
    after = _mended(b"{" + rest) if rest else None
    if after is None:
        if rest:
            redactor.leave_out(rest.decode("utf-8", "replace"))
        return b""
    cleaned = _encode(_clean(after, redactor))
    return b"}" if cleaned == b"{}" else b"," + cleaned[1:]


def _database(path: Path, half: Path, level: str, *, packed: bool) -> Redactor:
    with tempfile.TemporaryDirectory(prefix="tracelib-", dir=half.parent) as folder:
        plain, made = Path(folder) / "in.sqlite", Path(folder) / "out.sqlite"
        with open_stream(path) as stream, plain.open("wb") as file:
            while block := stream.read(1 << 20):
                file.write(block)
        redactor = redacted_database(plain, made, path, level)
        data = made.read_bytes()
        wide = (data[at:].decode("utf-16-le", "replace").encode("utf-8", "replace") for at in (0, 1))
        if any(_holds_any(each, redactor.secrets()) for each in (data, *wide)):
            raise not_clean(half)
        with made.open("rb") as source, _opened(half, packed=packed) as file:
            while block := source.read(1 << 20):
                file.write(block)
    return redactor
