"""Is this server short of CPUs right now? Ten seconds of counters that the kernel keeps anyway.

First what was measured between two snapshots, then what it says: one state, one sentence.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tracelib.data import data
from tracelib.record import gpu
from tracelib.record.cgroups import cpu_group, pressure_us
from tracelib.record.processes import PROC, Thread, allowed_cpus, descendants, existing, text, threads
from tracelib.words import counted, cpus, share

#: How often the runnable threads are counted.
SAMPLE_S = 0.1
SHOWN = 5
#: Pressure from which CPUs count as short.
SHORTAGE = 0.1


@dataclass(frozen=True)
class Snapshot:
    """The counters at one moment; `quota`: cpu.stat by cgroup's folder; `delay_ns`: of all CPUs."""

    at_ns: int
    threads: Mapping[int, Thread]
    pressure_us: int | None
    delay_ns: int | None
    quota: Mapping[str, Mapping[str, int]]


#: Role of a process by its id and name; None = it plays none.
RoleOf = Callable[[int, str], str | None]


def check(
    *,
    seconds: float = 10.0,
    pids: Iterable[int] | None = None,
    shortage: float = SHORTAGE,
    role_of: RoleOf | None = None,
) -> Verdict:
    """Watch the machine (default) or the processes `pids` and their descendants, and say what they lack.

    `role_of` says which part of the server a process is, for `Measured.roles`. Raises BadParameter if one of
    `pids` is not a process.
    """
    chosen = None if pids is None else descendants(existing(pids))
    before, sampling = snapshot(chosen), gpu.start()
    try:
        runnable = _runnable(seconds) if chosen is None else _slept(seconds)
        after = snapshot(chosen and descendants(chosen))
    finally:
        printed = gpu.stopped(sampling)
    cpus = len(allowed_cpus(after.threads) if chosen is not None else os.sched_getaffinity(0))
    groups = (cpu_group(pid) for pid in ([os.getpid()] if chosen is None else chosen))
    limits = [limit for group in groups if group and (limit := group.quota_cpus()) is not None]
    shown = measured(
        before,
        after,
        cpus=cpus,
        quota_cpus=min(limits, default=None),
        gpu_busy=gpu.busy_shares(printed),
        runnable_max=max(runnable, default=None),
        whole=chosen is None,
        roles=_roles(after, role_of),
    )
    return judged(shown, shortage=shortage)


def snapshot(pids: Iterable[int] | None, proc: Path = PROC) -> Snapshot:
    """Return the counters of the processes `pids`, or of all in /proc but this one, which watches."""
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
    roles: Mapping[int, str] | None = None,
) -> Measured:
    """Return what happened between two snapshots; `whole`: of the machine, not of chosen processes.

    `roles`: those of processes, by id. Threads that began in between count from their beginning; those that
    ended are not seen by `running` and `waiting`.
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
        roles=_by_role(uses, roles or {}),
    )


def _roles(seen: Snapshot, role_of: RoleOf | None) -> dict[int, str]:
    main = [thread for thread in seen.threads.values() if thread.tid == thread.pid]
    told = ((thread.pid, role_of(thread.pid, thread.name)) for thread in main if role_of)
    return {pid: role for pid, role in told if role}


def _by_role(uses: Iterable[ThreadUse], roles: Mapping[int, str]) -> dict[str, RoleUse]:
    of_role: dict[str, list[ThreadUse]] = {}
    for use in uses:
        if use.pid in roles:
            of_role.setdefault(roles[use.pid], []).append(use)
    return {
        role: RoleUse(
            running=sum(use.running for use in members),
            waiting=sum(use.waiting for use in members),
            busiest=max(use.running for use in members),
        )
        for role, members in sorted(of_role.items())
    }


def _use(before: Thread | None, after: Thread, length: int) -> ThreadUse:
    same = before is not None and before.start == after.start
    run, wait = (before.run_ns, before.wait_ns) if same and before else (0, 0)
    ran, waited = after.run_ns - run, after.wait_ns - wait
    if same and before and before.yields is not None and before.yields == after.yields:
        # It was runnable at both ends and never slept: it waited whenever it did not run, and may still.
        waited = max(waited, length - ran)
    return ThreadUse(after.pid, after.tid, after.name, ran / length, waited / length)


def _first(uses: Iterable[ThreadUse], by: str) -> tuple[ThreadUse, ...]:
    return tuple(
        sorted((use for use in uses if getattr(use, by) > 0), key=lambda use: -getattr(use, by))[:SHOWN]
    )


def _pressure(
    before: Snapshot, after: Snapshot, *, whole: bool, running: float, waiting: float, seen: bool
) -> tuple[float | None, str | None]:
    """Return the pressure and its source: a whole machine's PSI or run delay, else the threads'."""
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
    """Return the run delay of all CPUs from /proc/schedstat (second last number of a `cpuN` line)."""
    counters = text(path)
    if counters is None:
        return None  # built without CONFIG_SCHEDSTATS
    return sum(int(line.split()[-2]) for line in counters.splitlines() if line.startswith("cpu"))


def _runnable(seconds: float) -> list[int]:
    counts, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(SAMPLE_S, left))
        counts.append(int((PROC / "loadavg").read_text().split()[3].partition("/")[0]) - 1)
    return counts


def _slept(seconds: float) -> list[int]:
    time.sleep(seconds)
    return []


#: What `judged` can find, the first that holds; then the thresholds.
_SENTENCES: dict[str, str] = data(__file__, "states.toml")
STATES = tuple(_SENTENCES)
THROTTLED_PERIODS = 0.05  # of the quota's periods: fewer are a burst at start-up
WAITING = 0.1  # threads on average: a process that hardly runs may wait for most of what it wants
SATURATED = 0.95  # of one CPU
IDLE = 0.05  # of the CPUs that may be used
GPU_BUSY = 0.6  # the article's line between a busy and a waiting GPU


@dataclass(frozen=True)
class ThreadUse:
    """What one thread did in the window, as shares of it (0..1): on a CPU, and ready without one."""

    pid: int
    tid: int
    name: str
    running: float
    waiting: float


@dataclass(frozen=True)
class RoleUse:
    """Threads of a role on a CPU, and ready without one, on average; the share of the busiest."""

    running: float
    waiting: float
    busiest: float


@dataclass(frozen=True)
class Measured:
    """What the window showed.

    `cpus`: CPUs that the threads may use; `quota_cpus`: their cgroup's limit. `running`, `waiting`: threads
    on a CPU and ready without one, on average; together they are the run queue's mean length. `pressure`
    (0..1) comes from `pressure_from`: `psi` (share of time in which some thread waited), `schedstat` or
    `threads` (waiting / wanted). `None` where the machine does not say.
    """

    seconds: float
    cpus: int
    quota_cpus: float | None
    running: float | None
    waiting: float | None
    pressure: float | None
    pressure_from: str | None
    throttled_periods: float | None
    throttled_seconds: float | None
    runnable_max: int | None
    gpu_busy: Mapping[int, float] = field(default_factory=dict)
    busiest: tuple[ThreadUse, ...] = ()
    most_waiting: tuple[ThreadUse, ...] = ()
    roles: Mapping[str, RoleUse] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """One of `STATES`, a sentence for a person, and the numbers."""

    state: str
    sentence: str
    measured: Measured

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"schema": "tracelib.check/1", **asdict(self)}


def judged(shown: Measured, *, shortage: float = SHORTAGE) -> Verdict:
    """Return the first of `STATES` that holds; CPUs are short from the pressure `shortage` on.

    The GPUs do not decide: their utilisation counts waiting in a collective as busy, so that a starved server
    can show 100 %.
    """
    state = _state(shown, shortage)
    return Verdict(state, f"{_sentence(state, shown)}{_gpus(shown, state)}", shown)


def _state(shown: Measured, shortage: float) -> str:
    if shown.pressure is None or shown.running is None:
        return "not_measured"
    if (shown.throttled_periods or 0) >= THROTTLED_PERIODS:
        return "throttled"
    if shown.pressure >= shortage and (shown.pressure_from == "psi" or (shown.waiting or 0) >= WAITING):
        return "cpu_shortage"
    if shown.running < IDLE * shown.cpus:
        return "idle"
    saturated = shown.busiest and shown.busiest[0].running >= SATURATED
    return "thread_saturated" if saturated else "enough_cpu"


def _sentence(state: str, shown: Measured) -> str:
    busy = shown.busiest[0] if shown.busiest else ThreadUse(0, 0, "", 0, 0)
    return _SENTENCES[state].format(
        used=f"{shown.running or 0:.1f} of {_cpus_text(shown)} in use",
        quota=cpus(shown.quota_cpus or 0),
        throttled=share(shown.throttled_periods or 0),
        stopped=f"{shown.throttled_seconds or 0:.1f}",
        waiting=f"{shown.waiting or 0:.1f}",
        pressure=_pressure_text(shown),
        thread=f"{busy.name!r} ({busy.pid}/{busy.tid})",
        filled=share(busy.running),
    )


def _cpus_text(shown: Measured) -> str:
    limit = "" if shown.quota_cpus is None else f" (quota {shown.quota_cpus:g})"
    return f"{counted(shown.cpus, 'CPU')}{limit}"


def _pressure_text(shown: Measured) -> str:
    part = share(shown.pressure or 0)
    if shown.pressure_from == "psi":
        return f"some thread waited {part} of the time"
    return f"{part} of the CPU time that threads wanted was waiting"


def _gpus(shown: Measured, state: str) -> str:
    if not shown.gpu_busy:
        return ""
    busy = statistics.median(shown.gpu_busy.values())
    waiting, text = busy < GPU_BUSY, f" GPUs are {share(busy)} busy"
    if state in {"throttled", "cpu_shortage"}:
        then = "they wait for it" if waiting else "though ranks that wait for each other count as busy"
        return f"{text}: {then}."
    idle = waiting and state in {"enough_cpu", "thread_saturated"}
    return f"{text}{', and the number of CPUs is not the reason' if idle else ''}."


def lines(verdict: Verdict) -> Iterator[str]:
    """Yield what a person reads: the sentence, then the numbers it rests on."""
    shown = verdict.measured
    yield f"{verdict.state}: {verdict.sentence}"
    yield _row("watched", f"{shown.seconds:.1f} s, {_cpus_text(shown)}")
    if shown.running is not None and shown.waiting is not None:
        most = "" if shown.runnable_max is None else f"; {shown.runnable_max} runnable at most"
        average = f"{shown.running:.2f} running, {shown.waiting:.2f} waiting for a CPU, on average"
        yield _row("threads", average + most)
    if shown.pressure is not None:
        yield _row("pressure", f"{_pressure_text(shown)} [{shown.pressure_from}]")
    if shown.throttled_periods is not None:
        stopped = f"stopped in {share(shown.throttled_periods)} of its periods"
        yield _row("quota", f"{stopped}, {shown.throttled_seconds or 0:.2f} s in all")
    for index, busy in shown.gpu_busy.items():
        yield _row(f"GPU {index}", f"{share(busy)} busy")
    for title, uses in (("busiest", shown.busiest), ("most waiting", shown.most_waiting)):
        for use in uses:
            shares = f"running {share(use.running)}, waiting {share(use.waiting)}"
            yield _row(title, f"{use.name} {use.pid}/{use.tid}: {shares}")


def _row(title: str, text: str) -> str:
    return f"  {title:<14}{text}"
