"""What an ftrace text comes in: plain, compressed, in a web page, from `atrace -z`, or as a trace.dat."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace
from tracelib.sources import programs
from tracelib.sources.files import Stream, head, open_stream
from tracelib.sources.programs import Scratch

if TYPE_CHECKING:
    from typing_extensions import Buffer

TRACE_DAT = b"\x17\x08\x44tracing"
#: `trace-cmd report` writes about 1 GB in this time; one that hangs ends.
SECONDS = 1800
REPORT = ("trace-cmd", "report", "-t", "-i")
#: What `trace-cmd dump --options` says of the clock, and of buffers other than the first, which may have had
#: another.
CLOCK_OPTION = re.compile(rb"\[Option TRACECLOCK\b[^\]]*\]\s*[^\[\n]*\[([\w-]+)\]")
SECOND_BUFFER = re.compile(rb'^"[^"\n]+" \[name\]', re.MULTILINE)
DUMP_SECONDS, DUMPED = 60, 1 << 20


def is_trace_dat(start: bytes) -> bool:
    """Say whether a file begins as trace-cmd's binary does (its Documentation/trace-cmd/trace-cmd.dat.v7)."""
    return start.startswith(TRACE_DAT)


def converter(start: bytes) -> str | None:
    """Return the program that reads a file with this beginning, None if it needs none."""
    return REPORT[0] if is_trace_dat(start) else None


def is_ring_buffers(start: bytes) -> bool:
    """Say whether this is a tar of raw per-CPU ring buffers, as schedviz collects them."""
    return start[257:262] == b"ustar" and (b"formats/header_page" in start or b"traces/cpu" in start)


def in_page(start: bytes) -> bool:
    """Say whether the text stands in a web page that systrace wrote."""
    return start[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def atrace_offset(start: bytes) -> int | None:
    """Return where the zlib data of `atrace -z` begins, None if there are none."""
    for mark in (b"TRACE:\n", b"TRACE:\r\n"):
        at = start.find(mark)
        if at >= 0 and start[at + len(mark) : at + len(mark) + 1] == b"\x78":
            return at + len(mark)
    return None


class Atrace(io.RawIOBase):
    """The text inside of `atrace -z` output; `damage` and `lost_bytes` as in :class:`Stream`."""

    def __init__(self, packed: Stream, offset: int) -> None:
        super().__init__()
        self._packed = io.BufferedReader(packed, 1 << 20)
        self._packed.read(offset)
        self._decoder = zlib.decompressobj()
        self._pending = b""
        self.damage: str | None = None
        self.lost_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._pending and not self._decoder.eof and self.damage is None:
            block = self._packed.read(1 << 16)
            try:
                self._pending = self._decoder.decompress(block) if block else self._decoder.flush()
            except zlib.error as error:
                self.damage, self.lost_bytes = f"compressed data is damaged ({error})", len(block)
            if not block and not self._decoder.eof:
                self.damage = self.damage or "compressed data ends early"
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[Stream | Atrace]:
    """Open the text in the file at `path`, whatever it comes in.

    BadTrace if it is a trace.dat that no `trace-cmd` here unpacks, or a tar of raw ring buffers.
    """
    start = head(path)
    if is_ring_buffers(start):
        reason = "a tar of raw per-CPU ring buffers, which need the tool that collected them"
        advice = "Record the text instead: cat /sys/kernel/tracing/trace > trace.txt, or trace-cmd record."
        raise BadTrace(path, "ftrace", "", reason, advice=advice)
    with contextlib.ExitStack() as held:
        if is_trace_dat(start):
            path = held.enter_context(_reported(path))
        stream = held.enter_context(open_stream(path))
        offset = atrace_offset(start)
        yield stream if offset is None else held.enter_context(Atrace(stream, offset))


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[Path]:
    """Write what `trace-cmd report` prints of a trace.dat to a private file, and remove it afterwards."""
    by_hand = f"{' '.join(REPORT)} {path.name} > trace.txt"
    tool = shutil.which(REPORT[0])
    if tool is None:
        reason = "trace-cmd, which unpacks it, is not installed here"
        raise BadTrace(path, "trace.dat", "", reason, advice=f"Where it is, run: {by_hand}")
    with Scratch() as folder:
        data, report = path.resolve(), Path(folder) / "report.txt"
        with path.open("rb") as file:
            compressed = not is_trace_dat(file.read(len(TRACE_DAT)))
        if compressed:  # as a whole: the tool wants it plain
            data = Path(folder) / "trace.dat"
            with open_stream(path) as packed, data.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
        errors, clock = Path(folder) / "errors.txt", _clock(tool, data, Path(folder))
        with report.open("wb", buffering=0) as out, errors.open("wb") as err:
            out.write(clock)
            status, why = programs.run([tool, *REPORT[1:], str(data)], out, err, SECONDS)
        if why:
            raise BadTrace(path, "trace.dat", "", f"trace-cmd: {why}", advice=f"Try: {by_hand}")
        # of a file that is cut or damaged, trace-cmd 3.1 prints nothing and still ends with 0
        printed = report.stat().st_size > len(clock)
        if status != 0 or not printed:
            complaint = errors.read_bytes()[:2000].decode(errors="replace").strip()
            reason = f"trace-cmd ended with {status} and printed {'little' if printed else 'nothing'}"
            raise BadTrace(path, "trace.dat", "", reason, complaint, f"Is the file whole? Try: {by_hand}")
        yield report


def _clock(tool: str, data: Path, folder: Path) -> bytes:
    """Return a line that names the clock of a trace.dat, which `report` does not print, if it is certain."""
    options = folder / "options.txt"
    with options.open("wb") as out, (folder / "dump.txt").open("wb") as err:
        programs.run([tool, "dump", "--options", "-i", str(data)], out, err, DUMP_SECONDS)
    dumped = options.read_bytes()[:DUMPED]
    clock = None if SECOND_BUFFER.search(dumped) else CLOCK_OPTION.search(dumped)
    return b"# clock: %s\n" % clock[1] if clock else b""
