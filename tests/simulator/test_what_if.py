"""What replay predicts is what the simulator plays when the defect is not there."""

import pytest

from tests.conftest import thorough
from tests.simulator import simulate
from tracelib.analyses.replay import WITHOUT, Change
from tracelib.analyses.whatif import Replay

#: The change that takes each defect away.
CHANGES = {
    "shortage": WITHOUT["shortage"],
    "starvation": WITHOUT["shortage"],
    "throttling": WITHOUT["shortage"],
    "tokenization": WITHOUT["tokenization"],
    "profiler": WITHOUT["recorder"],
}
#: How far a gain may be from the true one, as a share of it.
NEAR = 0.05


def length(run):
    """Return how long all GPUs of a run were at work."""
    spans = [(gpu.ops[0].begin, gpu.ops[-1].end) for gpu in run.gpus]
    return min(end for _, end in spans) - max(begin for begin, _ in spans)


RUNS = [
    *((defect, "tensor", graph) for defect in CHANGES for graph in (False, True)),
    *((defect, "polling", False) for defect in ("shortage", "tokenization")),
    *(("tokenization", shape, False) for shape in ("sglang", "pipeline")),
]
QUICK = (
    ("shortage", "tensor", False),
    ("tokenization", "tensor", True),
    ("tokenization", "polling", False),
    ("tokenization", "sglang", False),  # gloo hands on from one scheduler to the other
    ("tokenization", "pipeline", False),  # stages send to each other, and two batches are under way
)


@pytest.mark.parametrize(("defect", "shape", "graph"), thorough(RUNS, but=QUICK))
def test_a_run_without_the_defect_is_as_long_as_predicted(defect, shape, graph):
    """The simulated engine asks for its next request when it is done: a closed loop."""
    run = simulate({defect: 0.2}, shape=shape, graph=graph)
    replay = Replay(run.results(), closed_loop=True)
    unchanged, changed = replay.row("", Change()), replay.row("", CHANGES[defect])
    assert unchanged["window_ns"] == pytest.approx(length(run), rel=0.001)
    assert changed["gained_ns"] == pytest.approx(length(run) - length(run.baseline), rel=NEAR)
