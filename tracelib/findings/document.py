"""`findings.json`, type by type: what a report knows of a run; docs/output.md is the contract's prose.

Times are integer nanoseconds on the aligned timeline; shares are 0..1. A part that could not be computed is
None and is in `abstained`; it is never 0. The published schema (docs/findings.schema.json) is generated from
these types.
"""

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tracelib.findings.finding import (
    NOT_HOST,
    Abstained,
    Confidence,
    Finding,
    Natural,
    Part,
    Quantiles,
    Share,
    shown,
)
from tracelib.findings.request_parts import Requests
from tracelib.words import CAUSES, CPU_STATES, LIMITS, VERDICTS

SCHEMA: Literal["tracelib.findings/1"] = "tracelib.findings/1"
#: Between what the kernel's counters of a quota were read.
SINCE = ("between two readings", "since the cgroup was made")
#: Causes of host and CPU time that are never what a GPU waited for.
_HOST_ONLY = ("ipc_wait", "spin", "other")

Hash = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]
Interval = Annotated[list[float], Meta(extra_json_schema={"minItems": 2, "maxItems": 2})]
LostTo = Annotated[str, Meta(extra_json_schema={"enum": [c for c in CAUSES if c not in _HOST_ONLY]})]
CpuState = Annotated[str, Meta(extra_json_schema={"enum": list(CPU_STATES)})]


class Tool(Part, frozen=True, kw_only=True):
    """What made the document."""

    name: Literal["tracelib"]
    version: str


# -------------------- the files and the window
class Residual(Part, frozen=True, kw_only=True):
    """By how much what two files both saw misses, after alignment."""

    against: str | None
    kind: str | None
    anchors: Annotated[int, Meta(extra_json_schema={"minimum": 1})]
    p50_ns: Natural | None
    p99_ns: Natural | None
    drift_ppb: int | None


class Rows(Part, frozen=True, kw_only=True):
    """How many rows of each frame came from a file."""

    slices: Natural
    gpu_ops: Natural
    samples: Natural
    sched: Natural


class Lost(Part, frozen=True, kw_only=True):
    """What a file lost: events that its recorder counted or that are missing, bytes that cannot be read."""

    declared: Natural | None
    detected: Natural | None
    skipped_bytes: Natural | None


class Source(Part, frozen=True, kw_only=True):
    """One file, and how its clock was tied to the timeline."""

    file: Annotated[str, Meta(description="Base name.", extra_json_schema={"pattern": r"^[^/\\]*$"})]
    sha256: Hash | None
    format: str
    recorder: str | None
    clock: str | None
    tied_by: Literal["declared", "anchors", "user", "untied"] | None
    offset_ns: int | None
    error_ns: Natural | None
    first_ns: int | None
    last_ns: int | None
    residual: Residual | None
    rows: Rows
    lost: Lost
    notes: list[str]


class Window(Part, frozen=True, kw_only=True):
    """The stretch of time that every figure is about."""

    start_ns: int
    end_ns: int
    duration_ns: Natural
    why: str


class Remark(Part, frozen=True, kw_only=True):
    """A remark on how a file was read."""

    level: Literal["info", "warning", "error"]
    source: str | None
    message: str
    fix: str


# -------------------- the answer
class Verdict(Part, frozen=True, kw_only=True):
    """The verdict, its sentence, and the reasons for the confidence in it."""

    state: Annotated[str, Meta(extra_json_schema={"enum": list(VERDICTS)})]
    sentence: str
    confidence: Confidence
    why: list[str]
    record_first: Annotated[
        list[str],
        Meta(
            description="What to record before anything is changed: time that may come before the first "
            "change."
        ),
    ] = msgspec.field(default_factory=list)
    limits: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"enum": [*LIMITS, *NOT_HOST]})]],
        Meta(
            description="What limits, what to change first in front: a quota, too few cores, the host's own "
            "work; of not_cpu_bound what the GPUs did most of the time."
        ),
    ] = msgspec.field(default_factory=list)
    firm: Annotated[
        bool, Meta(description="false: without the recorders' own work the verdict would be another.")
    ] = True
    settled_by: Annotated[
        str, Meta(description="The one recording that would settle what is open; empty: nothing is.")
    ] = ""

    def _repr_html_(self) -> str:
        return shown(self, 0)


class GpuTime(Part, frozen=True, kw_only=True):
    """The window by the GPU's state; the states add up to it."""

    compute: Natural
    copy: Natural
    collective_transfer: Natural
    collective_wait: Natural
    idle: Natural
    collective: Annotated[
        Natural, Meta(description="In place of transfer and wait where they cannot be told apart.")
    ] = 0


class LostTime(Part, frozen=True, kw_only=True):
    """Lost GPU time by its cause, and by the state of the thread that the GPU waited for."""

    cause: LostTo
    sub_cause: str | None
    cpu_state: CpuState
    ns: Natural


class Device(Part, frozen=True, kw_only=True):
    """One GPU: what it did, and to what its lost time went; the causes add up to it."""

    host: str | None
    rank: int | None
    device: int | None
    gpu_time_ns: GpuTime
    busy_share: Share | None
    useful_share: Share | None
    lost_ns: Natural | None
    causes: list[LostTime] | None


# -------------------- the host
class HostTime(Part, frozen=True, kw_only=True):
    """What host threads did, whether or not a GPU waited for it."""

    cause: str
    sub_cause: str | None
    total_ns: Natural | None
    union_ns: Natural | None
    exposed_ns: Natural | None
    count: Natural | None


class CpuTime(Part, frozen=True, kw_only=True):
    """CPU time by role and cause, from samples."""

    role: str | None
    cause: Annotated[str, Meta(description="A cause, or `spin` or `other`.")]
    sub_cause: str | None = None
    cpu_ns: Natural | None
    share: Share | None
    ci95: Interval | None


class RoleStates(Part, frozen=True, kw_only=True):
    """A role's threads by the scheduler's state, summed."""

    role: str | None
    running_ns: Natural | None
    runnable_ns: Natural | None
    throttled_ns: Natural | None
    blocked_ns: Natural | None
    unknown_ns: Natural | None


class Demand(Part, frozen=True, kw_only=True):
    """How many of the server's threads had or wanted a CPU at once."""

    p50: Share | None
    p95: Share | None
    p99: Share | None


class Scheduling(Part, frozen=True, kw_only=True):
    """What the scheduler's events say."""

    threads: list[RoleStates]
    demand: Demand | None
    cpus_seen: Natural | None
    lost_switches: Natural | None
    throttle_gaps: Natural | None


class Quota(Part, frozen=True, kw_only=True):
    """The CPU quota of the server's cgroup, and what the kernel counted of it."""

    limited: bool | None
    cpus: Share | None
    period_us: Natural | None
    cpus_by_counters: Interval | None
    since: Annotated[str, Meta(extra_json_schema={"enum": list(SINCE)})] | None
    nr_periods: Natural | None
    nr_throttled: Natural | None
    throttled_usec: Natural | None
    usage_usec: Natural | None
    throttled_share: Share | None
    cpus_used: Annotated[Share | None, Meta(description="On average between the two readings.")]


class Estimate(Part, frozen=True, kw_only=True):
    """One estimate of the cores that the server needs."""

    estimate: str
    cores: Share | None
    source: str
    why_not: Annotated[str, Meta(description="Why cores is null.")]


class Capacity(Part, frozen=True, kw_only=True):
    """How many cores the server needs, by several yardsticks; none is the answer alone."""

    gpus: Natural
    cpus_of_host: Natural | None
    mean_input_tokens: Share | None
    demand: Demand | None
    estimates: list[Estimate]


# -------------------- launches, collectives, messages
class LaunchDelay(Part, frozen=True, kw_only=True):
    """The delay from launch to start as one tool defines it."""

    name: str
    by: str
    meaning: str
    operations: Natural
    sum_ns: int | None
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None
    threshold_ns: int | None
    above_threshold: int | None


class Launches(Part, frozen=True, kw_only=True):
    """How GPU operations were launched."""

    count: Natural
    api_ns: Quantiles | None
    launch_to_start_ns: Quantiles | None
    return_to_start_ns: Quantiles | None
    negative_returns: Natural | None
    late: Natural | None
    graph_coverage: Share | None
    unmatched_gpu_ops: Natural | None
    definitions: list[LaunchDelay]


class Collectives(Part, frozen=True, kw_only=True):
    """Collectives matched over the ranks."""

    groups: Natural
    matched: Natural
    unmatched: Natural
    arrival_skew_ns: Quantiles | None
    transfer_ns: Natural | None
    wait_ns: list[int | None] | None
    amplification: Share | None
    worst_straggler_rank: int | None


class Polls(Part, frozen=True, kw_only=True):
    """How long threads polled on a CPU at a time, by kind."""

    kind: str
    count: Natural
    p50_ns: Natural
    p95_ns: Natural
    max_ns: Natural
    total_ns: Natural


class Messages(Part, frozen=True, kw_only=True):
    """Messages between the server's processes."""

    dequeue_ns: Quantiles | None
    dequeue_over_step: Share | None
    enqueue_ns: Quantiles | None
    spin_cpu_ns: Natural | None
    polls: list[Polls]


# -------------------- the whole
class Document(Part, frozen=True, kw_only=True):
    """What tracelib found in one set of traces."""

    schema: Literal["tracelib.findings/1"]
    tool: Tool
    generated_utc: Annotated[str, Meta(extra_json_schema={"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"})]
    title: str
    ticket: str | None
    parameters: dict[str, Any]
    sources: list[Source]
    window: Window
    verdict: Verdict
    devices: list[Device] | None
    host_time: list[HostTime] | None
    launches: Launches | None
    collectives: Collectives | None
    ipc: Messages | None
    scheduling: Scheduling | None
    requests: Requests | None
    cpu_time: list[CpuTime] | None
    quota: Quota | None
    capacity: Capacity | None
    findings: list[Finding]
    abstained: list[Abstained]
    health: list[Remark]

    def __post_init__(self) -> None:
        for finding in self.findings:  # so that one that is shown alone tells its times as the report does
            finding.__dict__["start_ns"] = self.window.start_ns

    def _repr_html_(self) -> str:
        return shown(self, self.window.start_ns)

    def to_json(self) -> str:
        """Return the text of `findings.json`."""
        plain = msgspec.to_builtins(self)
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
