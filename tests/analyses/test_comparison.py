"""The figures of a run, worked out by hand from the small server."""

from dataclasses import replace

import polars as pl
import pytest

from tests.charts.server import MS, full_server, make
from tracelib import charts
from tracelib.analyses.comparison import comparison


@pytest.fixture
def full():
    return full_server()


def test_compared_figures_by_hand(full):
    """Useful: 400 + 300 of 2000 ms. Busy: 600 + 300. Short of a CPU: 300 + 300 + 400. Requests: 200, 400."""
    figures = comparison({"a": full}, {"a": 4})
    value = dict(figures.select("figure", "value").iter_rows())
    assert value["useful"] == pytest.approx(0.35)
    assert value["busy"] == pytest.approx(0.45)
    assert value["CPU shortage"] == pytest.approx(0.5)
    assert value["lost to tokenization"] == pytest.approx(0.35)
    assert sum(v for name, v in value.items() if name.startswith("lost to")) == pytest.approx(
        full.lost["dur_ns"].sum() / (2000 * MS)
    )
    assert value["ttft p50"] == 200 * MS  # the nearest rank, as everywhere in a report
    assert set(figures["cores"]) == {4}
    inside = figures.filter(pl.col("low").is_not_null())
    assert ((inside["low"] <= inside["value"]) & (inside["value"] <= inside["high"])).all()


def test_tokens_per_second_are_one_worker_s_or_the_log_s_or_not_told(full):
    """In one second rank 0 took 20 tokens in and wrote 3; rank 1 did the same steps."""
    value = dict(comparison({"a": full}).select("figure", "value").iter_rows())
    assert (value["prompt tokens"], value["decode tokens"]) == (pytest.approx(20), pytest.approx(3))
    mute = full.step_tokens.with_columns(prefill=pl.lit(None, pl.Int64), decode=pl.lit(None, pl.Int64))
    untold = replace(full, step_tokens=mute)
    assert not [name for name in comparison({"a": untold})["figure"] if "tokens" in name]
    assert "neither the names" in repr(charts.draw(charts.tokens_chart, comparison({"a": untold}), "decode"))
    logged = replace(untold, requests=full.requests.with_columns(prompt_tokens=pl.lit(7, pl.Int64)))
    told = dict(comparison({"a": logged}).select("figure", "value").iter_rows())
    assert told["prompt tokens"] == pytest.approx(14)
    assert "decode tokens" not in told


def test_a_shortage_that_no_event_tells_is_no_figure(full):
    blind = full.lost.with_columns(cpu_state=pl.lit("unknown").cast(full.lost["cpu_state"].dtype))
    assert "CPU shortage" not in comparison({"a": make(lost=blind)})["figure"].to_list()
