"""A simulated run whose only defect is X must lead to the finding of X, before all others."""

import pytest

from tests.conftest import thorough
from tests.simulator import DEFECTS, simulate
from tests.simulator.judge import told

FIRST = {
    "tokenization": "tokenization_exposed",
    "dispatch": "low_graph_coverage",
    "api": "low_graph_coverage",
    "jit_compile": "run_time_compilation",
    "module_load": "module_loading",
    "alloc": "allocation_hot_path",
    "ipc": "ipc_stretched",
    "scheduling": "engine_scheduling",
    "sync": "host_synchronisation",
    "gc": "gc_pauses",
    "gil": "gil_contention",
    "imbalance": "rank_imbalance",
    "no_work": "no_load",
    "idle": "no_load",
    "shortage": "cpu_shortage",
    "starvation": "cpu_shortage",
    "throttling": "quota_throttling",
    "profiler": "profiler_overhead",
    "host_api": "host_work",
    "host_engine": "host_work",
    "host_worker": "host_work",
}


def test_each_defect_of_the_simulator_has_its_finding():
    """But for the copy that drains the queue: no finding names yet who emptied it; late launches lead."""
    assert set(FIRST) == set(DEFECTS) - {"drain"}


def test_a_healthy_server_is_bound_by_its_gpus():
    assert told(simulate({})).document.findings[0].id == "gpu_bound"


LATER = (
    "api",
    "gil",
    "module_load",
    "alloc",
    "sync",
    "starvation",
    "host_api",
    "host_engine",
    "idle",
)  # shaped as others are


@pytest.mark.parametrize("defect", thorough(FIRST, but=[d for d in FIRST if d not in LATER]))
def test_the_only_defect_stands_first(defect):
    run = simulate({defect: 0.6})
    document = told(run).document
    found = document.findings[0]
    assert found.id == FIRST[defect]
    if DEFECTS[defect].causes and defect != "profiler":
        whole = document.window.duration_ns * len(document.devices)
        assert found.exposed_share == pytest.approx(run.costs(0)[defect] / whole, abs=0.03)
