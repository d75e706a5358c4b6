"""A defect is blamed by what it costs: alone, with another, on each kind of server, and recorded badly.

One test a run, since a run takes about half a second to write, read and analyse; it holds all rows of that
run.
"""

import re
from pathlib import Path

import pytest

from tests.conftest import thorough
from tests.simulator import simulate
from tests.simulator.cases import SHARE, cases, pairs, recordings, shapes, singles
from tests.simulator.confusion import MATRIX_HEAD, ROWS_HEAD, in_matrix, matrix_row, table_row
from tests.simulator.judge import rows, told, verdict_of

DOCUMENT = (Path(__file__).parents[2] / "docs" / "confusion.md").read_text()
#: More of the same: shaped as others are.
LATER = (
    *("tensor api", "tensor module_load", "tensor alloc", "tensor gil", "tensor starvation", "tensor ipc"),
    *("tensor profiler", "tensor host_api", "tensor jit_compile", "polling host_engine", "sglang dispatch"),
    *("sglang imbalance", "sglang no_work", "pipeline no_work", "replicas dispatch", "replicas gc"),
    *("graphs api", "graphs sync", "graphs gil", "graphs imbalance", "tensor gil+host_engine"),
    *("tensor no_work+scheduling", "tensor alloc+host_worker", "tensor shortage perf 30 ms off"),
    *("tensor dispatch rank 1 2 ms off", "tensor dispatch rank 1 50 ppm fast"),
    *("polling dispatch", "polling no_work", "replicas no_work", "replicas scheduling", "sglang scheduling"),
    *("tensor host_engine", "pipeline dispatch", "tensor dispatch rank 1 0.5 % fast"),
    *(
        "tensor shortage perf 100 ppm fast",
        "tensor gil no switches from idle",
        "tensor no_work API server missing",
    ),
)


def test_each_case_has_its_name():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert set(LATER) <= set(names)


@pytest.mark.parametrize(
    "case", thorough(cases(), but=[c for c in cases() if c.name not in LATER]), ids=lambda case: case.name
)
def test_a_defect_is_blamed_by_what_it_costs(case):
    found = rows(case)
    for row in found:
        _the_document_says_so(row)
    for row in found:
        assert row.true > row.asked / 5, "the simulator did not do what it was asked to"
        assert row.blamed <= row.true + case.tolerance
        assert row.off <= case.tolerance or row.said
        assert row.mistake[1] <= case.tolerance or row.said, row.mistake
    if case.run.shape != "pipeline" and not case.recording:
        _the_ledger_holds_all_lost_time(case.run)
        if (
            case.run.shape != "replicas"
        ):  # they are seldom in one phase at once, and the verdict is on the whole
            assert found[0].verdict == verdict_of(case.run)


def _the_ledger_holds_all_lost_time(run):
    for phase, spent in enumerate(told(run).spent):
        assert spent.total() == run.lost(phase)


def _the_document_says_so(row):
    """Word for word, and every figure to 0.3 % of the window."""
    for text in [table_row(row)] + ([matrix_row(row)] if row.case in singles() and in_matrix(row) else []):
        assert any(_same(text, line) for line in DOCUMENT.splitlines()), text


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
    phases = sum(len(shares) for case in cases() for shares in case.run.phases)
    for head, count in ((ROWS_HEAD, phases), (MATRIX_HEAD, len(singles()))):
        first = lines.index(head.splitlines()[0])
        table = [line for line in lines[first : first + count + 3] if line.startswith("|")]
        assert len(table) == count + 2
        assert "\n".join(table).startswith(head)


def test_the_worst_rows_stand_first():
    first = DOCUMENT.splitlines().index(ROWS_HEAD.splitlines()[0]) + 2
    rest = DOCUMENT.splitlines()[first:]
    table = rest[: rest.index("")]
    off = [float(line.split("|")[8].strip(" %")) for line in table]
    assert off == sorted(off, reverse=True)


def test_there_are_cases_of_every_kind():
    assert {case.run.shape for case in shapes()} == {"tensor", "polling", "sglang", "pipeline", "replicas"}
    assert all(len(case.run.kinds) == 2 for case in pairs())
    assert len({case.recording for case in recordings()}) > 15


def test_whoever_took_the_cpu_is_named():
    """The same lack of a CPU, by strangers or by the server's own tokenizers: different changes help."""
    by = {}
    for defect in ("shortage", "starvation"):
        run = simulate({defect: SHARE})
        document = told(run).document
        found = {finding.id: finding for finding in document.findings}
        by[defect] = found.get("tokenization_starves")
        cost = run.costs(0)[defect] / (document.window.duration_ns * 2)
        assert found["cpu_shortage"].exposed_share == pytest.approx(cost, rel=0.05)
    assert by["shortage"] is None
    assert by["starvation"].exposed_share == pytest.approx(cost, rel=0.15)
