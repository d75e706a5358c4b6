"""Estimates and offers, worked out by hand from the small server."""

import json
from dataclasses import replace

import polars as pl
import pytest

import tracelib
from tests.charts.server import MS, START, full_server, make, trace
from tests.conftest import ROOT
from tracelib.analyses.capacity import capacity, demand_curve, options, recommendation, shortage
from tracelib.cli import main
from tracelib.report.notebook_cells import instances
from tracelib.schema import SAMPLES


@pytest.fixture
def full():
    return replace(full_server(), trace=sampled(0, 1000))


def test_capacity_by_hand(full):
    """2 GPUs; demand: 3 for 300 ms, 2 for 300, 4 for 360, 6 for 40: median 3, 95 % reach 4, 99 % reach 6."""
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


def sampled(*ms):
    """A trace with a sample at each of these moments."""
    rows = pl.DataFrame({"ts_ns": [START + n * MS for n in ms]})
    return trace(samples=rows.match_to_schema(SAMPLES, missing_columns="insert"))


def test_polling_is_a_mean_over_the_time_that_samples_cover(full):
    """600 ms of it in the 300 ms, from 200 to 500, of which samples tell: two threads polled on average."""
    told = capacity(replace(full, trace=sampled(200, 300, 500)))
    spin = told.row(by_predicate=pl.col("estimate") == "of it busy polling, mean", named=True)
    rest = told.row(by_predicate=pl.col("estimate") == "demand without busy polling, mean", named=True)
    assert spin["cores"] == pytest.approx(2.0)
    assert spin["source"].endswith("samples of polling threads, which cover 30 % of the window")
    assert rest["cores"] == pytest.approx(3.18 - 2.0)


def test_an_option_costs_what_its_price_says(full):
    offer = options(full, instances().head(1)).row(0, named=True)
    lost = full.lost["dur_ns"].sum() / (2000 * MS)
    assert offer["cores_per_gpu"] == 96 / 2 / 8
    assert offer["covers_p95_demand"]  # 2 GPUs x 6 cores against 4 threads
    assert offer["lost_per_hour"] == pytest.approx(32.77 * lost)
    assert offer["shortage_per_hour"] == pytest.approx(32.77 * 0.5)
    assert all(row["date"] and row["source"] for row in instances().iter_rows(named=True))


def test_the_demand_curve_by_hand(full):
    """3 for 300 ms, 2 for 300, 4 for 360, 6 for 40: 3.18 s in all; more than 3 for 400 ms, by 360 + 120."""
    rows = {row[0]: row[1:] for row in demand_curve(full).rows()}
    assert list(rows) == [1, 2, 3, 4, 5, 6]
    assert rows[3] == pytest.approx((0.4, (360 * 1 + 40 * 3) / 3180))
    assert rows[4] == pytest.approx((0.04, 40 * 2 / 3180))
    assert rows[6] == (0, 0)


def test_the_recommendation_is_the_p95_of_demand_at_least_the_floor_and_no_more_than_what_sufficed(full):
    """Half of the GPU time was lost for want of a CPU; it was seen on 2 CPUs."""
    assert shortage(full) == pytest.approx(0.5)
    assert recommendation(full).cores == 4
    assert "short of CPUs" in " ".join(recommendation(full).unknown)
    low = full.demand.with_columns(running=pl.lit(1, pl.Int32), runnable=pl.lit(0, pl.Int32))
    floor = recommendation(replace(full, demand=low))
    assert floor.cores == 4  # 2 GPUs + 2
    assert "GPUs + 2" in floor.why
    never = full.lost.with_columns(cpu_state=pl.lit("running").cast(full.lost["cpu_state"].dtype))
    enough = recommendation(replace(full, lost=never))
    assert enough.cores == 2
    assert "0 % of GPU time was lost for want of a CPU" in enough.why


def test_without_demand_nothing_is_recommended(full):
    blind = make(demand=full.demand.clear(), missing={"demand": "no wake-ups"})
    advised = recommendation(blind)
    assert advised.cores is None
    assert advised.unknown[0] == "no wake-ups"
    assert demand_curve(blind).is_empty()


@pytest.mark.parametrize("cpus", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (3, 4)), 8])
def test_the_sweep_bears_the_recommendation_out(cpus):
    """One load on 2 to 8 CPUs: 2 were too few, and what 2 recommend cost nothing where they were there."""
    results = tracelib.analyse(tracelib.load(ROOT / "sample_traces" / "sweep" / f"cpus_{cpus}"))
    assert recommendation(results).cores == {2: 4, 3: 3, 4: 3, 8: 3}[cpus]
    assert (shortage(results) > 0.02) == (cpus < 3)


def test_the_command_says_the_number_and_its_figures(capsys):
    run = str(ROOT / "sample_traces" / "sweep" / "cpus_2")
    assert main(["capacity", run, "--json", "--mean-input-tokens", "4096"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recommended_cores"] == 4
    assert [row["cores"] for row in told["replay"]] == [2, 3, 4, 6, 8]  # had, floor, p95, p99, band
    assert all(row["why_not"] == "" for row in told["replay"])
    assert [row["gained_ns"] for row in told["replay"]] == sorted(row["gained_ns"] for row in told["replay"])
    assert told["replay"][0]["gained_ns"] == pytest.approx(0, abs=1_000_000)  # as many as it had
    assert {row["estimate"]: row["cores"] for row in told["estimates"]}["article's rule"] == 4  # 1 x (2 + 2)
    assert told["demand_curve"][3]["exceeded"] <= 0.05 < told["demand_curve"][2]["exceeded"]


@pytest.mark.slow
def test_the_command_in_words_and_its_page(tmp_path, capsys):
    run = str(ROOT / "sample_traces" / "sweep" / "cpus_2")
    assert main(["capacity", run, "-o", str(tmp_path / "page")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("recommended: 4 cores, because for 95 % of the time at most 4 of its threads")
    assert "not known:\n- this load only" in said
    assert "What is not known of it" in (tmp_path / "page" / "capacity.html").read_text()
