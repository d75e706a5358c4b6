"""The sections' HTML: every text in it is escaped and visible, every part says what the findings hold."""

import inspect
import re

import pytest

from tests.report.example import everywhere, findings, plain, typed
from tracelib.report import sections
from tracelib.report.sections.render import figure, render
from tracelib.report.ticket import summary

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a\x1b[31mred\x07",
    "\u202eevil\u202c",
    "[x](javascript:alert(1))",
    "**bold** | cell | #1 @everyone https://example.com",
    "void at::native::kernel<2, Foo<int>>(long*)",
    "'\"`$(rm -rf)`",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_shows_it_and_runs_nothing(text):
    shown = render("heading", title=text, about=text)
    assert set(re.findall(r"<[^>]*>", shown)) == {
        '<header class="heading">',
        "<h1>",
        "</h1>",
        "<p>",
        "</p>",
        "</header>",
    }
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_a_part_of_requests_that_no_file_tells_has_no_share():
    """Its quantiles are null; the share of one that is known to be nothing is 0 %."""
    document = plain()
    part = document["requests"]["parts"][0] | {"share": 0.0, "correlation_with_ttft": None}
    rows = ({"p50": None, "p95": None}, {"p50": 0, "p95": 0})
    document["requests"]["parts"] = [part | quantiles for quantiles in rows]
    table = sections.request_parts_table(typed(document)).html.replace("\N{NO-BREAK SPACE}", " ")
    cells = [
        re.findall(r'<td class="n">([^<]*)</td>', row) for row in table.split("<tr>") if "tokenize" in row
    ]
    assert [row[:3] for row in cells] == [["not known"] * 3, ["0 %", "0 s", "0 s"]]


NOT_OF_FINDINGS = {"frame_table", "picture", "sentences", "shown", "three_figures"}
PARTS = [name for name, part in vars(sections).items() if inspect.isfunction(part)]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("part", [name for name in sorted(PARTS) if name not in NOT_OF_FINDINGS])
def test_hostile_names_in_every_field_of_every_section(part, text):
    section = getattr(sections, part)(everywhere(text))
    assert not re.search(r"<(?:script|img)", section.html)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", section.html)


def test_a_word_that_is_missing_is_an_error_and_not_a_gap():
    with pytest.raises(Exception, match="about"):
        render("heading", title="x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (12345.6, "12,346"),
        (1234, "1,234"),
        (True, "yes"),
        (None, "not known"),
        ("x", "x"),
    ],
)
def test_no_number_has_more_digits_than_it_means(value, text):
    assert figure(value) == text


def test_one_cause_has_one_name_in_every_section():
    document = findings()
    page = "".join(
        getattr(sections, part)(document).html for part in ("causes_table", "per_rank_table", "method")
    )
    assert "essages between processes" in page
    assert "IPC" not in page
    assert "Inter-process" not in page


def test_the_report_and_the_ticket_say_what_a_finding_gives():
    page = sections.findings_list(findings())._repr_html_()
    assert "gain up to 25\N{NO-BREAK SPACE}% of GPU time" in page
    assert "First, because it takes a change of the server." in page
    assert "gain up to 25 % of GPU time" in summary(findings())
