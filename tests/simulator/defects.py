"""What can be wrong with the simulated server: each defect, the ledger's word for it, its size per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulator.machine import MS, US

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from tests.simulator.machine import Cause

#: Defect -> the cause that the ledger must name. None: no host cause may be large.
DEFECTS: Mapping[str, Cause | None] = {
    "tokenization": ("tokenization", "encode"),
    "dispatch": ("kernel_launch", "dispatch"),
    "api": ("kernel_launch", "api"),
    "jit_compile": ("kernel_launch", "jit_compile"),
    "module_load": ("kernel_launch", "module_load"),
    "alloc": ("kernel_launch", "alloc"),
    "ipc": ("ipc", "copy"),
    "scheduling": ("scheduling", None),
    "sync": ("sync", None),
    "gc": ("gc", None),
    "gil": ("gil", None),
    "imbalance": ("imbalance", None),
    "no_work": ("no_work", None),
    "shortage": ("kernel_launch", "dispatch"),  # strangers take the launching threads' CPUs
    "starvation": ("kernel_launch", "dispatch"),  # the server's own tokenizers do
    "throttling": None,  # it stops whatever the server was at: what counts is the CPU state
    "profiler": ("profiler", None),
    "gpu_bound": None,
}
#: Defects that are a state of the CPU, not one more cause.
CPU_STATE = {"shortage": "runnable", "starvation": "runnable", "throttling": "throttled"}
#: Seen by CPU samples only: no slice tells them, so they are known to one sampling period at each begin and
#: end.
SAMPLED = ("jit_compile", "gc")
#: What happens to a worker before its first launch of a step, the GPU being drained.
ON_WORKER = (
    "dispatch",
    "api",
    "jit_compile",
    "module_load",
    "alloc",
    "sync",
    "gc",
    "gil",
    "shortage",
    "starvation",
    "profiler",
)

#: GPU time of a step, and what a step costs beyond it without any defect; both measured on the simulator
#: itself.
STEP_NS = 4_150 * US
EPISODES = 10
QUOTA_PERIOD_NS = 100 * MS
#: A stop of the quota begins while work is queued on the GPU: on average so much of it costs nothing.
QUEUED_NS = STEP_NS // 2


@dataclass(frozen=True)
class Plan:
    """Each step's troubles in ns: `plan.server[kind][step]`, `plan.worker[kind][step][rank]`."""

    steps: int
    server: dict[str, list[int]]
    worker: dict[str, list[list[int]]]
    stops: list[tuple[int, int]]


def plan(
    defect: str, share: float, seconds: float, ranks: int, rng: random.Random, *, heal: bool = False
) -> Plan:
    """Return the troubles of a run of `seconds` that loses `share` of it to `defect`, a little to others.

    `heal` leaves the defect out, and nothing else.
    """
    own = 0.0 if defect == "gpu_bound" else share
    steps = max(EPISODES, round(seconds * 1e9 * (1 - own) / STEP_NS))
    made = Plan(steps, {}, {}, [])
    for kind in DEFECTS:
        if kind in ON_WORKER or kind == "imbalance":
            made.worker[kind] = [[0] * ranks for _ in range(steps)]
        else:
            made.server[kind] = [0] * steps
        _add_noise(made, kind, ranks, rng)
    total = 0.0 if heal else own * seconds * 1e9
    if defect == "throttling" and total:
        made.stops.extend(_stops(total, seconds))
    elif total:
        _add_episodes(made, defect, total, ranks, rng)
    return made


def _add_noise(made: Plan, kind: str, ranks: int, rng: random.Random) -> None:
    """In every tenth step or so, a moment of trouble: under 1 % of the run for each kind."""
    for step in range(made.steps):
        if kind not in ("throttling", "gpu_bound") and rng.random() < 0.1:
            ns = rng.randint(20 * US, 80 * US)
            if kind in made.worker:
                made.worker[kind][step][rng.randrange(ranks)] += ns
            else:
                made.server[kind][step] += ns


def _add_episodes(made: Plan, kind: str, total: float, ranks: int, rng: random.Random) -> None:
    times = episodes(kind)
    for n in range(times):
        step = (2 * n + 1) * made.steps // (2 * times)
        ns = total / times
        if kind == "imbalance":  # one rank has the longer sequences, throughout
            made.worker[kind][step][ranks - 1] += round(ns)
        elif kind in made.worker:
            hit = [rank for rank in range(ranks) if rng.random() < 0.6] or [rng.randrange(ranks)]
            longest = rng.choice(hit)
            for rank in hit:
                made.worker[kind][step][rank] += round(ns * (1 if rank == longest else rng.uniform(0.5, 1)))
        else:
            made.server[kind][step] += round(ns)


def episodes(kind: str) -> int:
    """Return how many times a defect strikes."""
    return 3 if kind in SAMPLED else EPISODES


def _stops(total: float, seconds: float) -> list[tuple[int, int]]:
    """The quota is used up some time before each period's end."""
    periods = max(1, round(seconds * 1e9 / QUOTA_PERIOD_NS))
    length = round(total / periods) + QUEUED_NS
    return [(n * QUOTA_PERIOD_NS - length, n * QUOTA_PERIOD_NS) for n in range(1, 40)]
