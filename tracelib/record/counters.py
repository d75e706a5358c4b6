"""The kernel's own counters before and after: threads, quota, pressure, clocks; they cost nothing in between."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelib.record.cgroups import cpu_group
from tracelib.record.clocks import read_clocks
from tracelib.record.folder import write_cpu_stat, write_run, write_threads
from tracelib.record.proc import PROC, allowed_cpus, descendants, outside_ids, threads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelib.record.clocks import ClockReading

__all__ = ["Counters"]


@dataclass
class Counters:
    """Snapshots of every thread, and of the quota, affinity and ids of `pids` (of ourselves if there are none)."""

    folder: Path
    cpus: int
    pids: Sequence[int]
    about: dict[str, Any]
    _clocks: ClockReading = field(default_factory=read_clocks)
    _copied_ns: list[int] = field(default_factory=list)
    _found: dict[str, Any] = field(default_factory=dict)  # what write_run wants to know of the processes

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
            self._found = {
                "allowed_cpus": allowed,
                "cpu_max": group.cpu_max() if group and group.quota_cpus() else "",
                "pids": outside_ids(chosen) if chosen else {},
            }
        self.write_run()

    def write_run(self) -> None:
        """Write run.toml with what is in the folder by now."""
        both = len(self._copied_ns) == 2
        write_run(
            self.folder,
            clocks=self._clocks,
            cpus=self.cpus,
            about=self.about,
            **self._found,
            seconds=(self._copied_ns[1] - self._copied_ns[0]) / 1e9 if both else None,
        )
