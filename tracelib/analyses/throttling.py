"""CPU quotas: as they show in scheduler events, how large they are, and what the kernel says of them.

A thread that is ready leaves its CPU to idle, or is woken and finds its CPU idle, and yet comes back only
when the quota's next period begins. Migrations and affinity changes look alike for a moment; so only gaps
that end on one period grid count: on three of its points at least, and most of all such gaps
(docs/numbers.md, "Scheduler states").

A cgroup may use `quota` of CPU time in each period and is stopped when it has. So in a period in which
threads were stopped, what the server's threads ran is the quota, less what other processes of the cgroup
used.

Sources: the kernel's Documentation/scheduler/sched-bwc.rst, and Documentation/admin-guide/cgroup-v2.rst,
"cpu.max" and "cpu.stat".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.scheduling import server_threads
from tracelib.analyses.window import Window
from tracelib.intervals import overlay
from tracelib.options import whole_number
from tracelib.schema import NS_PER_MS
from tracelib.trace import Trace

#: Periods that are tried, in this order: the kernel's default of cpu.max / cpu.cfs_period_us first, then
#: longer before shorter ones, since a grid also lies on its own halves.
PERIODS_NS = tuple(ms * NS_PER_MS for ms in (100, 1000, 500, 250, 200, 50, 25, 20, 10))
#: How far past the grid a gap may be seen to end: the quota's timer, one CPU after the other, and the
#: sampling period where the thread's coming was not recorded. As a part of the period, at most a twentieth.
TOLERANCE_NS = 3 * NS_PER_MS
SHORTEST_NS = NS_PER_MS
FEWEST_POINTS = 3
#: Of the gaps, how many must end on the grid.
MOST = 0.7
#: Periods with a stop that make an estimate of the quota's size.
FEWEST_PERIODS = 5

QUOTA_USE = pl.Schema(
    {
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "ran_ns": pl.Int64(),
        "unknown_ns": pl.Int64(),
        "throttled_ns": pl.Int64(),
        "cpus": pl.Float64(),
    }
)


def throttled(states: pl.DataFrame, periods_ns: Sequence[int] = PERIODS_NS) -> pl.DataFrame:
    """Return `states` with `throttled` instead of `runnable` where a quota kept the thread off an idle CPU.

    Takes rows of `thread_states`, and of each gap off a CPU the columns `to_idle` (Boolean: ready, and the
    CPU idle), `waited_ns` (Int64: how long it certainly waited) and `latest_ns` (Int64: when the thread was
    back at the latest). Where its coming is known only to lie in the gap's last part (a row `unknown`), it
    came at the grid's point in there.
    """
    gap = pl.col("to_idle") & (pl.col("waited_ns") >= SHORTEST_NS)
    waits = gap & (pl.col("state") == "runnable")
    ends = grid(states.filter(waits)["latest_ns"].to_numpy(), periods_ns)
    if ends is None:
        return states
    period, phase = ends
    off = (pl.col("latest_ns") - phase) % period
    end = pl.col("ts_ns") + pl.col("dur_ns")
    kept_off = waits & (off <= _tolerance(period))
    came = gap & (pl.col("state") == "unknown") & (off <= _tolerance(period))
    point = pl.col("latest_ns") - off
    begin = pl.when(came).then(pl.max_horizontal("ts_ns", point)).otherwise("ts_ns")
    return states.with_columns(
        ts_ns=begin,
        dur_ns=pl.when(kept_off).then(pl.max_horizontal(end, point)).otherwise(end) - begin,
        state=pl.when(kept_off).then(pl.lit("throttled", states.schema["state"])).otherwise("state"),
    ).filter(pl.col("dur_ns") > 0)


def grid(ends: NDArray[np.int64], periods_ns: Sequence[int] = PERIODS_NS) -> tuple[int, int] | None:
    """Return (period, phase) in ns of the grid on which most of `ends` lie, None = of none of the periods."""
    for period in periods_ns:
        if len(ends) < FEWEST_POINTS:
            return None
        tolerance = _tolerance(period)
        folded = np.sort(ends % period)
        twice = np.concatenate([folded, folded + period])
        near = np.searchsorted(twice, folded + tolerance, side="right") - np.arange(len(folded))
        phase = int(folded[near.argmax()])
        on = ends[(ends - phase) % period <= tolerance]
        if len(np.unique((on - phase) // period)) >= FEWEST_POINTS and len(on) >= MOST * len(ends):
            return period, phase
    return None


def _tolerance(period_ns: int) -> int:
    return min(TOLERANCE_NS, period_ns // 20)


def quota_use(trace: Trace, window: Window, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return what the server used in each whole period of the quota in which it was stopped.

    One row per period: `ts_ns`, `dur_ns` (Int64), `ran_ns` (Int64: CPU time of the server's threads in it),
    `unknown_ns` (Int64: time of which the scheduler events do not tell whether they ran), `throttled_ns`
    (Int64, threads summed), `cpus` (Float64: `ran_ns` / `dur_ns`, an estimate of the quota in CPUs). Sorted
    by `ts_ns`. Empty where no quota was seen.
    """
    stopped = thread_states.filter(pl.col("state") == "throttled")
    ends = grid((stopped["ts_ns"] + stopped["dur_ns"]).to_numpy())
    if ends is None:
        return pl.DataFrame(schema=QUOTA_USE)
    period, phase = ends
    first = window.start_ns + (phase - window.start_ns) % period
    count = max(0, (window.end_ns - first) // period)
    periods = pl.DataFrame(
        {"ts_ns": [first + n * period for n in range(count)]}, schema={"ts_ns": pl.Int64}
    ).with_columns(
        dur_ns=pl.lit(period, pl.Int64), _one=pl.lit(0, pl.Int32), _n=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    return _used(trace, periods, thread_states)


def _used(trace: Trace, periods: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    server = server_threads(trace)
    states = thread_states.filter(pl.col("thread").is_in(server.implode())).select(
        "ts_ns", "dur_ns", state=pl.col("state").cast(pl.String), _one=pl.lit(0, pl.Int32)
    )
    parts = overlay(states, periods.select("_one", "ts_ns", "dur_ns", "_n"), "_one")
    spent = parts.group_by("_n").agg(
        ran_ns=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        unknown_ns=pl.col("dur_ns").filter(pl.col("state") == "unknown").sum(),
        throttled_ns=pl.col("dur_ns").filter(pl.col("state") == "throttled").sum(),
    )
    rows = periods.join(spent, on="_n").filter(pl.col("throttled_ns") > 0)
    used = rows.with_columns(cpus=pl.col("ran_ns") / pl.col("dur_ns"))
    return used.select(list(QUOTA_USE)).match_to_schema(QUOTA_USE).sort("ts_ns")


@dataclass(frozen=True)
class Supply:
    """What was said of the server's CPUs and requests, as no trace holds it; None and {} = nobody said.

    `counters` is how `cpu.stat` grew (`usage_usec`, `nr_periods`, `nr_throttled`, `throttled_usec`, …);
    `since` says from when on: "between two readings", or "since the cgroup was made". `quota_us` is None
    where there is no quota.
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
    def tells_quota(self) -> bool:
        """Whether anything of the kernel's about a quota was given."""
        return self.limited is not None or bool(self.counters)

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
        """CPUs that the cgroup used on average between two readings; None if their distance is not known."""
        usage = self.counters.get("usage_usec")
        return usage / 1e6 / self.seconds if usage is not None and self.seconds else None

    def quota_bounds(self) -> tuple[float, float] | None:
        """Return between how many CPUs the quota must lie by the counters alone, None where they do not tell.

        A period in which it ran out used all of it, and none used more (but for bursts): it is at least the
        CPU time over all periods, at most that over the periods that ran out. The period is cpu.max's, else
        the kernel's default.
        """
        usage, periods, out = (
            self.counters.get(name) for name in ("usage_usec", "nr_periods", "nr_throttled")
        )
        if not usage or not periods or not out or self.counters.get("burst_usec"):
            return None
        period = self.period_us or PERIODS_NS[0] // 1000
        return usage / (periods * period), usage / (out * period)


def cpu_stat(before: str, after: str) -> Mapping[str, int]:
    """Return how the counters of a cgroup's `cpu.stat` grew between two readings, in their own units.

    Takes the files' texts. cgroup v1's `throttled_time` (ns) is given as `throttled_usec`. Lines of another
    form than `name count` are skipped.
    """
    first, then = _counters(before), _counters(after)
    return {name: value - first.get(name, 0) for name, value in then.items()}


def _counters(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    numbers = ((pair[0], whole_number(pair[1])) for pair in pairs if len(pair) == 2)
    counters = {name: number for name, number in numbers if number is not None}
    if "throttled_time" in counters:
        counters["throttled_usec"] = counters.pop("throttled_time") // 1000
    return counters


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
    numbers = [whole_number(text) for text in (quota, period) if text != "max"]
    if period == "max" or not all(numbers):
        raise ValueError("quota and period must be positive")
    return None if quota == "max" else int(quota), int(period)
