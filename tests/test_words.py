"""Every name stands once; figures and untrusted texts are written in one way."""

import doctest

import pytest

from tracelib import words
from tracelib.analyses.gpu_time import GPU_STATE
from tracelib.analyses.thread_states import CPU_STATE
from tracelib.slice_rules import CAUSES


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(words).failed == 0


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (words.CAUSES, CAUSES),
        (words.GPU_STATES, GPU_STATE.categories.to_list()),
        (words.CPU_STATES, CPU_STATE.categories.to_list()),
        (words.VERDICTS, ["cpu_bound", "not_cpu_bound", "mixed", "no_load", "insufficient"]),
    ],
)
def test_each_has_one_name_and_no_two_share_one(table, keys):
    assert set(keys) <= set(table)
    assert len({word.name for word in table.values()}) == len(table)
    assert all(word.name == word.name.strip() and word.meaning for word in table.values())


def test_what_a_users_rules_add_is_named_as_they_name_it():
    assert words.cause_name("disk_reads") == "disk reads"
    assert words.cause_label("ipc", "shared_memory") == "messages between processes: shared memory"
    assert words.role_name("detokenizer\x1b") == r"detokenizer\x1b"
    assert words.role_name(None) == "unknown role"


def test_a_sentence_begins_with_a_capital():
    assert words.sentence("IPC and gc") == "IPC and gc"
    assert words.sentence("no requests") == "No requests"
    assert words.sentence("") == ""


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.0004, "<0.1 %"),
        (0.0006, "0.1 %"),
        (0.0421, "4.2 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.423, "42 %"),
        (0.994, "99 %"),
        (0.996, "99.6 %"),
        (0.9994, "99.9 %"),
        (0.9995, ">99.9 %"),
        (0.99999, ">99.9 %"),
        (1, "100 %"),
        (1.07, "107 %"),
        (-0.05, "-5.0 %"),
        (None, "not known"),
        (float("nan"), "not known"),
    ],
)
def test_a_share_is_neither_rounded_to_nothing_nor_to_all(part, text):
    assert words.share(part) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (1, "1 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (1_000, "1.00 µs"),
        (1_234, "1.23 µs"),
        (45_678, "45.7 µs"),
        (999_600, "1.00 ms"),
        (123_456_789, "123 ms"),
        (999_999_999, "1.00 s"),
        (61_000_000_000, "61.0 s"),
        (119_000_000_000, "119 s"),
        (600_000_000_000, "10.0 min"),
        (-4_000, "-4.00 µs"),
        (None, "not known"),
        (float("nan"), "not known"),
    ],
)
def test_a_duration_has_three_digits_and_a_unit(ns, text):
    assert words.duration(ns) == text


def test_a_moment_counts_from_the_start():
    assert words.moment(5_000_001_000, 5_000_000_000) == "+0.000001 s"
    assert words.moment(4_000_000_000, 5_000_000_000) == "-1.000000 s"
    assert words.moment(None, 0) == "not known"


def test_hostile_text_is_one_visible_line():
    assert words.plain("a\x1b[31m\u202eb\u200b\n") == r"a\x1b[31m\u202eb\u200b\n"
    assert words.plain("a\u3164b\udcffc\u2028") == r"a\u3164b\udcffc\u2028"
    assert words.plain("кириллица, 日本語") == "кириллица, 日本語"


def test_long_text_ends_in_an_ellipsis_and_keeps_to_the_limit():
    assert words.plain("abcdef", 4) == "abc…"
    assert words.plain("abcd", 4) == "abcd"
    assert len(words.plain("\x1b" * 500, 60)) == 60


def test_plain_text_stays_plain():
    once = words.plain("a\x00b\u202e")
    assert words.plain(once) == once
