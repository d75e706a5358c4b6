"""Trace files to frames: one package per format, each with `sniff(head, name) -> bool` and `read(path) -> Trace`.

`sniff` gets the first 64 KiB (decompressed) and the file's name, and decides by content; the name may only break ties.
`read` returns a :class:`tracelib.Trace` of that one file: source 0, thread and gpu ids counted from 0, times in the
file's own clock (`sources.clock` names it, `sources.wall_offset_ns` ties it to wall time where the file declares that).

A format that is read by way of another program has `converter(head) -> str | None`, too: the program's name, or None for
files that need none. The cache's key holds its version. A format of which one file stands for several has `files(path) ->
list[Path]`, all of them: the cache's key holds the content of each.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tracelib.errors import BadTrace, UnknownFormat
from tracelib.sources.archives import is_archive, unpacked
from tracelib.sources.files import head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelib.sources.cache import Cache
    from tracelib.trace import Trace

__all__ = ["SOURCES", "choose", "read_files", "trace_files"]

#: Formats in the order in which they are asked; nothing else lists them.
SOURCES = ("nsys", "torch_profiler", "perf", "ftrace", "pftrace")


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
        raise UnknownFormat(path, SOURCES, reason=f"cannot be opened ({error.strerror or error})") from error
    if not start:
        raise UnknownFormat(path, SOURCES, reason="the file is empty")
    for name in SOURCES:
        source = cast("Source", importlib.import_module(f"tracelib.sources.{name}"))
        if source.sniff(start, path.name):
            return source
    raise UnknownFormat(path, SOURCES)


def trace_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """Return the trace files that `paths` name, and the files in directories among them that are none.

    A directory stands for every trace file below it, an archive (zip, tar) for those in it; a file that is named itself
    must be either a trace or such an archive.

    Raises
    ------
    UnknownFormat
        A path does not exist, a named file is no trace, or a directory holds none.

    """
    traces: list[Path] = []
    others: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UnknownFormat(path, SOURCES, reason="no such file or directory")
        if path.is_file():
            traces += _traces_in(path)
            continue
        found = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        known = [_traces_or_none(file) for file in found]
        if not any(known):
            raise UnknownFormat(path, SOURCES, reason=f"none of its {len(found)} files is a trace")
        traces += [trace for several in known for trace in several]
        others += [file for file, several in zip(found, known, strict=True) if not several]
    return traces, others


def _traces_in(path: Path) -> list[Path]:
    """Return `path` if it is a trace, the traces in it if it is an archive of some."""
    try:
        if not is_archive(path):
            choose(path)
            return [path]
        members = unpacked(path)
    except OSError as error:
        raise UnknownFormat(path, SOURCES, reason=str(error)) from error
    traces = [trace for member in members for trace in _traces_or_none(member, archives=False)]
    # a tar of a tracer's own files (raw ring buffers) is one recording: its reader says what it needs
    traces = traces or _traces_or_none(path, archives=False)
    if not traces:
        raise UnknownFormat(
            path, SOURCES, reason=f"none of the {len(members)} files in the archive is a trace"
        )
    return traces


def _traces_or_none(path: Path, *, archives: bool = True) -> list[Path]:
    """Return the traces in `path`, none if it is something else; an archive in an archive is something else."""
    try:
        if archives:
            return _traces_in(path)
        choose(path)
    except UnknownFormat:
        return []
    return [path]


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
            source = choose(path)
            traces.append(source.read(path) if cache is None else cache.read(path, source))
        except BadTrace as error:
            failures.append(error)
    return traces, failures
