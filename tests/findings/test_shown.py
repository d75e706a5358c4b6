"""What Jupyter shows of a run's findings: the report's own words; for programs they stay plain dicts."""

import copy
import json
import pickle

from tests.charts.server import make
from tests.conftest import ROOT
from tests.report.example import START, findings
from tracelib import analyse, load
from tracelib.findings import diagnose
from tracelib.findings.shown import Shown
from tracelib.report.sections import findings_list, verdict


def test_the_document_the_verdict_and_a_finding_show_themselves():
    document = findings()
    page = Shown(document, START)._repr_html_()
    assert verdict(document).html in page
    assert findings_list(document).html in page
    alone = Shown(document["findings"][0], START)._repr_html_()
    assert alone in page  # with the same times after the window's start
    said = Shown(document["verdict"] | {"sentence": "<b>x</b>"}, START)._repr_html_()
    assert "&lt;b&gt;x" in said
    assert "high confidence" in said


def test_what_diagnose_returns_is_such_a_document_and_as_plain_as_before():
    run = load(ROOT / "sample_traces" / "launch_nsys")
    made = diagnose(analyse(run))
    for part in (made, made["verdict"], *made["findings"]):
        assert part._repr_html_().startswith("<")
    assert made["findings"]
    assert json.loads(json.dumps(made)) == made
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_results_say_what_they_hold_and_why_not():
    said = repr(make(missing={"demand": "no wake-ups were recorded"}))
    assert said.startswith("results over 1.000 s (by hand)\n")
    assert "\nlost                       5 rows\n" in said
    assert "rows: no wake-ups were recorded\n" in said
