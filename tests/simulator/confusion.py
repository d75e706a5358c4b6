"""Prints the tables of `docs/confusion.md` as Markdown: `python -m tests.simulator.confusion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator import CPU_STATE, DEFECTS
from tests.simulator.judge import case, cases
from tracelib.rules import CAUSES

if TYPE_CHECKING:
    from tests.simulator.judge import Case
    from tests.simulator.machine import Cause

#: The matrix is of the runs in which the defect costs so much; its blank cells are below `SMALLEST` of the
#: window.
MATRIX_SHARE, SMALLEST = 0.2, 0.005
#: A mistake below this share of the window is noise, and not shown.
MISTAKE = 0.002
COLUMNS = [cause for cause in CAUSES if cause not in ("spin", "other")]

RUNS_HEAD = (
    "| defect | asked | true | blamed | largest cause | lost | with its true cause | largest mistake "
    "| verdict |\n|---|--:|--:|--:|---|--:|--:|---|---|"
)
MATRIX_HEAD = (
    "| defect | " + " | ".join(COLUMNS) + " | without a CPU |\n" + "|---" + "|--:" * (len(COLUMNS) + 1) + "|"
)


def main() -> None:
    """Print both tables."""
    every = [case(*which) for which in cases()]
    print(RUNS_HEAD, *(run_row(each) for each in every), sep="\n", end="\n\n")
    print(MATRIX_HEAD, *(matrix_row(each) for each in every if in_matrix(each)), sep="\n")


def run_row(of: Case) -> str:
    """Return a run's row: the defect's true cost, what was blamed on it, how all other lost time fared."""
    true, blamed = (_share(of, told) for told in ("truth", "blamed"))
    largest = _name(of.blamed.by_cause().most_common(1)[0][0])
    lost = of.truth.by_cause().total()
    right = sum(ns for (cause, told), ns in of.confusion().items() if cause == told) / lost
    return (
        f"| {of.defect} | {of.share:.0%} | {true:.2%} | {blamed:.2%} | {largest} | {lost / _whole(of):.2%} "
        f"| {right:.1%} | {_largest_mistake(of)} | {of.verdict} |"
    )


def _share(of: Case, told: str) -> float:
    """Return the defect's part of the window, mean over the GPUs; of a healthy run, all lost time."""
    found, cause, state = getattr(of, told), DEFECTS[of.defect], CPU_STATE.get(of.defect)
    ns = found.by_cpu()[state] if state else found.by_cause()[cause] if cause else found.by_cause().total()
    return ns / _whole(of)


def _whole(of: Case) -> int:
    return of.truth.duration * of.truth.ranks


def _largest_mistake(of: Case) -> str:
    wrong = {pair: ns / _whole(of) for pair, ns in of.confusion().items() if pair[0] != pair[1]}
    (true, told), share = max(wrong.items(), key=lambda item: item[1])
    return f"{_name(true)} → {_name(told)}, {share:.2%}" if share >= MISTAKE else ""


def in_matrix(of: Case) -> bool:
    """Whether the run has a row in the matrix."""
    return of.share in (MATRIX_SHARE, 0.0)


def matrix_row(of: Case) -> str:
    """Return a run's row of the matrix: what was blamed on each cause, as a share of the window."""
    shares = [
        sum(ns for (cause, _), ns in of.blamed.by_cause().items() if cause == column) / _whole(of)
        for column in COLUMNS
    ]
    without = sum(of.blamed.by_cpu()[state] for state in ("runnable", "throttled")) / _whole(of)
    cells = [f"{share:.1%}" if share >= SMALLEST else "" for share in (*shares, without)]
    return f"| {of.defect} | " + " | ".join(cells) + " |"


def _name(cause: Cause) -> str:
    return "/".join(part for part in cause if part)


if __name__ == "__main__":
    main()
