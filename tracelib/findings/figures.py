"""The few figures that a report leads with, computed from its document by the definitions of the verdict.

Shares are of GPU time: the window, summed over the devices. Exposed host share: what was lost to a cause on
the host; causes that accuse nobody (`imbalance`, `no_work`, `profiler`, `unattributed`, `ipc` with "upstream
not recorded") do not count. CPU shortage: the part of lost GPU time in which the thread to blame was
`runnable` or `throttled`.
"""

import statistics
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.analyses.upstream import NOT_RECORDED
from tracelib.findings.document import Device, Document, LostTime
from tracelib.findings.finding import NOT_HOST


@dataclass(frozen=True)
class CauseRow:
    """One cause over all devices: lost GPU time, the parts of it, and all host time of its kind."""

    cause: str
    exposed_ns: int
    exposed_share: float
    #: None where CPU states are not known.
    shortage_ns: int | None
    #: Whether the host is accused of any of it: shortage counts there only.
    accuses_host: bool
    sub_causes: tuple[tuple[str, int], ...]
    total_ns: int | None


def devices(findings: Document) -> list[Device]:
    """Return the devices whose causes are known."""
    return [device for device in findings.devices or () if device.causes is not None]


def exposed_host_shares(findings: Document) -> list[float]:
    """Return per device the share of the window that host causes took from the GPU."""
    window = findings.window.duration_ns
    return [
        sum(row.ns for row in device.causes or () if accuses_host(row)) / window
        for device in devices(findings)
        if window
    ]


def accuses_host(row: LostTime) -> bool:
    """Return whether the cause in `row` is the host's doing, as the verdict counts it."""
    return row.cause not in NOT_HOST and row.sub_cause != NOT_RECORDED


def lost_shares(findings: Document) -> list[float]:
    """Return per device the share of the window that was lost, whatever the cause."""
    window = findings.window.duration_ns
    lost = [device.lost_ns for device in findings.devices or ()]
    return [ns / window for ns in lost if ns is not None and window]


def cpu_shortage_ns(findings: Document, states: Collection[str] = WAITS_FOR_CPU) -> int:
    """Return the GPU time lost to the host, all devices, while the thread to blame wanted a CPU and had none.

    `states` chooses one of the reasons: `throttled` (a quota) or `runnable` (no CPU free).
    """
    return sum(row.ns for row in _causes(findings) if row.cpu_state in states and accuses_host(row))


def known_cpu_state_ns(findings: Document) -> int:
    """Return the lost GPU time, over all devices, for which scheduler events tell the CPU state.

    0 where the events cannot tell waiting for a CPU from sleep: "running or not" says nothing of a shortage.
    """
    threads = findings.scheduling.threads if findings.scheduling else []
    if threads and all(thread.runnable_ns is None for thread in threads):
        return 0
    return sum(row.ns for row in _causes(findings) if row.cpu_state != "unknown")


def known_cpu_state_share(findings: Document) -> float:
    """Return the same as a share of the lost GPU time."""
    return known_cpu_state_ns(findings) / max(sum(row.ns for row in _causes(findings)), 1)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, of shares of each device that of GPU time; None without any."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def cause_rows(findings: Document) -> list[CauseRow]:
    """Return one row per cause over all devices, the most exposed first, `unattributed` last."""
    lost: dict[str, list[LostTime]] = {}
    for row in _causes(findings):
        lost.setdefault(row.cause, []).append(row)
    totals: Counter[str] = Counter()
    for host in findings.host_time or ():
        totals[host.cause] += host.total_ns or 0
    rows = [
        _row(cause, lost.get(cause, []), totals.get(cause), findings)
        for cause in dict.fromkeys([*lost, *totals])
    ]
    return sorted(
        rows, key=lambda row: (row.cause == "unattributed", -row.exposed_ns, -(row.total_ns or 0), row.cause)
    )


def _row(cause: str, lost: list[LostTime], total_ns: int | None, findings: Document) -> CauseRow:
    gpu_time = findings.window.duration_ns * max(len(devices(findings)), 1)
    exposed = sum(row.ns for row in lost)
    by_sub_cause: Counter[str] = Counter()
    for row in lost:
        by_sub_cause[row.sub_cause or ""] += row.ns
    named = [(sub_cause, ns) for sub_cause, ns in by_sub_cause.items() if sub_cause and ns]
    accused = [row for row in lost if accuses_host(row)]
    short = sum(row.ns for row in accused if row.cpu_state in WAITS_FOR_CPU)
    return CauseRow(
        cause=cause,
        exposed_ns=exposed,
        exposed_share=exposed / gpu_time if gpu_time else 0.0,
        shortage_ns=short if known_cpu_state_ns(findings) > 0 else None,
        accuses_host=bool(accused),
        sub_causes=tuple(sorted(named, key=lambda pair: (-pair[1], pair[0]))),
        total_ns=total_ns,
    )


def _causes(findings: Document) -> list[LostTime]:
    return [row for device in devices(findings) for row in device.causes or ()]
