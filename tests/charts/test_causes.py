"""Bars of lost time add up to the ledger; one cause by its parts and over time, worked out by hand."""

import numpy as np
import polars as pl

from tests.charts.server import MS, make
from tracelib import charts


def bars_at(figure, label):
    """Return what the bars of the row called `label` add up to, by trace name."""
    axis = figure.layout.yaxis
    places = {v for v, t in zip(axis.tickvals, axis.ticktext, strict=True) if t == label}
    return {
        t.name: sum(x for x, y in zip(t.x, t.y, strict=True) if y in places)
        for t in figure.data
        if t.name and any(y in places and x for x, y in zip(t.x, t.y, strict=True))
    }


def test_causes_by_cpu_state(results):
    figure = charts.causes_chart(results)
    assert bars_at(figure, "tokenization: encoding") == {"wanted a CPU and had none": 700}
    assert bars_at(figure, "kernel launch: framework between launches") == {
        "on a CPU": 100,
        "wanted a CPU and had none": 300,
    }
    assert bars_at(figure, "imbalance between ranks") == {"on a CPU": 200}
    total = sum(sum(t.x) for t in figure.data)
    assert total == results.causes["ns"].sum() / MS == 1300


def test_causes_of_many_kinds_are_summed_as_the_rest(results):
    many = pl.concat(
        [
            results.causes.head(1).with_columns(
                gpu=pl.lit(0, pl.Int32), cause=pl.lit(f"c{i}"), ns=pl.lit(1000 * MS - i * MS, pl.Int64)
            )
            for i in range(40)
        ]
    )
    figure = charts.causes_chart(make(causes=many))
    drawn = [t for t in figure.layout.yaxis.ticktext if not t.startswith("<b>")]
    assert len(drawn) <= 25
    assert drawn[-1] == "the rest"
    assert sum(sum(t.x) for t in figure.data) == many["ns"].sum() / MS


def test_exposure_by_hand(full):
    """The tokenizer worked 400 ms; GPU 0 lost 300 ms to it and GPU 1 400, all without a CPU: 700."""
    figure = charts.exposure_chart(full, "tokenization")
    assert [list(bar.x) for bar in figure.data] == [[400.0], [400.0], [700.0]]
    assert figure.layout.meta["sentence"] == (
        "Host threads spent 400 ms on tokenization; it cost 2 GPUs 700 ms, 35 % of GPU time; "
        "for 35 % the blamed thread wanted a CPU and had none."
    )
    assert charts.exposure_chart(full, "gc") is None


def test_host_time_that_cost_nothing_is_not_called_a_cost(full):
    hidden = make(host_time=full.host_time, lost=full.lost.clear())
    said = charts.exposure_chart(hidden, "tokenization").layout.meta["sentence"]
    assert "none of it is exposed" in said


def test_moments_by_hand(full):
    """In ten pieces of 100 ms: nothing to 600 ms, then both GPUs (100 %), GPU 1 alone (50 %) in the last."""
    figure = charts.moments_chart(full, "tokenization", 10)
    lost, threads = figure.data
    assert np.allclose(lost.y[:-1], [0] * 6 + [100] * 3 + [50])
    assert np.allclose(threads.y[:-1], [0] * 6 + [1] * 4)
    assert figure.layout.meta["sentence"].startswith(
        "35 % of all GPU time was lost to tokenization, most between 600 and 700 ms (100 %)"
    )
