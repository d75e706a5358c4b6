"""Without a source no figure changes silently: what it told is unknown, and the report says so."""

import pytest

import tracelib
from tests.simulator import simulate
from tests.simulator.judge import blamed, case, confusion
from tracelib.analyses.results import analyse
from tracelib.findings import diagnose

SHARE = 0.2
NO_SCHED, NO_SAMPLES = {"sched": False}, {"samples": False}
NO_PERF = NO_SCHED | NO_SAMPLES
#: What may change without a word, of the window per GPU: stalls of less than a millisecond inside a slice
#: that may wait, and the sampling error where samples stand in for a process's own ranges (one period, a
#: millisecond, each time).
NOISE = 0.01
#: Causes that samples alone know, and what slices make of that time.
BY_SAMPLES = {
    (("gc", None), ("kernel_launch", "dispatch")),
    (("kernel_launch", "jit_compile"), ("kernel_launch", "dispatch")),
}


def _without(tmp_path, defect, perf, dropped):
    simulate(defect, SHARE).write(tmp_path, **perf)
    for file in dropped:
        (tmp_path / f"{file}.pt.trace.json.gz").unlink()
    results = analyse(tracelib.load(tmp_path))
    return blamed(results), diagnose(results)


def _unknown(cause):
    return cause[0] == "unattributed" or cause == ("ipc", "upstream not recorded")


@pytest.mark.parametrize(
    ("defect", "perf", "dropped"),
    [
        ("scheduling", NO_SCHED, []),
        ("tokenization", NO_SCHED, []),
        ("no_work", NO_SCHED, []),
        ("shortage", NO_SCHED, []),
        ("dispatch", NO_SAMPLES, []),
        ("gc", NO_SAMPLES, []),
        ("jit_compile", NO_SAMPLES, []),
        ("throttling", NO_PERF, []),
        ("tokenization", {}, ["api_server"]),
        ("tokenization", NO_PERF, ["api_server"]),
        ("scheduling", NO_PERF, ["api_server"]),
        ("scheduling", {}, ["engine_core"]),
        ("sync", {}, ["engine_core"]),
        ("ipc", NO_PERF, ["engine_core"]),
        ("sync", {}, ["worker_TP1"]),
        ("gc", {}, ["worker_TP1"]),
    ],
)
def test_what_a_source_told_becomes_unknown_not_something_else(tmp_path, defect, perf, dropped):
    whole = case(defect, SHARE)
    rest, document = _without(tmp_path, defect, perf, dropped)
    abstained = {row.id for row in document.abstained}
    moved = {
        pair: ns
        for pair, ns in confusion(whole.blamed.pieces, rest.pieces).items()
        if pair[0] != pair[1] and not _unknown(pair[1])
    }
    if not perf.get("samples", True):
        assert "cpu_time" in abstained
        moved = {pair: ns for pair, ns in moved.items() if pair not in BY_SAMPLES}
    assert sum(moved.values()) < NOISE * rest.ranks * whole.truth.duration, moved
    if "worker_TP1" in dropped:
        _a_missing_rank_is_said_to_be_missing(rest, document, abstained)
        return
    for rank in range(2):
        assert rest.by_cause(rank).total() == whole.blamed.by_cause(rank).total()
    assert document.verdict.state in (whole.verdict, "insufficient")


def _a_missing_rank_is_said_to_be_missing(rest, document, abstained):
    """One rank's waiting cannot be told from transfer: its own state, no longer counted as lost."""
    assert rest.ranks == len(document.devices) == 1
    assert "straggler_rank" in abstained
    assert document.devices[0].gpu_time_ns.collective_wait in (0, None)


def test_without_scheduler_events_no_cpu_state_is_known(tmp_path):
    rest, document = _without(tmp_path, "shortage", NO_SCHED, [])
    assert set(rest.by_cpu()) == {"unknown"}
    assert {"scheduling", "cpu_shortage", "quota_throttling"} <= {row.id for row in document.abstained}
    assert all(row.reason and row.record_with for row in document.abstained)


@pytest.mark.parametrize(("defect", "rule"), [("jit_compile", "run_time_compilation"), ("gc", "gc_pauses")])
def test_what_only_samples_show_is_abstained_from_without_them(tmp_path, defect, rule):
    _, document = _without(tmp_path, defect, NO_SAMPLES, [])
    assert rule in {row.id for row in document.abstained}
