"""The host's clocks, read together: what ties recorders that use different ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ClockReading", "read_clocks"]

CLOCKS = {
    "realtime": time.CLOCK_REALTIME,
    "boottime": time.CLOCK_BOOTTIME,
    "monotonic_raw": time.CLOCK_MONOTONIC_RAW,
    "tai": time.CLOCK_TAI,
}
TRIES = 50


@dataclass(frozen=True)
class ClockReading:
    """One moment on every clock in ns; the readings lie within `error_ns` of `at["monotonic"]`."""

    at: Mapping[str, int]
    error_ns: int


def read_clocks() -> ClockReading:
    """Return the tightest of several readings of all clocks, each taken between two of CLOCK_MONOTONIC.

    A reading that the scheduler interrupted takes longer and is passed over. Definitions: clock_gettime(2).
    """
    return min((_reading() for _ in range(TRIES)), key=lambda reading: reading.error_ns)


def _reading() -> ClockReading:
    first = time.monotonic_ns()
    at = {name: time.clock_gettime_ns(clock) for name, clock in CLOCKS.items()}
    last = time.monotonic_ns()
    return ClockReading({"monotonic": (first + last) // 2, **at}, (last - first + 1) // 2)
