"""All analyses of one run, each computed once: what findings, charts and the report take."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.analyses.collectives import collectives, in_window
from tracelib.analyses.cpu_time import GIL_WAITS, SPINNING, cpu_time, gil_waits, sample_stretches, spinning
from tracelib.analyses.gpu_states import gpu_states, gpu_time
from tracelib.analyses.host_activity import host_activity
from tracelib.analyses.ipc import ipc, worker_steps
from tracelib.analyses.launches import launches
from tracelib.analyses.lost import CPU_CONTENTION, causes, cpu_contention, host_time, lost
from tracelib.analyses.requests import REQUEST_CAUSES, STEP_TOKENS, request_causes, requests, step_tokens
from tracelib.analyses.scheduling import THREAD_LOAD, demand, scheduling, thread_load
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.throttling import QUOTA_USE, Supply, quota_use
from tracelib.analyses.upstream import Upstream
from tracelib.analyses.utilisation_steps import UTILISATION_STEPS, utilisation_steps
from tracelib.analyses.window import Window, on_one_clock, window
from tracelib.intervals import each
from tracelib.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelib.rules import Rules
    from tracelib.trace import Trace


@dataclass(frozen=True, repr=False)
class Results:
    """The frames of all analyses; each frame's columns stand in the docstring of the function of its name.

    A frame that needs events which no source holds is empty, and `missing` maps its name to the reason.
    `trace` is the part of `recorded` that lies on one timeline: all of it (None = the same), unless a
    source's clock could not be tied. `rules` are those by which names were given their causes: whoever draws
    or finds causes takes them from here.
    """

    trace: Trace
    window: Window
    rules: Rules
    gpu_states: pl.DataFrame
    gpu_time: pl.DataFrame
    launches: pl.DataFrame
    collectives: pl.DataFrame
    host_activity: pl.DataFrame
    lost: pl.DataFrame
    causes: pl.DataFrame
    host_time: pl.DataFrame
    thread_states: pl.DataFrame
    scheduling: pl.DataFrame
    cpu_time: pl.DataFrame
    demand: pl.DataFrame
    ipc: pl.DataFrame
    requests: pl.DataFrame
    spinning: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SPINNING))
    cpu_contention: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CPU_CONTENTION))
    thread_load: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=THREAD_LOAD))
    quota_use: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=QUOTA_USE))
    utilisation_steps: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=UTILISATION_STEPS))
    gil_waits: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GIL_WAITS))
    request_causes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REQUEST_CAUSES))
    step_tokens: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STEP_TOKENS))
    requests_outside: int = 0  # requests of the log that do not lie in the window whole
    missing: dict[str, str] = field(default_factory=dict)
    recorded: Trace | None = None
    supply: Supply = field(default_factory=Supply)

    def __repr__(self) -> str:
        """Return the window, then one line per frame: its rows, or why it has none."""
        frames = {f.name: getattr(self, f.name) for f in fields(self)}
        lines = [
            f"{name:18}{rows.height:>10,} rows" + (f": {self.missing[name]}" if name in self.missing else "")
            for name, rows in frames.items()
            if isinstance(rows, pl.DataFrame)
        ]
        return "\n".join([f"results over {self.window.duration_ns / 1e9:.3f} s ({self.window.why})", *lines])


def analyse(
    trace: Trace,
    *,
    window_seconds: tuple[float, float] | None = None,
    window_of: str | None = None,
    rules_path: Path | None = None,
    requests_log: pl.DataFrame | None = None,
    supply: Supply | None = None,
) -> Results:
    """Return every analysis of `trace` in its window.

    `window_seconds` and `window_of` choose the window as in :func:`tracelib.analyses.window.window`;
    `rules_path` names a file with rules of the user's own, which come before ours; `requests_log` is a log as
    of :func:`tracelib.analyses.requests.request_log`, on the trace's timeline; `supply` is what is known of
    the server's CPUs, quota and requests (:func:`tracelib.report.companions`).

    Raises
    ------
    MissingEvents
        Nothing was recorded at all. Without GPU operations the other figures are still computed.

    """
    rules = load_rules(rules_path)
    recorded, trace = trace, on_one_clock(trace)
    over = window(trace, window_seconds, window_of)
    (met, states, launched), (running, sampled), queues = _at_once(
        lambda: _gpu_side(trace, over),
        lambda: (thread_states(trace, over), sample_stretches(trace, over, rules)),
        lambda: ipc(trace, over, rules),
    )
    activity = host_activity(trace, over, rules, running, sampled)
    pieces = lost(states, launched, met, Upstream(trace, activity, running), running)
    polls = spinning(over, activity, running, sampled)
    asked = launched.clear() if requests_log is None else launched  # who asks when steps ended: requests only
    rest: dict[str, Callable[[], pl.DataFrame]] = {
        "cpu_contention": lambda: cpu_contention(pieces, running, activity, polls, trace.threads),
        "host_time": lambda: host_time(activity, pieces),
        "cpu_time": lambda: cpu_time(trace, over, running, rules),
        "utilisation_steps": lambda: utilisation_steps(states, over),
        "step_tokens": lambda: step_tokens(trace, over, rules),
        "scheduling": lambda: scheduling(trace, running),
        "causes": lambda: causes(pieces),
        "demand": lambda: demand(trace, over, running),
        "quota_use": lambda: quota_use(trace, over, running),
        "gil_waits": lambda: gil_waits(trace, pieces, sampled),
        "thread_load": lambda: thread_load(trace, running, polls),
        "gpu_time": lambda: gpu_time(states),
        "requests": lambda: requests(requests_log, over, states, worker_steps(queues, asked, trace.threads)),
    }
    frames: dict[str, pl.DataFrame] = {
        "gpu_states": states,
        "launches": launched,
        "collectives": in_window(met, over),
        "host_activity": activity,
        "lost": pieces,
        "thread_states": running,
        "spinning": polls,
        "ipc": queues,
        **dict(zip(rest, _at_once(*rest.values()), strict=True)),
    }
    missing = {
        name: _untied(name, recorded, trace) or reason
        for name, reason in _NEEDS.items()
        if frames[name].is_empty()
    }
    given = supply or Supply()
    if given.limited is None and not given.counters:
        missing["quota"] = (
            "neither cpu.max nor cpu.stat of the server's cgroup was given, so the kernel's own count is not known (a size named elsewhere is estimated from when threads were stopped)"
        )
    if requests_log is not None and frames["requests"].is_empty():
        missing["requests"] = _outside(requests_log, over)
    frames["request_causes"] = request_causes(frames["requests"], pieces, over)
    outside = 0 if requests_log is None else requests_log.height - frames["requests"].height
    return Results(
        trace=trace,
        recorded=recorded,
        window=over,
        rules=rules,
        missing=missing,
        supply=given,
        requests_outside=outside,
        **frames,
    )


def _at_once(*makes: Callable[[], Any]) -> list[Any]:
    """Return what each makes, several at a time, since most of them leave a processor idle now and then; none needs another's."""
    return each(lambda make: make(), makes)


def _gpu_side(trace: Trace, over: Window) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    met = collectives(trace, over)
    return met, gpu_states(trace, over, met), launches(trace, over)


def _outside(log: pl.DataFrame, over: Window) -> str:
    """Return why a request log tells nothing: most often its clock is another one."""
    if log.is_empty():
        return "the request log holds no request"
    away = (int(log["arrived"].min()) - over.start_ns) / 1e9  # type: ignore[arg-type]
    return (
        f"none of the {log.height} requests in the log lies in the window; the first arrives {away:+.3f} s from its start: "
        "say which clock the log has (--requests-clock, --requests-offset)"
    )


def _untied(name: str, recorded: Trace, trace: Trace) -> str:
    """Return why there is nothing although it was recorded: it is on a clock that nothing ties."""
    needed = _FROM.get(name)
    if needed is None or getattr(trace, needed).height or getattr(recorded, needed).is_empty():
        return ""
    return f"it was recorded, but the clock of the files that hold the {_WORDS[needed]} is tied to no other file's"


_WORDS = {
    "slices": "host slices",
    "gpu_ops": "GPU operations",
    "samples": "CPU samples",
    "sched": "scheduler events",
}


#: The events from which a frame is made.
_FROM = {
    "launches": "gpu_ops",
    "collectives": "gpu_ops",
    "host_activity": "slices",
    "ipc": "slices",
    "thread_states": "sched",
    "scheduling": "sched",
    "demand": "sched",
    "cpu_time": "samples",
}
#: What each frame needs, in words, for when it is empty.
_NEEDS = {
    "launches": "no launch call was recorded (CPU activities of the profiler, or nsys -t cuda)",
    "collectives": "no collective kernel was recorded: one GPU only, or no tensor parallelism in the window",
    "host_activity": "no source recorded what host threads did (annotations, framework ops, runtime calls)",
    "thread_states": "no scheduler events (sched_switch, sched_wakeup) were recorded",
    "scheduling": "no scheduler events (sched_switch, sched_wakeup) were recorded",
    "demand": "no scheduler events with wake-ups (sched_switch, sched_wakeup) were recorded",
    "cpu_time": "no CPU samples were recorded",
    "ipc": "no range of a message queue was recorded (annotations such as shm_broadcast.dequeue)",
    "requests": "no request log was given (columns id, arrived, tokenize_start, tokenize_end, first_token in ns)",
}
