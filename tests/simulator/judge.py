"""What tracelib says of a simulated run, held against the simulator's bookkeeping, moment by moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from tests.simulator import DEFECTS, SAMPLED, simulate
from tests.simulator.defects import episodes
from tests.simulator.kineto import BASE_NS, BEGIN_NS
from tests.simulator.perf import PERIOD_NS
from tests.simulator.truth import Piece, Truth
from tracelib.findings import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulator.machine import Cause
    from tracelib.analyses.results import Results

SHARES = (0.05, 0.2, 0.6)
#: Causes of lost time that are not the host's doing (docs/numbers.md, "Verdict").
NOT_HOST = ("device", "imbalance", "no_work", "profiler", "unattributed")


@dataclass(frozen=True)
class Case:
    """One run: the truth, and what was found."""

    defect: str
    share: float
    truth: Truth
    blamed: Truth
    verdict: str

    def tolerance_ns(self) -> float:
        """How far the defect's exposed time may be off, per GPU.

        0.2 % of the window; what only samples know is known to one sampling period for each time it happens,
        and stalls of that kind which no sample hits count as the dispatch around them.
        """
        if self.defect in SAMPLED:
            return 0.002 * self.truth.duration + episodes(self.defect) * PERIOD_NS
        unseen = sum(self.truth.by_cause()[DEFECTS[kind]] for kind in SAMPLED) / self.truth.ranks
        dispatches = DEFECTS[self.defect] == DEFECTS["dispatch"]
        return 0.002 * self.truth.duration + (unseen if dispatches else 0)

    def confusion(self) -> Counter[tuple[Cause, Cause]]:
        """Return ns by true cause and blamed cause."""
        return confusion(self.truth.pieces, self.blamed.pieces)


def blamed(results: Results) -> Truth:
    """Return tracelib's pieces of lost time on the simulator's clock, as the truth's are given."""
    rank = dict(results.trace.gpus.select("gpu", "rank").iter_rows())
    columns = ["gpu", "ts_ns", "dur_ns", "lost", "cause", "sub_cause", "cpu_state"]
    zero = BASE_NS + BEGIN_NS
    pieces = tuple(
        Piece(rank[gpu], ts - zero, ts - zero + ns, lost, (cause, sub), cpu)
        for gpu, ts, ns, lost, cause, sub, cpu in results.lost.select(columns).iter_rows()
    )
    return Truth(results.window.start_ns - zero, results.window.end_ns - zero, len(rank), pieces)


@cache
def case(defect: str, share: float, seed: int = 1) -> Case:
    """Return a run with that defect, read from its files and analysed."""
    run = simulate(defect, share, seed)
    results = run.results()
    return Case(defect, share, run.truth, blamed(results), diagnose(results).verdict.state)


def confusion(first: Iterable[Piece], second: Iterable[Piece]) -> Counter[tuple[Cause, Cause]]:
    """Return for each pair of causes how many ns have the one in `first`, the other in `second`."""
    found: Counter[tuple[Cause, Cause]] = Counter()
    for rank, own in _by_rank(first).items():
        other = _by_rank(second).get(rank, [])
        at = 0
        for piece in own:
            while at < len(other) and other[at].end <= piece.begin:
                at += 1
            for n in range(at, len(other)):
                if other[n].begin >= piece.end:
                    break
                both = min(piece.end, other[n].end) - max(piece.begin, other[n].begin)
                found[piece.cause, other[n].cause] += both
    return found


def _by_rank(pieces: Iterable[Piece]) -> dict[int, list[Piece]]:
    ranks: dict[int, list[Piece]] = {}
    for piece in sorted(pieces, key=lambda p: (p.rank, p.begin)):
        ranks.setdefault(piece.rank, []).append(piece)
    return ranks


def verdict_of(truth: Truth) -> str:
    """Return the truth's verdict by docs/numbers.md's thresholds; the truth has nothing unattributed."""
    host = _median_share(truth, lambda cause: cause not in NOT_HOST)
    no_work = _median_share(truth, lambda cause: cause == "no_work")
    if host + no_work < 0.10:
        return "not_cpu_bound"
    if no_work > 0.5 * _median_share(truth, lambda _: True):
        return "no_load"
    return "cpu_bound" if host > 0.15 else "not_cpu_bound" if host < 0.10 else "mixed"


def _median_share(truth: Truth, of: Callable[[str], bool]) -> float:
    spent = [
        sum(ns for (cause, _), ns in truth.by_cause(rank).items() if of(cause)) for rank in range(truth.ranks)
    ]
    return median(spent) / truth.duration


def cases() -> list[tuple[str, float]]:
    """Return defect and share of each published run; a healthy server has no share."""
    return [(defect, share) for defect in DEFECTS for share in (SHARES if defect != "gpu_bound" else (0.0,))]
