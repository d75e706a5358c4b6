"""`tracelib whatif` on a sample."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ROOT
from tracelib.cli import main


def test_whatif_prints_the_scenario_that_is_asked_for(capsys):
    sample = str(ROOT / "sample_traces" / "stack")
    assert main(["whatif", sample, "--no-recorder", "--no-skew", "--closed-loop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    unchanged, changed = found["scenarios"]
    assert unchanged["window_ns"] == pytest.approx(found["window_ns"], rel=0.05)
    assert changed["scenario"] == "no recorder, no skew"
    assert changed["window_ns"] is None
    assert changed["why_not"] == "no collective was seen on all its ranks"


@pytest.mark.parametrize("cores", ["-1", "nan", "1e309"])
def test_a_number_of_cores_is_one_and_no_less_than_none(capsys, cores):
    assert main(["whatif", "anything", "--cores", cores]) == 2
    assert "--cores" in capsys.readouterr().err
