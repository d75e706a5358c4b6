"""The rules' tables: each complete, in the docs, and with a run that triggers it, a near miss, and a removal."""

import importlib
import inspect
from pathlib import Path

import pytest

from tracelib.findings.__main__ import page
from tracelib.findings.rules import RULES, TOPICS

ROOT = Path(__file__).parents[2]
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


def test_the_docs_table_is_the_rules_own():
    """`python -m tracelib.findings` writes it."""
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert page(text) == text
