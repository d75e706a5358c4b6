"""Binning is exact, against a second implementation that goes interval by interval."""

import itertools
import random

import polars as pl

from tracelib.intervals.cover import bin_borders, covered_ns, state_shares, weighted_mean

BASE = 1_700_000_000_000_000_000


def covered_by_hand(intervals, borders):
    return [
        sum(max(0, min(ts + dur, int(high)) - max(ts, int(low))) for ts, dur in intervals)
        for low, high in itertools.pairwise(borders)
    ]


def test_cover_of_intervals_that_overlap_and_stick_out():
    rng = random.Random(7)
    intervals = [(BASE + rng.randrange(-500, 5000), rng.randrange(900)) for _ in range(300)]
    borders = bin_borders(BASE, BASE + 4321, 13)
    ts, dur = (pl.Series(column, dtype=pl.Int64) for column in zip(*intervals, strict=True))
    assert covered_ns(ts, dur, borders).tolist() == covered_by_hand(intervals, borders)


def test_borders_hold_the_window_and_never_outnumber_its_nanoseconds():
    assert bin_borders(BASE, BASE + 10, 4).tolist() == [BASE, BASE + 2, BASE + 5, BASE + 7, BASE + 10]
    assert len(bin_borders(BASE, BASE + 3, 100)) == 4


def test_state_shares_of_an_empty_frame_is_zero():
    empty = pl.DataFrame(schema={"ts_ns": pl.Int64, "dur_ns": pl.Int64, "state": pl.String})
    assert state_shares(empty, ["a"], bin_borders(0, 10, 2)).tolist() == [[0.0, 0.0]]


def test_weighted_mean_of_a_step_function():
    steps = pl.DataFrame({"ts_ns": [BASE, BASE + 6], "dur_ns": [4, 4], "n": [3, 1]})
    assert weighted_mean(steps, "n", bin_borders(BASE, BASE + 10, 2)).tolist() == [12 / 5, 4 / 5]
