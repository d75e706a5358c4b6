"""The simulator's bookkeeping against itself: a run without the defect is shorter by the defect's cost."""

import pytest

from tests.simulator import CPU_STATE, DEFECTS, simulate


def test_the_same_arguments_give_the_same_run(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        simulate("alloc", 0.2, seed=3, seconds=0.2).write(folder)
    assert (first / "perf.txt").read_text() == (second / "perf.txt").read_text()
    assert simulate("alloc", 0.2, seed=3).truth != simulate("alloc", 0.2, seed=4).truth


@pytest.mark.parametrize("defect", DEFECTS)
def test_lost_time_is_idle_time_and_waiting_counted_directly(defect):
    """Second bookkeeping: per GPU, the window less what its operations did once all ranks had come."""
    run = simulate(defect, 0.2, seconds=0.2)
    for worker in run.server.workers:
        useful = sum(
            max(0, min(op.end, run.truth.end) - max(op.met or op.begin, run.truth.start))
            for op in worker.gpu.ops
        )
        assert run.truth.by_cause(worker.rank).total() == run.truth.duration - useful


@pytest.mark.parametrize("defect", [name for name, cause in DEFECTS.items() if cause])
def test_without_the_defect_the_same_steps_take_less_time_by_what_it_cost(defect):
    """The counterfactual, on one GPU, where no other rank computes during a wait; imbalance takes two."""
    ranks = 2 if defect == "imbalance" else 1
    run, healed = (simulate(defect, 0.2, ranks=ranks, seconds=0.2, heal=heal) for heal in (False, True))
    cost = run.truth.by_cause(0)[DEFECTS[defect]] - healed.truth.by_cause(0)[DEFECTS[defect]]
    assert cost == pytest.approx(0.2 * 200e6, rel=0.05)
    assert run.truth.duration - healed.truth.duration == pytest.approx(cost, rel=0.02)


@pytest.mark.parametrize("defect", CPU_STATE)
def test_time_without_a_cpu_is_counted(defect):
    run, healed = (simulate(defect, 0.2, ranks=1, heal=heal) for heal in (False, True))
    cost = run.truth.by_cpu()[CPU_STATE[defect]]
    assert run.truth.duration - healed.truth.duration == pytest.approx(cost, rel=0.05)
