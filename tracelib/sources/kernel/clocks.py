"""Clocks by the names that the kernel and its tools give them: in a header, in a flag, or as a number."""

from __future__ import annotations

#: Names in tracefs's `trace_clock` (Documentation/trace/ftrace.rst), and the clock that each reads.
TRACE_CLOCKS = {
    "mono": "monotonic",
    "mono_raw": "monotonic_raw",
    "boot": "boottime",
    "tai": "tai",
    "local": "local",
    "global": "local",
    "perf": "local",
    "uptime": "local",
    "x86-tsc": "tsc",
    "counter": "counter",
}
#: Numbers and names that `perf record -k` takes (clock_gettime(2), tools/perf/util/clockid.c).
CLOCK_IDS = {0: "realtime", 1: "monotonic", 4: "monotonic_raw", 7: "boottime", 11: "tai"}
SHORT_NAMES = {"real": "realtime", "raw": "monotonic_raw"}
NAMES = {name: name for name in CLOCK_IDS.values()} | TRACE_CLOCKS | SHORT_NAMES


def clock_named(name: str) -> str:
    """Return `sources.clock` for a clock's name ("mono", "x86-tsc", "CLOCK_TAI"), "unknown" for others."""
    return NAMES.get(name.lower().removeprefix("clock_"), "unknown")


def clock_numbered(number: int) -> str:
    """Return `sources.clock` for the number of a clock in clock_gettime(2), "unknown" for others."""
    return CLOCK_IDS.get(number, "unknown")
