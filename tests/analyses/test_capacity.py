"""Estimates and offers, worked out by hand from the small server."""

import pytest

from tests.charts.server import MS, full_server, make
from tracelib.analyses.capacity import capacity, options
from tracelib.report.notebook_cells import instances


@pytest.fixture
def full():
    return full_server()


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


def test_an_option_costs_what_its_price_says(full):
    offer = options(full, instances().head(1)).row(0, named=True)
    lost = full.lost["dur_ns"].sum() / (2000 * MS)
    assert offer["cores_per_gpu"] == 96 / 2 / 8
    assert offer["covers_p95_demand"]  # 2 GPUs x 6 cores against 4 threads
    assert offer["lost_per_hour"] == pytest.approx(32.77 * lost)
    assert offer["shortage_per_hour"] == pytest.approx(32.77 * 0.5)
    assert all(row["date"] and row["source"] for row in instances().iter_rows(named=True))
