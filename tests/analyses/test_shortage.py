"""A recording without wake-ups cannot tell a shortage of CPUs: that is said, never shown as none."""

import re

import pytest

from tracelib import charts
from tracelib.analyses.scheduling import tells_shortage
from tracelib.findings import diagnose
from tracelib.report.numbers import cause_rows
from tracelib.report.sections import per_role_table, three_figures


@pytest.mark.parametrize("name", ["nsys_starved", "nsys_healthy"])
def test_without_wake_ups_a_shortage_is_abstained_from(run_of, name):
    results = run_of(name).results
    assert results.thread_states.height
    assert not tells_shortage(results.thread_states)
    found = diagnose(results)
    assert {"cpu_shortage", "quota_throttling"} <= {row["id"] for row in found["abstained"]}
    assert "CPUs when they needed" not in found["verdict"]["sentence"]
    assert found["verdict"]["confidence"] != "high"
    assert (
        found["scheduling"]["demand"]
        is found["scheduling"]["throttle_gaps"]
        is found["capacity"]["demand"]
        is None
    )
    assert {thread["runnable_ns"] for thread in found["scheduling"]["threads"]} == {None}
    assert three_figures(found)[2][:2] == ("CPU shortage", "not known")
    assert {row.shortage_ns for row in cause_rows(found)} == {None}


def test_with_wake_ups_it_is_told(run_of):
    healthy = diagnose(run_of("healthy").results)
    assert "its threads had CPUs when they needed them" in healthy["verdict"]["sentence"]
    assert (
        "a CPU quota of about 2.0 CPUs had stopped"
        in diagnose(run_of("throttled").results)["verdict"]["sentence"]
    )
    assert (
        "wanted a CPU and all 2 that the server ran on"
        in diagnose(run_of("starved").results)["verdict"]["sentence"]
    )


def test_no_table_or_chart_prints_unknown_as_nothing(run_of):
    results = run_of("nsys_starved").results
    assert results.demand.is_empty()
    assert results.scheduling["runnable_ns"].null_count() == results.scheduling.height
    assert results.scheduling["running_ns"].sum() > 0
    rows = charts.threads_chart(results).layout.meta["table"]
    assert {row[2] for row in rows[1:]} == {"not known"}
    assert "0 %" not in re.sub(r"<[^>]+>", " ", per_role_table(diagnose(results)).html)
