"""A source that is taken away changes no figure silently: what it told is unknown, and said to be."""

from collections import Counter

import pytest

from tests.simulator import Recording, simulate
from tests.simulator.judge import told, unknown

SHARE = 0.2
NO_SCHED, NO_SAMPLES, NO_PERF = (
    Recording(sched=False),
    Recording(samples=False),
    Recording(sched=False, samples=False),
)


def _without(file, how=None):
    perf = how or Recording()
    return Recording(sched=perf.sched, samples=perf.samples, without=(file,))


#: What may change without a word, of the window per GPU: stalls of less than a millisecond inside a slice
#: that may wait, and the sampling error where samples stand in for a process's own ranges (one period, a
#: millisecond, each time).
NOISE = 0.02
#: Causes that samples alone know.
BY_SAMPLES = (("gc", None), ("kernel_launch", "jit_compile"))


def _by_cause(found):
    spent = Counter()
    for key, ns in found.spent[0].items():
        spent["unknown" if unknown(key) else key[:2]] += ns
    return spent


@pytest.mark.parametrize(
    ("defect", "how"),
    [
        ("scheduling", NO_SCHED),
        ("tokenization", NO_SCHED),
        ("no_work", NO_SCHED),
        ("dispatch", NO_SAMPLES),
        ("gc", NO_SAMPLES),
        ("jit_compile", NO_SAMPLES),
        ("throttling", NO_PERF),
        ("tokenization", _without("api_server")),
        ("tokenization", _without("api_server", NO_PERF)),
        ("scheduling", _without("api_server", NO_PERF)),
        ("sync", _without("engine_0")),
        ("ipc", _without("engine_0", NO_PERF)),
    ],
)
def test_what_a_source_told_becomes_unknown_not_something_else(defect, how):
    run = simulate({defect: SHARE})
    whole, rest = told(run), told(run, how)
    before, after = _by_cause(whole), _by_cause(rest)
    moved = {cause: ns for cause, ns in (after - before).items() if cause != "unknown"}
    if not how.samples:
        assert "cpu_time" in {row.id for row in rest.document.abstained}
        known = sum(before[cause] - after[cause] for cause in BY_SAMPLES)
    else:
        known = 0
    assert sum(moved.values()) < NOISE * run.length(0) + known, moved
    assert after.total() == before.total()
    weaker = {"cpu_bound": ("mixed",)}.get(
        whole.document.verdict.state, ()
    )  # what is not known counts for nobody
    assert rest.document.verdict.state in (whole.document.verdict.state, *weaker, "insufficient")


@pytest.mark.parametrize("defect", ["sync", "gc"])
def test_a_missing_rank_is_said_to_be_missing(defect):
    """One rank's waiting cannot be told from transfer: it is a state of its own, not counted as lost."""
    document = told(simulate({defect: SHARE}), _without("worker_TP1")).document
    assert len(document.devices) == 1
    assert "straggler_rank" in {row.id for row in document.abstained}
    assert document.devices[0].gpu_time_ns.collective_wait in (0, None)
    assert any("rank 1 was not recorded" in why for why in document.verdict.why)


def test_without_scheduler_events_no_cpu_state_is_known():
    found = told(simulate({"shortage": SHARE}), NO_SCHED)
    assert {cpu for _, _, cpu in found.spent[0]} == {"unknown"}
    abstained = found.document.abstained
    assert {"scheduling", "cpu_shortage", "quota_throttling"} <= {row.id for row in abstained}
    assert all(row.reason and row.record_with for row in abstained)


@pytest.mark.parametrize(("defect", "rule"), [("jit_compile", "run_time_compilation"), ("gc", "gc_pauses")])
def test_what_only_samples_show_is_abstained_from_without_them(defect, rule):
    document = told(simulate({defect: SHARE}), NO_SAMPLES).document
    assert rule in {row.id for row in document.abstained}
