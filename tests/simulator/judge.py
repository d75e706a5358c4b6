"""What tracelib says of simulated runs, held against what each defect cost.

A row of the table is a phase of a run. *True* is what the defect cost there: the GPU time lost with it, less that of the
same run without. *Blamed* is what the ledger says more under the defect's cause than it says of the run without: the noise
of that cause is in both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import tracelib
from tests.simulator import DEFECTS, Recording, Simulated, simulate
from tests.simulator.recording import BASE_NS, BEGIN_NS
from tests.simulator.truth import bounds
from tracelib.analyses.results import Results, analyse
from tracelib.findings import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulator.defects import Cause
    from tracelib.findings.document import Document

#: How much of a phase each defect takes in the runs of three phases, and in all others.
SHARES, SHARE = (0.05, 0.2, 0.6), 0.2
#: GPU time of which the product says itself that it does not know.
UNKNOWN = ("collective", "unattributed")
NOT_RECORDED = ("ipc", "upstream not recorded")
EXACT = Recording()

#: (cause, sub-cause, CPU state); a collective that cannot be split is a cause here, too.
Key = tuple[str, str | None, str]


@dataclass(frozen=True)
class Told:
    """What the product says of a run: ns by phase and key over all GPUs, and its findings."""

    spent: tuple[Counter[Key], ...]
    document: Document = field(repr=False)

    def of(self, phase: int, defect: str) -> int:
        """Return what stands under a defect's name in a phase, in ns."""
        return sum(ns for key, ns in self.spent[phase].items() if meant(key, defect))


@dataclass(frozen=True)
class Row:
    """A defect in a phase, as shares of the phase, mean over the GPUs."""

    shape: str
    defect: str
    recording: str
    asked: float
    true: float
    blamed: float
    #: Of what the product says that it does not know, how much there is more than without the defect.
    unknown: float
    #: The other cause that grew most by the defect.
    mistake: tuple[str, float]
    verdict: str

    @property
    def off(self) -> float:
        """How far blamed is from true."""
        return abs(self.blamed - self.true)


def meant(key: Key, defect: str) -> bool:
    """Whether lost time of that key stands under the defect's name."""
    cause, sub_cause, cpu = key
    wanted = DEFECTS[defect]
    return cpu == wanted.cpu if wanted.cpu else (cause, sub_cause) in wanted.causes


def unknown(key: Key) -> bool:
    """Whether the product says that it does not know."""
    return key[0] in UNKNOWN or key[:2] == NOT_RECORDED


@cache
def told(run: Simulated, how: Recording = EXACT) -> Told:
    """Return what the product says of a run so recorded, read from its files."""
    with TemporaryDirectory() as folder:
        results = analyse(tracelib.load(run.write(Path(folder), how)))
    rank = dict(results.trace.gpus.select("gpu", "rank").iter_rows())
    spent = tuple(Counter[Key]() for _ in run.phases)
    for number, part in enumerate(spent):
        edges = [bounds(gpu, number) for gpu in run.gpus]
        for gpu, begin, end, key in _pieces(results):
            first, last = edges[rank[gpu]]
            both = min(end, last) - max(begin, first)
            if both > 0:
                part[key] += both
    return Told(spent, diagnose(results))


def _pieces(results: Results) -> Iterator[tuple[int, int, int, Key]]:
    """Yield the pieces of lost time, and of collectives that cannot be split, on the simulator's clock."""
    zero = BASE_NS + BEGIN_NS
    columns = ["gpu", "ts_ns", "dur_ns", "cause", "sub_cause", "cpu_state"]
    for gpu, ts, ns, *key in results.lost.select(columns).iter_rows():
        yield gpu, ts - zero, ts - zero + ns, tuple(key)
    for gpu, ts, ns, state in results.gpu_states.select("gpu", "ts_ns", "dur_ns", "state").iter_rows():
        if state == "collective":
            yield gpu, ts - zero, ts - zero + ns, ("collective", None, "unknown")


def rows(run: Simulated, name: str = "", how: Recording = EXACT) -> list[Row]:
    """Return a run's rows, one for each defect and phase."""
    found, healthy = told(run, how), told(run.baseline, how)
    made = []
    for phase, shares in enumerate(run.phases):
        length = run.length(phase)
        more = Counter(found.spent[phase])
        more.subtract(healthy.spent[phase])
        costs = run.costs(phase)
        for defect, share in shares:
            blamed = found.of(phase, defect) - healthy.of(phase, defect)
            dark = sum(ns for key, ns in more.items() if unknown(key))
            made.append(
                Row(
                    run.shape,
                    defect,
                    name,
                    share,
                    costs[defect] / length,
                    blamed / length,
                    dark / length,
                    _mistake(more, run, length),
                    found.document.verdict.state,
                )
            )
    return made


def _mistake(more: Counter[Key], run: Simulated, length: int) -> tuple[str, float]:
    """Return the cause that grew most of those that no defect of the run accounts for."""
    wrong: Counter[str] = Counter()
    for key, ns in more.items():
        if not unknown(key) and not any(meant(key, defect) for defect in run.kinds):
            wrong["/".join(part for part in key[:2] if part)] += ns
    cause, ns = max(wrong.items(), key=lambda item: item[1], default=("", 0))
    return cause, ns / length
