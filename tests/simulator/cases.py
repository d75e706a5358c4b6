"""Which runs are judged, how they are recorded, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulator import DEFECTS, Recording, Simulated, simulate
from tests.simulator.machine import MS, US

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How much of a phase a defect takes in runs of three phases, in runs of one, and two in one run each.
SHARES, SHARE, EACH = (0.05, 0.2, 0.6), 0.2, 0.15
#: How far blamed may be from true, as a share of the window: of one defect, of two at once.
ONE, TWO = 0.005, 0.02

_KINETO = {"sched": False, "samples": False}
RECORDINGS: Mapping[str, Recording] = {
    "": Recording(),
    "perf 2 ms off": Recording(perf_off_ns=2 * MS),
    "perf 30 ms off": Recording(perf_off_ns=30 * MS),
    "perf 3 s off": Recording(perf_off_ns=3000 * MS),
    "perf 100 ppm fast": Recording(perf_drift_ppm=100),
    "perf 0.5 % fast": Recording(perf_drift_ppm=5000),
    "rank 1 20 µs off": Recording(rank_off_ns=20 * US, **_KINETO),
    "rank 1 2 ms off": Recording(rank_off_ns=2 * MS, **_KINETO),
    "rank 1 3 s off": Recording(rank_off_ns=3000 * MS, **_KINETO),
    "rank 1 50 ppm fast": Recording(rank_drift_ppm=50, **_KINETO),
    "rank 1 0.5 % fast": Recording(rank_drift_ppm=5000, **_KINETO),
    "rank 1 missing": Recording(without=("worker_TP1",)),
    "engine missing": Recording(without=("engine_0",), **_KINETO),
    "API server missing": Recording(without=("api_server",), **_KINETO),
    "no switches from idle": Recording(from_idle=False),
    "no wake-ups": Recording(wakeups=False),
    "no switches": Recording(sched=False),
    "no samples": Recording(samples=False),
}


@dataclass(frozen=True)
class Case:
    """A run, how it is recorded, and what must come out."""

    run: Simulated
    recording: str = ""
    #: What cannot be blamed rightly, because its source is missing, must be missed in these words (a
    #: pattern). Else all that is not blamed must stand as unknown: as collectives that cannot be split, or a
    #: process that was not recorded.
    says: str | None = None

    @property
    def how(self) -> Recording:
        """How it is recorded."""
        return RECORDINGS[self.recording]

    @property
    def server(self) -> str:
        """What kind of server it is."""
        return "graphs" if self.run.graph else self.run.shape

    @property
    def ranks(self) -> list[int]:
        """The ranks whose GPUs are recorded."""
        lost = [f"worker_TP{rank}" in self.how.without for rank in range(len(self.run.gpus))]
        return [rank for rank, gone in enumerate(lost) if not gone]

    @property
    def tolerance(self) -> float:
        """How far blamed may be from true, as a share of the window."""
        return TWO if len(self.run.kinds) > 1 else ONE

    @property
    def name(self) -> str:
        """The case in a few words, for tests."""
        return " ".join(
            part for part in (self.server, "+".join(sorted(self.run.kinds)), self.recording) if part
        )


def singles() -> list[Case]:
    """Return each defect alone, at three sizes in one run."""
    return [Case(simulate(*({kind: share} for share in SHARES))) for kind in DEFECTS if kind != "drain"]


def shapes() -> list[Case]:
    """Return defects of other servers."""
    of = {
        "polling": ("tokenization", "dispatch", "host_engine", "no_work", "idle"),
        "sglang": (
            "tokenization",
            "dispatch",
            "scheduling",
            "sync",
            "imbalance",
            "host_api",
            "no_work",
            "idle",
        ),
        "pipeline": ("tokenization", "dispatch", "imbalance", "host_worker", "no_work"),
        "replicas": ("tokenization", "dispatch", "scheduling", "host_api", "no_work", "gc"),
    }
    cases = [Case(simulate({kind: SHARE}, shape=shape)) for shape, kinds in of.items() for kind in kinds]
    replayed = ("tokenization", "dispatch", "api", "sync", "gil", "imbalance")
    graphs = [Case(simulate({kind: SHARE}, graph=True)) for kind in replayed]
    return [Case(simulate({"drain": EACH})), *cases, *graphs]


def pairs() -> list[Case]:
    """Return two defects at once."""
    of = (
        ("tokenization", "gc"),
        ("dispatch", "sync"),
        ("imbalance", "api"),
        ("no_work", "scheduling"),
        ("shortage", "tokenization"),
        ("gil", "host_engine"),
        ("alloc", "host_worker"),
    )
    return [Case(simulate(dict.fromkeys(kinds, EACH))) for kinds in of]


def recordings() -> list[Case]:
    """Return runs that were recorded badly."""
    of: tuple[tuple[str, str, str | None], ...] = (
        ("shortage", "perf 2 ms off", None),
        ("shortage", "perf 30 ms off", None),
        ("no_work", "perf 30 ms off", None),
        ("shortage", "perf 3 s off", None),
        ("shortage", "perf 100 ppm fast", None),
        ("shortage", "perf 0.5 % fast", "clock"),
        ("dispatch", "rank 1 20 µs off", None),
        ("dispatch", "rank 1 2 ms off", None),
        ("dispatch", "rank 1 3 s off", None),
        ("dispatch", "rank 1 50 ppm fast", None),
        ("dispatch", "rank 1 0.5 % fast", None),
        ("dispatch", "rank 1 missing", None),
        ("scheduling", "engine missing", None),
        ("tokenization", "API server missing", None),
        ("no_work", "API server missing", None),
        ("shortage", "no wake-ups", None),
        ("shortage", "no switches from idle", None),
        ("gil", "no switches from idle", None),
        ("shortage", "no switches", "no wake-up events"),
        ("gc", "no samples", "samples"),
    )
    return [Case(simulate({kind: SHARE}), recording, says) for kind, recording, says in of]


def cases() -> list[Case]:
    """Return all."""
    return [*singles(), *shapes(), *pairs(), *recordings()]
