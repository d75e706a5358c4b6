"""Binning is exact, against a second implementation that goes interval by interval."""

import itertools
import random

import numpy as np
import polars as pl

from tracelib.charts.bins import cover, edges, log_edges, occupancy
from tracelib.charts.demand import weighted_mean

BASE = 1_700_000_000_000_000_000


def slow_cover(intervals, borders):
    return [
        sum(max(0, min(ts + dur, int(high)) - max(ts, int(low))) for ts, dur in intervals)
        for low, high in itertools.pairwise(borders)
    ]


def test_cover_of_intervals_that_overlap_and_stick_out():
    rng = random.Random(7)
    intervals = [(BASE + rng.randrange(-500, 5000), rng.randrange(900)) for _ in range(300)]
    borders = edges(BASE, BASE + 4321, 13)
    ts, dur = (pl.Series(column, dtype=pl.Int64) for column in zip(*intervals, strict=True))
    assert cover(ts, dur, borders).tolist() == slow_cover(intervals, borders)


def test_edges_hold_the_window_and_never_outnumber_its_nanoseconds():
    assert edges(BASE, BASE + 10, 4).tolist() == [BASE, BASE + 2, BASE + 5, BASE + 7, BASE + 10]
    assert len(edges(BASE, BASE + 3, 100)) == 4


def test_occupancy_of_an_empty_frame_is_zero():
    empty = pl.DataFrame(schema={"ts_ns": pl.Int64, "dur_ns": pl.Int64, "state": pl.String})
    assert occupancy(empty, ["a"], edges(0, 10, 2)).tolist() == [[0.0, 0.0]]


def test_log_edges_hold_all_positive_values():
    borders = log_edges(pl.Series([0, -3, 7, 1000]), per_decade=1)
    assert np.allclose(borders, [1, 10, 100, 1000, 10_000])


def test_weighted_mean_of_a_step_function():
    steps = pl.DataFrame({"ts_ns": [BASE, BASE + 6], "dur_ns": [4, 4], "n": [3, 1]})
    assert weighted_mean(steps, "n", edges(BASE, BASE + 10, 2)).tolist() == [12 / 5, 4 / 5]
