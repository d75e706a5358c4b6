"""What the server was given: CPUs, a quota, and what the kernel counted of its cost. None of it stands in a trace.

Source of the counters: the kernel's Documentation/admin-guide/cgroup-v2.rst, "cpu.max", "cpu.stat", and
Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelib.analyses.throttling import PERIODS_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Supply", "cpu_max"]


@dataclass(frozen=True)
class Supply:
    """What was said of the server's CPUs and requests; None and {} = nobody said.

    `counters` is how `cpu.stat` grew (`usage_usec`, `nr_periods`, `nr_throttled`, `throttled_usec`, …); `since` says from
    when on: "between two readings", or "since the cgroup was made". `quota_us` is None where there is no quota.
    """

    cpus: int | None = None
    allowed_cpus: int | None = None
    limited: bool | None = None  # whether a quota is set; None = cpu.max was not given
    quota_us: int | None = None
    period_us: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    since: str = ""
    seconds: float | None = None  # between the two readings
    mean_input_tokens: float | None = None
    tokens_from: str = ""

    @property
    def quota_cpus(self) -> float | None:
        """CPUs that the quota amounts to, as cpu.max says; None without one."""
        return self.quota_us / self.period_us if self.quota_us and self.period_us else None

    @property
    def throttled_share(self) -> float | None:
        """Share of the periods in which the quota ran out."""
        periods = self.counters.get("nr_periods")
        return self.counters["nr_throttled"] / periods if periods else None

    @property
    def cpus_used(self) -> float | None:
        """CPUs that the cgroup used on average between the two readings; None where their distance was not noted."""
        usage = self.counters.get("usage_usec")
        return usage / 1e6 / self.seconds if usage is not None and self.seconds else None

    def quota_bounds(self) -> tuple[float, float] | None:
        """Return between how many CPUs the quota must lie by the counters alone, None where they do not tell.

        A period in which it ran out used all of it, and none used more (but for bursts): it is at least the CPU time over
        all periods, at most that over the periods that ran out. The period is cpu.max's, else the kernel's default.
        """
        usage, periods, out = (
            self.counters.get(name) for name in ("usage_usec", "nr_periods", "nr_throttled")
        )
        if not usage or not periods or not out or self.counters.get("burst_usec"):
            return None
        period = self.period_us or PERIODS_NS[0] // 1000
        return usage / (periods * period), usage / (out * period)

    def cores(self) -> float | None:
        """Return how many CPUs the server could use at most: the least of quota, allowed CPUs and CPUs of the host."""
        said = [value for value in (self.quota_cpus, self.allowed_cpus, self.cpus) if value]
        return min(map(float, said), default=None)


def cpu_max(text: str) -> tuple[int | None, int]:
    """Return quota (None = none) and period in us of the text of a cgroup's `cpu.max`.

    Raises
    ------
    ValueError
        It has another form.

    Examples
    --------
    >>> cpu_max("200000 100000"), cpu_max("max 100000")
    ((200000, 100000), (None, 100000))

    """
    quota, period = text.split()
    if int(period) <= 0 or (quota != "max" and int(quota) <= 0):
        raise ValueError("quota and period must be positive")
    return None if quota == "max" else int(quota), int(period)
