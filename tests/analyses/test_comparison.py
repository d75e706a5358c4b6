"""The figures of a run, worked out by hand from the small server."""

from dataclasses import replace

import polars as pl
import pytest

from tests.charts.server import MS, full_server, make
from tracelib import charts
from tracelib.analyses.comparison import KERNELS, comparison, kernel_changes, kernels


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


def test_what_only_one_run_lost_is_0_in_the_other_and_what_it_cannot_tell_has_no_row(full):
    calm = replace(full, lost=full.lost.filter(pl.col("cause") != "tokenization"))
    blind = replace(full, gpu_states=full.gpu_states.clear())
    rows = comparison({"a": full, "calm": calm, "blind": blind})
    lost = rows.filter(pl.col("figure") == "lost to tokenization").select("run", pl.col("value").round(2))
    assert lost.rows() == [("a", 0.35), ("calm", 0.0)]
    assert rows["run"].unique(maintain_order=True).to_list() == ["a", "calm", "blind"]


def test_kernels_are_counted_per_gpu_and_second_of_the_window(full):
    """Against Python's own sums, row by row."""
    window, time_s = full.window, full.window.duration_ns * 2 / 1e9
    sums = {}
    for row in full.trace.gpu_ops.iter_rows(named=True):
        begin, end = row["ts_ns"], row["ts_ns"] + row["dur_ns"]
        cut = min(end, window.end_ns) - max(begin, window.start_ns)
        if cut > 0:
            sums.setdefault(row["name"], []).append(cut)
    found = kernels({"a": full})
    assert found.schema == KERNELS
    assert {name: (share, rate, mean) for _, name, _, share, rate, mean in found.rows()} == {
        name: pytest.approx((sum(all_) / 1e9 / time_s, len(all_) / time_s, sum(all_) / len(all_)))
        for name, all_ in sums.items()
    }


def test_kernels_are_told_new_and_gone_by_name():
    rows = [
        ("a", "gemm", False, 0.5, 10.0, 50e6),
        ("a", "old", False, 0.25, 1.0, 250e6),
        ("b", "gemm", False, 0.375, 10.0, 37.5e6),
        ("b", "fused", False, 0.0625, 2.0, 31.25e6),
    ]
    found = kernel_changes(pl.DataFrame(rows, schema=KERNELS, orient="row"))
    assert found.select("run", "name", "seen", "change", "mean_after_ns").rows() == [
        ("b", "old", "gone", -0.25, None),
        ("b", "gemm", "both", -0.125, 37.5e6),
        ("b", "fused", "new", 0.0625, 31.25e6),
    ]


def test_demand_is_the_mean_of_what_the_scheduler_events_cover(full):
    """Two threads for 30 ms, one of them without a CPU for 10; recorded were 40 of the window's 1000 ms."""
    start = full.window.start_ns
    rows = [(0, 10, 1, 1), (10, 20, 2, 0), (30, 10, 0, 0)]
    demand = pl.DataFrame(
        [(start + at * MS, length * MS, running, ready) for at, length, running, ready in rows],
        schema=full.demand.schema,
        orient="row",
    )
    value = dict(comparison({"a": replace(full, demand=demand)}).select("figure", "value").iter_rows())
    assert (value["CPU demand"], value["without a CPU"]) == (pytest.approx(1.5), pytest.approx(0.25))
