"""Of every chart: plotly's smallest bundle draws it, its sentence is right word for word, names stay text."""

import json

import polars as pl
import pytest

from tests.charts.server import ACTIVITY, HOSTILE, MS, START, make, rows, trace, without_wakeups
from tracelib import charts
from tracelib.analyses.capacity import capacity, demand_curve
from tracelib.analyses.comparison import KERNELS, changes, comparison, kernel_changes, kernels
from tracelib.charts.theme import TABLE_ROWS

OF_A_CAUSE = ("exposure_chart", "moments_chart", "worst_chart")
OF_RUNS = ("first_tokens_chart", "losses_chart", "tokens_chart", "utilisation_chart")
OF_CAPACITY = ("capacity_chart", "demand_curve_chart")
REPLAYED = ("at_cores_chart", "what_if_chart")  # test_capacity.py
OF_CHANGES = ("kernels_compared_chart", "waterfall_chart")
#: Charts that the small server's frames suffice for.
OF_RESULTS = [
    name
    for name in sorted(vars(charts))
    if name.endswith("_chart")
    and name not in (*OF_A_CAUSE, *OF_RUNS, *OF_CHANGES)
    and name not in (*OF_CAPACITY, *REPLAYED, "detail_chart", "flame_chart", "kernels_chart")
]
#: Each chart's sentence on the small server, whose sums are worked out by hand (see server.py).
SENTENCES = {
    "timeline_chart": (
        "In the window of 1.00 s the 2 GPUs did useful work for 35 % of GPU time (rank 1 least, for 30 % of "
        "its own) and looked busy for 45 %; most was lost to tokenization (35 %) and kernel launch (20 %); "
        "for 50 % the blamed thread wanted a CPU and had none."
    ),
    "causes_chart": (
        "2 GPUs lost 1.30 s, 65 % of GPU time: most was lost to tokenization (35 %) and kernel launch (20 "
        "%); for 50 % the blamed thread wanted a CPU and had none."
    ),
    "states_chart": (
        "The GPU of rank 0 looked busy for 60 % of the window and did useful work for 40 %; 200 ms went "
        "into spinning for late ranks."
    ),
    "cpu_time_chart": (
        "The largest part of 1.00 s of CPU time is busy waiting: yield (worker): 60 %, 95 % interval 50 %"
        " to 70 %."
    ),
    "launches_chart": (
        "Half of 4 GPU operations started within 5.00 ms of their launch call and 95 % within 100 ms; 50 "
        "% were launched late, when the device was already idle."
    ),
    "collectives_chart": (
        "In half of 3 collectives the ranks arrived within 30.0 ms of each other, in 95 % within 200 ms; "
        "rank 1 caused 96 % of the waiting in the 3 in which the clocks tell who came last (it came last in "
        "2)."
    ),
    "ipc_chart": (
        "Half of 3 dequeues took up to 300 ms and 95 % up to 400 ms; waiting is 20 % of the time between "
        "steps."
    ),
    "demand_chart": (
        "For 95 % of the recorded time at most 4 threads of the server wanted a CPU, against 2 CPUs (of the "
        "host's 2 on which its threads were seen to run); for 70 % of it at least one of them waited for a "
        "CPU."
    ),
    "staircase_chart": (
        "2 GPUs did useful work for 35 % of GPU time; monitoring, which counts spinning as busy, would have "
        "shown 45 %."
    ),
    "requests_chart": (
        "Half of 2 requests had their first token within 200 ms, all within 400 ms; the largest known "
        "part is tokenize, 57 % of the time to first token. 9.2 % of it is not known, mostly because nobody "
        "saw the engine."
    ),
    "threads_chart": (
        "worker rank 1 / worker_TP1 wanted a CPU and had none for 300 ms, 30 % of its time, more than any "
        "other thread of the server."
    ),
}


def figure_of(name, full):
    figures = comparison({"before": full, "after": full})
    given = {
        "capacity_chart": (capacity(full),),
        "demand_curve_chart": (demand_curve(full),),
        "tokens_chart": (figures, "decode"),
        "waterfall_chart": (changes(figures),),
        "kernels_compared_chart": (kernel_changes(kernels({"before": full, "after": full})),),
        **dict.fromkeys(OF_A_CAUSE, (full, "tokenization")),
    }
    return getattr(charts, name)(*given.get(name, (figures if name in OF_RUNS else full,)))


@pytest.mark.parametrize(
    "name",
    [
        *OF_RESULTS,
        *OF_A_CAUSE,
        *OF_RUNS,
        *OF_CHANGES,
        "capacity_chart",
        "demand_curve_chart",
        "kernels_chart",
    ],
)
def test_every_chart_is_drawn_by_the_basic_bundle_with_a_sentence_and_a_table(full, name):
    figure = figure_of(name, full)
    assert {trace.type for trace in figure.data} <= {"bar", "scatter"}
    looks = figure.layout.template.layout
    assert looks.paper_bgcolor == looks.plot_bgcolor == "rgba(0,0,0,0)"
    assert figure.layout.meta["sentence"].endswith(".")
    header, *body = figure.layout.meta["table"]
    assert 1 <= len(body) <= TABLE_ROWS
    assert {len(row) for row in body} == {len(header)}
    json.dumps(figure.to_plotly_json()["layout"]["meta"])


@pytest.mark.parametrize("name", OF_RESULTS)
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


@pytest.mark.parametrize("name", SENTENCES)
def test_sentence(results, name):
    assert getattr(charts, name)(results).layout.meta["sentence"] == SENTENCES[name]


def test_without_wake_ups_no_chart_claims_that_nobody_waited(results):
    blind = make(
        thread_states=without_wakeups(results.thread_states),
        causes=without_wakeups(results.causes, "cpu_state"),
    )
    takes = "was not recorded (that takes wake-up events)."
    for name in ("timeline_chart", "causes_chart", "demand_chart"):
        sentence = getattr(charts, name)(blind).layout.meta["sentence"]
        assert sentence.endswith(takes), sentence
    assert "runs 60 %, else unknown" in str(charts.timeline_chart(blind).layout.meta["table"])


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
    drawn = [getattr(charts, name)(results) for name in OF_RESULTS]
    both = {"a": results, HOSTILE: results}
    ran = [(run, HOSTILE, False, 0.5, 1.0, 1.0) for run in both]
    by_name = kernel_changes(pl.DataFrame(ran, schema=KERNELS, orient="row"))
    drawn += [charts.kernels_compared_chart(by_name)]
    drawn += [charts.waterfall_chart(changes(comparison(both)))]
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
