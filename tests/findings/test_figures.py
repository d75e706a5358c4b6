"""The three numbers and the causes table, worked by hand from the example's rows."""

import pytest

from tests.report.example import findings, plain, typed
from tracelib.findings import figures
from tracelib.report.sections import three_figures


def test_only_causes_on_the_host_count():
    # rank 0: 150 + 50 + 100 of 1000 µs (not: upstream not recorded, imbalance, unattributed); rank 1: 400 of
    # 1000
    assert figures.exposed_host_shares(findings()) == [0.3, 0.4]
    head, value, meaning = three_figures(findings())[0]
    assert (head, value) == ("GPU time lost to the host", "35 %")
    assert meaning == "of GPU time (1.00 ms of 2 GPUs); lost for any reason: 40 %"


def test_cpu_shortage_is_runnable_and_throttled():
    """An eighth of the lost time has no CPU state, so the share is a lower bound."""
    assert figures.cpu_shortage_ns(findings()) == 50_000 + 400_000
    assert three_figures(findings())[2][:2] == ("CPU shortage", "at least 22 %")


def test_no_shortage_in_a_part_of_the_lost_time_is_none_seen_in_it():
    """An eighth of the lost time has no CPU state; in the others no thread lacked a CPU."""
    document = plain()
    for device in document["devices"]:
        for cause in device["causes"]:
            if cause["cpu_state"] in ("runnable", "throttled"):
                cause["cpu_state"] = "running"
    head, value, meaning = three_figures(typed(document))[2]
    assert (head, value) == ("CPU shortage", "none seen")
    assert meaning.startswith("in the 88 % of the lost GPU time for which CPU states are known; time to")


def test_without_scheduler_events_the_third_number_is_the_first_token_or_not_known():
    document = plain()
    for device in document["devices"]:
        for cause in device["causes"]:
            cause["cpu_state"] = "unknown"
    shown = ("Time to first token, p50", "90.0 ms", "of 5 requests; max 300 ms")
    assert three_figures(typed(document))[2] == shown
    document["requests"]["count"] = 20
    assert three_figures(typed(document))[2][2] == "of 20 requests; p95 200 ms"
    document["requests"] = None
    assert three_figures(typed(document))[2][1] == "not known"


def test_without_a_gpu_nothing_is_zero():
    nothing = findings(devices=None, requests=None, scheduling=None)
    assert [value for _, value, _ in three_figures(nothing)] == ["not known"] * 3
    assert "no GPU operation" in three_figures(nothing)[2][2]


def test_causes_are_summed_over_devices_the_most_exposed_first_the_unattributed_last():
    rows = figures.cause_rows(findings())
    assert [(row.cause, row.exposed_ns) for row in rows] == [
        ("kernel_launch", 600_000),
        ("tokenization", 100_000),
        ("ipc", 40_000),
        ("imbalance", 30_000),
        ("unattributed", 30_000),
    ]
    launch = rows[0]
    assert launch.exposed_share == pytest.approx(0.3)
    assert launch.shortage_ns == 450_000
    assert launch.sub_causes == (("dispatch", 550_000), ("api", 50_000))
    assert rows[1].total_ns == 700_000
