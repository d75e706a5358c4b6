"""The window that every figure is about."""

import json

import polars as pl
import pytest

import tracelib
from tests.analyses.server_by_hand import OTHER, call, op, piece, run
from tests.findings.sheet import MS, Sheet
from tracelib.analyses.results import analyse
from tracelib.analyses.window import Window
from tracelib.errors import BadParameter
from tracelib.findings import diagnose


def test_the_window_can_be_given_and_its_name_told():
    results = run([op(0, 10, 1), op(1000, 2000, 2)], [call(0, 1, 1), call(990, 995, 2)])
    assert results.window == Window(0, 2000, results.window.why)
    with pytest.raises(Exception, match="window"):
        analyse(results.trace, window_seconds=(5, 6))


def test_the_window_can_be_given_without_any_gpu_operation():
    sheet = Sheet()
    for at in range(0, 100, 10):
        sheet.doing(sheet.engine, at, at + 10, "engine.schedule")
    sheet.doing(sheet.engine, 20, 50, "step 3")
    given = analyse(sheet.trace(), window_seconds=(0.01, 0.03)).window
    assert (given.start_ns, given.end_ns) == (10 * MS, 30 * MS)
    to_the_end = analyse(sheet.trace(), window_seconds=(0.01, 1e300)).window
    assert (to_the_end.start_ns, to_the_end.end_ns) == (10 * MS, 100 * MS)
    named = analyse(sheet.trace(), window_of="step *").window
    assert (named.start_ns, named.end_ns) == (20 * MS, 50 * MS)
    with pytest.raises(BadParameter):
        analyse(sheet.trace(), window_seconds=(1, 2))


def recorded(sheet, start, end):
    trace = sheet.trace()
    columns = {"recorded_from_ns": start * MS, "recorded_to_ns": end * MS}
    return trace.replace(
        sources=trace.sources.with_columns(
            format=pl.lit("torch_profiler"), **{name: pl.lit(ns, pl.Int64) for name, ns in columns.items()}
        )
    )


def busy(sheet, start, end):
    for at in range(start, end):
        sheet.kernel(at, at + 0.9)


def test_a_server_that_worked_a_moment_of_the_recording_was_idle_the_rest():
    sheet = Sheet()
    busy(sheet, 500, 800)
    for other in (sheet.workers[0], sheet.engine, sheet.api):
        sheet.doing(other, 0, 499.5, "queue.get")
        sheet.doing(other, 800.5, 3600, "queue.get")
    window = analyse(recorded(sheet, 0, 3600)).window
    assert (window.start_ns, window.end_ns) == (0, 3600 * MS)
    assert "the recorders of the GPU cover" in window.why


def test_the_moment_in_which_the_recorder_runs_and_the_load_has_not_begun_is_left_out():
    sheet = Sheet()
    busy(sheet, 100, 400)
    window = analyse(recorded(sheet, 0, 405)).window
    assert (window.start_ns, window.end_ns) == (100 * MS, round(399.9 * MS))
    assert "left out: 100 ms before that and 5.10 ms after it" in window.why


def test_the_profilers_own_start_is_no_idle_time():
    sheet = Sheet()
    busy(sheet, 500, 600)
    sheet.doing(sheet.workers[0], 0, 30, "Activity Buffer Request", "overhead")
    sheet.doing(sheet.workers[0], 30, 499, "queue.get")
    assert analyse(recorded(sheet, 0, 600)).window.start_ns == 30 * MS


def test_polls_of_the_launching_thread_prove_that_the_recorder_ran():
    polls = [piece(0, at, at + 900, "poll") for at in range(0, 100_000, 1000) if not 50_000 <= at < 52_000]
    window = run([op(50_500, 51_000, 1)], [call(50_100, 50_200, 1), *polls]).window
    assert (window.start_ns, window.end_ns) == (900, 99_000)


def test_frames_that_stick_out_of_a_piece_of_a_recording_prove_nothing():
    frame = piece(0, 0, 100_000, "serve")
    window = run([op(50_000, 50_500, 1)], [call(49_900, 49_950, 1), frame]).window
    assert (window.start_ns, window.end_ns) == (50_000, 50_500)


def two_ranks(ends_at):
    """Two GPUs over 10 ms; the second one's operations are recorded until `ends_at`, in us."""
    ops, calls = [], []
    for number, at in enumerate(range(0, 10_000, 100), 1):
        ops.append(op(at * 1000 + 50, at * 1000 + 90_000, number))
        calls.append(call(at * 1000, at * 1000 + 50, number))
        if at < ends_at:
            ops.append(op(at * 1000 + 50, at * 1000 + 90_000, 1000 + number, gpu=1))
        calls.append(call(at * 1000, at * 1000 + 50, 1000 + number, OTHER))
    trace = run(ops, calls).trace
    of_rank_1 = pl.when(pl.col("correlation") > 1000).then(1).otherwise(0).cast(pl.Int32)
    sources = pl.concat([trace.sources, trace.sources.with_columns(source=pl.lit(1, pl.Int32))])
    rows = {name: getattr(trace, name).with_columns(source=of_rank_1) for name in ("gpu_ops", "slices")}
    return analyse(trace.replace(sources=sources, **rows))


def test_a_rank_whose_recording_ends_early_is_named():
    results = two_ranks(ends_at=7000)
    assert results.window.end_ns == 6_990_000
    said = "the GPU recording of rank 1 ends 3.00 ms before the others', so the window is 3.00 ms shorter"
    assert results.window.cut == (said,)
    assert said in results.trace.health["message"].to_list()
    assert said in diagnose(results).verdict.why


def test_a_rank_whose_recording_ends_at_once_does_not_shrink_the_run():
    results = two_ranks(ends_at=2000)
    assert results.window.end_ns == 9_990_000
    assert results.gpu_time["gpu"].unique().to_list() == [0]
    assert "rank 1 ends 8.00 ms before the others'" in results.trace.health["message"][-1]


BASE = 1_700_000_000_000_000_000


def kineto(folder, marks):
    events = [
        {"cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 500, "dur": 9, "args": {"device": 0}},
        {"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "P", "ts": 100, "dur": 3000},
    ]
    events = [*({"ph": "X", **event} for event in events), *marks]
    path = folder / "r.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": events}))
    row = tracelib.load(path, cache=False).sources.row(0, named=True)
    return row["recorded_from_ns"], row["recorded_to_ns"]


def test_the_profiler_says_from_when_to_when_it_recorded_unless_the_file_was_cut(tmp_path):
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 3200}
    assert kineto(tmp_path, [end]) == (BASE + 100_000, BASE + 3_100_000)
    assert kineto(tmp_path, []) == (None, None)
    assert kineto(tmp_path, [{**end, "ts": 900}]) == (None, None)
