"""What a recording leaves in its folder.

That is `run.toml` for a report, the kernel's counters before and after, and `recording.toml`: what was done.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from tracelib.clocks import READABLE
from tracelib.manifest import AFTER, BEFORE, FILE_NAME, SCHEMA
from tracelib.record.cgroups import NO_LIMIT, CpuGroup, cpu_group
from tracelib.record.processes import PROC, Thread, allowed_cpus, descendants, outside_ids, threads
from tracelib.words import plain

TRIES = 50
#: Files of ours, which go if nothing was recorded, and those that hold what was.
OWN_FILES = (
    "run.toml",
    "recording.toml",
    "threads.*.tsv",
    "cpu.stat.*",
    "pressure.*",
    "gpu.csv",
    "request-log.*",
    ".*.part",
    ".perf.*",
)
RECORDINGS = ("perf.data", "perf.txt.gz", "ftrace.txt.gz")


@dataclass(frozen=True)
class ClockReading:
    """One moment on every clock in ns; the readings lie within `error_ns` of `at["monotonic"]`."""

    at: Mapping[str, int]
    error_ns: int


def read_clocks() -> ClockReading:
    """Return the tightest of several readings of all clocks, each taken between two of CLOCK_MONOTONIC.

    A reading that the scheduler interrupted takes longer and is passed over. Definitions: clock_gettime(2).
    """
    return min((_reading() for _ in range(TRIES)), key=lambda reading: reading.error_ns)


def _reading() -> ClockReading:
    first = time.monotonic_ns()
    at = {name: time.clock_gettime_ns(number) for name, number in READABLE.items()}
    last = time.monotonic_ns()
    return ClockReading({**at, "monotonic": (first + last) // 2}, (last - first + 1) // 2)


@dataclass
class Counters:
    """The kernel's own counters before and after, which cost nothing in between.

    They are of every thread, and of the quota, affinity and ids of `pids` (of ourselves if there are none).
    """

    folder: Path
    cpus: int
    pids: Sequence[int]
    about: dict[str, Any]
    _clocks: ClockReading = field(default_factory=read_clocks)
    _copied_ns: list[int] = field(default_factory=list)
    _limits: dict[str, Any] = field(default_factory=dict)  # what run.toml says of the processes

    def take(self, side: str) -> None:
        """Copy the counters to files that end in `side` ("before", "after"), and write run.toml."""
        chosen = descendants(self.pids) if self.pids else None
        write_threads(self.folder / f"threads.{side}.tsv", threads())
        group = cpu_group(self.pids[0] if self.pids else os.getpid())
        if group is not None and group.quota_cpus() is not None:
            write_cpu_stat(self.folder / f"cpu.stat.{side}", group)
            self._copied_ns.append(time.monotonic_ns())
        pressure = PROC / "pressure" / "cpu"
        if pressure.exists():
            (self.folder / f"pressure.{side}").write_text(pressure.read_text())
        allowed = len(allowed_cpus(threads(chosen) if chosen else [0]))
        if allowed:  # the processes are still there
            cpu_max = group.cpu_max() if group and group.quota_cpus() else ""
            now = {"allowed_cpus": allowed, "cpu_max": cpu_max}
            before = {name: self._limits.get(name, value) for name, value in now.items()}
            changed = {
                f"{name}_before": before[name] or NO_LIMIT for name in now if before[name] != now[name]
            }
            self._limits = {**now, **changed, "pids": outside_ids(chosen) if chosen else {}}
        self.write_run()

    def write_run(self) -> None:
        """Write run.toml with what is in the folder by now."""
        both = len(self._copied_ns) == 2
        write_run(
            self.folder,
            clocks=self._clocks,
            cpus=self.cpus,
            about=self.about,
            **self._limits,
            seconds=(self._copied_ns[1] - self._copied_ns[0]) / 1e9 if both else None,
        )


def write_run(
    folder: Path,
    *,
    clocks: ClockReading,
    cpus: int,
    allowed_cpus: int,
    cpu_max: str,
    seconds: float | None,
    pids: Mapping[int, int],
    about: Mapping[str, Any],
    allowed_cpus_before: int | None = None,
    cpu_max_before: str = "",
) -> None:
    """Write run.toml (keys: docs/run-toml.md) with what is in the folder by now.

    `seconds` lies between the two copies of cpu.stat; `about` holds what the user said: title, ticket, roles,
    requests. What ends in `_before` is given where it had changed by the end.
    """
    limits = {"cpu_max": cpu_max, "cpu_max_before": cpu_max_before}
    quota: dict[str, Any] = {name: value for name, value in limits.items() if value}
    changed = {"allowed_cpus_before": allowed_cpus_before} if allowed_cpus_before else {}
    if (folder / AFTER).exists() and seconds is not None:
        quota |= {"cpu_stat_before": BEFORE, "cpu_stat_after": AFTER, "seconds": seconds}
    requests = about.get("requests", {})
    data = {
        "schema": SCHEMA,
        **{name: about[name] for name in ("title", "ticket") if about.get(name)},
        "clocks": {f"{name}_ns": at for name, at in clocks.at.items()} | {"ftrace": "mono"},
        "host": {"name": os.uname().nodename, "cpus": cpus, "allowed_cpus": allowed_cpus, **changed},
        "quota": quota,
        "roles": about.get("roles", {}),
        "pids": {str(inside): outside for inside, outside in pids.items()},
        "requests": {name: requests[name] for name in ("file", "clock") if requests.get(name)}
        if requests and (folder / requests["file"]).is_file()
        else {},
    }
    _write(folder / FILE_NAME, {name: value for name, value in data.items() if value})


def take_log(folder: Path, about: Mapping[str, Any]) -> str | None:
    """Copy a request log that grew elsewhere into the folder; return what was done, or None."""
    log = about.get("requests", {})
    if "grows_at" not in log:
        return None
    shutil.copyfile(log["grows_at"], folder / log["file"])
    return f"request log copied as {log['file']}"


def write_recording(folder: Path, data: Mapping[str, Any]) -> None:
    """Write recording.toml: the plan, and each step's state, note, and what it takes to undo it."""
    _write(folder / "recording.toml", {"schema": "tracelib.recording/1", **data})


def write_threads(path: Path, threads: Mapping[int, Thread]) -> None:
    """Write the threads' counters as tab-separated values."""
    rows = ["pid\ttid\tstart\trun_ns\twait_ns\tname"]
    for tid, thread in sorted(threads.items()):
        counters = f"{thread.start}\t{thread.run_ns}\t{thread.wait_ns}"
        rows.append(f"{thread.pid}\t{tid}\t{counters}\t{plain(thread.name)}")
    path.write_text("\n".join(rows) + "\n")


def write_cpu_stat(path: Path, group: CpuGroup) -> None:
    """Write the cgroup's counters as cgroup v2 spells them, also those of v1."""
    path.write_text("".join(f"{name} {value}\n" for name, value in group.stat().items()))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the file whole or not at all: the recorder may be killed at any moment."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(tomli_w.dumps(data), encoding="utf-8")
    part.replace(path)
