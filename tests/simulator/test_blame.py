"""A run whose only defect is X is blamed on X: each defect, at 5, 20 and 60 % of the window, with noise of all others."""

import pytest

from tests.simulator import CPU_STATE, DEFECTS
from tests.simulator.judge import SHARES, case, verdict_of

EACH = pytest.mark.parametrize("share", SHARES)


@EACH
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_ledger_covers_the_same_lost_time_as_the_simulators(defect, share):
    run = case(defect, share)
    assert (run.blamed.start, run.blamed.end) == (run.truth.start, run.truth.end)
    for rank in range(2):
        assert run.blamed.by_cause(rank).total() == run.truth.by_cause(rank).total()


@EACH
@pytest.mark.parametrize("defect", [name for name, cause in DEFECTS.items() if cause])
def test_the_only_defect_is_blamed_most_and_by_what_it_cost(defect, share):
    run, cause = case(defect, share), DEFECTS[defect]
    assert run.truth.share(cause) > share / 2  # the simulator did what it was asked to
    assert run.blamed.by_cause().most_common(1)[0][0] == cause
    for rank in range(2):
        assert run.blamed.by_cause(rank)[cause] == pytest.approx(
            run.truth.by_cause(rank)[cause], abs=run.tolerance_ns()
        )


@EACH
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_verdict_is_what_the_thresholds_make_of_the_truth(defect, share):
    run = case(defect, share)
    assert run.verdict == verdict_of(run.truth)


@EACH
@pytest.mark.parametrize("defect", CPU_STATE)
def test_a_lack_of_cpu_stands_in_its_column(defect, share):
    run, state = case(defect, share), CPU_STATE[defect]
    other = ({"runnable", "throttled"} - {state}).pop()
    for rank in range(2):
        told = run.blamed.by_cpu(rank)
        assert told[state] == pytest.approx(run.truth.by_cpu(rank)[state], abs=run.tolerance_ns())
        assert told[other] < 0.01 * run.truth.duration


@EACH
@pytest.mark.parametrize("defect", [name for name in DEFECTS if name not in CPU_STATE])
def test_no_lack_of_cpu_is_made_up(defect, share):
    told = case(defect, share).blamed.by_cpu()
    assert told["runnable"] + told["throttled"] < 0.01 * case(defect, share).truth.duration


@EACH
def test_a_quota_stops_whatever_the_server_was_at(share):
    run = case("throttling", share)
    assert run.blamed.by_cause().most_common(1)[0][0] == run.truth.by_cause().most_common(1)[0][0]


@EACH
def test_a_server_without_defect_has_no_large_cause(share):
    assert (
        max(case("gpu_bound", share).blamed.by_cause().values())
        < 2 * 0.02 * case("gpu_bound", share).truth.duration
    )


@EACH
@pytest.mark.parametrize("defect", DEFECTS)
def test_moment_by_moment_nearly_all_lost_time_has_its_true_cause(defect, share):
    """All causes of a run, the small ones too: the sums cannot agree by accident."""
    found = case(defect, share).confusion()
    right = sum(ns for (true, told), ns in found.items() if true == told)
    assert right >= found.total() - 4 * case(defect, share).tolerance_ns()  # two GPUs, all causes together
