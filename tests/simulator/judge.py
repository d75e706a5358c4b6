"""What tracelib says of simulated runs, held against what each defect cost.

A row of the table is a phase of a run. *True* is what the defect cost there: the GPU time lost with it, less
that of the same run without. *Blamed* is what the ledger says more under the defect's cause than it says of
the run without: the noise of that cause is in both.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from tests.simulator import DEFECTS, Recording, Simulated
from tests.simulator.recording import BASE_NS, BEGIN_NS
from tests.simulator.truth import bounds
from tracelib.findings import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulator.cases import Case
    from tracelib.analyses.results import Results
    from tracelib.findings.document import Document

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
    """A defect in a phase, in shares of the phase, mean over the GPUs."""

    case: Case
    defect: str
    asked: float
    true: float
    blamed: float
    #: How much more there is of what the product says that it does not know.
    unknown: float
    #: By cause, how much more is blamed on it than without the defect.
    more: Counter[str]
    #: The cause that grew most of those that no defect of the run accounts for.
    mistake: tuple[str, float]
    verdict: str
    #: The words by which the page says that it does not know.
    said: str

    @property
    def off(self) -> float:
        """How far blamed is from true, what is told to be unknown counted as blamed."""
        missing = self.true - self.blamed
        return abs(missing - min(max(self.unknown, 0), max(missing, 0)))


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
    results = run.results(how)
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


def rows(case: Case) -> list[Row]:
    """Return a case's rows, one for each defect and phase."""
    run, how = case.run, case.how
    found, healthy = told(run, how), told(run.baseline, how)
    made = []
    for phase, shares in enumerate(run.phases):
        length, costs = run.length(phase, case.ranks), run.costs(phase, case.ranks)
        grown = Counter(found.spent[phase])
        grown.subtract(healthy.spent[phase])
        for defect, share in shares:
            blamed = found.of(phase, defect) - healthy.of(phase, defect)
            dark = sum(ns for key, ns in grown.items() if unknown(key))
            made.append(
                Row(
                    case,
                    defect,
                    share,
                    costs[defect] / length,
                    blamed / length,
                    dark / length,
                    _by_cause(grown, length),
                    _mistake(grown, run, length),
                    found.document.verdict.state,
                    _said(case, found.document),
                )
            )
    return made


def _by_cause(grown: Counter[Key], length: int) -> Counter[str]:
    shares: Counter[str] = Counter()
    for (cause, _, cpu), ns in grown.items():
        shares[cause] += ns / length  # type: ignore[assignment]
        if cpu in ("runnable", "throttled"):
            shares["without a CPU"] += ns / length  # type: ignore[assignment]
    return shares


def _mistake(grown: Counter[Key], run: Simulated, length: int) -> tuple[str, float]:
    wrong: Counter[str] = Counter()
    for key, ns in grown.items():
        if not unknown(key) and not any(meant(key, defect) for defect in run.kinds):
            wrong["/".join(part for part in key[:2] if part)] += ns
    cause, ns = max(wrong.items(), key=lambda item: item[1], default=("", 0))
    return cause, ns / length


def _said(case: Case, document: Document) -> str:
    """Return the words on the page that the case wants; empty where there are none."""
    texts = [document.verdict.sentence, *document.verdict.why]
    texts += [remark.message for remark in document.health if remark.level != "info"]
    texts += [f"{row.id}: {row.reason}" for row in document.abstained]
    return next((text for text in texts if case.says and re.search(case.says, text)), "")


def verdict_of(run: Simulated) -> str:
    """Return the verdict that docs/numbers.md gives the truth; what is lost without defects is the host's."""
    whole = sum(run.length(phase) for phase in range(len(run.phases)))
    lost = sum(run.lost(phase) for phase in range(len(run.phases))) / whole
    spent: Counter[str] = Counter()
    for phase in range(len(run.phases)):
        for kind, ns in run.costs(phase).items():
            spent[DEFECTS[kind].verdict] += ns / whole  # type: ignore[assignment]
    host = lost - spent["no_load"] - spent["not_cpu_bound"]
    if host + spent["no_load"] < 0.10:
        return "not_cpu_bound"
    if spent["no_load"] > 0.5 * lost:
        return "no_load"
    return "cpu_bound" if host > 0.15 else "not_cpu_bound" if host < 0.10 else "mixed"
