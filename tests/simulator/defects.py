"""What can be wrong with a simulated server: each defect, the ledger's word for it, its size in each step."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulator.machine import MS, US

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: Cause and sub-cause, in the words of the ledger.
Cause = tuple[str, str | None]
#: What a thread that launches late may be at.
LAUNCHING = ("dispatch", "api", "alloc", "latency")


@dataclass(frozen=True)
class Defect:
    """What the ledger must say of it."""

    causes: tuple[Cause, ...] = ()  # its time must stand under one of these
    cpu: str | None = None  # a state of the CPU, not one more cause: this column must have it
    verdict: str = "cpu_bound"
    on_worker: bool = False  # strikes ranks one by one
    times: int = 5  # in a phase
    sampled: bool = False  # no slice tells it: known to one sampling period at its end


def _launch(sub_cause: str, *, times: int = 5, sampled: bool = False) -> Defect:
    return Defect((("kernel_launch", sub_cause),), on_worker=True, times=times, sampled=sampled)


DEFECTS: Mapping[str, Defect] = {
    "tokenization": Defect((("tokenization", "encode"),)),
    "dispatch": _launch("dispatch"),
    "api": _launch("api"),
    "jit_compile": _launch("jit_compile", times=1, sampled=True),
    "module_load": _launch("module_load"),
    "alloc": _launch("alloc"),
    "ipc": Defect((("ipc", "copy"),)),
    "scheduling": Defect((("scheduling", None),)),
    "sync": Defect((("sync", None),), on_worker=True),
    "gc": Defect((("gc", None),), on_worker=True, times=1, sampled=True),
    "gil": Defect((("gil", None),), on_worker=True),
    "imbalance": Defect((("imbalance", None),), verdict="not_cpu_bound", on_worker=True),
    "no_work": Defect((("no_work", None),), verdict="no_load"),
    "idle": Defect((("no_work", None),), verdict="no_load", times=1),  # one long stretch without a request
    "shortage": Defect(cpu="runnable", on_worker=True),  # strangers take the launching threads' CPUs
    "starvation": Defect(cpu="runnable", on_worker=True),  # the server's own tokenizers do
    "throttling": Defect(cpu="throttled"),  # it stops whatever the server is at
    "profiler": Defect((("profiler", None),), verdict="not_cpu_bound", on_worker=True),
    # Work that no rule names, by the role of who does it.
    "host_api": Defect((("host_work", "api_server"),)),
    "host_engine": Defect((("host_work", "engine"),)),
    "host_worker": Defect((("host_work", "worker"),), on_worker=True),
    # A pageable copy drains the queue: what the host does next, hidden until then, is exposed. Each gap is
    # charged where it is, so the copy is synchronisation and the late launches are launching.
    "drain": Defect((("sync", None), *(("kernel_launch", of) for of in LAUNCHING)), on_worker=True, times=40),
}
#: No noise of these: they have causes that others share, or none.
QUIET = ("idle", "throttling", "starvation", "drain")

#: Steps of a phase, the GPU time of each, and the steps before the first phase and after the last.
STEPS, STEP_NS, EDGE = 40, 4_150 * US, 4
#: Requests come with every so many steps: what the API server does to one, it does then.
REQUEST_EVERY = 4
QUOTA_PERIOD_NS = 100 * MS
#: A stop of the quota begins while work is queued on the GPU: on average so much of it costs nothing.
QUEUED_NS = STEP_NS // 2


@dataclass(frozen=True)
class Plan:
    """How much of each trouble every step has, in ns, and in which steps each phase lies."""

    phases: Sequence[Mapping[str, float]]
    amounts: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # by kind, step, rank
    drains: bool = True  # whether the copies of `drain` block

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return 2 * EDGE + STEPS * len(self.phases)

    def phase(self, step: int) -> int | None:
        """Return the phase in which a step lies."""
        number = (step - EDGE) // STEPS
        return number if 0 <= number < len(self.phases) else None

    def extra(self, kind: str, step: int, rank: int = 0) -> int:
        """Return how long a trouble lasts in a step, in ns."""
        return self.amounts[kind, step, rank]

    def stops(self, phase: int | None, now: int) -> list[tuple[int, int]]:
        """Return the stops of a quota after `now`: it is used up some time before each period's end."""
        share = 0.0 if phase is None else self.phases[phase].get("throttling", 0.0)
        length = round(QUOTA_PERIOD_NS * share) + QUEUED_NS
        first = (now + length) // QUOTA_PERIOD_NS + 1
        ends = [n * QUOTA_PERIOD_NS for n in range(first, first + 40)] if share else []
        return [(end - length, end) for end in ends]


def plan(
    phases: Sequence[Mapping[str, float]],
    ranks: int,
    seed: int,
    *,
    healed: Collection[str] = (),
    only: int | None = None,
) -> Plan:
    """Return the troubles of a run: in each phase the defects named there, and a little of all others.

    A phase maps each defect to the share of it that it is to take. `healed` leaves those defects out, and
    nothing else. `only`: they strike this rank or replica.
    """
    kept = [{kind: share for kind, share in shares.items() if kind not in healed} for shares in phases]
    made = Plan(kept, drains="drain" not in healed)
    for kind in DEFECTS:
        if kind not in QUIET:
            _add_noise(made, kind, ranks, random.Random(f"noise {seed} {kind}"), only)
    for number, shares in enumerate(phases):
        base = STEPS * STEP_NS / (1 - sum(shares.values()))
        for kind, share in shares.items():
            rng = random.Random(f"strike {seed} {kind} {number}")
            if kind == "drain" or (kind not in healed and kind != "throttling"):
                _add_strikes(made, kind, share * base, number, (ranks, only), rng)
    return made


def _add_noise(made: Plan, kind: str, ranks: int, rng: random.Random, only: int | None) -> None:
    """In every tenth step or so, a moment of trouble: well under 1 % of the run for each kind."""
    for step in range(made.steps):
        hit, ns, rank = rng.random() < 0.1, rng.randint(20 * US, 80 * US), rng.randrange(ranks)
        if hit:
            made.amounts[kind, step, rank if DEFECTS[kind].on_worker else only or 0] += ns


def _add_strikes(
    made: Plan, kind: str, total: float, phase: int, where: tuple[int, int | None], rng: random.Random
) -> None:
    """Let a defect strike some ranks at a time, at equal distances in a phase, for `total` ns together."""
    (ranks, only), defect = where, DEFECTS[kind]
    for n in range(defect.times):
        step = EDGE + phase * STEPS + (2 * n + 1) * STEPS // (2 * defect.times)
        step -= step % REQUEST_EVERY if kind != "drain" else 0
        ns = total / defect.times
        hit = [rank for rank in range(ranks) if rng.random() < 0.6] or [rng.randrange(ranks)]
        if not defect.on_worker or only is not None:
            hit = [only or 0]
        elif kind == "imbalance":  # one rank has the longer sequences, throughout
            hit = [ranks - 1]
        longest = rng.choice(hit)
        for rank in hit:
            made.amounts[kind, step, rank] += round(ns * (1 if rank == longest else rng.uniform(0.5, 1)))
