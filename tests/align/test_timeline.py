"""Files of several runs are not silently read as one."""

import tracelib
from tests.conftest import ROOT
from tracelib.align.timeline import stretches


def test_stretches_by_hand():
    """0 and 1 meet by way of 2; 3 only touches 1's end; 4, one moment, lies in 3. Times may be negative."""
    spans = {0: (-9, -5), 1: (-4, 8), 2: (-6, -3), 3: (8, 12), 4: (10, 10)}
    assert stretches(spans) == [[0, 2, 1], [3, 4]]
    assert stretches({}) == []
    assert stretches({7: (3, 3), 8: (3, 3)}) == [[7], [8]]


def test_several_runs_in_one_folder_are_told_of():
    runs = [ROOT / "sample_traces" / "sweep" / name for name in ("cpus_2", "cpus_4", "cpus_8")]
    said = tracelib.load(runs).health["message"]
    assert said.str.contains("in 3 stretches of time").sum() == 1
    assert not said.str.contains("covers none").any()


def test_one_run_is_not():
    said = tracelib.load(ROOT / "sample_traces" / "sweep" / "cpus_2").health["message"]
    assert not said.str.contains("stretches of time|covers none").any()
