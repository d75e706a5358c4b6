"""Runs side by side, in words and with the band in which noise alone would move each figure."""

import polars as pl

from tests.charts.server import make
from tracelib import charts
from tracelib.analyses.comparison import comparison
from tracelib.analyses.replay import Load


def test_runs_stand_side_by_side(full):
    table = charts.side_by_side(comparison({"a": full, "b": make(trace=full.trace)}))
    assert table.columns == ["figure", "a", "b"]
    cells = dict(table.select("figure", "a").iter_rows())
    assert cells["useful GPU time"].startswith("35 % (")
    assert cells["prompt tokens taken in per second"].startswith("20.0/s (")
    assert dict(table.select("figure", "b").iter_rows())["prompt tokens taken in per second"] == ""


def test_a_steady_figure_has_no_band_and_a_change_of_it_is_more_than_noise(full):
    steady = full.gpu_states.with_columns(state=pl.lit("compute").cast(full.gpu_states["state"].dtype))
    busy = make(trace=full.trace, gpu_states=steady, lost=full.lost.clear())
    row = comparison({"busy": busy}).filter(pl.col("figure") == "useful").row(0, named=True)
    assert (row["value"], row["low"], row["high"]) == (1.0, 1.0, 1.0)
    said = charts.utilisation_chart(comparison({"a": full, "b": busy}, {"a": 2, "b": 8})).layout.meta[
        "sentence"
    ]
    assert said.startswith("From a to b: useful GPU time 35 % to 100 % (more than noise)")
    same = charts.utilisation_chart(comparison({"a": full, "b": full})).layout.meta["sentence"]
    assert "more than noise" not in same


def test_how_requests_come_is_said_of_each_run_and_what_follows():
    unknown, closed = Load(), Load(closed=True, known=True, why="clients wait")
    assert charts.loads_compared({"a": unknown}) == [f"a: {unknown.why}."]
    said = charts.loads_compared({"a": closed, "b": Load(known=True, why="requests come")})
    assert said[:2] == ["a: clients wait.", "b: requests come."]
    assert said[2].startswith("Where clients wait for answers a faster server is asked more often")
    assert said[3].startswith("The loads are of two kinds")
