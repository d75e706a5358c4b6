"""A rule as CONTRIBUTING has one added: its table alone is judged, ordered, written, shown and documented."""

import json
import sys

import jsonschema
import msgspec
import pytest

from tests.findings.sheet import ANY_SIZE
from tests.findings.test_launching import hidden, inside
from tracelib.findings import __main__ as docs
from tracelib.findings import diagnose, schema, validate
from tracelib.findings.rules import RULES, Rule
from tracelib.report import sections
from tracelib.report.ticket import summary

TABLE = """
because = "a toy was in the way"
threshold = 0.1
needs = "toys"
abstains_without = ["launch_calls"]
change = "setting"
gain = "beyond CPUs"
cause = "gc"
claim = "A toy was in the way {share} of the time.{shortage}"
why = "it is recorded"
disproof = "If it is gone, it was not the toy."
advice = ["Put it away."]
verify = ["Look again."]
"""


@pytest.fixture
def toy(monkeypatch):
    rule = msgspec.structs.replace(msgspec.toml.decode(TABLE, type=Rule), id="toy", topic="launching")
    for module in ("diagnose", "__main__"):
        monkeypatch.setattr(sys.modules[f"tracelib.findings.{module}"], "RULES", (*RULES, rule))
    return rule


def test_it_is_found_and_shown_where_it_applies(toy):
    run = inside("gc.collect", "annotation")
    run.runs(0, 0, 102, cpu=0)  # it had a CPU all the time
    run.runs(run.engine, 1, 2, cpu=1)
    document = diagnose(run.results(), thresholds=ANY_SIZE)
    jsonschema.validate(json.loads(document.to_json()), schema())
    assert validate(document) == []
    (finding,) = [row for row in document.findings if row.id == "toy"]
    assert finding.claim == "A toy was in the way 97 % of the time."
    assert finding.place.startswith("First, because no cheaper change gives as much")
    assert "A toy was in the way" in sections.findings_list(document).html
    assert "Put it away." in summary(document)


def test_it_is_silent_where_it_does_not_and_abstains_where_nobody_can_tell(toy):
    run = hidden()
    run.doing(0, 1, 100, "gc.collect", "annotation")
    assert toy.judge(run.results()) is None
    blind = inside("aten::mm", "op")
    blind.slices.clear()
    assert toy.judge(blind.results()).record_with.startswith("torch.profiler")


def test_it_is_in_the_docs(toy):
    assert "| `toy` | a toy was in the way | 10 % | toys | setting |" in docs.table()
