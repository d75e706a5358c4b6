"""How long scheduler states take, by number of events: `python benchmarks/scheduler_states.py [millions
...]`.

A made-up machine of 64 CPUs and 600 threads, half of the switches preemptions, each CPU's threads its own.
Prints events, states, seconds and the highest memory so far; it should grow in step with the events.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import polars as pl

from tracelib import schema
from tracelib.analyses.scheduling import demand, scheduling
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.window import Window
from tracelib.trace import Trace

CPUS, THREADS = 64, 600


def machine(events: int, seed: int = 1) -> Trace:
    """Return a trace of about so many scheduler events, three quarters of them switches."""
    rng = np.random.default_rng(seed)
    switches = events * 4 // 5 // CPUS
    parts = []
    for cpu in range(CPUS):
        own = np.arange(cpu, THREADS, CPUS)
        on = own[rng.integers(0, len(own), switches)]
        on = np.where(np.r_[False, on[1:] == on[:-1]], schema.IDLE, on)
        at = np.cumsum(rng.integers(1_000, 40_000, switches))
        left = np.r_[schema.IDLE, on[:-1]]
        state = np.where(rng.integers(0, 2, switches) == 0, "R", "S")
        parts.append(
            pl.DataFrame(
                {"ts_ns": at, "cpu": cpu, "event": "switch", "prev": left, "prev_state": state, "next": on}
            )
        )
        woken = np.sort(rng.choice(switches, switches // 3, replace=False))
        parts.append(
            pl.DataFrame(
                {
                    "ts_ns": at[woken] - 500,
                    "cpu": cpu,
                    "event": "wakeup",
                    "prev": schema.IDLE,
                    "prev_state": None,
                    "next": on[woken],
                },
                schema_overrides={"prev_state": pl.String},
            ).filter(pl.col("next") >= 0)
        )
    sched = pl.concat(parts, how="vertical_relaxed").with_columns(source=0).cast(dict(schema.SCHED.items()))
    return Trace.of(
        {
            "sched": sched.select(list(schema.SCHED)).sort("ts_ns"),
            "threads": pl.DataFrame(
                [{"thread": t, "pid": 1, "tid": t} for t in range(THREADS)], schema=schema.THREADS
            ),
            "sources": pl.DataFrame([{"source": 0, "tied_by": "declared"}], schema=schema.SOURCES),
        }
    )


def main() -> None:
    """Print one line per size."""
    for millions in [float(arg) for arg in sys.argv[1:]] or [1, 2, 4]:
        trace = machine(round(millions * 1e6))
        over = Window(int(trace.sched["ts_ns"][0]), int(trace.sched["ts_ns"][-1]), "all")
        began = time.perf_counter()
        states = thread_states(trace, over)
        rebuilt = time.perf_counter()
        demand(trace, over, states)
        scheduling(trace, states)
        ended = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{trace.sched.height:>9,} events -> {states.height:>9,} states: {rebuilt - began:5.2f} s, "
            f"demand and sums {ended - rebuilt:5.2f} s, peak {peak:,} MB"
        )


if __name__ == "__main__":
    main()
