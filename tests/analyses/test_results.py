"""All analyses together: what no input may change, and that each takes only what is there."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts.server import make
from tracelib import schema
from tracelib.analyses.results import ANALYSES, NEEDS, Results, analyse, computed
from tracelib.findings import diagnose
from tracelib.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from random_server import frame, random_server
from second_ledgers import cut

SIZES = {
    "seed": st.integers(0, 10**9),
    "slices": st.integers(0, 80),
    "ops": st.integers(3, 30),
    "switches": st.integers(2, 40),
}
#: Every figure: the frames that the report is made of.
FIGURES = (
    "gpu_states",
    "gpu_time",
    "launches",
    "collectives",
    "host_activity",
    "lost",
    "causes",
    "host_time",
    "thread_states",
    "scheduling",
    "demand",
    "ipc",
)
TIMES = ("ts_ns", "call_ts_ns", "last_start_ns")


def figures(results: Results, by: int = 0) -> dict[str, pl.DataFrame]:
    """Return the frames with times counted from `by`, in one order."""
    out = {}
    for name in FIGURES:
        rows = getattr(results, name)
        rows = rows.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        moved = [pl.col(c) - by for c in TIMES if c in rows.columns]
        out[name] = rows.with_columns(moved).sort(rows.columns)
    return out


def same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    assert [name for name in FIGURES if not one[name].equals(other[name])] == []


@settings(max_examples=6)
@given(**SIZES)
def test_every_ledger_adds_up(seed, slices, ops, switches):
    results = analyse(random_server(seed, slices, ops, switches))
    window = results.window
    for frame_, key in ((results.gpu_states, "gpu"), (results.thread_states, "thread")):
        for _, own in frame_.group_by(key, maintain_order=True):
            spans = own.select("ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns")).rows()
            assert (spans[0][0], spans[-1][1]) == (window.start_ns, window.end_ns)
            assert all(a[1] == b[0] for a, b in pairwise(spans))
    lost = results.gpu_states.filter(pl.col("state").is_in(["idle", "collective_wait"]))
    for gpu in (0, 1):
        spent = lost.filter(pl.col("gpu") == gpu)["dur_ns"].sum()
        assert results.lost.filter(pl.col("gpu") == gpu)["dur_ns"].sum() == spent
        assert results.causes.filter(pl.col("gpu") == gpu)["ns"].sum() == spent
    assert results.host_time["exposed_ns"].sum() == lost["dur_ns"].sum()
    for _, own in results.lost.group_by("gpu", maintain_order=True):
        spans = own.sort("ts_ns").select("ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns")).rows()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


@settings(max_examples=4)
@given(**SIZES, order=st.integers(0, 10**9))
def test_the_order_of_rows_changes_nothing(seed, slices, ops, switches, order):
    of = random_server(seed, slices, ops, switches)
    mixed = Trace.of(
        {name: rows.sample(fraction=1, shuffle=True, seed=order) for name, rows in of.frames().items()}
    )
    same(figures(analyse(mixed)), figures(analyse(of)))


@settings(max_examples=4)
@given(**SIZES, shift=st.integers(-(10**18), 10**18))
def test_a_shift_of_all_clocks_changes_nothing(seed, slices, ops, switches, shift):
    of = random_server(seed, slices, ops, switches)
    moved = {
        name: rows.with_columns(pl.col("ts_ns") + shift)
        for name, rows in of.frames().items()
        if "ts_ns" in rows.columns
    }
    same(figures(analyse(of.replace(**moved)), shift), figures(analyse(of)))


@settings(max_examples=4)
@given(**SIZES)
def test_one_file_per_process_is_as_one_file_of_all(seed, slices, ops, switches):
    """As torch.profiler writes them. Overhead that names no thread stays with the file of the call that it
    delays.
    """
    of = random_server(seed, slices, ops, switches)
    named = of.slices.filter(pl.col("thread").is_not_null())
    recorder = of.sources["format"].first()
    files = of.threads.select("thread", file=pl.col("pid").rank("dense").cast(pl.Int32))
    of = of.replace(slices=named)
    parts = (
        named.join(files, on="thread", how="left", maintain_order="left")
        .with_columns(source="file")
        .drop("file")
    )
    whose = dict(of.threads.join(files, on="thread").select("pid", "file").unique().iter_rows())
    split = Trace.of(
        {
            **of.frames(),
            "slices": parts,
            "gpu_ops": of.gpu_ops.with_columns(
                source=pl.col("pid").replace_strict(whose, return_dtype=pl.Int32)
            ),
            "sources": frame(
                "sources",
                [
                    {
                        "source": n,
                        "file": str(n),
                        "format": recorder,
                        "tied_by": "declared",
                        "lost_detected": 0,
                    }
                    for n in range(max(whose.values()) + 1)
                ],
            ),
        }
    )
    same(figures(analyse(split)), figures(analyse(of)))


@settings(max_examples=4)
@given(**SIZES, share=st.floats(0.1, 0.9))
def test_a_recording_of_the_scheduler_cut_in_two_contradicts_nothing(seed, slices, ops, switches, share):
    """Less is known around the cut; one half may miss that a wake-up was lost, which the other shows."""
    of = random_server(seed, slices, ops, switches)
    half = round(of.sched.height * share)
    late = pl.int_range(pl.len()) >= half
    sources = frame(
        "sources", [{"source": n, "file": str(n), "tied_by": "declared", "lost_detected": 0} for n in (0, 1)]
    )
    two = of.replace(sched=of.sched.with_columns(source=late.cast(pl.Int32)), sources=sources)
    whole, parts = (analyse(each).thread_states for each in (of, two))
    for (thread,), own in parts.group_by("thread"):
        line = [
            (ts, ts + dur, state)
            for ts, dur, state in whole.filter(pl.col("thread") == thread)
            .select("ts_ns", "dur_ns", "state")
            .rows()
        ]
        for ts, dur, state in own.select("ts_ns", "dur_ns", "state").rows():
            for _, _, before in cut(line, ts, ts + dur):
                assert state == before or "unknown" in (state, before)


@settings(max_examples=4)
@given(**SIZES)
def test_without_the_scheduler_no_cpu_state_is_claimed(seed, slices, ops, switches):
    of = random_server(seed, slices, ops, switches)
    whole, less = analyse(of), analyse(of.replace(sched=schema.empty("sched")))
    assert figures(less)["gpu_time"].equals(figures(whole)["gpu_time"])
    assert less.lost["dur_ns"].sum() == whole.lost["dur_ns"].sum()
    assert less.lost.filter(pl.col("cpu_state") != "unknown").is_empty()
    document = diagnose(less)
    assert document.scheduling is None
    assert {"scheduling", "cpu_shortage", "quota_throttling"} <= {row.id for row in document.abstained}


@settings(max_examples=4)
@given(**SIZES)
def test_without_engine_and_api_server_waits_end_at_what_was_not_recorded(seed, slices, ops, switches):
    """Every piece keeps its cause, or, where that was found upstream, says that nobody recorded it.

    Driver work on no thread is left out: whose it is, other processes' calls decide.
    """
    of = random_server(seed, slices, ops, switches)
    of = of.replace(slices=of.slices.drop_nulls("thread"), sched=schema.empty("sched"))
    workers = of.replace(slices=of.slices.filter(~pl.col("thread").is_in([2, 3, 4])))
    whole, less = analyse(of), analyse(workers)
    assert figures(less)["gpu_states"].equals(figures(whole)["gpu_states"])
    for gpu in (0, 1):
        line = [
            (ts, ts + dur, told)
            for ts, dur, *told in whole.lost.filter(pl.col("gpu") == gpu)
            .select("ts_ns", "dur_ns", "cause", "sub_cause")
            .rows()
        ]
        for ts, dur, *told in (
            less.lost.filter(pl.col("gpu") == gpu).select("ts_ns", "dur_ns", "cause", "sub_cause").rows()
        ):
            for _, _, before in cut(line, ts, ts + dur):
                assert told in (before, ["ipc", "upstream not recorded"])
    document = diagnose(less)
    hidden = less.causes.filter(pl.col("sub_cause") == "upstream not recorded")["ns"].sum()
    shown = sum(
        row.ns
        for device in document.devices
        for row in device.causes
        if row.sub_cause == "upstream not recorded"
    )
    assert shown == hidden


def test_each_analysis_begins_when_what_it_takes_is_there():
    def second(first, base):
        return first + base

    def third(second):
        return 2 * second

    makes = {"third": third, "second": second, "first": lambda: 1}
    assert computed(makes, {"base": 10}) == {"third": 22, "second": 11, "first": 1}
    with pytest.raises(TypeError, match="second, third"):
        computed({"second": second, "third": third}, {"base": 10})


def test_the_functions_and_frames_of_results_have_one_name():
    assert {name: make.__name__ for name, make in ANALYSES.items()} == {name: name for name in ANALYSES}
    assert set(NEEDS) - {"quota"} <= set(ANALYSES)
    assert all(need.missing and need.record_with for need in NEEDS.values())


def test_frames_have_the_columns_that_empty_ones_have():
    """Whoever builds results of some frames only gets the others with the columns that an analysis gives."""
    made = analyse(random_server(3, 60, 30, 40, 20))
    empty = Results(made.trace, made.window, made.rules)
    for name in ANALYSES:
        assert getattr(made, name).schema == getattr(empty, name).schema, name


def test_results_say_what_they_hold_and_why_not():
    text = repr(make(missing={"demand": "no wake-ups were recorded"}))
    assert text.startswith("results over 1.000 s (by hand)\n")
    assert "\nlost                       5 rows\n" in text
    assert "rows: no wake-ups were recorded\n" in text
