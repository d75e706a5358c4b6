"""Trace files to frames: one package per format, each with `sniff(head, name) -> bool` and `read(path) -> Trace`.

`sniff` gets the first 64 KiB (decompressed) and the file's name, and decides by content; the name may only break ties.
`read` returns a :class:`tracelib.Trace` of that one file: source 0, thread and gpu ids counted from 0, times in the
file's own clock (`sources.clock` names it, `sources.wall_offset_ns` ties it to wall time where the file declares that).

A format that is read by way of another program has `converter(head) -> str | None`, too: the program's name, or None for
files that need none. The cache's key holds its version. A format of which one file stands for several has `files(path) ->
list[Path]`, all of them: the cache's key holds the content of each. It may have `belongs(path, head) -> str`, too, which says of
a file that is only a part what to give in its place, "" of any other.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import polars as pl

from tracelib.errors import BadTrace, UnknownFormat
from tracelib.sources.archives import damage_of, is_archive, unpacked
from tracelib.sources.files import files_of, head, open_stream
from tracelib.sources.repeats import export_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelib.sources.cache import Cache
    from tracelib.trace import Trace

__all__ = ["SOURCES", "choose", "not_opened", "read_files", "trace_files"]

#: Formats in the order in which they are asked; nothing else lists them.
SOURCES = ("nsys", "torch_profiler", "perf", "ftrace", "pftrace")


#: What files begin with that are packed in a way that is not read here (gzip: packed twice).
PACKED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x8b": "gzip twice",
}


class Source(Protocol):
    """What a format's package offers."""

    __name__: str
    __file__: str

    def sniff(self, head: bytes, name: str) -> bool:
        """Say whether a file that starts with `head` is of this format."""
        ...

    def read(self, path: Path) -> Trace:
        """Read the file."""
        ...


def choose(path: Path) -> Source:
    """Return the reader for the file at `path`, by content.

    Raises
    ------
    UnknownFormat
        No reader recognises it, it is empty, or it cannot be opened.

    """
    try:
        start = head(path)
    except OSError as error:
        raise _unopened(path, error) from error
    if not start:
        raise UnknownFormat(path, SOURCES, reason=_nothing(path))
    for name in SOURCES:
        source = cast("Source", importlib.import_module(f"tracelib.sources.{name}"))
        if source.sniff(start, path.name):
            return source
    packed = next((name for magic, name in PACKED.items() if start.startswith(magic)), None)
    reason = f"it is packed by {packed}: unpack it first" if packed else _belongs(path, start)
    raise UnknownFormat(path, SOURCES, reason=reason)


def _belongs(path: Path, start: bytes) -> str:
    """Return what to give in place of the file at `path` if it is only a part of a recording, "" if it is not."""
    sources = [importlib.import_module(f"tracelib.sources.{name}") for name in SOURCES]
    said = (source.belongs(path, start) for source in sources if hasattr(source, "belongs"))
    return next(filter(None, said), "")


def _nothing(path: Path) -> str:
    """Return why no byte can be had from the file at `path`."""
    with open_stream(path) as stream:
        stream.read(1)
    packed = path.stat().st_size > 0
    return f"nothing can be decompressed from it ({stream.damage})" if packed else "the file is empty"


def trace_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return the trace files that `paths` name, and the files in directories among them that are none.

    A directory stands for every trace file below it, an archive (zip, tar) for those in it; a file that is named itself
    must be either a trace or such an archive. A report whose own export is among the traces is one of the others.

    Raises
    ------
    UnknownFormat
        A path does not exist, a named file is no trace, or a directory holds none.

    """
    traces: list[Path] = []
    others: list[Path] = []
    for path in map(Path, paths):
        _check_place(path)
        if path.is_file():
            found, left = _traces_in(path)
            traces, others = [*traces, *found], [*others, *left]
            continue
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not _hidden(file, path)]
        known = [_traces_or_none(file) for file in files]
        if not any(found for found, _ in known):
            closed = next(
                (f"{file.name} cannot be opened ({why})" for file in files if (why := not_opened(file))), ""
            )
            opened = (file for file in files if not not_opened(file))
            part = next((f"{f.name}: {what}" for f in opened if (what := _belongs(f, head(f)))), "")
            reason = f"none of its {len(files)} files is a trace" if files else "there is no file in it"
            raise UnknownFormat(path, SOURCES, reason="; ".join(filter(None, [reason, closed, part])))
        for found, left in known:
            traces, others = [*traces, *found], [*others, *left]
    exported = [path for path in traces if export_of(path, traces)]
    traces = [path for path in traces if path not in exported]
    read = {file for path in traces for file in _read_with(path)} if others else set()
    return traces, [*exported, *(path for path in others if path not in read)]


def _read_with(path: Path) -> list[Path]:
    """Return the files that are read with the trace at `path`: the other tables of a directory of them."""
    try:
        return files_of(path, choose(path))
    except UnknownFormat:
        return []  # a damaged member of an archive, of which reading it tells


def _hidden(file: Path, folder: Path) -> bool:
    """Say whether a file below `folder`, or a folder on the way to it, is hidden: editors keep copies there."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _unopened(path: Path, error: OSError) -> UnknownFormat:
    return UnknownFormat(path, SOURCES, reason=f"cannot be opened ({error.strerror or error})")


def not_opened(path: Path) -> str:
    """Return why the file at `path` cannot be opened, "" if it can be."""
    try:
        path.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _check_place(path: Path) -> None:
    """Raise UnknownFormat unless `path` is a file or a directory that can be looked into."""
    try:
        exists, is_folder, is_file = path.exists(), path.is_dir(), path.is_file()
    except OSError as error:
        raise _unopened(path, error) from error
    if not exists:
        raise UnknownFormat(path, SOURCES, reason="no such file or directory")
    if is_folder and not os.access(path, os.R_OK | os.X_OK):
        raise UnknownFormat(path, SOURCES, reason="the directory cannot be opened: permission denied")
    if not (is_folder or is_file):
        raise UnknownFormat(
            path, SOURCES, reason="a pipe or a device, no file: save what comes out of it to one first"
        )


def _traces_in(path: Path) -> tuple[list[Path], list[Path]]:
    """Return `path` if it is a trace, the traces in it if it is an archive of some; and what else is in that.

    What is damaged is among the traces, so that it is told of when they are read.
    """
    try:
        if not is_archive(path):
            choose(path)
            return [path], []
        members = unpacked(path)
    except OSError as error:
        raise _unopened(path, error) from error
    known = {member: bool(_traces_or_none(member, archives=False)[0]) for member in members}
    if any(known.values()):
        traces = [member for member, is_trace in known.items() if is_trace or damage_of(member)]
        whole = [path] if damage_of(path) else []
        return traces + whole, [member for member in members if member not in traces]
    # a tar of a tracer's own files (raw ring buffers) is one recording: its reader says what it needs
    if _traces_or_none(path, archives=False)[0]:
        return [path], []
    wrong = [said for place in (*members, path) if (said := damage_of(place))]
    reason = f"none of the {len(members)} files in the archive is a trace"
    raise UnknownFormat(
        path, SOURCES, reason="; ".join([reason, *(f"{what}: {why}" for what, why in wrong[:3])])
    )


def _traces_or_none(path: Path, *, archives: bool = True) -> tuple[list[Path], list[Path]]:
    """Return the traces in `path`, none if it is something else (an archive in an archive is), and what else is in it."""
    try:
        if archives:
            return _traces_in(path)
        choose(path)
    except UnknownFormat:
        return [], [path]
    return [path], []


def read_files(
    paths: Sequence[Path], progress: Callable[[str], None] = lambda _: None, cache: Cache | None = None
) -> tuple[list[Trace], list[BadTrace]]:
    """Return one trace per file, and the error of each file that could not be read.

    `progress` is called with each file's name before it is read; what `cache` has is not read again.
    """
    traces: list[Trace] = []
    failures: list[BadTrace] = []
    for path in paths:
        progress(path.name)
        try:
            source = _chosen(path)
            trace = source.read(path) if cache is None else cache.read(path, source)
        except BadTrace as error:
            failures.append(error)
        else:
            traces.append(_with_damage(trace, path))
    return traces, failures


def _chosen(path: Path) -> Source:
    """Return what :func:`choose` does; of what could not be unpacked so that it is known, say why."""
    damage = damage_of(path)
    try:
        if damage is None or damage.what != "archive":
            return choose(path)
    except UnknownFormat as error:
        if damage is None:
            raise
        raise BadTrace(path, f"a {damage.what}", "", damage.reason) from error
    raise BadTrace(
        path, "an archive", "its end", damage.reason, advice="Copy it again: files may be missing."
    )


def _with_damage(trace: Trace, path: Path) -> Trace:
    """Return the trace of the file at `path` with a remark if it could not be unpacked whole."""
    if not (damage := damage_of(path)):
        return trace
    row = (0, "error", f"unpacked in part, a {damage.what}: {damage.reason}", "Copy the archive again.")
    said = pl.DataFrame([row], schema=trace.health.schema, orient="row")
    return trace.replace(health=pl.concat([trace.health, said]))
