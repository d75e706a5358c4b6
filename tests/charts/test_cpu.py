"""Threads, their demand and their CPU time, in numbers worked out by hand from the small server."""

import numpy as np
import polars as pl

from tests.charts.server import MS, make, named
from tracelib import charts


def test_demand_is_the_mean_of_each_bin(results):
    running, runnable = list(charts.demand_chart(results, bins=2).data)[:2]
    # first half: running 2 throughout; runnable 1 for 300 of 500 ms
    assert np.allclose(running.y[0], 2)
    assert np.allclose(runnable.y[0], 0.6)
    # second half: 100 ms of 2+0, 360 of 2+2, 40 of 1+5
    assert np.allclose(running.y[1], (100 * 2 + 360 * 2 + 40) / 500)
    assert np.allclose(runnable.y[1], (360 * 2 + 40 * 5) / 500)


def test_thread_bars_are_the_schedulers_times(results):
    traces = named(charts.threads_chart(results))
    assert list(traces["wanted a CPU and had none"].x) == [300, 0]  # rank 1 first: it lacked a CPU
    assert list(traces["on a CPU"].x) == [700, 600]


def test_a_system_thread_is_not_the_server(results):
    starving = results.scheduling.head(1).with_columns(
        role=pl.lit("system"), runnable_ns=pl.lit(900 * MS, pl.Int64)
    )
    sentence = charts.threads_chart(make(scheduling=pl.concat([results.scheduling, starving]))).layout.meta[
        "sentence"
    ]
    assert sentence.startswith("worker rank 1")


def test_time_that_is_rebuilt_is_said_to_be(results):
    """170 ms of two threads' 2 x 1 s."""
    inferred = pl.Series("inferred_ns", [0, 170 * MS])
    figure = charts.threads_chart(make(scheduling=results.scheduling.with_columns(inferred)))
    assert figure.layout.meta["sentence"].endswith(
        "more than any other thread of the server. Switches from idle are missing: 8.5 % of the threads' "
        "time is rebuilt from what they did next (wake-ups, samples, the next switch)."
    )


def test_time_that_nobody_recorded_is_in_no_share(results):
    """Of 1 s it lacked a CPU for 300 ms and slept or ran for 100; the other 600 ms are not known."""
    partly = results.scheduling.with_columns(
        runnable_ns=pl.lit(300 * MS, pl.Int64),
        throttled_ns=pl.lit(0, pl.Int64),
        running_ns=pl.lit(60 * MS, pl.Int64),
        blocked_ns=pl.lit(40 * MS, pl.Int64),
        unknown_ns=pl.lit(600 * MS, pl.Int64),
        inferred_ns=pl.lit(100 * MS, pl.Int64),
    )
    sentence = charts.threads_chart(make(scheduling=partly.head(1))).layout.meta["sentence"]
    assert (
        "for 300 ms, 75 % of the time for which its states are known (40 % of the window), more than"
        in sentence
    )
    assert "missing: 25 % of the threads' time is rebuilt" in sentence


def test_cpu_seconds_with_intervals(results):
    figure = charts.cpu_time_chart(results)
    worker, api = figure.data
    assert ([round(x, 12) for x in worker.x], list(api.x)) == ([0.6], [0.4])  # 0.6 is no binary fraction
    assert np.allclose(worker.error_x.array, [0.1])
    assert np.allclose(api.error_x.arrayminus, [0.1])
