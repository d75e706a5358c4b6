"""A run whose defect is X is blamed on X: each defect, at 5, 20, 60 % of the window, with noise of others.

One test a run, since a run takes about a second to write, read and analyse.
"""

import re
from pathlib import Path

import pytest

from tests.conftest import thorough
from tests.simulator import CPU_STATE, DEFECTS
from tests.simulator.confusion import MATRIX_HEAD, RUNS_HEAD, in_matrix, matrix_row, run_row
from tests.simulator.judge import case, cases, verdict_of

DOCUMENT = (Path(__file__).parents[2] / "docs" / "confusion.md").read_text()
RANKS = range(2)


@pytest.mark.parametrize(
    ("defect", "share"), thorough(cases(), but=[c for c in cases() if c[1] in (0.0, 0.2)])
)
def test_the_only_defect_is_blamed(defect, share):
    run = case(defect, share)
    _the_ledger_covers_the_same_lost_time(run)
    _the_defect_is_blamed_most_and_by_what_it_cost(run)
    _nearly_every_moment_has_its_true_cause(run)
    _a_lack_of_cpu_is_told_and_none_made_up(run)
    assert run.verdict == verdict_of(run.truth)
    _the_document_says_so(run)


def _the_ledger_covers_the_same_lost_time(run):
    assert (run.blamed.start, run.blamed.end) == (run.truth.start, run.truth.end)
    for rank in RANKS:
        assert run.blamed.by_cause(rank).total() == run.truth.by_cause(rank).total()


def _the_defect_is_blamed_most_and_by_what_it_cost(run):
    """A quota stops whatever the server is at; a healthy one has no large cause: both as in the truth."""
    cause = DEFECTS[run.defect] or run.truth.by_cause().most_common(1)[0][0]
    assert run.truth.share(cause) > run.share / 2  # the simulator did what it was asked to
    assert run.blamed.by_cause().most_common(1)[0][0] == cause
    for rank in RANKS:
        true = run.truth.by_cause(rank)[cause]
        assert run.blamed.by_cause(rank)[cause] == pytest.approx(true, abs=run.tolerance_ns())
    if run.defect == "gpu_bound":
        assert run.blamed.share(cause) < 0.02


def _nearly_every_moment_has_its_true_cause(run):
    """All causes of a run, the small ones too: the sums cannot agree by accident."""
    found = run.confusion()
    right = sum(ns for (true, told), ns in found.items() if true == told)
    assert right >= found.total() - 4 * run.tolerance_ns()  # two GPUs, all causes together


def _a_lack_of_cpu_is_told_and_none_made_up(run):
    for rank in RANKS:
        true, told = run.truth.by_cpu(rank), run.blamed.by_cpu(rank)
        for state in CPU_STATE.values():
            assert told[state] == pytest.approx(true[state], abs=run.tolerance_ns())


def _the_document_says_so(run):
    """Word for word, and every figure to the tolerance that the document states."""
    wanted = [run_row(run)] + ([matrix_row(run)] if in_matrix(run) else [])
    for row in wanted:
        assert any(_same(row, line) for line in DOCUMENT.splitlines()), row


def _same(row, line):
    words, figures = _taken_apart(row)
    other_words, others = _taken_apart(line)
    return words == other_words and figures == pytest.approx(others, abs=0.3)


def _taken_apart(row):
    """Return a row's text without its percentages, and those."""
    number = r"\d+(?:\.\d+)?(?=%)"
    return re.sub(number, "#", row), [float(found) for found in re.findall(number, row)]


def test_the_document_has_both_tables_and_no_other_rows():
    lines = DOCUMENT.splitlines()
    for head, rows in ((RUNS_HEAD, len(cases())), (MATRIX_HEAD, len(DEFECTS))):
        first = lines.index(head.splitlines()[0])
        table = [line for line in lines[first : first + rows + 3] if line.startswith("|")]
        assert len(table) == rows + 2
        assert "\n".join(table).startswith(head)
