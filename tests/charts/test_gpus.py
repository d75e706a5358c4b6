"""States, utilisation and kernels, in numbers worked out by hand from the small server."""

import numpy as np
import polars as pl

from tests.charts.server import HOSTILE, LOST, STATES, W0, make, named, rows, trace
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


def many(count, odd=()):
    """`count` GPUs of 1000 ms that compute for 600, those in `odd` for 200, in ms from the start."""
    states = [
        piece
        for gpu in range(count)
        for piece in (
            (gpu, 0, 200 if gpu in odd else 600, "compute"),
            (gpu, 200 if gpu in odd else 600, 800 if gpu in odd else 400, "idle"),
        )
    ]
    gpu_states = rows(STATES, *states)
    time = gpu_states.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum()).sort("gpu", "state")
    lost = [(gpu, 600, 400, "idle", W0, "kernel_launch", None, "running", None) for gpu in range(count)]
    gpus = pl.DataFrame({"gpu": range(count), "rank": range(count)}).with_columns(
        pl.col("gpu", "rank").cast(pl.Int32), host=pl.lit("h"), device=pl.lit(0, pl.Int32), name=pl.lit("H")
    )
    run = trace().replace(gpus=gpus.select(trace().gpus.columns))
    return make(trace=run, gpu_states=gpu_states, gpu_time=time, lost=rows(LOST, *lost))


def test_many_gpus_are_a_heatmap_in_numeric_order_and_those_apart_are_named():
    figure = charts.staircase_chart(many(64, odd=(10,)), bins=5)
    heat, bar = figure.data
    assert heat.type == "heatmap"
    assert list(heat.y) == list(bar.y) == [f"rank {n}" for n in range(64)]
    assert heat.z[2].tolist() == [100, 100, 100, 0, 0]
    assert heat.z[10].tolist() == [100, 0, 0, 0, 0]
    assert bar.x[10] == 20
    assert figure.layout.meta["sentence"].endswith(
        "Their median is 60 %, from 20 % (rank 10) to 60 % (rank 63); apart from the others: rank 10 (20 %)."
    )
    assert len(figure.layout.meta["table"]) == 65
    alike = charts.staircase_chart(many(9), bins=5).layout.meta["sentence"]
    assert alike.endswith("; none stands apart.")


def test_a_picture_says_how_many_gpus_it_leaves_out():
    assert charts.timeline_sentence(many(64)).endswith(
        "Of 64 GPUs the 8 that lost most are drawn; 56 GPUs are not drawn."
    )
    assert charts.timeline_sentence(many(9)).endswith("; 1 GPU is not drawn.")
    assert "drawn" not in charts.timeline_sentence(many(8))
