"""A sample speaks for the time since the one before it, but not for time in which its thread slept."""

import polars as pl

from tests.analyses.scheduling_frames import IDLE, switch, trace, wakeup, window
from tracelib import schema
from tracelib.analyses.cpu_time import sample_stretches
from tracelib.analyses.host_activity import host_activity
from tracelib.analyses.thread_states import thread_states
from tracelib.rules import load_rules


def test_a_sample_after_a_sleep_tells_only_of_the_time_awake():
    """Thread 1 sleeps 0..900, runs 900..1400, and is sampled at 1000 with a period of 500: 500..900 is not its doing."""
    made = trace(
        [
            switch(0, 0, 1, "S", IDLE),
            wakeup(900, 0, 1),
            switch(900, 0, IDLE, "R", 1),
            switch(1400, 0, 1, "S", IDLE),
        ],
        samples=[(1000, 1)],
        period=500,
    )
    stacks = pl.DataFrame(
        [(0, 0, "gc_collect_main", "/usr/bin/python3.12")], schema=schema.STACKS, orient="row"
    )
    sampled = made.replace(samples=made.samples.with_columns(stack=pl.lit(0, pl.Int32)), stacks=stacks)
    over = window(0, 1400)
    told = host_activity(
        sampled,
        over,
        load_rules(),
        thread_states(sampled, over),
        sample_stretches(sampled, over, load_rules()),
    )
    assert told.select("thread", "ts_ns", "dur_ns", "cause").rows() == [(1, 900, 100, "gc")]
