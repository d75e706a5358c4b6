"""What the measured window says about the CPUs: one state, one sentence. Pure functions of numbers."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["STATES", "Measured", "ThreadUse", "Verdict", "judged", "lines"]

#: What `judged` can find, the first that holds; the thresholds stand beside it.
STATES = ("not_measured", "throttled", "cpu_shortage", "idle", "thread_saturated", "enough_cpu")
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
class Measured:
    """What the window showed.

    `cpus`: CPUs that the threads may use; `quota_cpus`: their cgroup's limit. `running`, `waiting`: threads on a CPU and
    ready without one, on average; together they are the run queue's mean length. `pressure` (0..1) comes from
    `pressure_from`: `psi` (share of time in which somebody waited), `schedstat` or `threads` (waiting / wanted). `None`
    wherever the machine does not tell.
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


@dataclass(frozen=True)
class Verdict:
    """One of `STATES`, a sentence for a person, and the numbers."""

    state: str
    sentence: str
    measured: Measured

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"schema": "tracelib.check/1", **asdict(self)}


def judged(shown: Measured, *, shortage: float = 0.1) -> Verdict:
    """Return the first of `STATES` that holds, in a sentence; `shortage` is the pressure from which CPUs are short.

    The GPUs do not decide: their utilisation counts waiting in a collective as busy, so that a starved server can show
    100 %.
    """
    state = _state(shown, shortage)
    return Verdict(state, f"{_says(state, shown)}{_gpus(shown, state)}", shown)


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


def _says(state: str, shown: Measured) -> str:
    if state == "not_measured":
        return "No thread was left to look at, or this kernel counts neither pressure (/proc/pressure/cpu) nor run delay (/proc/PID/schedstat)."
    share = f"{shown.running:.1f} of {_cpus_text(shown)} in use"
    if state == "throttled":
        return (
            f"The CPU quota of {shown.quota_cpus or 0:g} CPUs stopped the processes in {shown.throttled_periods or 0:.0%} of its periods"
            f" ({shown.throttled_seconds or 0:.1f} s of threads' time): raise the quota, or start fewer threads."
        )
    if state == "cpu_shortage":
        return f"Too few CPUs: {share}, and {shown.waiting or 0:.1f} threads ready without one on average ({_pressure_text(shown)})."
    if state == "idle":
        return f"Nothing to do: {share}."
    if state == "thread_saturated":
        busy = shown.busiest[0]
        return (
            f"CPUs are left ({share}), but thread {busy.name!r} ({busy.pid}/{busy.tid}) fills one alone ({busy.running:.0%}): more CPUs"
            " do not help it. Polling looks the same: record a trace to tell."
        )
    return f"Enough CPUs: {share}, {_pressure_text(shown)}."


def _cpus_text(shown: Measured) -> str:
    limit = "" if shown.quota_cpus is None else f" (quota {shown.quota_cpus:g})"
    return f"{shown.cpus} CPUs{limit}"


def _pressure_text(shown: Measured) -> str:
    what = {
        "psi": "somebody waited in {:.0%} of the time",
        "schedstat": "{:.0%} of wanted CPU time was waiting",
        "threads": "{:.0%} of wanted CPU time was waiting",
    }
    return what[shown.pressure_from or "threads"].format(shown.pressure or 0)


def _gpus(shown: Measured, state: str) -> str:
    if not shown.gpu_busy:
        return ""
    busy = statistics.median(shown.gpu_busy.values())
    if state in {"throttled", "cpu_shortage"}:
        then = (
            "they wait for it"
            if busy < GPU_BUSY
            else "though ranks that wait for each other count as busy too"
        )
        return f" GPUs are {busy:.0%} busy: {then}."
    why = (
        ", and the CPUs' number is not the reason"
        if busy < GPU_BUSY and state in {"enough_cpu", "thread_saturated"}
        else ""
    )
    return f" GPUs are {busy:.0%} busy{why}."


def lines(verdict: Verdict) -> Iterator[str]:
    """Yield what a person reads: the sentence, then the numbers it rests on."""
    shown = verdict.measured
    yield f"{verdict.state}: {verdict.sentence}"
    yield f"  watched       {shown.seconds:.1f} s, {_cpus_text(shown)}"
    if shown.running is not None and shown.waiting is not None:
        most = "" if shown.runnable_max is None else f"; {shown.runnable_max} runnable at most"
        yield f"  threads       {shown.running:.2f} running, {shown.waiting:.2f} waiting for a CPU, on average{most}"
    if shown.pressure is not None:
        yield f"  pressure      {_pressure_text(shown)} [{shown.pressure_from}]"
    if shown.throttled_periods is not None:
        yield f"  quota         stopped in {shown.throttled_periods:.0%} of its periods, {shown.throttled_seconds or 0:.2f} s in all"
    for index, busy in shown.gpu_busy.items():
        yield f"  GPU {index:<10}{busy:.0%} busy"
    for title, uses in (("busiest", shown.busiest), ("most waiting", shown.most_waiting)):
        for use in uses:
            yield f"  {title:<14}{use.name} {use.pid}/{use.tid}: running {use.running:.0%}, waiting {use.waiting:.0%}"
