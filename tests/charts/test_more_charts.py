"""Charts of one cause, of several runs, of capacity: held to numbers worked out by hand from the small server."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.charts.server import MS, START, W0, W1, make, trace
from tests.charts.test_charts import HOSTILE, OTHERS
from tracelib import charts
from tracelib.analyses.capacity import capacity, options
from tracelib.analyses.comparison import comparison
from tracelib.analyses.lost import HOST_TIME, host_time
from tracelib.analyses.requests import STEP_TOKENS
from tracelib.charts.moments import worst_moment
from tracelib.report.instances import instances
from tracelib.schema import FRAMES

OP = {"source": 0, "stream": 7, "kind": "kernel"}


@pytest.fixture
def full():
    """The hand-made server with host time and GPU operations: 600 ms of gemm in two runs, 100 ms of a collective."""
    base = make()
    ops = pl.DataFrame(
        [
            OP | {"gpu": 0, "ts_ns": START, "dur_ns": 300 * MS, "name": "gemm"},
            OP | {"gpu": 1, "ts_ns": START + 300 * MS, "dur_ns": 300 * MS, "name": "gemm"},
            OP
            | {
                "gpu": 0,
                "ts_ns": START + 950 * MS,
                "dur_ns": 150 * MS,
                "name": "ncclAllReduce",
                "collective": "all_reduce",
            },
        ],
        schema_overrides=FRAMES["gpu_ops"],
    ).match_to_schema(FRAMES["gpu_ops"], missing_columns="insert")
    activity = base.host_activity.with_columns(waits_for=pl.lit(None, pl.String))
    steps = [
        (W0, 0, START, 100 * MS, 20, 0),
        (W0, 0, START + 500 * MS, 100 * MS, 0, 3),
        (W1, 1, START, 600 * MS, 20, 3),
    ]
    return make(
        trace=trace(gpu_ops=ops),
        host_activity=activity,
        step_tokens=pl.DataFrame(steps, schema=STEP_TOKENS, orient="row"),
        host_time=host_time(activity, base.lost.with_columns(pl.col("cause", "sub_cause").cast(pl.String))),
    )


def figure_of(name, full):
    figures = comparison({"before": full, "after": full})
    given = {
        "capacity_chart": (capacity(full),),
        "kernels_chart": (full,),
        "losses_chart": (figures,),
        "first_tokens_chart": (figures,),
        "tokens_chart": (figures, "decode"),
        "utilisation_chart": (figures,),
    }
    return getattr(charts, name)(*given.get(name, (full, "tokenization")))


@pytest.mark.parametrize("name", OTHERS)
def test_drawn_by_the_basic_bundle_with_a_sentence_and_a_table(full, name):
    figure = figure_of(name, full)
    assert {t.type for t in figure.data} <= {"bar", "scatter"}
    assert figure.layout.meta["sentence"].endswith(".")
    header, *body = figure.layout.meta["table"]
    assert 1 <= len(body) <= 30
    assert {len(row) for row in body} == {len(header)}


def test_exposure_by_hand(full):
    """The tokenizer worked 400 ms; GPU 0 lost 300 ms to it and GPU 1 400, all of it without a CPU: 700 of 2000 ms."""
    figure = charts.exposure_chart(full, "tokenization")
    assert [list(bar.x) for bar in figure.data] == [[400.0], [400.0], [700.0]]
    assert figure.layout.meta["sentence"] == (
        "Host threads spent 400 ms on tokenization; it cost 2 GPUs 700 ms, 35 % of their time, and for 100 % of that the "
        "blamed thread wanted a CPU and had none."
    )
    assert charts.exposure_chart(full, "gc") is None


def test_host_time_that_cost_nothing_is_not_called_a_cost(full):
    hidden = make(host_time=full.host_time, lost=full.lost.clear())
    said = charts.exposure_chart(hidden, "tokenization").layout.meta["sentence"]
    assert "none of it is exposed" in said


def test_moments_by_hand(full):
    """In ten pieces of 100 ms: nothing to 600 ms, then both GPUs (100 %), and GPU 1 alone (50 %) in the last piece."""
    figure = charts.moments_chart(full, "tokenization", 10)
    lost, threads = figure.data
    assert np.allclose(lost.y[:-1], [0] * 6 + [100] * 3 + [50])
    assert np.allclose(threads.y[:-1], [0] * 6 + [1] * 4)
    assert figure.layout.meta["sentence"].startswith(
        "35 % of all GPU time was lost to tokenization, most between 600 and 700 ms (100 %)"
    )


def test_the_worst_moment_is_the_longest_stretch_though_it_be_of_many_pieces(full):
    assert worst_moment(full, "tokenization") == (START + 600 * MS, START + 1000 * MS)
    half = full.lost.filter((pl.col("gpu") == 1) & (pl.col("cause") == "tokenization"))
    first = half.with_columns(dur_ns=pl.lit(200 * MS, pl.Int64))
    second = first.with_columns(
        ts_ns=pl.col("ts_ns") + 200 * MS, cpu_state=pl.lit("running").cast(half["cpu_state"].dtype)
    )
    cut = make(
        lost=pl.concat(
            [full.lost.filter(~((pl.col("gpu") == 1) & (pl.col("cause") == "tokenization"))), first, second]
        )
    )
    assert worst_moment(cut, "tokenization") == (START + 600 * MS, START + 1000 * MS)
    assert worst_moment(full, "gc") is None
    assert "lasts 400 ms" in charts.worst_chart(full, "tokenization").layout.meta["sentence"]


def test_kernels_are_cut_at_the_window_and_summed_by_name(full):
    figure = charts.kernels_chart(full)
    assert list(figure.data[0].x) == [600.0, 50.0]
    assert list(figure.layout.yaxis.ticktext) == ["gemm", "ncclAllReduce"]
    assert (
        figure.layout.meta["sentence"]
        == "Of 650 ms of GPU operations 92 % are gemm; 1 name of 2 make half of it."
    )


def test_a_kernel_s_name_stays_text(full):
    ops = full.trace.gpu_ops.with_columns(name=pl.lit(HOSTILE).cast(pl.Categorical))
    figure = charts.kernels_chart(make(trace=trace(gpu_ops=ops)))
    for text in (*figure.data[0].customdata, *figure.layout.yaxis.ticktext):
        assert text.startswith("&lt;a href")
        assert "<" not in text
        assert "$x$" not in text


def test_compared_figures_by_hand(full):
    """Useful: (400 + 300) of 2000 ms. Busy: (600 + 300). Short of a CPU: 300 + 300 + 400. Requests: 200 and 400 ms."""
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
    """In one second rank 0 took 20 tokens in and wrote 3; rank 1 did the same steps. A step that does not tell stops it."""
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


def test_a_shortage_that_no_event_tells_is_no_figure(full):
    blind = full.lost.with_columns(cpu_state=pl.lit("unknown").cast(full.lost["cpu_state"].dtype))
    assert "CPU shortage" not in comparison({"a": make(lost=blind)})["figure"].to_list()


def test_only_the_rules_of_others_are_called_so(full):
    """2 GPUs: the article's rule asks for 10, the floor for 4, the band for 8 to 16; what this run shows is none of them."""
    sentence = charts.capacity_chart(capacity(full, 8192)).layout.meta["sentence"]
    assert sentence.endswith("the rules of others ask for 4 to 16 (4 of them).")
    one = capacity(full).with_columns(
        cores=pl.when(pl.col("estimate").str.starts_with("cores that")).then(1.0).otherwise("cores")
    )
    said = charts.capacity_chart(one).layout.meta["sentence"]
    assert said.startswith("The server had 1 core; ")
    assert said.endswith("the rules of others ask for 4 to 16 (3 of them).")


def test_capacity_by_hand(full):
    """2 GPUs; the demand is 3 for 300 ms, 2 for 300, 4 for 360, 6 for 40: median 3, 95 % reach 4, 99 % reach 6."""
    cores = dict(capacity(full, 8192).select("estimate", "cores").iter_rows())
    assert cores["measured demand, p50"] == 3
    assert cores["measured demand, p95"] == 4
    assert cores["measured demand, p99"] == 6
    assert cores["article's rule"] == 10  # 2 x (2 + 3)
    assert cores["floor: GPUs + 2 runnable processes"] == 4
    assert (cores["band, low end: 4 cores a GPU"], cores["band, high end: 8 cores a GPU"]) == (8, 16)
    assert cores["of it busy polling, mean"] == pytest.approx(0.6)  # 600 ms of CPU in 1000 ms
    assert cores["measured demand, mean"] == pytest.approx((3 * 300 + 2 * 300 + 4 * 360 + 6 * 40) / 1000)
    assert cores["demand without busy polling, mean"] == pytest.approx(3.18 - 0.6)
    unknown = capacity(make(demand=full.demand.clear(), missing={"demand": "no wake-ups"}))
    told = dict(unknown.select("estimate", "why_not").iter_rows())
    assert told["measured demand, p95"] == "no wake-ups"
    assert told["article's rule"] == "mean input tokens not given"
    assert all(row["source"] for row in unknown.iter_rows(named=True))


def test_an_option_costs_what_its_price_says(full):
    offer = options(full, instances().head(1)).row(0, named=True)
    lost = full.lost["dur_ns"].sum() / (2000 * MS)
    assert offer["cores_per_gpu"] == 96 / 2 / 8
    assert offer["covers_p95_demand"]  # 2 GPUs x 6 cores against 4 threads
    assert offer["lost_per_hour"] == pytest.approx(32.77 * lost)
    assert offer["shortage_per_hour"] == pytest.approx(32.77 * 0.5)
    assert all(row["date"] and row["source"] for row in instances().iter_rows(named=True))


def test_a_drawn_chart_says_its_sentence_to_a_console(full):
    shown = charts.draw(charts.exposure_chart, full, "tokenization")
    assert repr(shown) == shown.figure.layout.meta["sentence"]
    assert repr(
        charts.draw(charts.exposure_chart, make(host_time=pl.DataFrame(schema=HOST_TIME)), "gc")
    ).startswith("No chart of exposure of gc")
    assert repr(charts.draw(charts.first_tokens_chart, comparison({"a": full}).clear())).startswith(
        "No chart of first tokens: no run has a request log"
    )
