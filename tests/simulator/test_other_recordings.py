"""The same defects, recorded otherwise: kernels from one graph launch, and an OS that forgets switches."""

import pytest

import tracelib
from tests.simulator import CPU_STATE, DEFECTS, simulate
from tests.simulator.judge import blamed, confusion, verdict_of
from tracelib.analyses.results import analyse
from tracelib.findings import diagnose

SHARE = 0.2
#: How far a figure may be off, of the window per GPU, and a moment's cause all causes together.
OFF, MOMENTS = 0.003, 0.008


def _held_against_the_truth(run, tmp_path, **how):
    results = analyse(tracelib.load(run.write(tmp_path, **how)))
    told, true = blamed(results), run.truth
    for rank in range(2):
        assert told.by_cause(rank).total() == true.by_cause(rank).total()
    found = confusion(true.pieces, told.pieces)
    right = sum(ns for (cause, other), ns in found.items() if cause == other)
    assert right >= found.total() - MOMENTS * 2 * true.duration
    assert diagnose(results).verdict.state == verdict_of(true)
    return told


@pytest.mark.parametrize(
    "defect", ["dispatch", "api", "module_load", "sync", "gil", "imbalance", "profiler", "tokenization"]
)
def test_with_graph_replay_the_defect_is_blamed_by_what_it_cost(tmp_path, defect):
    run = simulate(defect, SHARE, graph=True)
    told, cause = _held_against_the_truth(run, tmp_path), DEFECTS[defect]
    assert told.by_cause().most_common(1)[0][0] == cause
    for rank in range(2):
        true = run.truth.by_cause(rank)[cause]
        assert told.by_cause(rank)[cause] == pytest.approx(true, abs=OFF * run.truth.duration)


@pytest.mark.parametrize("defect", ["shortage", "starvation", "throttling", "tokenization", "gil", "no_work"])
def test_switches_from_idle_that_the_kernel_did_not_record_are_made_up_for(tmp_path, defect):
    """The reference captures' kernel hardly records them: what threads do next shows when they came."""
    run = simulate(defect, SHARE)
    told = _held_against_the_truth(run, tmp_path, from_idle=False)
    for rank in range(2):
        for state in CPU_STATE.values():
            true = run.truth.by_cpu(rank)[state]
            assert told.by_cpu(rank)[state] == pytest.approx(true, abs=OFF * run.truth.duration)


def test_whoever_took_the_cpu_is_named(tmp_path):
    """The same lack of a CPU, by strangers and by the server's own tokenizers: different changes help."""
    by = {}
    for defect in ("shortage", "starvation"):
        folder = tmp_path / defect
        folder.mkdir()
        run = simulate(defect, SHARE)
        document = diagnose(analyse(tracelib.load(run.write(folder))))
        found = {finding.id: finding for finding in document.findings}
        by[defect] = found.get("tokenization_starves")
        assert found["cpu_shortage"].exposed_ns == pytest.approx(run.truth.by_cpu()["runnable"], rel=0.02)
    assert by["shortage"] is None
    assert by["starvation"].exposed_share == pytest.approx(SHARE, rel=0.15)
