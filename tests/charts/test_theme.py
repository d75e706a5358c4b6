"""Numbers read without a locale; recorded names do no harm; no two looks of one palette are alike."""

import pytest

from tracelib.charts.theme import PALETTES, duration, plain, safe, share


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (1_234, "1.23 µs"),
        (45_678, "45.7 µs"),
        (999_940, "1.00 ms"),
        (123_456_789, "123 ms"),
        (999_999_999, "1.00 s"),
        (61_000_000_000, "61.0 s"),
        (119_000_000_000, "119 s"),
        (600_000_000_000, "10.0 min"),
        (-4_000, "-4.00 µs"),
        (None, "unknown"),
        (float("nan"), "unknown"),
    ],
)
def test_duration(ns, words):
    assert duration(ns) == words


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.0421, "4.2 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.423, "42 %"),
        (0.994, "99 %"),
        (0.996, "99.6 %"),
        (0.99999, ">99.9 %"),
        (1, "100 %"),
        (None, "unknown"),
        (float("nan"), "unknown"),
    ],
)
def test_share(part, words):
    assert share(part) == words


@pytest.mark.parametrize("palette", PALETTES)
def test_looks_differ_without_colour_or_in_colour(palette):
    looks = [(look.colour, look.pattern) for look in PALETTES[palette].values()]
    assert len(set(looks)) == len(looks)


def test_plain_is_one_visible_line():
    assert plain("a\x1b[31mred\x07\nb\u202egnp\u200b") == "a [31mred b gnp"
    assert plain("k" * 500) == "k" * 59 + "…"


def test_safe_leaves_no_tag_link_formula_or_template():
    assert safe('<a href="javascript:x">y</a>') == "&lt;a href=&quot;javascript:x&quot;&gt;y&lt;/a&gt;"
    assert safe(r"$\href{javascript:x}{y}$") == r"&#36;\href{javascript:x}{y}&#36;"
    assert safe("%{customdata}") == "&#37;{customdata}"
