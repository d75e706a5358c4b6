"""The three numbers and the causes table, worked by hand from the example's rows."""

import pytest

from tests.report.example import findings
from tracelib.report import numbers
from tracelib.report.sections import three_figures
from tracelib.report.text import count, duration, moment, plain, share


def test_only_causes_on_the_host_count():
    # rank 0: 150 + 50 + 100 of 1000 µs (not: upstream not recorded, imbalance, unattributed); rank 1: 400 of 1000
    assert numbers.exposed_host_shares(findings()) == [0.3, 0.4]
    head, value, meaning = three_figures(findings())[0]
    assert (head, value) == ("GPU time lost to the host", "35.0\xa0%")
    assert "lost for any reason: 40.0\xa0%" in meaning


def test_cpu_shortage_is_runnable_and_throttled():
    assert numbers.cpu_shortage_ns(findings()) == 50_000 + 400_000
    assert three_figures(findings())[2][:2] == ("CPU shortage", "22.5\xa0%")


def test_without_scheduler_events_the_third_number_is_the_first_token_or_not_known():
    document = findings()
    for device in document["devices"]:
        for cause in device["causes"]:
            cause["cpu_state"] = "unknown"
    assert three_figures(document)[2][:2] == ("Time to first token, p50", "90.0\xa0ms")
    document["requests"] = None
    assert three_figures(document)[2][1] == "not known"


def test_without_a_gpu_nothing_is_zero():
    values = [value for _, value, _ in three_figures(findings(devices=None, requests=None))]
    assert values == ["not known"] * 3
    assert "no GPU operation" in three_figures(findings(devices=None, requests=None))[2][2]


def test_causes_are_summed_over_devices_the_most_exposed_first_the_unattributed_last():
    rows = numbers.cause_rows(findings())
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


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (90, "90 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (999_600, "1.00 ms"),
        (45_600_000, "45.6 ms"),
        (1_234_000_000, "1.23 s"),
        (600_000_000_000, "600 s"),
        (-5_000, "-5.00 µs"),
        (None, "not known"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns, text):
    assert duration(ns).replace("\xa0", " ") == text


def test_a_share_above_nothing_is_never_written_as_nothing():
    assert [share(x).replace("\xa0", " ") for x in (0, 0.0001, 0.412, 1, None)] == [
        "0 %",
        "< 0.1 %",
        "41.2 %",
        "100.0 %",
        "not known",
    ]


def test_numbers_follow_no_locale():
    assert count(1_234_567) == "1\u202f234\u202f567"
    assert moment(1_500_000_000, 0) == "+1.500000\xa0s"


def test_what_cannot_be_seen_is_made_visible():
    assert plain("a\x1b[31m\u202eb\u200b\n") == r"a\x1b[31m\u202eb\u200b\n"
    assert plain("кириллица, 日本語") == "кириллица, 日本語"
    assert plain("abcdef", 4) == "abc…"
