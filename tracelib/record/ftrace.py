"""An ftrace instance of our own, which the kernel switches off if its owner dies, whatever killed it.

An instance has its own buffer, clock, events and switch; nobody else's tracing is touched. Definitions: the
kernel's Documentation/trace/ftrace.rst ("Instances") and events.rst ("Event triggers").
"""

import contextlib
import errno
import gzip
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelib.record.processes import PROC, start_time

EVENTS = ("sched_switch", "sched_wakeup", "sched_waking", "sched_wakeup_new")
PLACE = Path("/sys/kernel/tracing")  # where it belongs
#: Memory for all CPUs' buffers together: at most this, and at most a twentieth of what is free.
MOST_KB, LEAST_KB_A_CPU, MOST_KB_A_CPU = 1 << 20, 1 << 10, 1 << 16
NAME = re.compile(r"tracelib-(\d+)-(\d+)-(\d+)$")


def tracefs() -> Path | None:
    """Return where tracefs is mounted, None where it is not. It may be mounted and closed to this user."""
    mounts = [line.split() for line in (PROC / "self/mounts").read_text().splitlines()]
    return next((Path(place) for _, place, kind, *_ in mounts if kind == "tracefs"), None)


def buffer_kb(cpus: int, available_kb: int) -> int:
    """Return the size of one CPU's buffer in KiB."""
    whole = min(MOST_KB, available_kb // 20)
    return max(LEAST_KB_A_CPU, min(MOST_KB_A_CPU, whole // cpus))


def begin(place: Path, kb: int) -> tuple[Path, str]:
    """Make an instance that this process owns and switch it on; return its folder and what it lacks.

    The kernel switches it off when this process ends (a `traceoff` trigger on its exit), so that no way of
    dying leaves tracing on. For that this process takes the instance's short name as its own, which must be
    unique.

    Raises OSError if the kernel refuses; no instance is left.
    """
    owner = f"tracelib-{os.getpid():x}"[:15]
    instance = place / "instances" / instance_name()
    instance.mkdir()
    try:
        (instance / "tracing_on").write_text("0")
        (PROC / "self" / "comm").write_text(owner)
        (instance / "events/sched/sched_process_exit/trigger").write_text(f'traceoff if comm == "{owner}"')
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text(str(kb))
        lacks = [event for event in EVENTS if not (instance / "events/sched" / event).is_dir()]
        for event in EVENTS:
            if event not in lacks:
                (instance / "events/sched" / event / "enable").write_text("1")
        if (instance / "options/record-tgid").exists():
            (instance / "options/record-tgid").write_text("1")
        (instance / "tracing_on").write_text("1")
    except OSError:
        remove(instance)
        raise
    return instance, f"this kernel has no {', '.join(lacks)}" if lacks else ""


def halt(instance: Path) -> None:
    """Stop tracing; what is in the buffer stays."""
    (instance / "tracing_on").write_text("0")


def save(instance: Path, text: Path) -> str:
    """Write the buffer as gzipped text, whole or not at all, with the clock, which the kernel does not name.

    Return what was overwritten, if anything.
    """
    part = text.with_name(f".{text.name}.part")
    with (instance / "trace").open("rb") as buffer, gzip.open(part, "wb", compresslevel=1) as packed:
        packed.write(b"# clock: mono\n")
        shutil.copyfileobj(buffer, packed, 1 << 20)
    part.replace(text)
    overruns = [
        int(line.rpartition(":")[2])
        for stats in instance.glob("per_cpu/cpu*/stats")
        for line in stats.read_text().splitlines()
        if line.startswith("overrun:")
    ]
    return f"{sum(overruns)} events were overwritten: record for a shorter time" if sum(overruns) else ""


def remove(instance: Path, patience: float = 2) -> None:
    """Remove the instance, its buffer and everything that it switched on; nothing happens if it is gone.

    The kernel refuses for as long as somebody has one of its files open, be it another recorder that removes
    it too; that ends within `patience` seconds or not at all.

    Raises OSError if it cannot be removed.
    """
    deadline = time.monotonic() + patience
    while instance.is_dir():
        for event in EVENTS:
            with contextlib.suppress(OSError):  # this kernel has no such event, or the instance is gone
                (instance / "events/sched" / event / "enable").write_text("0")
        try:
            instance.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def instance_name() -> str:
    """Return a name that says who owns the instance: namespace of process ids, process, and when it began."""
    return f"tracelib-{_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def instances_left(place: Path) -> Iterator[Path]:
    """Yield the instances of owners that have died.

    Owners in another container cannot be seen from here: theirs are left alone.
    """
    for instance in (place / "instances").iterdir():
        owned = NAME.match(instance.name)
        if owned is None:
            continue
        namespace, pid, started = map(int, owned.groups())
        if namespace == _namespace() and start_time(pid) != started:
            yield instance


def shell_lines(place: Path, kb: int, seconds: float, output: str) -> Sequence[str]:
    """Return the same by hand, for a person with a root shell."""
    folder = place / "instances/tracelib"
    return (
        f"mkdir {folder}; cd {folder}; echo 0 > tracing_on",
        f"echo mono > trace_clock; echo {kb} > buffer_size_kb",
        "echo 1 > options/record-tgid",
        f"for e in {' '.join(EVENTS)}; do echo 1 > events/sched/$e/enable; done",
        f"echo 1 > tracing_on; sleep {seconds:g}; echo 0 > tracing_on",
        f'(echo "# clock: mono"; cat trace) > {output}; cd /; rmdir {folder}',
    )


def _namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino


@dataclass
class Ftrace:
    """An instance in tracefs, which the kernel switches off when its owner dies."""

    folder: Path
    place: Path
    kb: int
    name: str = "ftrace"
    handle: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        instance, lacks = begin(self.place, self.kb)
        self.handle.update(instance=str(instance), lacks=lacks)

    def stop(self) -> None:
        if self.handle:
            halt(Path(self.handle["instance"]))

    def save(self) -> str:
        if not self.handle:
            raise OSError("no instance was made")
        overwritten = save(Path(self.handle["instance"]), self.folder / "ftrace.txt.gz")
        return "; ".join(filter(None, [self.handle["lacks"], overwritten]))

    def close(self) -> None:
        if self.handle:
            remove(Path(self.handle["instance"]))
