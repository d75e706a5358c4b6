"""How a run is recorded: with what, and how badly."""

from __future__ import annotations

from dataclasses import dataclass

#: Wall time = base + the file's `ts`; the simulation begins `BEGIN_NS` after the base.
BASE_NS = 1_790_857_026_000_000_000
BEGIN_NS = 5_000_000_000


@dataclass(frozen=True)
class Recording:
    """Everything on exact clocks, unless said otherwise."""

    sched: bool = True
    wakeups: bool = True
    #: Whether switches from a CPU's idle task are recorded, as some kernels hardly ever do.
    from_idle: bool = True
    samples: bool = True
    #: How far perf's clock is off at the begin, and by how many millionths it goes too fast.
    perf_off_ns: int = 0
    perf_drift_ppm: float = 0
    #: The same of the last rank, which then is on a host of its own; perf runs on the first host, if at all.
    rank_off_ns: int = 0
    rank_drift_ppm: float = 0
    #: Files that are not there.
    without: tuple[str, ...] = ()

    @property
    def two_hosts(self) -> bool:
        """Whether the last rank has a host, and a clock, of its own."""
        return bool(self.rank_off_ns or self.rank_drift_ppm)


def shifted(ns: int, off_ns: int, drift_ppm: float) -> int:
    """Return what a clock shows at `ns` that is off, and too fast."""
    return ns + off_ns + round(ns * drift_ppm / 1e6)
