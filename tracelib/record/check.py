"""Is this server short of CPUs right now? Ten seconds of counters that the kernel keeps anyway; nothing is traced."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelib.record import gpu
from tracelib.record.cgroups import cpu_group, pressure_us
from tracelib.record.proc import PROC, allowed_cpus, descendants, existing, threads
from tracelib.record.verdict import Measured, ThreadUse, judged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tracelib.record.proc import Thread
    from tracelib.record.verdict import Verdict

__all__ = ["Snapshot", "check", "measured", "snapshot"]

SAMPLE_S = 0.1
SHOWN = 5


@dataclass(frozen=True)
class Snapshot:
    """The counters at one moment. `quota` maps a cgroup's folder to its cpu.stat; `delay_ns` counts all CPUs."""

    at_ns: int
    threads: Mapping[int, Thread]
    pressure_us: int | None
    delay_ns: int | None
    quota: Mapping[str, Mapping[str, int]]


def check(*, seconds: float = 10.0, pids: Iterable[int] | None = None, shortage: float = 0.1) -> Verdict:
    """Watch the machine (default) or the processes `pids` and their descendants, and say what they lack.

    Raises
    ------
    BadParameter
        One of `pids` is no process.

    """
    chosen = None if pids is None else descendants(existing(pids))
    before, sampling = snapshot(chosen), gpu.start()
    runnable = _runnable(seconds) if chosen is None else _slept(seconds)
    after = snapshot(chosen and descendants(chosen))
    shown = measured(
        before,
        after,
        cpus=_cpus(after, chosen),
        quota_cpus=_quota_cpus(chosen),
        gpu_busy=gpu.busy_shares(gpu.stopped(sampling)),
        runnable_max=max(runnable, default=None),
        whole=chosen is None,
    )
    return judged(shown, shortage=shortage)


def snapshot(pids: Iterable[int] | None, proc: Path = PROC) -> Snapshot:
    """Return the counters of the processes `pids`, or of all that /proc shows; this process, which watches, is left out."""
    chosen = None if pids is None else list(pids)
    groups = [cpu_group(pid, proc) for pid in ([os.getpid()] if chosen is None else chosen)]
    return Snapshot(
        at_ns=time.monotonic_ns(),
        threads={tid: thread for tid, thread in threads(chosen, proc).items() if thread.pid != os.getpid()},
        pressure_us=pressure_us(proc),
        delay_ns=_delay_ns(proc / "schedstat"),
        quota={str(group.folder): group.stat() for group in groups if group},
    )


def measured(
    before: Snapshot,
    after: Snapshot,
    *,
    cpus: int,
    quota_cpus: float | None,
    whole: bool,
    gpu_busy: Mapping[int, float] | None = None,
    runnable_max: int | None = None,
) -> Measured:
    """Return what happened between two snapshots; `whole` says that they hold the whole machine, not chosen processes.

    Threads that began in between count from their beginning; those that ended are not seen by `running` and `waiting`.
    """
    length = after.at_ns - before.at_ns
    uses = [_use(before.threads.get(tid), thread, length) for tid, thread in after.threads.items()]
    running, waiting = (sum(getattr(use, name) for use in uses) for name in ("running", "waiting"))
    pressure, source = _pressure(
        before, after, whole=whole, running=running, waiting=waiting, seen=bool(uses)
    )
    periods, stopped_us = (_grown(before, after, key) for key in ("nr_throttled", "throttled_usec"))
    all_periods = _grown(before, after, "nr_periods")
    return Measured(
        seconds=length / 1e9,
        cpus=cpus,
        quota_cpus=quota_cpus,
        running=running if uses else None,
        waiting=waiting if uses else None,
        pressure=pressure,
        pressure_from=source,
        throttled_periods=periods / all_periods if all_periods and periods is not None else None,
        throttled_seconds=None if stopped_us is None else stopped_us / 1e6,
        runnable_max=runnable_max,
        gpu_busy=gpu_busy or {},
        busiest=_first(uses, "running"),
        most_waiting=_first(uses, "waiting"),
    )


def _use(before: Thread | None, after: Thread, length: int) -> ThreadUse:
    same = before is not None and before.start == after.start
    run, wait = (before.run_ns, before.wait_ns) if same and before else (0, 0)
    ran, waited = after.run_ns - run, after.wait_ns - wait
    if same and before and before.yields is not None and before.yields == after.yields:
        # It was runnable at both ends and never slept: what it did not run it waited, also in the wait that has not ended.
        waited = max(waited, length - ran)
    return ThreadUse(after.pid, after.tid, after.name, ran / length, waited / length)


def _first(uses: Iterable[ThreadUse], by: str) -> tuple[ThreadUse, ...]:
    return tuple(
        sorted((use for use in uses if getattr(use, by) > 0), key=lambda use: -getattr(use, by))[:SHOWN]
    )


def _pressure(
    before: Snapshot, after: Snapshot, *, whole: bool, running: float, waiting: float, seen: bool
) -> tuple[float | None, str | None]:
    """Return the pressure and its source: PSI for a whole machine, else its run delay, else the threads' own."""
    length = after.at_ns - before.at_ns
    if whole and before.pressure_us is not None and after.pressure_us is not None:
        # The kernel adds up with a lag, so that a short window can hold a little more than itself.
        return min(1.0, (after.pressure_us - before.pressure_us) * 1000 / length), "psi"
    if whole and before.delay_ns is not None and after.delay_ns is not None:
        delay = (after.delay_ns - before.delay_ns) / length
        return delay / (delay + running) if delay + running else 0.0, "schedstat"
    wanted = running + waiting
    return (waiting / wanted if wanted else 0.0, "threads") if seen else (None, None)


def _grown(before: Snapshot, after: Snapshot, key: str) -> int | None:
    """Return by how much a counter of cpu.stat grew, summed over the groups that both snapshots hold."""
    both = [
        folder for folder in after.quota if key in after.quota[folder] and key in before.quota.get(folder, {})
    ]
    return sum(after.quota[folder][key] - before.quota[folder][key] for folder in both) if both else None


def _delay_ns(path: Path) -> int | None:
    """Return the run delay summed over the CPUs from /proc/schedstat (second last number of a `cpuN` line)."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None  # built without CONFIG_SCHEDSTATS
    return sum(int(line.split()[-2]) for line in lines if line.startswith("cpu"))


def _runnable(seconds: float) -> list[int]:
    """Return the number of runnable threads but this one, ten times a second: the fourth field of /proc/loadavg."""
    counts, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(SAMPLE_S, left))
        counts.append(int((PROC / "loadavg").read_text().split()[3].partition("/")[0]) - 1)
    return counts


def _slept(seconds: float) -> list[int]:
    time.sleep(seconds)
    return []


def _cpus(after: Snapshot, pids: list[int] | None) -> int:
    return len(allowed_cpus(after.threads) if pids is not None else os.sched_getaffinity(0))


def _quota_cpus(pids: list[int] | None) -> float | None:
    groups = (cpu_group(pid) for pid in ([os.getpid()] if pids is None else pids))
    limits = [limit for group in groups if group and (limit := group.quota_cpus()) is not None]
    return min(limits, default=None)
