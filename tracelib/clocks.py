"""Every clock that a trace can have: one added here is known to readers, `run.toml`, recorder and exports."""

from dataclasses import dataclass

#: The largest time or offset that is taken, 146 years: so the sum of two still fits into 64 bits.
LONGEST_NS = 1 << 62


@dataclass(frozen=True)
class Clock:
    """A clock by the names of the kernel and its tools; `name` is that in `sources.clock` and `run.toml`.

    `number` is its number in clock_gettime(2) and of `perf record -k`; `trace_clocks` its names in tracefs's
    `trace_clock` (Documentation/trace/ftrace.rst), `others` those in perf's headers
    (tools/perf/util/clockid.c); `perfetto` its name in Perfetto's trace manifest. A `steady` one means the
    same in every source of one host until that reboots.
    """

    name: str
    number: int | None = None
    trace_clocks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    perfetto: str | None = None
    steady: bool = False


CLOCKS = (
    Clock("realtime", 0, others=("real",), perfetto="REALTIME"),
    Clock("monotonic", 1, ("mono",), perfetto="MONOTONIC", steady=True),
    Clock("monotonic_raw", 4, ("mono_raw",), ("raw",), perfetto="MONOTONIC_RAW", steady=True),
    Clock("boottime", 7, ("boot",), perfetto="BOOTTIME", steady=True),
    Clock("tai", 11, ("tai",), steady=True),
    Clock("tsc", trace_clocks=("x86-tsc",), steady=True),
    Clock("local", trace_clocks=("local", "global", "perf", "uptime")),
    Clock("counter", trace_clocks=("counter",)),
)
#: Those that can be read at any time, by their numbers.
READABLE = {clock.name: clock.number for clock in CLOCKS if clock.number is not None}
STEADY = frozenset(clock.name for clock in CLOCKS if clock.steady)
TRACE_CLOCKS = {name: clock.name for clock in CLOCKS for name in clock.trace_clocks}
PERFETTO = {clock.name: clock.perfetto for clock in CLOCKS if clock.perfetto}
_NAMES = {name: clock.name for clock in CLOCKS for name in (*clock.trace_clocks, *clock.others)} | {
    name: name for name in READABLE
}
_NUMBERS = {number: name for name, number in READABLE.items()}


def clock_named(name: str) -> str:
    """Return `sources.clock` for a clock's name ("mono", "x86-tsc", "CLOCK_TAI"), "unknown" for others."""
    return _NAMES.get(name.lower().removeprefix("clock_"), "unknown")


def clock_numbered(number: int) -> str:
    """Return `sources.clock` for the number of a clock in clock_gettime(2), "unknown" for others."""
    return _NUMBERS.get(number, "unknown")
