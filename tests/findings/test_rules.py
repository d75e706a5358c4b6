"""The rules' tables: each complete, in the docs, and with a case in its topic's test file."""

import importlib
import inspect

import pytest

from tracelib.findings.__main__ import generated
from tracelib.findings.rules import RULES, TOPICS

IDS = [rule.id for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_each_rule_has_a_trigger_and_a_near_miss_in_its_topics_test_file(rule):
    """Add a `Case` to CASES of tests/findings/test_TOPIC.py."""
    cases = importlib.import_module(f"tests.findings.test_{rule.topic}").CASES
    assert any(case.without for case in cases if case.rule == rule.id)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_is_a_whole_table_or_has_a_function(rule):
    assert (
        (rule.cause and rule.claim and rule.why)
        if not hasattr(TOPICS[rule.topic], rule.id)
        else not rule.claim
    )
    assert rule.verify
    assert rule.disproof
    assert rule.statement or rule.abstains_without


@pytest.mark.parametrize("topic", TOPICS)
def test_each_function_of_a_topic_that_takes_a_rule_is_one(topic):
    functions = inspect.getmembers(TOPICS[topic], inspect.isfunction)
    names = {name for name, f in functions if next(iter(inspect.signature(f).parameters), "") == "rule"}
    assert {name for name in names if not name.startswith("_")} <= set(IDS)


def test_no_rule_is_twice():
    assert len(set(IDS)) == len(IDS)


@pytest.mark.parametrize(("path", "text"), generated().items(), ids=lambda part: getattr(part, "name", ""))
def test_what_docs_has_of_them_is_as_generated(path, text):
    """`python -m tracelib.findings` writes it."""
    assert path.read_text(encoding="utf-8") == text
