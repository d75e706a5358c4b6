"""A chart says its sentence; where there is none, a line says why."""

import polars as pl

from tests.charts.server import make
from tracelib import charts
from tracelib.analyses.comparison import comparison
from tracelib.analyses.lost import HOST_TIME


def test_a_drawn_chart_says_its_sentence_to_a_console(full):
    shown = charts.draw(charts.exposure_chart, full, "tokenization")
    assert repr(shown) == shown.figure.layout.meta["sentence"]
    assert repr(
        charts.draw(charts.exposure_chart, make(host_time=pl.DataFrame(schema=HOST_TIME)), "gc")
    ).startswith("No chart of exposure of gc")
    assert repr(charts.draw(charts.first_tokens_chart, comparison({"a": full}).clear())).startswith(
        "No chart of first tokens: no run has a request log"
    )


def test_draw_says_what_is_missing(results):
    nothing = make(demand=results.demand.clear(), missing={"demand": "no <sched> events"})
    notice = charts.draw(charts.demand_chart, nothing)
    assert repr(notice) == "No chart of demand: no <sched> events."
    assert "no &lt;sched&gt; events" in notice._repr_html_()
