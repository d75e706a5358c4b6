"""Traces hold the numbers of the frames; figures stay small; recorded names stay text."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.charts.server import ACTIVITY, API, MS, START, STATES, W0, make, rows, trace
from tracelib import charts
from tracelib.charts.flame import flame_tree
from tracelib.charts.rows import grouped
from tracelib.charts.theme import look
from tracelib.charts.timeline import MAX_BARS, MAX_BINS
from tracelib.rules import load_rules
from tracelib.schema import SAMPLES, STACKS

#: Charts that take something else than results alone: see test_more_charts.py.
OTHERS = (
    "capacity_chart",
    "exposure_chart",
    "kernels_chart",
    "losses_chart",
    "moments_chart",
    "first_tokens_chart",
    "tokens_chart",
    "utilisation_chart",
    "worst_chart",
)
CHARTS = [
    name
    for name in charts.__all__
    if name.endswith("_chart") and name not in ("detail_chart", "flame_chart", *OTHERS)
]
HOSTILE = '<a href="javascript:alert(1)">$x$</a>\u202e\x1b[31m<script>' + "z" * 300


def named(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


def bars_at(figure, label):
    """Return what the bars of the row called `label` add up to, by trace name; rows of equal names are summed."""
    axis = figure.layout.yaxis
    places = {v for v, t in zip(axis.tickvals, axis.ticktext, strict=True) if t == label}
    return {
        t.name: sum(x for x, y in zip(t.x, t.y, strict=True) if y in places)
        for t in figure.data
        if t.name and any(y in places and x for x, y in zip(t.x, t.y, strict=True))
    }


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_drawn_by_the_basic_bundle_on_a_clear_ground(results, name):
    figure = getattr(charts, name)(results)
    assert {trace.type for trace in figure.data} <= {"bar", "scatter"}
    assert (
        figure.layout.template.layout.paper_bgcolor
        == figure.layout.template.layout.plot_bgcolor
        == "rgba(0,0,0,0)"
    )
    header, *body = figure.layout.meta["table"]
    assert 1 <= len(body) <= 30
    assert {len(row) for row in body} == {len(header)}
    json.dumps(figure.to_plotly_json()["layout"]["meta"])


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_to_draw_is_none(results, name):
    frames = {
        f: getattr(results, f).clear()
        for f in (
            "gpu_states",
            "gpu_time",
            "lost",
            "causes",
            "host_activity",
            "ipc",
            "thread_states",
            "launches",
            "collectives",
            "cpu_time",
            "demand",
            "scheduling",
            "requests",
        )
    }
    assert getattr(charts, name)(make(**frames)) is None


def test_causes_by_cpu_state(results):
    figure = charts.causes_chart(results)
    assert bars_at(figure, "tokenization: encode") == {"wants a CPU, has none": 700}
    assert bars_at(figure, "kernel launch: dispatch") == {"runs on a CPU": 100, "wants a CPU, has none": 300}
    assert bars_at(figure, "imbalance between ranks") == {"runs on a CPU": 200}
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


def test_gpu_states_in_per_cent(results):
    traces = named(charts.states_chart(results))
    assert list(traces["GPU computes"].x) == [30, 20]
    assert list(traces["spins for a late rank"].x) == [20, 0]
    assert list(traces["GPU idle"].x) == [40, 70]


def test_cpu_seconds_with_intervals(results):
    figure = charts.cpu_time_chart(results)
    worker, api = figure.data
    assert ([round(x, 12) for x in worker.x], list(api.x)) == ([0.6], [0.4])  # 0.6 is no binary fraction
    assert np.allclose(worker.error_x.array, [0.1])
    assert np.allclose(api.error_x.arrayminus, [0.1])


def test_launch_histogram_counts_each_operation_once(results):
    traces = named(charts.launches_chart(results))
    late, queued = (
        traces[n] for n in ("late: call to start, device idle", "queued: call to start, device at work")
    )
    assert (sum(late.y), sum(queued.y)) == (2, 2)
    table = charts.launches_chart(results).layout.meta["table"]
    assert [row[8] for row in table] == ["started before the return", "0", "1"]


def test_skew_points_by_straggler(results):
    figure = charts.collectives_chart(results)
    zero, one = [t for t in figure.data if t.type == "scatter"]
    assert (zero.name, list(zero.x), list(zero.y)) == ("rank 0 last", [700], [10 * MS])
    assert (one.name, list(one.x), list(one.y)) == ("rank 1 last", [500, 930], [200 * MS, 30 * MS])
    assert sum(sum(t.y) for t in figure.data if t.type == "bar") == 3


def test_demand_is_the_mean_of_each_bin(results):
    running, runnable = list(charts.demand_chart(results, bins=2).data)[:2]
    # first half: running 2 throughout; runnable 1 for 300 of 500 ms
    assert np.allclose(running.y[0], 2)
    assert np.allclose(runnable.y[0], 0.6)
    # second half: 100 ms of 2+0, 360 of 2+2, 40 of 1+5
    assert np.allclose(running.y[1], (100 * 2 + 360 * 2 + 40) / 500)
    assert np.allclose(runnable.y[1], (360 * 2 + 40 * 5) / 500)


def test_staircase_of_useful_and_busy(results):
    useful, busy = list(charts.staircase_chart(results, bins=2).data)[:2]
    assert np.allclose(useful.y[:2], [60, 20])  # rank 0: 300 of 500 ms, then 100 of 500
    assert np.allclose(busy.y[:2], [100, 20])


def test_request_parts_add_up_to_the_first_token(results):
    figure = charts.requests_chart(results)
    heights = [
        [ms or 0 for ms in bar.y] for bar in figure.data
    ]  # None: not known, its time is in "not known"
    assert np.allclose(np.sum(heights, axis=0), [200, 400])


def test_thread_bars_are_the_schedulers_times(results):
    traces = named(charts.threads_chart(results))
    assert list(traces["wants a CPU, has none"].x) == [300, 0]  # rank 1 first: it lacked a CPU
    assert list(traces["runs on a CPU"].x) == [700, 600]


def polygon_area(x, y):
    """Return the area of `hv` stairs with NaN between polygons: dx times the height before the step, all signed."""
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


@pytest.fixture
def sampled():
    """Six samples of worker rank 0: main > launch (4), main > spin (2, innermost in a library without symbols)."""
    stacks = pl.DataFrame(
        [
            (0, 1, "main", "/bin/server"),
            (0, 0, HOSTILE, "/lib/x.so"),
            (1, 2, "main", "/bin/server"),
            (1, 1, "[unknown]", "/lib/libcuda.so.1"),
            (1, 0, "[unknown]", "/lib/libcuda.so.1"),
        ],
        schema=STACKS,
        orient="row",
    )
    samples = pl.DataFrame(
        [(0, W0, START + i * MS, 0, "cpu-clock", None, 0 if i < 4 else 1) for i in range(6)]
        + [
            (0, API, START, 0, "cpu-clock", None, 0),
            (0, W0, START - 1, 0, "cpu-clock", None, 0),
        ],  # another role; before the window
        schema=SAMPLES,
        orient="row",
    )
    return make(trace=trace(stacks=stacks, samples=samples))


def test_flame_widths_are_sample_counts(sampled):
    figure = charts.flame_chart(sampled, "worker")
    frames = sorted(
        (y, round(x, 6), round(b, 6)) for t in figure.data for y, x, b in zip(t.y, t.x, t.base, strict=True)
    )
    assert frames == [
        (0, 100, 0),
        (1, pytest.approx(200 / 6, abs=1e-5), pytest.approx(400 / 6, abs=1e-5)),
        (1, pytest.approx(400 / 6, abs=1e-5), 0),
    ]
    assert figure.layout.meta["table"][2] == ["[libcuda.so.1]", "/lib/libcuda.so.1", "2", "33 %"]
    assert charts.flame_chart(sampled, "engine") is None


def test_flame_colours_by_the_rules_of_the_run(sampled, tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text('[[stack]]\nlibrary = "."\ntier = "named"\ncause = "gc"\n')
    figure = charts.flame_chart(replace(sampled, rules=load_rules(own)), "worker")
    assert [bars.name for bars in figure.data] == [look("cause", "gc").label]


def test_flame_is_pruned_to_a_tree(sampled):
    n = 900
    stacks = pl.DataFrame(
        [(i, d, "root" if d else f"leaf{i}", None) for i in range(n) for d in (0, 1)],
        schema=STACKS,
        orient="row",
    )
    weights = pl.DataFrame(
        {"stack": range(n), "n": [1] * n, "cause": [None] * n},
        schema={"stack": pl.Int32, "n": pl.Int64, "cause": pl.String},
    )
    tree = flame_tree(stacks, weights, 400)
    assert len(tree) == 400
    assert tree["symbol"][0] == "root"
    assert tree.filter(pl.col("level") == 0)["n"].to_list() == [n]
    assert set(tree["parent"]) <= {-1, *tree["node"]}


def strings(value):
    """Yield every string in a figure's data and layout, `meta` apart: that is plain text by contract."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key != "meta":
                yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


def test_hostile_names_are_inert_in_every_chart(sampled):
    samples = {"samples": sampled.trace.samples, "stacks": sampled.trace.stacks}
    evil = trace((HOSTILE,) * 4, **samples)
    evil = evil.replace(
        gpus=evil.gpus.with_columns(
            rank=pl.lit(None, pl.Int32), device=pl.lit(0, pl.Int32), host=pl.Series([HOSTILE, HOSTILE + "2"])
        )
    )
    base = make()
    lost = base.lost.with_columns(cause=pl.lit(HOSTILE), sub_cause=pl.lit(HOSTILE), what=pl.lit(HOSTILE))
    results = make(
        trace=evil,
        lost=lost,
        causes=base.causes.with_columns(cause=pl.lit(HOSTILE), sub_cause=pl.lit(HOSTILE)),
        host_activity=rows(ACTIVITY, (1, 0, 500, HOSTILE, HOSTILE, HOSTILE)),
        requests=base.requests.with_columns(id=pl.lit(HOSTILE)),
        cpu_time=base.cpu_time.with_columns(role=pl.lit(HOSTILE), cause=pl.lit(HOSTILE)),
    )
    drawn = [getattr(charts, name)(results) for name in CHARTS]
    drawn += [charts.flame_chart(results, "worker"), charts.detail_chart(results, START, START + 1000 * MS)]
    for figure in drawn:
        for text in strings(json.loads(figure.to_json())):
            assert "<a" not in text
            assert "<script" not in text
            assert "$x$" not in text
            assert "\u202e" not in text
            assert "\x1b" not in text
            assert len(text) < 6000 or "bdata" not in text
    assert "&lt;a href" in str([list(strings(json.loads(figure.to_json()))) for figure in drawn])


def test_draw_says_what_is_missing(results):
    nothing = make(demand=results.demand.clear(), missing={"demand": "no <sched> events"})
    notice = charts.draw(charts.demand_chart, nothing)
    assert repr(notice) == "No chart of demand: no <sched> events."
    assert "no &lt;sched&gt; events" in notice._repr_html_()


def test_rows_stand_under_their_headings():
    places, axis = grouped(["a", "a", "<b>"], ["x", "y", "x"])
    assert places == [1, 2, 4]
    assert axis["ticktext"] == ["<b>a</b>", "x", "y", "<b>&lt;b&gt;</b>", "x"]
