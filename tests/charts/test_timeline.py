"""The picture's areas are the ledger; figures stay small however long the trace is."""

import numpy as np
import polars as pl
import pytest

from tests.charts.server import ACTIVITY, API, ENGINE, MS, START, STATES, W0, make, named, rows, trace
from tracelib import charts
from tracelib.charts.lanes import lanes
from tracelib.charts.timeline import MAX_BARS, MAX_BINS, worst_stretch
from tracelib.schema import SAMPLES


def polygon_area(x, y):
    """Return the area of `hv` stairs with NaN between polygons: dx times the height before the step."""
    breaks = np.flatnonzero(np.isnan(x))
    areas, start = 0.0, 0
    for stop in breaks:
        px, py = np.asarray(x[start:stop], float), np.asarray(y[start:stop], float)
        areas += abs(np.sum(np.diff(px) * py[:-1]))
        start = stop + 1
    return areas


def test_timeline_areas_are_the_ledger(results):
    traces = named(charts.timeline_chart(results, bins=10))
    strip = 0.82
    for label, ms in (
        ("GPU computes", 500),
        ("spins for a late rank", 200),
        ("GPU idle", 1100),
        ("tokenization", 400 + 300 + 400),
    ):
        assert polygon_area(traces[label].x, traces[label].y) == pytest.approx(ms * strip, rel=1e-3), label


def test_timeline_names_and_order_of_lanes(results):
    figure = charts.timeline_chart(results)
    assert [t.replace("  ", " ") for t in figure.layout.yaxis.ticktext] == [
        "server tokenizers",
        "server engine",
        "server enqueue",
        "rank 0 dequeue",
        "rank 0 launch thread",
        "rank 0 GPU",
        "rank 0 lost to",
        "rank 1 dequeue",
        "rank 1 launch thread",
        "rank 1 GPU",
        "rank 1 lost to",
    ]
    feet = list(figure.layout.yaxis.tickvals)
    assert feet == sorted(feet, reverse=True)


@pytest.mark.parametrize(
    ("moments", "tokenizers", "engine"),
    [
        ([500, 900], "busy 75 % (40 % seen)", "scheduling and input preparation 25 % (40 % seen)"),
        ([0, 1000], "busy 30 %", "scheduling and input preparation 10 %"),
    ],
)
def test_a_lane_is_a_share_of_what_was_recorded(moments, tokenizers, engine):
    """Samples from 500 to 900 ms tell of 300 ms of tokenizing and 100 ms of scheduling in them."""
    activity = rows(
        ACTIVITY,
        (API, 600, 300, "tokenize", "tokenization", "encode"),
        (ENGINE, 500, 100, "schedule", "scheduling", None),
    )
    samples = pl.DataFrame({"ts_ns": [START + n * MS for n in moments]})
    made = make(
        host_activity=activity,
        trace=trace(samples=samples.match_to_schema(SAMPLES, missing_columns="insert")),
    )
    said = {(lane.label, lane.group): lane.headline for lane in lanes(made)}
    assert said["tokenizers", "server"] == tokenizers
    assert said["engine", "server"] == engine
    assert said["lost to", "rank 0"].startswith("tokenization 30 %")


def test_timeline_of_a_long_trace_stays_small(results):
    n = 200_000
    ts = START + np.arange(n, dtype=np.int64) * 5000
    state = pl.Series(np.where(np.arange(n) % 2, "compute", "idle")).cast(STATES["state"])
    long = pl.DataFrame(
        {
            "gpu": pl.Series(np.zeros(n), dtype=pl.Int32),
            "ts_ns": ts,
            "dur_ns": pl.Series([5000] * n, dtype=pl.Int64),
            "state": state,
        }
    )
    figure = charts.timeline_chart(make(gpu_states=long), bins=10**9)
    assert max(len(t.x) for t in figure.data) <= 2 * (MAX_BINS + 4) * 11 + 11
    assert len(figure.to_json()) < 1_500_000


def test_without_scheduler_events_the_cpu_states_are_not_recorded(results):
    blind = make(thread_states=results.thread_states.clear())
    assert (
        charts.timeline_chart(blind)
        .layout.meta["sentence"]
        .endswith("whether the blamed thread had a CPU was not recorded.")
    )


def test_nothing_lost(results):
    idle = make(lost=results.lost.clear(), causes=results.causes.clear())
    assert "no GPU time was lost" in charts.timeline_chart(idle).layout.meta["sentence"]
    assert charts.causes_chart(idle) is None


def test_detail_holds_every_interval_where_they_are_few(results):
    traces = named(charts.detail_chart(results, START, START + 1000 * MS))
    assert sorted(zip(traces["GPU computes"].base, traces["GPU computes"].x, strict=True)) == [
        (0, 300),
        (300, 200),
    ]


def test_detail_never_exceeds_its_bars(results):
    n = 20_000
    ts = START + np.arange(n, dtype=np.int64) * 50_000
    many = pl.DataFrame(
        {
            "thread": [W0] * n,
            "ts_ns": ts,
            "dur_ns": [25_000] * n,
            "state": ["running"] * n,
            "cpu": [0] * n,
            "by": [None] * n,
            "inferred": [False] * n,
        },
        schema=results.thread_states.schema,
    )
    figure = charts.detail_chart(make(thread_states=many), START, START + 1000 * MS)
    assert sum(len(t.x) for t in figure.data) <= MAX_BARS


def test_detail_outside_the_window_is_none(results):
    assert charts.detail_chart(results, START - 5 * MS, START) is None


def test_detail_speaks_of_its_own_stretch(results):
    # 250-350 ms: rank 0 computes 50, waits 50; rank 1 idles 50, computes 50. Lost: imbalance 50, launch 50.
    figure = charts.detail_chart(results, START + 250 * MS, START + 350 * MS)
    assert figure.layout.meta["sentence"] == (
        "Between 250 ms and 350 ms of the window, the 2 GPUs did useful work for 50 % of GPU time and looked "
        "busy for 75 %; most was lost to imbalance between ranks (25 %) and kernel launch (25 %)."
    )


def test_the_worst_stretch_may_consist_of_many_pieces(full):
    assert worst_stretch(full, "tokenization") == (START + 600 * MS, START + 1000 * MS)
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
    assert worst_stretch(cut, "tokenization") == (START + 600 * MS, START + 1000 * MS)
    assert worst_stretch(full, "gc") is None
    assert "lasts 400 ms" in charts.worst_chart(full, "tokenization").layout.meta["sentence"]
