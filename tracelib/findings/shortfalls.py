"""What the kernel's recordings leave out, in words: the verdict gives it as a reason to be less sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.analyses.scheduler_events import sleeps
from tracelib.words import share

if TYPE_CHECKING:
    import polars as pl

    from tracelib.analyses.results import Results

#: Recordings that cover so much of the window, and wake-ups that end so many sleeps, are not worth a word.
WHOLE, WOKEN = 0.95, 0.8
HALF = 0.5
#: Fewer sleeps say nothing of wake-ups.
FEWEST_SLEEPS = 20


def shortfalls(results: Results) -> list[str]:
    """Return what to say of scheduler events and samples that cover a part of the window or lack wake-ups."""
    return [*_covers(results), *_wakeups(results)]


def half_covered(results: Results) -> bool:
    """Return whether scheduler events cover half the window or more; `shortfalls` says how much."""
    part = _covered(results.trace.sched, results)
    return part is not None and part >= HALF


def _covers(results: Results) -> list[str]:
    parts = {
        "scheduler events": _covered(results.trace.sched, results),
        "CPU samples": _covered(results.trace.samples, results),
    }
    return [
        f"the {name} cover {share(part)} of the window; what they would tell of the rest is not known"
        for name, part in parts.items()
        if part is not None and part < WHOLE
    ]


def _covered(events: pl.DataFrame, results: Results) -> float | None:
    """Return the share of the window from the first to the last of the events; None without any."""
    if events.is_empty():
        return None
    window = results.window
    first, last = int(events["ts_ns"].min()), int(events["ts_ns"].max())  # type: ignore[arg-type]
    return max(0, min(last, window.end_ns) - max(first, window.start_ns)) / window.duration_ns


def _wakeups(results: Results) -> list[str]:
    ended, woken = sleeps(results.trace, results.window)
    if ended < FEWEST_SLEEPS or not woken or woken >= WOKEN * ended:
        return []
    without = share(1 - woken / ended)
    lacks = "such events are missing, so how long threads waited for a CPU is not known there"
    return [f"{without} of {ended:,} sleeps end without a wake-up: {lacks}"]
