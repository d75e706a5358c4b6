"""What can be recorded, each with the same four moments: start, stop (at once), save (may take long), close (undo).

A step's `handle` is all that another process needs to stop, save and close it, should this one be killed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracelib.record import ftrace, perf
from tracelib.record.children import child, ended, mark
from tracelib.record.plan import BACKSTOP_S, perf_command
from tracelib.record.proc import PROC, descendants, threads
from tracelib.record.profiler import Profiler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelib.record.plan import Plan

__all__ = ["Ftrace", "Gpu", "Perf", "Step", "planned"]

GPU_FIELDS = "timestamp,index,utilization.gpu,utilization.memory,power.draw,clocks.sm,memory.used"
START_S, END_S = 20.0, 120.0


class Step(Protocol):
    """One recorder."""

    name: str
    handle: dict[str, Any]

    def start(self) -> None:
        """Begin to record, or raise OSError."""
        ...

    def stop(self) -> None:
        """Stop recording at once."""
        ...

    def save(self) -> str:
        """Write what was recorded to the folder; return what should be known of it."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


def planned(made: Plan) -> list[Step]:
    """Return the steps of a plan in the order in which they start: the slowest first, so that all cover the same time."""
    folder, steps = Path(made.folder), list[Step]()
    if made.start_url:
        steps.append(Profiler(folder, made.start_url, made.stop_url, made.server_traces))
    if made.rung:
        steps.append(Perf(folder, made))
    if made.tracefs:
        steps.append(Ftrace(folder, Path(made.tracefs), made.buffer_kb))
    if made.gpu:
        steps.append(Gpu(folder))
    return steps


@dataclass
class Perf:
    """`perf record`, which gets SIGINT when its parent dies, writes its file to the end, and leaves."""

    folder: Path
    made: Plan
    name: str = "perf"
    handle: dict[str, Any] = field(default_factory=dict)
    pids: Sequence[int] = ()

    def start(self) -> None:
        data, said = self.folder / "perf.data", self.folder / ".perf.messages"
        command = perf_command(
            self.made, output=str(data), seconds=self.made.seconds + BACKSTOP_S, pids=self.pids
        )
        with said.open("wb") as messages:
            started = child(
                command,
                death=signal.SIGINT,
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                env=perf.environment(),
            )
        self.handle.update(mark(started.pid))
        limit = time.monotonic() + START_S
        # It becomes `sleep` (its own child) when its events are on: before that, what happens is not in the recording.
        while not _sleeps(started.pid) and started.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        if started.poll() is not None:
            raise OSError(f"perf record: {perf.last_words(said.read_text(errors='replace'))}")

    def stop(self) -> None:
        if not self.handle:  # whoever started it was killed before it could write that down
            self.handle.update(_perf_that_writes(self.folder / "perf.data"))
        # At its end perf looks up the build ids of all that it saw, which takes its time on a large machine.
        if self.handle and not ended(self.handle, signal.SIGINT, signal.SIGKILL, patience_s=END_S):
            raise OSError(f"perf (process {self.handle['pid']}) does not end")

    def save(self) -> str:
        data, text = self.folder / "perf.data", self.folder / "perf.txt.gz"
        if text.exists():  # whoever was killed had come as far as this
            data.unlink(missing_ok=True)
            return ""
        if not data.exists():
            raise OSError("perf wrote no recording")
        note = perf.convert(data, text)
        data.unlink()
        return note

    def close(self) -> None:
        (self.folder / ".perf.messages").unlink(missing_ok=True)
        data = self.folder / "perf.data"
        if data.exists():  # it could not be converted, and would keep the rest of the folder from being read
            data.replace(self.folder / ".perf.data.unreadable")


@dataclass
class Ftrace:
    """An instance in tracefs, which the kernel switches off when its owner dies."""

    folder: Path
    place: Path
    kb: int
    name: str = "ftrace"
    handle: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        instance, lacks = ftrace.begin(self.place, self.kb)
        self.handle.update(instance=str(instance), lacks=lacks)

    def stop(self) -> None:
        if self.handle:
            ftrace.halt(Path(self.handle["instance"]))

    def save(self) -> str:
        if not self.handle:
            raise OSError("no instance was made")
        overwritten = ftrace.save(Path(self.handle["instance"]), self.folder / "ftrace.txt.gz")
        return "; ".join(filter(None, [self.handle["lacks"], overwritten]))

    def close(self) -> None:
        if self.handle:
            ftrace.remove(Path(self.handle["instance"]))


@dataclass
class Gpu:
    """Utilisation, power and clocks of every GPU, twice a second."""

    folder: Path
    name: str = "gpu"
    handle: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        with (self.folder / "gpu.csv").open("wb") as table:
            started = child(
                ["nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv", "--loop-ms=500"],
                death=signal.SIGTERM,
                stdin=subprocess.DEVNULL,
                stdout=table,
                stderr=subprocess.DEVNULL,
            )
        self.handle.update(mark(started.pid))

    def stop(self) -> None:
        if self.handle and not ended(self.handle, signal.SIGTERM, signal.SIGKILL):
            raise OSError(f"nvidia-smi (process {self.handle['pid']}) does not end")

    def save(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing outlives the process."""


def _sleeps(perf: int) -> bool:
    """Say whether perf has started the command that it records along, `sleep`."""
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
