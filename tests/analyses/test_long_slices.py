"""Slices that last far longer than their siblings, and the lost time that they may hide."""

import polars as pl

from tests.findings.sheet import MS, Sheet
from tracelib.analyses.long_slices import lost_in_long_slices, outlasting

ALL = pl.lit(value=True)


def activity(*rows):
    """Return host activity of (thread, name, length in us)."""
    made = [(thread, name, us * 1000) for thread, name, us in rows]
    return pl.DataFrame(made, schema=["thread", "name", "dur_ns"], orient="row")


def test_only_what_lasts_ten_times_the_median_of_its_thread_and_name_stands_out():
    rows = activity(
        (0, "a", 200), (0, "a", 210), (0, "a", 2200), (1, "a", 1500), (1, "a", 1600), (1, "a", 1700)
    )
    assert outlasting(rows, ALL).to_list() == [False, False, True, False, False, False]
    assert not outlasting(rows, pl.col("thread") == 1).any()


def test_of_few_siblings_length_alone_decides_and_short_ones_never_do():
    assert outlasting(activity((0, "a", 1100), (0, "b", 900)), ALL).to_list() == [True, False]
    assert not outlasting(activity((0, "a", 1), (0, "a", 1), (0, "a", 999)), ALL).any()


def run(*, samples=False):
    """One op of 40 ms among three of 2 ms, all before a launch that a GPU waited for."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    for begin in (2, 5, 8):
        sheet.doing(0, begin, begin + 2, "aten::mm", "op")
    sheet.doing(0, 20, 60, "aten::mm", "op")
    sheet.kernel(62, 63)
    if samples:
        sheet.sampled(0, 20, 22, ("f", "/x/libtorch_cpu.so"))
    return sheet.results()


def test_lost_time_inside_them_is_told_unless_samples_were_asked():
    results = run()
    rows = lost_in_long_slices(results.trace, results.host_activity, results.lost)
    assert rows.select(pl.col("ts_ns", "dur_ns") // MS).rows() == [(20, 40)]
    results = run(samples=True)
    assert lost_in_long_slices(results.trace, results.host_activity, results.lost).is_empty()


def scheduling(*chain, calls=5):
    """The engine schedules for 10 ms five times while a GPU waits; `chain` is in the middle 4 ms."""
    sheet = Sheet()
    sheet.kernel(0, 1)
    sheet.doing(0, 1, 101, "shm_broadcast.dequeue")
    for begin in range(1, 1 + 20 * calls, 20):
        sheet.doing(sheet.engine, begin, begin + 10, "engine.update")
        sheet.sampled(sheet.engine, begin + 3, begin + 7, *chain)
    sheet.kernel(102, 103)
    lost = sheet.results().lost
    return {
        cause: lost.filter(pl.col("cause") == cause)["dur_ns"].sum() / MS for cause in lost["cause"].unique()
    }


def test_samples_of_another_cost_inside_a_named_slice_win_for_their_share():
    collects = scheduling(("visit_decref", "/usr/bin/python3.12"), ("gc_collect_main", "/usr/bin/python3.12"))
    assert (collects["gc"], collects["scheduling"]) == (20, 30)
    compiles = scheduling(("nvrtcCompileProgram", "/x/libnvrtc.so.13"))
    assert (compiles["kernel_launch"], compiles["scheduling"]) == (20.01, 30)


def test_samples_that_name_no_other_cost_leave_a_named_slice_its_name():
    assert scheduling(("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"))["scheduling"] == 50
    assert scheduling(("at::x", "/x/libtorch_cpu.so"))["scheduling"] == 50
