"""What a defect cost: the GPU time lost with it, less that of the same run without it.

No rule of blame is needed for that, neither tracelib's nor another: lost is all time in which a GPU did not
compute, copy or transfer, as the simulator played it.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.simulator.defects import EDGE, STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulator.machine import Gpu


def bounds(gpu: Gpu, phase: int) -> tuple[int, int]:
    """Return when a phase began and ended on a GPU: the begins of its first step and of the step after it."""
    first = EDGE + phase * STEPS
    begins = [next(op.begin for op in gpu.ops if op.step == step) for step in (first, first + STEPS)]
    return begins[0], begins[1]


def lost_ns(gpu: Gpu, phase: int) -> int:
    """Return how long a GPU did nothing useful in a phase."""
    begin, end = bounds(gpu, phase)
    return end - begin - sum(op.useful for op in gpu.ops if begin <= op.begin < end)


def costs(kinds: frozenset[str], lost: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return what each defect of a run cost; `lost` gives what is lost with only some of them in it.

    Of several, some strike at the same moment, and hide each other: each counts by the mean of what it costs
    in all orders of adding them one by one (Shapley's value). Together they cost exactly what is lost more.
    """
    found = {}
    for kind in kinds:
        others = kinds - {kind}
        shares = []
        for size in range(len(others) + 1):
            sets = [frozenset(chosen) for chosen in combinations(sorted(others), size)]
            shares.append(sum(lost(chosen | {kind}) - lost(chosen) for chosen in sets) / len(sets))
        found[kind] = sum(shares) / len(shares)
    return found
