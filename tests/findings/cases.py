"""The tests that every rule has: a run that triggers it, a near miss, and what it cannot do without.

A topic's test file lists its rules' cases and makes their tests of them: `TestRules = rule_tests(CASES)`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.findings.sheet import Sheet
from tracelib.analyses.results import Results
from tracelib.findings import diagnose
from tracelib.findings.finding import Abstained, Finding
from tracelib.findings.rules import RULES


@dataclass(frozen=True)
class Case:
    """A rule (it may have several), and runs written by hand."""

    rule: str
    trigger: Callable[[], Sheet]
    near_miss: Callable[[], Sheet]
    #: What makes the rule abstain when it is taken away from the trigger: silence would be a "no" that nobody
    #: recorded.
    without: tuple[Callable[[Sheet], None], ...]


def outcome(rule: str, results: Results) -> Finding | Abstained | None:
    """Return what the rule of that name says of a run."""
    (known,) = [row for row in RULES if row.id == rule]
    return known.judge(results)


def rule_tests(cases: list[Case]) -> type:
    """Return the class with the tests of these cases."""
    names = [f"{case.rule}-{n}" for n, case in enumerate(cases)]
    removals = [(case, without) for case in cases for without in case.without]

    class Tests:
        @pytest.mark.parametrize("case", cases, ids=names)
        def test_the_trigger_is_found(self, case):
            assert isinstance(outcome(case.rule, case.trigger().results()), Finding)

        @pytest.mark.parametrize("case", cases, ids=names)
        def test_the_near_miss_is_not(self, case):
            assert outcome(case.rule, case.near_miss().results()) is None

        @pytest.mark.parametrize(
            ("case", "without"),
            removals,
            ids=[f"{case.rule}-{without.__name__}" for case, without in removals],
        )
        def test_without_its_evidence_it_abstains_and_says_what_to_record(self, case, without):
            sheet = case.trigger()
            without(sheet)
            document = diagnose(sheet.results())
            assert case.rule not in {row.id for row in document.findings}
            (row,) = [row for row in document.abstained if row.id == case.rule]
            assert row.reason
            assert "perf record" in row.record_with or "profile" in row.record_with

    return Tests


# -------------------- what is taken away
def no_calls(sheet):
    sheet.slices = [row for row in sheet.slices if row.get("correlation") is None]


def no_gpu(sheet):
    sheet.ops.clear()


def no_sched(sheet):
    sheet.on_cpu.clear()


def no_samples(sheet):
    sheet.samples.clear()


def no_server(sheet):
    sheet.slices = [row for row in sheet.slices if row["thread"] not in (sheet.engine, sheet.api)]


def no_api(sheet):
    sheet.slices = [row for row in sheet.slices if row["thread"] != sheet.api]


def no_rank_1(sheet):
    sheet.ops = [row for row in sheet.ops if row["gpu"] == 0]
