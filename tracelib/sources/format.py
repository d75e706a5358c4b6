"""What tracelib knows of a trace format: one record, and a file that a reader has recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracelib.errors import BadTrace
from tracelib.sources.archives import damage_of

if TYPE_CHECKING:
    from tracelib.trace import Trace

#: What one recording covers: a machine, with its own process ids; or, often in a container with ids of its
#: own, one process, or several that were started together.
Scope = Literal["machine", "process", "session"]


class InPerfetto(NamedTuple):
    """How Perfetto opens a format: by the clock of its events, or at the times in the file plus `base_ns`."""

    has_clock: bool
    base_ns: Callable[[Path], int] | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """A trace format. `head` is always the first 64 KiB of a file, decompressed."""

    #: As `sources.format`, errors and the tests' folder call it; the reader's package has the same name.
    name: str
    #: Says of `head` and the file's name whether a file is of this format: by content, the name may only
    #: break ties.
    sniff: Callable[[bytes, str], bool]
    #: Returns the trace of one file: source 0, threads and GPUs counted from 0, times in the file's own clock
    #: (`sources.clock` names it, `sources.wall_offset_ns` ties it to wall time where the file declares that).
    read: Callable[[Path], Trace]
    scope: Scope
    #: Whose name for a thread is taken first, 0 before 1: the kernel knows best, a profiler has it from
    #: elsewhere.
    thread_name_rank: int
    #: Whether files may leave out which clock they used, so that the user says it (`ftrace_clock`).
    clock_from_user: bool = False
    #: Whether the calls of threads that launch are recorded as long as their GPU is, and no longer.
    calls_with_gpu: bool = False
    #: None if Perfetto does not open such files.
    in_perfetto: InPerfetto | None = None
    #: Writes the trace of a file to a folder, for files too large to be held in memory.
    stream: Callable[[Path, Path], None] | None = None
    #: Names the program that helps to read a file that starts with `head`; the cache's key holds its
    #: version.
    program: Callable[[bytes], str | None] = lambda _: None
    #: All files that are read with the one at a path; the cache's key holds the content of each.
    files: Callable[[Path, bytes], list[Path]] = lambda path, _: [path]
    #: Finds among files the export of the recording at a path, which is then read in its place.
    export_among: Callable[[Path, Iterable[Path]], Path | None] = lambda *_: None
    #: Says of a file that is only a part of a recording what to give in its place, "" of any other.
    advice_for_part: Callable[[Path, bytes], str] = lambda *_: ""


@dataclass(frozen=True)
class TraceFile:
    """A file and the format it was recognised by; None if it is so damaged that reading it only says why."""

    path: Path
    format: Format | None
    head: bytes = field(default=b"", repr=False)

    @property
    def files(self) -> list[Path]:
        """All files that are read with this one."""
        return self.format.files(self.path, self.head) if self.format else [self.path]

    def export_among(self, files: Iterable[Path]) -> Path | None:
        """Return the one of `files` that is this file's export, to be read in its place, if there is one."""
        return self.format.export_among(self.path, files) if self.format else None

    def read(self) -> Trace:
        """Read the file.

        Raises BadTrace if it cannot be read as what it is.
        """
        return self.known_format.read(self.path)

    @property
    def known_format(self) -> Format:
        """The file's format.

        Raises BadTrace if it could not be unpacked so that it is known.
        """
        if self.format is not None:
            return self.format
        damage = damage_of(self.path)
        assert damage is not None
        if damage.what == "archive":
            advice = "Copy it again: files may be missing."
            raise BadTrace(self.path, "an archive", "its end", damage.reason, advice=advice)
        raise BadTrace(self.path, f"a {damage.what}", "", damage.reason)
