"""The ticket's comment: short, verdict first, and deaf to markup in names."""

import pytest

from tests.report.example import everywhere, findings, plain, typed
from tests.report.test_sections import HOSTILE
from tracelib.report.run import Failure
from tracelib.report.ticket import MAX_LINES, escaped, failed, summary


def test_verdict_first_then_numbers_then_table():
    lines = summary(findings(), "f" * 64).splitlines()
    assert lines[0] == "### INC-42: decode is slow"
    assert lines[2].startswith(
        "**CPU quota, host work** (high confidence). Time to first token of 5 requests: "
    )
    assert "p50 90.0 ms, max 300 ms." in lines[2]
    assert "The CPU side is the limit." in lines[2]
    assert [line[:4] for line in lines[4:7]] == ["- **"] * 3
    table = [line for line in lines if line.startswith("|")]
    assert table[2] == "| Kernel launch | 30 % | 600 µs | 450 µs |"
    assert any("Evidence: worker\\_TP0/757: GPU of rank 0 idle" in line for line in lines)
    assert "Not known from these files: gil." in "\n".join(lines)
    assert f"sha256 {'f' * 64}" in lines[-1]


def test_it_never_grows_beyond_a_ticket():
    document = plain()
    document["findings"] = document["findings"] * 20
    document["abstained"] = document["abstained"] * 20
    document["devices"] = document["devices"] * 64
    every_cause = [
        "tokenization",
        "kernel_launch",
        "ipc",
        "scheduling",
        "sync",
        "gc",
        "gil",
        "imbalance",
        "profiler",
        "no_work",
        "unattributed",
    ]
    document["devices"][0]["causes"] = [
        {"cause": cause, "sub_cause": None, "cpu_state": "running", "ns": 1} for cause in every_cause
    ]
    assert len(summary(typed(document), "f" * 64, Failure(3, "ValueError", "x")).splitlines()) <= MAX_LINES


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_every_field_stay_names(text):
    shown = summary(everywhere(text), "f" * 64)
    assert len(shown.splitlines()) <= MAX_LINES
    assert "<" not in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "](" not in shown.replace("\\](", "")
    assert "@everyone" not in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {5}


def test_a_run_without_findings_says_so():
    shown = failed(Failure(7, "ValueError", "two\nlines <b>"), "f" * 64)
    assert "cell 7: ValueError: two lines &lt;b&gt;" in shown
    assert "f" * 64 in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_cannot_be_marked_up(text):
    shown = escaped(text)
    assert "<" not in shown
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert "](" not in shown.replace("\\](", "")
    assert "@everyone" not in shown


def test_numbers_keep_their_digits():
    assert escaped("44.4 %") == "44.4 %"
    assert escaped("1. first") == "\\1. first"
