"""Scheduler events and samples that were cut, or that lack wake-ups, are noticed and said."""

import polars as pl
import pytest

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.results import analyse
from tracelib.findings.doubts import shortfalls
from tracelib.findings.verdict import verdict


def trace():
    """200 ms in which the worker sleeps every 4 ms for 1 ms while its GPU idles, sampled throughout."""
    sheet = Sheet()
    for at in range(0, 200, 2):
        sheet.kernel(at, at + 0.5)
        sheet.kernel(at + 0.5, at + 1)
    for at in range(0, 200, 4):
        sheet.doing(0, at + 1, at + 2, "aten::mm", "op")
        sheet.runs(0, at, at + 3, cpu=1)
    sheet.sampled(0, 0, 200, ("at::x", "/x/libtorch_cpu.so"))
    return sheet.trace()


def said(of):
    return shortfalls(analyse(of))


def test_whole_recordings_are_not_worth_a_word():
    assert said(trace()) == []


@pytest.mark.parametrize(("frame", "name"), [("sched", "scheduler events"), ("samples", "CPU samples")])
def test_a_recording_that_was_cut_in_half_is_said_in_the_verdict(frame, name):
    of = trace()
    half = getattr(of, frame).filter(pl.col("ts_ns") < 100 * MS)
    results = analyse(of.replace(**{frame: half}))
    (text,) = shortfalls(results)
    assert text.startswith((f"the {name} cover 48 % of the window", f"the {name} cover 50 %"))
    assert text in verdict(results).why


def test_wake_ups_that_were_deleted_are_counted():
    of = trace()
    wakes = pl.col("event") == "wakeup"
    kept = of.sched.filter(~wakes | (pl.col("ts_ns") % (12 * MS) == 0))
    (text,) = said(of.replace(sched=kept))
    assert text.startswith("67 % of 49 sleeps end without a wake-up")
