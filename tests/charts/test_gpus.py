"""States, utilisation and kernels, in numbers worked out by hand from the small server."""

import numpy as np
import polars as pl

from tests.charts.server import HOSTILE, make, named, trace
from tracelib import charts


def test_gpu_states_in_per_cent(results):
    traces = named(charts.states_chart(results))
    assert list(traces["GPU computes"].x) == [30, 20]
    assert list(traces["spins for a late rank"].x) == [20, 0]
    assert list(traces["GPU idle"].x) == [40, 70]


def test_staircase_of_useful_and_busy(results):
    useful, busy = list(charts.staircase_chart(results, bins=2).data)[:2]
    assert np.allclose(useful.y[:2], [60, 20])  # rank 0: 300 of 500 ms, then 100 of 500
    assert np.allclose(busy.y[:2], [100, 20])


def test_one_rank_alone_says_at_least(results):
    alone = results.gpu_states.filter(pl.col("gpu") == 1).with_columns(
        pl.col("state")
        .cast(pl.String)
        .replace("collective_transfer", "collective")
        .cast(results.gpu_states.schema["state"])
    )
    time = alone.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum())
    one = make(gpu_states=alone, gpu_time=time)
    assert charts.states_chart(one).layout.meta["sentence"] == (
        "The GPU of rank 1 looked busy for 30 % of the window and did useful work for 20 %; "
        "10 % in collectives, where waiting cannot be told from transfer: not all of their ranks were "
        "recorded or matched."
    )
    assert "useful work for at least 20 % of GPU time" in charts.timeline_chart(one).layout.meta["sentence"]


def test_gpus_without_ranks_are_named_by_device():
    unranked = trace()
    unranked = unranked.replace(gpus=unranked.gpus.with_columns(rank=pl.lit(None, pl.Int32)))
    assert charts.states_chart(make(trace=unranked)).layout.meta["sentence"].startswith("GPU 0 looked")


def test_kernels_are_cut_at_the_window_and_summed_by_name(full):
    figure = charts.kernels_chart(full)
    assert list(figure.data[0].x) == [600.0, 50.0]
    assert list(figure.layout.yaxis.ticktext) == ["gemm", "ncclAllReduce"]
    assert (
        figure.layout.meta["sentence"]
        == "gemm takes 92 % of 650 ms of GPU operations; 1 of 2 names makes up half of it."
    )


def test_a_kernel_s_name_stays_text(full):
    ops = full.trace.gpu_ops.with_columns(name=pl.lit(HOSTILE).cast(pl.Categorical))
    figure = charts.kernels_chart(make(trace=trace(gpu_ops=ops)))
    for text in (*figure.data[0].customdata, *figure.layout.yaxis.ticktext):
        assert text.startswith("&lt;a href")
        assert "<" not in text
        assert "$x$" not in text
