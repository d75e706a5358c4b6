"""All analyses of one run, each computed once: what findings, charts and the report take.

The fields of :class:`Results` are the one list of analyses. Each is a function whose parameters say what it
takes: the frames of other analyses by their names, `trace`, `window`, `rules` or `requests_log`. From that
follows what can be computed when, and what at the same time.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from tracelib.analyses.collectives import collectives, whole_collectives
from tracelib.analyses.cpu_samples import sample_stretches
from tracelib.analyses.cpu_time import cpu_time, gil_waits, spinning
from tracelib.analyses.drains import drains
from tracelib.analyses.gpu_time import gpu_states, gpu_time, utilisation_steps
from tracelib.analyses.host_activity import host_activity
from tracelib.analyses.ipc import ipc, worker_steps
from tracelib.analyses.launches import launches
from tracelib.analyses.lost import causes, host_time, lost
from tracelib.analyses.replay import Load, load_of
from tracelib.analyses.replicas import replicas
from tracelib.analyses.requests import api_server, first_tokens, left_out, request_causes, requests
from tracelib.analyses.scheduling import cpu_contention, demand, polling_beside, scheduling, thread_load
from tracelib.analyses.steps import model_steps, step_tokens
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.throttling import Supply, quota_use
from tracelib.analyses.window import Window, on_one_clock, window, with_cut, without_short
from tracelib.slice_rules import Rules, load_rules
from tracelib.trace import Trace


class Need(NamedTuple):
    """What an analysis needs: which frame of the trace, why it is missing, what would record it."""

    events: str
    missing: str
    record_with: str


_PERF = "perf script --header --ns -F +pid"
_CALLS = Need(
    "gpu_ops",
    "no GPU operation was recorded whose launch call is known",
    "torch.profiler with CPU and CUDA activities, or nsys profile -t cuda,nvtx",
)
_RANKS = Need(
    "gpu_ops",
    "no collective kernel was recorded: one GPU only, or no tensor parallelism in the window",
    "the profiler on every rank at the same time",
)
_SLICES = Need(
    "slices",
    "no source recorded what host threads did (annotations, framework ops, runtime calls)",
    _CALLS.record_with,
)
_SCHEDULER = Need(
    "sched",
    "no scheduler events (sched_switch, sched_wakeup) were recorded",
    f"perf record -k mono -a -e sched:sched_switch -e sched:sched_wakeup, then {_PERF}",
)
_WAKEUPS = _SCHEDULER._replace(
    missing="no scheduler events with wake-ups (sched_switch, sched_wakeup) were recorded"
)
_SAMPLES = Need(
    "samples",
    "no CPU samples were recorded",
    f"perf record -k mono -a -g -e cpu-clock/freq=199/, then {_PERF}",
)
_MESSAGES = Need(
    "slices",
    "no range of a message queue was recorded (annotations such as shm_broadcast.dequeue)",
    "annotations around the engine's message queue, or with_stack=True",
)
_REQUESTS = Need(
    "",
    "no request log was given (a client's or a server's, with id, arrived and first_token)",
    "a request log: --requests FILE with id, arrived, first_token"
    " (JSON lines, CSV, Parquet, OpenTelemetry spans)",
)
_QUOTA = Need(
    "",
    "neither cpu.max nor cpu.stat of the server's cgroup was given, so the kernel's own count is not known "
    "(a size named elsewhere is estimated from when threads were stopped)",
    "the cgroup's cpu.stat, copied before and after (--cpu-stat BEFORE --cpu-stat AFTER), and its cpu.max",
)


def _analysis(make: Callable[..., pl.DataFrame], need: Need | None = None) -> Any:
    """Declare a field of :class:`Results` that holds what `make` returns.

    The frame's columns stand beside the function, under its name in capitals.
    """
    columns = vars(sys.modules[make.__module__])[make.__name__.upper()]
    return field(default_factory=lambda: pl.DataFrame(schema=columns), metadata={"make": make, "need": need})


# ruff: noqa: RUF009 (`_analysis` declares a field, as dataclasses.field does)
@dataclass(frozen=True, repr=False, eq=False)  # (frames have no one answer to whether they are equal)
class Results:
    """The frames of all analyses; each frame's columns stand in the docstring of the function of its name.

    A frame that needs events which no source holds is empty, and `missing` maps its name to the reason.
    `trace` is the part of `recorded` that lies on one timeline: all of it (None = the same), unless a
    source's clock could not be tied. `rules` are those by which names were given their causes: whoever draws
    or finds causes takes them from here. `supply` is what was said of the server's CPUs and requests, `load`
    whether clients wait for answers.
    """

    trace: Trace
    window: Window
    rules: Rules
    # Those of large frames first: then they are not computed beside the frames of all others.
    thread_states: pl.DataFrame = _analysis(thread_states, _SCHEDULER)
    gpu_states: pl.DataFrame = _analysis(gpu_states)
    launches: pl.DataFrame = _analysis(launches, _CALLS)
    ipc: pl.DataFrame = _analysis(ipc, _MESSAGES)
    host_activity: pl.DataFrame = _analysis(host_activity, _SLICES)
    lost: pl.DataFrame = _analysis(lost)
    spinning: pl.DataFrame = _analysis(spinning)
    drains: pl.DataFrame = _analysis(drains)
    cpu_contention: pl.DataFrame = _analysis(cpu_contention)
    polling_beside: pl.DataFrame = _analysis(polling_beside)
    host_time: pl.DataFrame = _analysis(host_time)
    cpu_time: pl.DataFrame = _analysis(cpu_time, _SAMPLES)
    causes: pl.DataFrame = _analysis(causes)
    gpu_time: pl.DataFrame = _analysis(gpu_time)
    utilisation_steps: pl.DataFrame = _analysis(utilisation_steps)
    collectives: pl.DataFrame = _analysis(collectives, _RANKS)
    scheduling: pl.DataFrame = _analysis(scheduling, _SCHEDULER)
    demand: pl.DataFrame = _analysis(demand, _WAKEUPS)
    thread_load: pl.DataFrame = _analysis(thread_load)
    quota_use: pl.DataFrame = _analysis(quota_use)
    gil_waits: pl.DataFrame = _analysis(gil_waits)
    requests: pl.DataFrame = _analysis(requests, _REQUESTS)
    first_tokens: pl.DataFrame = _analysis(first_tokens)
    request_causes: pl.DataFrame = _analysis(request_causes)
    step_tokens: pl.DataFrame = _analysis(step_tokens)
    #: Requests of the log whose first token did not come in the window, by the reason.
    requests_outside: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    recorded: Trace | None = None
    supply: Supply = field(default_factory=Supply)
    load: Load = Load()

    def __repr__(self) -> str:
        """Return the window, then one line per frame: its rows, or why it has none."""
        lines = [
            f"{name:18}{getattr(self, name).height:>10,} rows"
            + (f": {self.missing[name]}" if name in self.missing else "")
            for name in ANALYSES
        ]
        return "\n".join([f"results over {self.window.duration_ns / 1e9:.3f} s ({self.window.why})", *lines])


#: The function of each analysis, by the name of its frame.
ANALYSES: dict[str, Callable[..., pl.DataFrame]] = {
    f.name: f.metadata["make"] for f in fields(Results) if "make" in f.metadata
}
#: What each analysis needs that has no frame without it; "quota" is what the kernel says of one.
NEEDS: dict[str, Need] = {
    **{f.name: f.metadata["need"] for f in fields(Results) if f.metadata.get("need")},
    "quota": _QUOTA,
}
#: Frames that other analyses take and that nobody looks at afterwards.
_INTERMEDIATE = (whole_collectives, sample_stretches, worker_steps, model_steps, api_server, replicas)


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
    of :mod:`tracelib.sources.request_logs`, on the trace's timeline; `supply` is what is known of
    the server's CPUs, quota and requests (:func:`tracelib.companions.companions`).

    Raises MissingEvents if nothing was recorded at all. Without GPU operations the other figures are still
    computed.
    """
    rules, supply = load_rules(rules_path), supply or Supply()
    recorded, trace = trace, without_short(on_one_clock(trace))
    over = window(trace, window_seconds, window_of)
    trace = with_cut(trace, over)
    makes = ANALYSES | {make.__name__: make for make in _INTERMEDIATE}
    made = computed(makes, {"trace": trace, "window": over, "rules": rules, "requests_log": requests_log})
    frames: dict[str, Any] = {name: made[name] for name in ANALYSES}
    missing = _missing(frames, trace, recorded)
    if requests_log is not None and frames["requests"].is_empty():
        missing["requests"] = _outside(requests_log, over, frames["first_tokens"].height)
    if not supply.tells_quota:
        missing["quota"] = _QUOTA.missing
    return Results(
        trace=trace,
        window=over,
        rules=rules,
        recorded=recorded,
        supply=supply,
        requests_outside=left_out(requests_log, over),
        load=load_of(requests_log),
        missing=missing,
        **frames,
    )


def computed(
    makes: Mapping[str, Callable[..., pl.DataFrame]], inputs: Mapping[str, Any]
) -> dict[str, pl.DataFrame]:
    """Return what each function makes, called with those inputs and other frames that its parameters name.

    All that have what they take are computed at once; those that no other takes come last, so that they add
    nothing to the memory that the largest need.
    """
    takes = {name: inspect.signature(make).parameters.keys() for name, make in makes.items()}
    taken = {name for names in takes.values() for name in names}
    values, waiting = dict(inputs), list(makes)
    while waiting:
        last = taken.isdisjoint(waiting)
        ready = [n for n in waiting if takes[n] <= values.keys() and (last or n in taken)]
        if not ready:
            raise TypeError(f"these take what nobody makes, or each other: {', '.join(waiting)}")
        jobs = [partial(makes[name], **{taking: values[taking] for taking in takes[name]}) for name in ready]
        values |= zip(ready, _at_once(jobs), strict=True)
        waiting = [name for name in waiting if name not in ready]
    return {name: values[name] for name in makes}


def _at_once(jobs: Sequence[Callable[[], pl.DataFrame]]) -> list[pl.DataFrame]:
    """Return what the jobs make, several at a time: NumPy and Polars leave other threads their turn.

    This thread does the first one itself: a new thread would take memory of its own for it.
    """
    made: dict[int, pl.DataFrame] = {}
    numbered = enumerate(jobs)  # all threads take theirs from it

    def work() -> None:
        for number, job in numbered:
            made[number] = job()

    _, first = next(numbered)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work) for _ in range(pl.thread_pool_size() - 1)]
        made[0] = first()
        work()
        for other in others:
            other.result()
    return [made[number] for number in range(len(jobs))]


def _missing(frames: Mapping[str, pl.DataFrame], trace: Trace, recorded: Trace) -> dict[str, str]:
    """Return why frames are empty that need something, by their names."""
    return {
        name: _untied(NEEDS[name].events, trace, recorded) or NEEDS[name].missing
        for name, frame in frames.items()
        if name in NEEDS and frame.is_empty()
    }


def _untied(events: str, trace: Trace, recorded: Trace) -> str:
    """Return why there are no `events` although they were recorded: they are on a clock that nothing ties."""
    if not events or getattr(trace, events).height or getattr(recorded, events).is_empty():
        return ""
    held = _EVENTS[events]
    return f"it was recorded, but the clock of the files that hold the {held} is tied to no other file's"


_EVENTS = {
    "slices": "host slices",
    "gpu_ops": "GPU operations",
    "samples": "CPU samples",
    "sched": "scheduler events",
}


def _outside(log: pl.DataFrame, over: Window, first_tokens: int) -> str:
    """Return why a request log tells no request's parts: most often its clock is another one."""
    if log.is_empty():
        return "the request log holds no request"
    if first_tokens:
        return f"no request lies whole in the window: of {first_tokens} only the first token came in it"
    away = (int(log["arrived"].min()) - over.start_ns) / 1e9  # type: ignore[arg-type]
    return (
        f"none of the {log.height} requests in the log lies in the window; "
        f"the first arrives {away:+.3f} s from its start: "
        "say which clock the log has (--requests-clock, --requests-offset)"
    )
