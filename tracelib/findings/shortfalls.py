"""What the kernel's recordings leave out, in words: the verdict gives it as a reason to be less sure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.scheduler_events import sleeps
from tracelib.words import share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

#: Recordings that cover so much of the window, and wake-ups that end so many sleeps, are not worth a word.
WHOLE, WOKEN = 0.95, 0.8
#: Fewer sleeps say nothing of wake-ups.
FEWEST_SLEEPS = 20


def shortfalls(results: Results) -> list[str]:
    """Return what to say of scheduler events and samples that cover a part of the window or lack wake-ups."""
    return [*_covers(results), *_wakeups(results)]


def _covers(results: Results) -> list[str]:
    window, said = results.window, []
    for events, name in ((results.trace.sched, "scheduler events"), (results.trace.samples, "CPU samples")):
        if events.is_empty():
            continue
        first, last = events.select(a=pl.col("ts_ns").min(), b=pl.col("ts_ns").max()).row(0)
        inside = max(0, min(last, window.end_ns) - max(first, window.start_ns))
        covered = inside / window.duration_ns
        if covered < WHOLE:
            said.append(
                f"the {name} cover {share(covered)} of the window; "
                "what they would tell of the rest is not known"
            )
    return said


def _wakeups(results: Results) -> list[str]:
    ended, woken = sleeps(results.trace, results.window)
    if ended < FEWEST_SLEEPS or not woken or woken >= WOKEN * ended:
        return []
    without = share(1 - woken / ended)
    lacks = "such events are missing, so how long threads waited for a CPU is not known there"
    return [f"{without} of {ended:,} sleeps end without a wake-up: {lacks}"]
