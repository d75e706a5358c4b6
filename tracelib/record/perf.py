"""Which `perf record` this machine permits, and its recording as text."""

import gzip
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelib.data import data
from tracelib.record.processes import PROC, child, descendants, ended, mark, threads

START_S, END_S = 20.0, 120.0
#: Memory for all ring buffers together; 4096 pages (16 MiB) a CPU, fewer where there are many CPUs.
BUFFER_BYTES, MOST_PAGES = 512 << 20, 4096
PROBE_S = 20


@dataclass(frozen=True)
class Rung:
    """One way to record, from the fullest to the least; `lacks` is what it cannot tell."""

    name: str
    options: list[str]
    whole: bool
    lacks: str


RUNGS = tuple(Rung(**row) for row in data(__file__, "rungs.toml")["rung"])


def rung_of(name: str) -> Rung:
    """Return the rung of this name."""
    return next(rung for rung in RUNGS if rung.name == name)


def pages(cpus: int) -> int:
    """Return the ring buffer's pages per CPU: a power of two, all CPUs' together within `BUFFER_BYTES`."""
    most = min(MOST_PAGES, BUFFER_BYTES // (4096 * cpus))
    return 1 << (max(most, 1).bit_length() - 1)


def record_command(
    rung: Rung, *, cpus: int, pids: Sequence[int | str], seconds: float, output: str
) -> list[str]:
    """Return the command that records `seconds`; `-k mono` and the header's clocks tie it to other traces.

    `-N`: without it perf copies every program that it saw to `~/.debug`, gigabytes at times.
    """
    scope = ["-a", "-m", str(pages(cpus))] if rung.whole else ["-p", ",".join(map(str, pids))]
    return [
        "perf",
        "record",
        "-q",
        "-N",
        "-k",
        "mono",
        *scope,
        *rung.options,
        "-o",
        output,
        "--",
        "sleep",
        f"{seconds:g}",
    ]


def permitted(*, cpus: int, pids: Sequence[int], prefix: Sequence[str]) -> tuple[Rung | None, str]:
    """Return the fullest rung that works here, tried and not guessed, and perf's words on those above it."""
    refusals = []
    for rung in RUNGS:
        if not rung.whole and not pids:
            continue
        command = [*prefix, *record_command(rung, cpus=cpus, pids=pids, seconds=0.01, output="/dev/null")]
        try:
            tried = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=PROBE_S, env=environment()
            )
        except subprocess.TimeoutExpired:
            refusals.append(f"{rung.name}: no answer within {PROBE_S} s")
            continue
        if tried.returncode == 0:
            return rung, "; ".join(refusals)
        refusals.append(f"{rung.name}: {last_words(tried.stderr)}")
    return None, "; ".join(refusals) or "no process was named, and the whole machine is not permitted"


def script_command(data: str) -> list[str]:
    """Return the command that turns a recording to the text that tracelib reads."""
    return ["perf", "script", "-i", data, "--header", "--ns", "--show-switch-events", "-F", "+pid"]


def convert(data: Path, text: Path) -> str:
    """Write the recording at `data` as gzipped text to `text`, whole or not at all; return perf's warnings.

    Raises OSError if perf cannot read its recording; the message has its last words.
    """
    part = text.with_name(f".{text.name}.part")
    log = text.with_name(f".{text.name}.messages")
    with gzip.open(part, "wb", compresslevel=1) as packed, log.open("wb+") as messages:
        with subprocess.Popen(
            script_command(str(data)),
            stdout=subprocess.PIPE,
            stderr=messages,
            stdin=subprocess.DEVNULL,
            env=environment(),
        ) as script:
            assert script.stdout is not None
            shutil.copyfileobj(script.stdout, packed, 1 << 20)
        messages.seek(0)
        words = messages.read().decode(errors="replace")
    log.unlink()
    if script.returncode:
        part.unlink()
        raise OSError(f"perf script: {last_words(words)}")
    part.replace(text)
    return "; ".join(line.strip() for line in words.splitlines() if "lost" in line.lower())


def environment() -> dict[str, str]:
    """Return an environment in which perf says the same for every user: no configuration, no pager."""
    return {**os.environ, "PERF_CONFIG": "/dev/null", "LC_ALL": "C", "PAGER": "cat"}


def last_words(text: str) -> str:
    """Return the first line of what a program said that is more than a heading."""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line and line not in {"Error:", "WARNING:"}), "no message")


@dataclass
class Perf:
    """`perf record`, which gets SIGINT when its parent dies, writes its file to the end, and leaves."""

    folder: Path
    rung: str
    cpus: int
    seconds: float
    name: str = "perf"
    handle: dict[str, Any] = field(default_factory=dict)
    pids: Sequence[int] = ()

    def start(self) -> None:
        data, log = self.folder / "perf.data", self.folder / ".perf.messages"
        command = record_command(
            rung_of(self.rung), cpus=self.cpus, pids=self.pids, seconds=self.seconds, output=str(data)
        )
        with log.open("wb") as messages:
            started = child(
                command,
                death=signal.SIGINT,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env=environment(),
            )
        self.handle.update(mark(started.pid))
        limit = time.monotonic() + START_S
        # It becomes `sleep` (its own child) when its events are on: before that, what happens is not in the
        # recording.
        while not _sleeps(started.pid) and started.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        if started.poll() is not None:
            raise OSError(f"perf record: {last_words(log.read_text(errors='replace'))}")

    def stop(self) -> None:
        if not self.handle:  # whoever started it was killed before it could write that down
            self.handle.update(_perf_that_writes(self.folder / "perf.data"))
        # At its end perf looks up the build ids of all that it saw, which takes its time on a large machine.
        if self.handle and not ended(self.handle, signal.SIGINT, signal.SIGKILL, patience_s=END_S):
            raise OSError(f"perf (process {self.handle['pid']}) did not end")

    def save(self) -> str:
        data, text = self.folder / "perf.data", self.folder / "perf.txt.gz"
        if text.exists():  # whoever was killed had come as far as this
            data.unlink(missing_ok=True)
            return ""
        if not data.exists():
            raise OSError("perf wrote no recording")
        note = convert(data, text)
        data.unlink()
        return note

    def close(self) -> None:
        (self.folder / ".perf.messages").unlink(missing_ok=True)
        data = self.folder / "perf.data"
        if data.exists():  # it could not be converted, and would keep the rest of the folder from being read
            data.replace(self.folder / ".perf.data.unreadable")


def _sleeps(perf: int) -> bool:
    return any(thread.name == "sleep" for thread in threads(descendants([perf])).values())


def _perf_that_writes(data: Path) -> dict[str, int]:
    """Return the `perf record` that writes this file, empty if there is none (any more)."""
    for line in PROC.glob("[0-9]*/cmdline"):
        try:
            arguments = line.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if arguments[:2] == [b"perf", b"record"] and str(data).encode() in arguments:
            return mark(int(line.parent.name))
    return {}
