"""The few numbers a report leads with, computed from a findings dict by the definitions of the verdict.

Exposed host share: GPU time lost to a cause on the host, as a share of the window, on the median device; causes that
accuse nobody (`imbalance`, `no_work`, `profiler`, `unattributed`, `ipc` with "upstream not recorded") do not count.
CPU shortage: the part of lost GPU time in which the thread to blame was `runnable` or `throttled`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings.verdict import NOT_HOST

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = [
    "CauseRow",
    "cause_rows",
    "cpu_shortage_ns",
    "exposed_host_shares",
    "known_cpu_state_ns",
    "lost_shares",
    "median_of",
]

Findings = dict[str, Any]

SHORTAGE = ("runnable", "throttled")


@dataclass(frozen=True)
class CauseRow:
    """One cause over all devices: lost GPU time, its CPU shortage and sub-causes, and all host time of that kind."""

    cause: str
    exposed_ns: int
    exposed_share: float
    shortage_ns: int | None
    sub_causes: tuple[tuple[str, int], ...]
    total_ns: int | None


def devices(findings: Findings) -> list[dict[str, Any]]:
    """Return the devices whose causes are known."""
    return [device for device in findings["devices"] or () if device["causes"] is not None]


def exposed_host_shares(findings: Findings) -> list[float]:
    """Return per device the share of the window that host causes took from the GPU."""
    window = findings["window"]["duration_ns"]
    return [
        sum(row["ns"] for row in device["causes"] if accuses_host(row)) / window
        for device in devices(findings)
        if window
    ]


def accuses_host(row: dict[str, Any]) -> bool:
    """Return whether the cause in `row` is the host's doing, as the verdict counts it."""
    return row["cause"] not in NOT_HOST and row["sub_cause"] != NOT_RECORDED


def lost_shares(findings: Findings) -> list[float]:
    """Return per device the share of the window that was lost, whatever the cause."""
    window = findings["window"]["duration_ns"]
    return [d["lost_ns"] / window for d in findings["devices"] or () if d["lost_ns"] is not None and window]


def cpu_shortage_ns(findings: Findings, states: Collection[str] = SHORTAGE) -> int:
    """Return the GPU time lost to the host, over all devices, while the thread to blame wanted a CPU and had none.

    `states` chooses one of the reasons: `throttled` (a quota) or `runnable` (no CPU free).
    """
    return sum(row["ns"] for row in _causes(findings) if row["cpu_state"] in states and accuses_host(row))


def known_cpu_state_ns(findings: Findings) -> int:
    """Return the lost GPU time, over all devices, for which scheduler events tell the CPU state.

    0 where the events cannot tell waiting for a CPU from sleep: "running or not" says nothing of a shortage.
    """
    threads = (findings["scheduling"] or {}).get("threads") or []
    if threads and all(thread["runnable_ns"] is None for thread in threads):
        return 0
    return sum(row["ns"] for row in _causes(findings) if row["cpu_state"] != "unknown")


def median_of(values: list[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def cause_rows(findings: Findings) -> list[CauseRow]:
    """Return one row per cause over all devices, the most exposed first, `unattributed` last."""
    gpu_time = findings["window"]["duration_ns"] * max(len(devices(findings)), 1)
    pieces: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for piece in _causes(findings):
        pieces[piece["cause"]].append(piece)
    totals = _host_totals(findings)
    names = [*pieces, *(cause for cause in totals if cause not in pieces)]
    rows = [_row(name, pieces[name], gpu_time, totals.get(name), findings) for name in names]
    return sorted(
        rows, key=lambda row: (row.cause == "unattributed", -row.exposed_ns, -(row.total_ns or 0), row.cause)
    )


def _row(
    name: str, pieces: list[dict[str, Any]], gpu_time: int, total: int | None, findings: Findings
) -> CauseRow:
    exposed = sum(piece["ns"] for piece in pieces)
    by_sub: dict[str, int] = defaultdict(int)
    for piece in pieces:
        by_sub[piece["sub_cause"] or ""] += piece["ns"]
    known = known_cpu_state_ns(findings) > 0
    return CauseRow(
        name,
        exposed,
        exposed / gpu_time if gpu_time else 0.0,
        sum(piece["ns"] for piece in pieces if piece["cpu_state"] in SHORTAGE) if known else None,
        tuple(
            sorted(
                ((sub, ns) for sub, ns in by_sub.items() if sub and ns), key=lambda pair: (-pair[1], pair[0])
            )
        ),
        total,
    )


def _causes(findings: Findings) -> list[dict[str, Any]]:
    return [row for device in devices(findings) for row in device["causes"]]


def _host_totals(findings: Findings) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for row in findings["host_time"] or ():
        totals[row["cause"]] += row["total_ns"] or 0
    return dict(totals)
