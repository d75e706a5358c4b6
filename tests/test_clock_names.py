"""One clock has one name, whether a header, a flag or a number gives it."""

import pytest

from tracelib.clocks import TRACE_CLOCKS, clock_named, clock_numbered


@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("mono", "monotonic"),
        ("monotonic", "monotonic"),
        ("CLOCK_MONOTONIC_RAW", "monotonic_raw"),
        ("raw", "monotonic_raw"),
        ("tai", "tai"),
        ("CLOCK_TAI", "tai"),
        ("x86-tsc", "tsc"),
        ("perf", "local"),
        ("real", "realtime"),
        ("", "unknown"),
        ("process_cputime_id", "unknown"),
    ],
)
def test_names(name, clock):
    assert clock_named(name) == clock


def test_numbers():
    assert [clock_numbered(number) for number in (0, 1, 4, 7, 11, 5)] == [
        *("realtime", "monotonic", "monotonic_raw", "boottime", "tai"),
        "unknown",
    ]


def test_headers_know_what_flags_know():
    assert {name: clock_named(name) for name in TRACE_CLOCKS} == TRACE_CLOCKS
