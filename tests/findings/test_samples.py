"""What the committed samples must lead to: each was recorded with one defect (its truth.json says which)."""

import json
from pathlib import Path

import pytest

import tracelib
from tracelib.findings import diagnose

SAMPLES = Path(__file__).parents[2] / "sample_traces"
#: sample, the finding that must stand first, a word of its claim
FIRST = [
    ("compile", "run_time_compilation", "compiled at run time"),
    ("gpu_bound", "gpu_bound", "they are the limit, not the host"),
    ("idle", "no_load", "there was no work"),
    ("ipc", "cpu_shortage", "ready to run and had no CPU"),  # eight readers on four CPUs: cheaper to mend
    ("launch_eager", "low_graph_coverage", "came from graphs"),
    ("launch_graph", "launch_bound", "waited for the next launch"),
    ("throttled", "quota_throttling", "CPUs stopped threads"),
    ("tokenization", "tokenization_exposed", "waited for tokenization"),
]


@pytest.mark.parametrize(("name", "first", "word"), FIRST, ids=[row[0] for row in FIRST])
def test_the_defect_stands_first(name, first, word):
    truth = json.loads((SAMPLES / name / "truth.json").read_text())
    document = diagnose(tracelib.analyse(tracelib.load(SAMPLES / name)))
    assert document.verdict.state == truth["verdict"]
    found = document.findings[0]
    assert found.id == first
    assert word in found.claim
    if truth.get("leading_cause"):
        assert max(document.findings, key=lambda f: f.gain_ns or 0).cause == truth["leading_cause"]
