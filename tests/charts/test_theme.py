"""Recorded names do no harm; everything that has a name has a look, and no two of one palette are alike."""

import pytest

from tracelib import words
from tracelib.charts.theme import CAUSES, CPU_STATES, GPU_STATES, PALETTES, rows_under_headings, safe


@pytest.mark.parametrize("palette", PALETTES)
def test_looks_differ_without_colour_or_in_colour(palette):
    looks = [(look.colour, look.pattern) for look in PALETTES[palette].values()]
    assert len(set(looks)) == len(looks)


def test_safe_leaves_no_tag_link_formula_or_template():
    assert safe('<a href="javascript:x">y</a>') == "&lt;a href=&quot;javascript:x&quot;&gt;y&lt;/a&gt;"
    assert safe(r"$\href{javascript:x}{y}$") == r"&#36;\href{javascript:x}{y}&#36;"
    assert safe("%{customdata}") == "&#37;{customdata}"


def test_rows_stand_under_their_headings():
    places, axis = rows_under_headings(["a", "a", "<b>"], ["x", "y", "x"])
    assert places == [1, 2, 4]
    assert axis["ticktext"] == ["<b>a</b>", "x", "y", "<b>&lt;b&gt;</b>", "x"]


@pytest.mark.parametrize(
    ("looks", "names"),
    [(GPU_STATES, words.GPU_STATES), (CPU_STATES, words.CPU_STATES), (CAUSES, words.CAUSES)],
    ids=["gpu_state", "cpu_state", "cause"],
)
def test_everything_that_has_a_name_has_a_look(looks, names):
    assert list(looks) == list(names)
