"""A small serving stack that plays out in virtual time, writes trace files, and knows what held its GPUs up.

`simulate` makes a run with one defect; its `truth` is the simulator's own bookkeeping, its files are read
like any others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import tracelib
from tests.simulator import kineto, perf
from tests.simulator.defects import CPU_STATE, DEFECTS, SAMPLED, plan
from tests.simulator.server import Server, server
from tests.simulator.truth import Truth, truth
from tracelib.analyses.results import Results, analyse

__all__ = ["CPU_STATE", "DEFECTS", "SAMPLED", "Simulated", "Truth", "simulate"]


@dataclass(frozen=True)
class Simulated:
    """A run that has been played."""

    server: Server

    @cached_property
    def truth(self) -> Truth:
        """What held the GPUs up, by the simulator's own bookkeeping."""
        return truth([worker.gpu for worker in self.server.workers])

    def write(
        self, folder: Path, *, sched: bool = True, samples: bool = True, from_idle: bool = True
    ) -> Path:
        """Write the run's traces into `folder`: a Kineto file per process, and perf's text (`perf.write`)."""
        kineto.write(self.server, folder)
        if sched or samples:
            perf.write(self.server, folder / "perf.txt", sched=sched, samples=samples, from_idle=from_idle)
        return folder

    def results(self) -> Results:
        """Return what tracelib makes of the run's files."""
        with TemporaryDirectory() as folder:
            return analyse(tracelib.load(self.write(Path(folder))))


def simulate(
    defect: str = "gpu_bound",
    share: float = 0.2,
    seed: int = 1,
    ranks: int = 2,
    seconds: float = 0.5,
    *,
    heal: bool = False,
    graph: bool = False,
) -> Simulated:
    """Play a run of about `seconds` that loses about `share` of it to `defect`, a little to all else.

    `defect` is one of `DEFECTS`. `heal` plays the same steps with the same small troubles, but without the
    defect; `graph` launches each step's kernels by one graph replay. The same arguments give the same run.
    """
    key = f"{defect} {share} {seed} {ranks} {seconds}"
    planned = plan(defect, share, seconds, ranks, random.Random(f"plan {key}"), heal=heal)
    run = server(planned, ranks, random.Random(f"play {key}"), graph=graph)
    run.play()
    return Simulated(run)
