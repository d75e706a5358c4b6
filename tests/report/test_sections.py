"""The sections' HTML: every text in it is escaped and visible, every part says what the findings hold."""

import inspect
import re

import pytest
from bs4 import BeautifulSoup

from tests.report.example import START, everywhere, findings, plain, typed
from tracelib.report import sections
from tracelib.report.sections.findings import viewer_of
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


NOT_OF_FINDINGS = {
    "computed",
    "cpu_waits_table",
    "frame_table",
    "overview",
    "picture",
    "sentences",
    "shown",
    "three_figures",
}
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


def test_a_definition_s_lines_are_words_on_the_page():
    """What a line break stands between is one sentence: no escape of it is shown."""
    said = sections.computed("lost").html.split("<pre")[0]
    assert "what that thread did until its launch call began" in said
    assert "\\n" not in said


def test_the_causes_say_why_more_gpu_time_is_lost_than_host_time_was_spent():
    """100 µs of GPU time are lost to tokenization, more than the 50 µs that threads spent on it."""
    document = plain()
    for row in document["host_time"]:
        row["total_ns"] = 50_000
    said = sections.causes_table(typed(document)).html
    assert (
        "Tokenization lost the GPUs more time than host threads spent on it: a thread that holds up" in said
    )
    for row in document["host_time"]:
        row["total_ns"] = 9_000_000
    assert "more time than host threads spent" not in sections.causes_table(typed(document)).html


def test_the_report_and_the_ticket_say_what_a_finding_gives():
    page = sections.findings_list(findings())._repr_html_()
    assert "gain up to 25\N{NO-BREAK SPACE}% of GPU time, not replayed" in page
    assert "Not replayed: the run is too large." in page
    assert "First, because it takes a change of the server." in page
    assert "gain up to 25 % of GPU time" in summary(findings())


def remark(source, message, level="warning", fix="look"):
    return {"level": level, "source": source, "message": message, "fix": fix}


def test_remarks_that_differ_in_numbers_and_files_only_are_one_row():
    document = plain()
    document["sources"] = [document["sources"][0] | {"file": f"rank{n}.json"} for n in range(3)]
    document["health"] = [
        remark("rank0.json", "at least 12 switches missing: 12 of 90 times", fix="more buffer"),
        remark("rank1.json", "at least 7 switches missing: 7 of 90 times", fix="more buffer"),
        remark("rank2.json", "its clock agrees with that of rank0.json", "info", ""),
        remark("rank1.json", "its clock agrees with that of rank2.json", "info", ""),
        remark("rank1.json", "cut short"),
    ]
    section = sections.health(typed(document))
    rows = BeautifulSoup(section.html, "html.parser").find_all("tr", class_=["warning", "info"])
    shown = [[cell.get_text(" ", strip=True) for cell in row.find_all("td")] for row in rows]
    assert [(row[0].split(" each of")[0], row[1], row[2]) for row in shown] == [
        ("Warning at least … switches missing: … of 90 times", "2 files", "more buffer"),
        ("Warning cut short", "rank1.json", "look"),
        ("Note its clock agrees with that of …", "2 files", ""),
    ]
    assert "at least 7 switches missing: 7 of 90 times" in shown[0][0]  # each is there to be unfolded
    assert (section.count, section.said) == (3, "3 files; 3 warnings, 2 notes")


def test_the_first_three_findings_are_open_and_the_others_folded():
    document = plain()
    document["findings"] = [document["findings"][0] | {"id": f"rule_{n}"} for n in range(5)]
    section = sections.findings_list(typed(document))
    shown = BeautifulSoup(section.html, "html.parser").find_all("details", class_="finding")
    assert [part.has_attr("open") for part in shown] == [True] * 3 + [False] * 2
    assert [part["id"] for part in shown] == [f"finding-rule_{n}" for n in range(5)]
    assert section.count == 5


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, "tracelib export 'a b' --to perfetto --window 0.009000:0.011002"),
        ({"window": "0.5:2"}, "tracelib export 'a b' --to perfetto --window 0.509000:0.511002"),
        (
            {"offsets": {"x*": -7}, "redact": "off", "rules": "r.toml", "cpu_bound": 0.2},
            "tracelib export 'a b' --offset 'x*=-7' --redact off --to perfetto --window 0.009000:0.011002",
        ),
    ],
)
def test_the_command_for_perfetto_counts_from_where_its_window_does(given, command):
    """10 ms after the report's window began, for 2 us, with 1 ms around it."""
    document = plain() | {"parameters": {"traces": ["a b"], **given}}
    viewer = viewer_of(typed(document))
    assert viewer.command(START + 10_000_000, START + 10_002_000) == command


def test_where_a_window_was_asked_for_by_a_name_no_command_is_printed():
    document = plain() | {"parameters": {"traces": ["x"], "window_of": "step*"}}
    assert viewer_of(typed(document)) is None
    assert "in Perfetto" not in sections.findings_list(typed(document)).html


def test_without_a_gpu_the_three_numbers_are_of_the_server_s_threads():
    """Of 100 ns wanted by two roles 30 were without a CPU, 10 of them stopped; others do not count."""
    times = {"blocked_ns": 5, "unknown_ns": 0}
    threads = [
        {"role": "worker", "running_ns": 40, "runnable_ns": 20, "throttled_ns": 10, **times},
        {"role": "engine", "running_ns": 30, "runnable_ns": 0, "throttled_ns": 0, **times},
        {"role": None, "running_ns": 900, "runnable_ns": 900, "throttled_ns": 900, **times},
    ]
    demand = {"p50": 1.0, "p95": 4.0, "p99": 5.0}
    known = plain() | {"devices": None}
    known["scheduling"] = known["scheduling"] | {"threads": threads, "demand": demand, "cpus_seen": 2}
    assert [value for _, value, _ in sections.findings.three_figures(typed(known))] == ["30 %", "4", "10 %"]
    unknown = dict.fromkeys(("runnable_ns", "throttled_ns", "blocked_ns"))
    known["scheduling"] = known["scheduling"] | {"threads": [threads[0] | unknown], "demand": None}
    assert [value for _, value, _ in sections.findings.three_figures(typed(known))] == ["not known"] * 3
