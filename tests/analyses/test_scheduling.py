"""Threads over time and states summed up; a recording that cannot tell a shortage of CPUs says so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polars as pl
import pytest

from tracelib import charts
from tracelib.analyses.scheduling import cpu_waits, demand, scheduling, tells_shortage
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.window import window as gpu_window
from tracelib.findings import diagnose
from tracelib.findings.figures import cause_rows
from tracelib.report.sections import per_role_table, three_figures

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from scheduling_frames import IDLE, switch, trace, wakeup, window

A, B, C = 1, 2, 3
SERVER = {A: "worker", B: "api_server", C: "system"}


def test_demand_counts_running_and_ready_threads() -> None:
    sched = [
        wakeup(0, 1, C),
        switch(0, 0, IDLE, "R", A),
        wakeup(10, 0, B, A),
        switch(30, 0, A, "R", B),
        switch(50, 0, B, "S", A),
        switch(60, 0, A, "S", IDLE),
        switch(100, 1, C, "S", IDLE),
    ]
    of = trace(sched, roles=SERVER)
    got = demand(of, window(0, 100), thread_states(of, window(0, 100)))
    merged = got.select("ts_ns", "dur_ns", "running", "runnable").rows()
    assert [r for r in merged if r[0] < 60] == [(0, 10, 1, 0), (10, 20, 1, 1), (30, 20, 1, 1), (50, 10, 1, 0)]
    assert got["dur_ns"].sum() == 100
    assert merged[-1][2:] == (0, 0)


def test_who_had_no_cpu_and_who_ran_instead() -> None:
    """B is woken at 10 and gets A's CPU at 30; A, put off it then, waits until 50. C is not the server's."""
    sched = [
        switch(0, 0, IDLE, "R", A),
        wakeup(10, 0, B, A),
        switch(30, 0, A, "R", B),
        switch(50, 0, B, "S", A),
        switch(60, 0, A, "S", IDLE),
        switch(70, 1, C, "R", IDLE),
        switch(100, 1, IDLE, "R", C),
    ]
    of = trace(sched, roles=SERVER)
    got = cpu_waits(of, thread_states(of, window(0, 100)))
    columns = ("thread", "waits", "short_ns", "throttled_ns", "longest_ns", "running_ns", "by", "by_ns")
    assert got.select(columns).rows() == [(A, 1, 20, 0, 20, 40, B, 20), (B, 1, 20, 0, 20, 20, A, 20)]


def test_scheduling_adds_up_and_counts_migrations() -> None:
    sched = [
        switch(0, 0, IDLE, "R", A),
        switch(10, 0, A, "R", B),
        switch(20, 1, C, "S", A),
        switch(35, 1, A, "S", IDLE),
        wakeup(40, 1, A, B),
        switch(41, 1, IDLE, "R", A),
        switch(50, 1, A, "S", IDLE),
        switch(60, 0, B, "S", IDLE),
    ]
    of = trace(sched, roles=SERVER)
    got = scheduling(of, thread_states(of, window(0, 60)))
    row = got.filter(pl.col("thread") == A).row(0, named=True)
    states = ("running", "runnable", "throttled", "blocked", "unknown")
    assert {s: row[f"{s}_ns"] for s in states} == {
        "running": 10 + 15 + 9,
        "runnable": 10 + 1,
        "throttled": 0,
        "blocked": 5 + 10,
        "unknown": 0,
    }
    assert row["migrations"] == 1
    assert row["role"] == "worker"
    assert got.select(pl.sum_horizontal(f"{s}_ns" for s in states)).to_series().unique().to_list() == [60]


@pytest.mark.corpus
def test_starved_server_fills_its_two_cpus(run_of) -> None:
    of = run_of("starved").trace
    over = gpu_window(of)
    states = thread_states(of, over)
    steps = demand(of, over, states)
    assert steps["dur_ns"].sum() == over.duration_ns
    assert (
        steps.filter(pl.col("running") > 2)["dur_ns"].sum() < 0.01 * over.duration_ns
    )  # meta.json: CPUs 0 and 1
    wanted = (steps["running"] + steps["runnable"]).to_list()
    assert (
        sum(d for w, d in zip(wanted, steps["dur_ns"].to_list(), strict=True) if w > 2)
        > 0.3 * over.duration_ns
    )


@pytest.mark.parametrize("name", ["nsys_starved", "nsys_healthy"])
def test_without_wake_ups_a_shortage_is_abstained_from(run_of, name):
    results = run_of(name).results
    assert results.thread_states.height
    assert not tells_shortage(results.thread_states)
    found = diagnose(results)
    assert {"cpu_shortage", "quota_throttling"} <= {row.id for row in found.abstained}
    assert "CPUs when they needed" not in found.verdict.sentence
    assert found.verdict.confidence != "high"
    assert found.scheduling.demand is found.scheduling.throttle_gaps is found.capacity.demand is None
    assert {thread.runnable_ns for thread in found.scheduling.threads} == {None}
    assert three_figures(found)[2][:2] == ("CPU shortage", "not known")
    assert {row.shortage_ns for row in cause_rows(found)} == {None}


def test_with_wake_ups_it_is_told(run_of):
    healthy = diagnose(run_of("healthy").results)
    assert "The threads had CPUs when they needed them" in healthy.verdict.sentence
    assert (
        "a CPU quota of about 2.0 CPUs had stopped" in diagnose(run_of("throttled").results).verdict.sentence
    )
    assert (
        "wanted a CPU while the server's 2 CPUs (of the host's 32) were all busy"
        in diagnose(run_of("starved").results).verdict.sentence
    )


def test_no_table_or_chart_prints_unknown_as_nothing(run_of):
    results = run_of("nsys_starved").results
    assert results.demand.is_empty()
    assert results.scheduling["runnable_ns"].null_count() == results.scheduling.height
    assert results.scheduling["running_ns"].sum() > 0
    rows = charts.threads_chart(results).layout.meta["table"]
    assert {row[2] for row in rows[1:]} == {"not known"}
    assert "0 %" not in re.sub(r"<[^>]+>", " ", per_role_table(diagnose(results)).html)


def test_demand_says_nothing_of_time_that_no_scheduler_event_covers() -> None:
    """One thread runs from 10 to 20 of a window of 100."""
    sched = [switch(10, 0, IDLE, "R", A), wakeup(12, 0, B), switch(20, 0, A, "S", IDLE)]
    of = trace(sched, roles=SERVER)
    found = demand(of, window(0, 100), thread_states(of, window(0, 100)))
    assert found["ts_ns"].min() == 10
    assert found["dur_ns"].sum() == 10
