"""Marks as Android's, Chromium's and OpenHarmony's programs write them: hand-worked texts and what they say."""

import polars as pl
import pytest

from tracelib.sources.ftrace.markers import read_marks


def marks_of(*texts):
    """Return what thread 0 says by texts, one a microsecond from 1 us on; the trace ends at 100 us."""
    rows = {"index": range(len(texts)), "ts_ns": [(at + 1) * 1000 for at in range(len(texts))], "text": texts}
    schema = {"index": pl.UInt32, "ts_ns": pl.Int64, "text": pl.String}
    thread = pl.lit(0, pl.Int32).alias("thread")
    return read_marks(
        pl.DataFrame(rows, schema=schema).with_columns(thread, tid=pl.lit(100, pl.Int64)), 100_000
    )


def ranges(marks):
    return marks.slices.select("name", "ts_ns", "dur_ns").sort("ts_ns").rows()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("C|100|cnt|5|cat", "cnt", 5.0),
        ("C|100|exp|1e3", "exp", 1000.0),
        ("C|100|H:c 5", "H:c", 5.0),
        ("C|100|H:c d|-5|M62", "H:c d", -5.0),
        ("C|100|a|b|2.5", "a|b", 2.5),
        ("C|100|wq:m|0", "wq:m", 0.0),
        ("C|100|x|+.5E-1|", "x", 0.05),
    ],
)
def test_counters(text, name, value):
    marks = marks_of(text)
    assert marks.counters.rows() == [(1000, name, "process 100", value)]
    assert marks.slices.height == 0


@pytest.mark.parametrize("text", ["C|100|x|1.2.3", "C|100|c 5", "C|100|x|five", "C|100|x|"])
def test_what_has_no_value_stays_text(text):
    marks = marks_of(text)
    assert marks.counters.height == 0
    assert ranges(marks) == [(text, 1000, 0)]


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        ("B|100|H:foo|M62", "H:foo"),
        ("B|100|H:foo |I3062|key=1,b=2", "H:foo"),
        ("B|100|H:foo ", "H:foo"),
        ("B|100|H:a|b|M62", "H:a|b"),
        ("B|100|foo|M62", "foo|M62"),
        ("B|100|H:foo|X", "H:foo|X"),
    ],
)
def test_names_without_levels_and_tags(begin, name):
    assert ranges(marks_of(begin, "E|100|M62")) == [(name, 1000, 1000)]


@pytest.mark.parametrize(
    ("begin", "end", "name"),
    [
        ("S|100|a|7", "F|100|a|7", "a"),
        ("S|100|a|7|k=v|cat", "F|100|a|7", "a"),
        ("S|100|H:a 5", "F|100|H:a 5", "H:a"),
        ("S|100|H:a|5|M62|cat|k", "F|100|H:a|5|M62", "H:a"),
        ("S|100|a|b|7", "F|100|a|b|7", "a|b"),
        ("S|100|a|0x7f", "F|100|a|0x7f", "a"),
        ("G|100|track|a|9", "H|100|track|9", "a"),
        ("G|100|track|a|9", "H|100|track|a|9", "a"),
    ],
)
def test_ranges_apart(begin, end, name):
    marks = marks_of(begin, "text", end)
    assert ranges(marks) == [(name, 1000, 2000), ("text", 2000, 0)]
    assert (marks.open_at_end, marks.without_start) == (0, 0)


def test_an_instant_on_a_track_goes_by_its_name():
    assert ranges(marks_of("I|100|one", "N|100|track|two")) == [("one", 1000, 0), ("two", 2000, 0)]


def test_ranges_of_one_cookie_that_overlap():
    marks = marks_of("F|100|a|0", "S|100|a|0", "S|100|a|0", "S|100|b|0", "F|100|a|0", "F|100|a|0")
    assert ranges(marks) == [("a", 2000, 4000), ("a", 3000, 2000), ("b", 4000, 96_000)]
    assert (marks.open_at_end, marks.without_start) == (1, 1)
