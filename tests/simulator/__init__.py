"""A small serving stack that plays out in virtual time, writes traces, and plays again without defects.

`simulate` makes a run with defects; what each cost is the difference to the same run without it. Its files
are read like any others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.simulator import kineto, perf
from tests.simulator.defects import DEFECTS, Defect, plan
from tests.simulator.recording import Recording
from tests.simulator.shapes import SHAPES
from tests.simulator.truth import bounds, costs, lost_ns
from tracelib.analyses.results import Results, analyse
from tracelib.loading import load

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tests.simulator.machine import Gpu
    from tests.simulator.server import Server

__all__ = ["DEFECTS", "SHAPES", "Defect", "Recording", "Simulated", "simulate"]

Shares = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Simulated:
    """A run; it is played when it is first looked at."""

    shape: str
    phases: tuple[Shares, ...]
    healed: frozenset[str]
    seed: int
    graph: bool

    @cached_property
    def server(self) -> Server:
        """The server after the run."""
        return _played(self)

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs by rank."""
        return [worker.gpu for worker in self.server.workers]

    @property
    def kinds(self) -> frozenset[str]:
        """The defects that are in it."""
        return frozenset(kind for shares in self.phases for kind, _ in shares) - self.healed

    def with_only(self, kinds: frozenset[str]) -> Simulated:
        """Return the same run without its other defects."""
        named = {kind for shares in self.phases for kind, _ in shares}
        healed = self.healed | (self.kinds - kinds)
        if healed == named and "drain" not in named:
            return replace(self, phases=((),) * len(self.phases), healed=frozenset())  # one for all defects
        return replace(self, healed=healed)

    @property
    def baseline(self) -> Simulated:
        """The same run without any defect."""
        return self.with_only(frozenset())

    def lost(self, phase: int, ranks: Collection[int] | None = None) -> int:
        """Return how long the GPUs together, or those of some ranks, did nothing useful in a phase, in ns."""
        return sum(lost_ns(gpu, phase) for gpu in self.gpus if ranks is None or gpu.rank in ranks)

    def length(self, phase: int, ranks: Collection[int] | None = None) -> int:
        """Return how long a phase was on all GPUs together, or those of some ranks, in ns."""
        spans = [bounds(gpu, phase) for gpu in self.gpus if ranks is None or gpu.rank in ranks]
        return sum(end - begin for begin, end in spans)

    def costs(self, phase: int, ranks: Collection[int] | None = None) -> dict[str, float]:
        """Return what each defect cost those GPUs in a phase, in ns."""
        return costs(self.kinds, lambda kinds: self.with_only(kinds).lost(phase, ranks))

    def write(self, folder: Path, how: Recording | None = None) -> Path:
        """Write the run's trace files into `folder`: a Kineto file a process, and perf's text."""
        how = how or Recording()
        kineto.write(self.server, folder, how)
        if how.sched or how.samples:
            perf.write(self.server, folder / "perf.txt", how)
        return folder

    def results(self, how: Recording | None = None) -> Results:
        """Return what tracelib makes of the run's files."""
        with TemporaryDirectory() as folder:
            return analyse(load(self.write(Path(folder), how)))


def simulate(
    *phases: Mapping[str, float], shape: str = "tensor", seed: int = 1, graph: bool = False
) -> Simulated:
    """Return a run of one or more phases, in each of which the defects named there take so much of the time.

    A little of everything else goes wrong everywhere. `graph` launches each step's kernels by one graph
    replay. The same arguments give the same run.
    """
    return Simulated(shape, tuple(tuple(shares.items()) for shares in phases), frozenset(), seed, graph)


@cache
def _played(run: Simulated) -> Server:
    kind = SHAPES[run.shape]
    phases = [dict(shares) for shares in run.phases]
    planned = plan(phases, kind.ranks, run.seed, healed=run.healed, only=kind.only)
    server = kind(planned, run.seed, graph=run.graph)
    server.play()
    return server
