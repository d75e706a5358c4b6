"""Each chart's sentence, word for word, on rows whose sums are worked out by hand (see server.py)."""

import polars as pl
import pytest

from tests.charts.server import MS, START, make, trace
from tracelib import charts

EXPECTED = {
    "timeline_chart": "In the window of 1.00 s the 2 GPUs did useful work for 35 % of it on average (rank 1 least, 30 %) and looked "
    "busy for 45 %; 54 % of the lost GPU time is charged to tokenization and 31 % to kernel launch; the launching threads wanted a "
    "CPU and had none for 15 % of the time.",
    "causes_chart": "On 2 GPUs 1.30 s were lost: 54 % of the lost GPU time is charged to tokenization and 31 % to kernel launch; for "
    "77 % of it the blamed thread wanted a CPU and had none.",
    "states_chart": "The GPU of rank 0 looked busy for 60 % of the window and did useful work for 40 %; 200 ms went into spinning for "
    "late ranks.",
    "cpu_time_chart": "Of 1.00 s of CPU time the largest part is busy polling: yield (worker): 60 %, 95 % interval 50 % to 70 %.",
    "launches_chart": "Half of 4 GPU operations started within 20.0 ms of their launch call and 95 % within 100 ms; 50 % were launched "
    "late, when the device was already idle.",
    "collectives_chart": "In half of 3 collectives the ranks arrived within 30.0 ms of each other, in 95 % within 200 ms; rank 1 came "
    "last most often (67 %).",
    "ipc_chart": "Half of 3 dequeues took up to 300 ms and 95 % up to 400 ms; waiting makes 20 % of the time between steps.",
    "demand_chart": "For 95 % of the time at most 4 threads of the server wanted a CPU, against 2 CPUs (of the host's 2 on which its "
    "threads were seen to run); for 70 % of it at least one of them waited for a CPU.",
    "staircase_chart": "Mean useful GPU utilisation is 35 % over 2 GPUs; monitoring, which counts spinning as busy, would have shown "
    "45 %.",
    "requests_chart": "Half of 2 requests had their first token within 200 ms, 95 % within 400 ms; the largest part that is known is "
    "tokenize, 57 % of all. 9.2 % of it is not known, mostly because nobody saw the engine.",
    "threads_chart": "worker rank 1 / worker_TP1 wanted a CPU and had none for 300 ms, 30 % of its time, the most of the server's "
    "threads.",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_sentence(results, name):
    assert getattr(charts, name)(results).layout.meta["sentence"] == EXPECTED[name]


def test_detail_speaks_of_its_own_stretch(results):
    # 250-350 ms: rank 0 computes 50 and waits 50; rank 1 idles 50 and computes 50. Lost: imbalance 50, launch 50.
    figure = charts.detail_chart(results, START + 250 * MS, START + 350 * MS)
    assert figure.layout.meta["sentence"] == (
        "Between 250 ms and 350 ms of the window, the 2 GPUs did useful work for 50 % of it on average and looked busy for 75 %; "
        "50 % of the lost GPU time is charged to imbalance between ranks and 50 % to kernel launch."
    )


def unknown(frame, column="state"):
    """Return the frame as a recorder without wake-ups leaves it: off the CPU means unknown."""
    lost = pl.col(column).cast(pl.String)
    told = pl.when(lost == "running").then(lost).otherwise(pl.lit("unknown")).cast(frame.schema[column])
    return frame.with_columns(told.alias(column))


def test_without_wake_ups_no_chart_claims_that_nobody_waited(results):
    blind = make(thread_states=unknown(results.thread_states), causes=unknown(results.causes, "cpu_state"))
    takes = "was not recorded (that takes wake-up events)."
    for name in ("timeline_chart", "causes_chart", "demand_chart"):
        sentence = getattr(charts, name)(blind).layout.meta["sentence"]
        assert sentence.endswith(takes), sentence
    assert "runs 60 %, else unknown" in str(charts.timeline_chart(blind).layout.meta["table"])


def test_without_scheduler_events_the_cpu_states_are_not_recorded(results):
    blind = make(thread_states=results.thread_states.clear())
    assert (
        charts.timeline_chart(blind)
        .layout.meta["sentence"]
        .endswith("the CPU states of the launching threads were not recorded.")
    )


def test_one_rank_alone_says_at_least(results):
    alone = results.gpu_states.filter(pl.col("gpu") == 1).with_columns(
        pl.col("state")
        .cast(pl.String)
        .replace("collective_transfer", "collective")
        .cast(results.gpu_states.schema["state"])
    )
    time = alone.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum())
    one = make(gpu_states=alone, gpu_time=time)
    assert charts.states_chart(one).layout.meta["sentence"] == (
        "The GPU of rank 1 looked busy for 30 % of the window and did useful work for 20 %; "
        "10 % in collectives cannot be split, because one rank alone was recorded."
    )
    assert "useful work for at least 20 % of it" in charts.timeline_chart(one).layout.meta["sentence"]


def test_nothing_lost(results):
    idle = make(lost=results.lost.clear(), causes=results.causes.clear())
    assert "no GPU time was lost" in charts.timeline_chart(idle).layout.meta["sentence"]
    assert charts.causes_chart(idle) is None


def test_a_system_thread_is_not_the_server(results):
    starving = results.scheduling.head(1).with_columns(
        role=pl.lit("system"), runnable_ns=pl.lit(900 * MS, pl.Int64)
    )
    sentence = charts.threads_chart(make(scheduling=pl.concat([results.scheduling, starving]))).layout.meta[
        "sentence"
    ]
    assert sentence.startswith("worker rank 1")


def test_gpus_without_ranks_are_named_by_device():
    plain = trace()
    plain = plain.replace(gpus=plain.gpus.with_columns(rank=pl.lit(None, pl.Int32)))
    assert charts.states_chart(make(trace=plain)).layout.meta["sentence"].startswith("The GPU of GPU 0")


def test_time_that_is_rebuilt_is_said_to_be(results):
    """170 ms of two threads' 2 x 1 s."""
    inferred = pl.Series("inferred_ns", [0, 170 * MS])
    figure = charts.threads_chart(make(scheduling=results.scheduling.with_columns(inferred)))
    assert figure.layout.meta["sentence"] == (
        EXPECTED["threads_chart"]
        + " Switches from idle are missing: 8.5 % of the threads' time is rebuilt from what they did next (wake-ups, samples, the "
        "next switch)."
    )
