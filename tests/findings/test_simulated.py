"""A simulated run whose only defect is X must lead to the finding of X, before all others."""

import pytest

from tests.conftest import thorough
from tests.simulator import DEFECTS, simulate
from tracelib.findings import diagnose

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
    "shortage": "cpu_shortage",
    "starvation": "cpu_shortage",
    "throttling": "quota_throttling",
    "profiler": "profiler_overhead",
    "gpu_bound": "gpu_bound",
}


def test_each_defect_of_the_simulator_has_its_finding():
    assert set(FIRST) == set(DEFECTS)


LATER = ("api", "gil", "module_load", "alloc", "sync", "starvation")  # shaped as others are


@pytest.mark.parametrize("defect", thorough(FIRST, but=[d for d in FIRST if d not in LATER]))
def test_the_only_defect_stands_first(defect):
    run = simulate(defect, 0.6)
    document = diagnose(run.results())
    found = document.findings[0]
    assert found.id == FIRST[defect]
    cause = DEFECTS[defect]
    if cause is None or defect in ("shortage", "starvation", "profiler"):
        return
    devices = len(document.devices)
    truth = run.truth.by_cause()[cause] / ((run.truth.end - run.truth.start) * devices)
    assert found.exposed_share == pytest.approx(truth, abs=0.03)
