"""The recording's folder: `run.toml`, which a report reads, and `recording.toml`, which says what was done."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import tomli_w

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelib.record.cgroups import CpuGroup
    from tracelib.record.clocks import ClockReading
    from tracelib.record.proc import Thread

__all__ = ["write_cpu_stat", "write_recording", "write_run", "write_threads"]


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
) -> None:
    """Write run.toml (keys: docs/run-toml.md) with what is in the folder by now.

    `seconds` lies between the two copies of cpu.stat; `about` holds what the user said: title, ticket, roles, requests.
    """
    quota: dict[str, Any] = {"cpu_max": cpu_max} if cpu_max else {}
    if (folder / "cpu.stat.after").exists() and seconds is not None:
        quota |= {
            "cpu_stat_before": "cpu.stat.before",
            "cpu_stat_after": "cpu.stat.after",
            "seconds": seconds,
        }
    requests = about.get("requests", {})
    data = {
        "schema": "tracelib.run/1",
        **{name: about[name] for name in ("title", "ticket") if about.get(name)},
        "clocks": {f"{name}_ns": at for name, at in clocks.at.items()} | {"ftrace": "mono"},
        "host": {"name": os.uname().nodename, "cpus": cpus, "allowed_cpus": allowed_cpus},
        "quota": quota,
        "roles": about.get("roles", {}),
        "pids": {str(inside): outside for inside, outside in pids.items()},
        "requests": requests if requests and (folder / requests["file"]).is_file() else {},
    }
    _write(folder / "run.toml", {name: value for name, value in data.items() if value})


def write_recording(folder: Path, data: Mapping[str, Any]) -> None:
    """Write recording.toml: the plan, and each step with its state, its note, and what is needed to undo it."""
    _write(folder / "recording.toml", {"schema": "tracelib.recording/1", **data})


def write_threads(path: Path, threads: Mapping[int, Thread]) -> None:
    """Write the threads' counters as tab-separated values; names are the processes' own and lose what is not printable."""
    rows = ["pid\ttid\tstart\trun_ns\twait_ns\tname"]
    for tid, thread in sorted(threads.items()):
        name = "".join(c if c.isprintable() else "?" for c in thread.name)
        rows.append(f"{thread.pid}\t{tid}\t{thread.start}\t{thread.run_ns}\t{thread.wait_ns}\t{name}")
    path.write_text("\n".join(rows) + "\n")


def write_cpu_stat(path: Path, group: CpuGroup) -> None:
    """Write the cgroup's counters as cgroup v2 spells them, also those of v1."""
    path.write_text("".join(f"{name} {value}\n" for name, value in group.stat().items()))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the file whole or not at all: the recorder may be killed at any moment."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(tomli_w.dumps(data), encoding="utf-8")
    part.replace(path)
