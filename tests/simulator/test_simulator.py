"""The simulator, held against itself: same arguments, same run; a defect costs time and nothing else."""

import pytest

from tests.simulator import DEFECTS, SHAPES, simulate
from tests.simulator.truth import costs


def test_the_same_arguments_give_the_same_run(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        simulate({"alloc": 0.2}, seed=3).write(folder)
    assert (first / "perf.txt").read_text() == (second / "perf.txt").read_text()
    runs = [simulate({"alloc": 0.2}, seed=seed).server.workers[0].gpu.ops for seed in (3, 4)]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_run_without_the_defect_differs_in_nothing_else(shape, defect):
    """The same work by the same operations; only when, and for imbalance one rank's, differs."""
    run = simulate({}, {defect: 0.15}, shape=shape)
    ranks = 1 if defect == "imbalance" else 2
    for gpu, healed in list(zip(run.gpus, run.baseline.gpus, strict=True))[:ranks]:
        steps = run.server.plan.steps
        work, same = ([(op.step, op.useful) for op in side.ops if op.step < steps] for side in (gpu, healed))
        assert work == same


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_costs_nothing_in_the_phase_before_it(defect):
    run = simulate({}, {defect: 0.15})
    assert run.costs(0)[defect] == 0
    assert run.costs(1)[defect] > 0.01 * run.length(1)


def test_a_run_with_the_defect_is_longer_by_what_it_cost():
    for defect in DEFECTS:
        if defect != "imbalance":
            run = simulate({defect: 0.15})
            assert run.length(0) - run.baseline.length(0) == run.costs(0)[defect]


def test_costs_of_two_that_hide_each_other_add_up():
    """One costs 5 alone, the other 4, both together 5: by turns first and second, 3 and 2."""
    lost = {"": 0, "a": 5, "b": 4, "ab": 5}
    found = costs(frozenset("ab"), lambda kinds: lost["".join(sorted(kinds))])
    assert found == {"a": 3, "b": 2}
