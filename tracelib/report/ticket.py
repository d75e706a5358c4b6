"""The ticket's comment: findings as at most 30 lines of Markdown, and the same in other systems' markup.

GitHub, GitLab and Jira show the Markdown alike. Names out of traces are escaped: they cannot become markup,
links, mentions or issue references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tracelib.findings import Document, Evidence, figures
from tracelib.findings.order import gain_words
from tracelib.report.sections.findings import three_figures
from tracelib.words import badge, cause_name, counted, duration, plain, sentence, share

if TYPE_CHECKING:
    from tracelib.report.run import Failure

MAX_LINES = 30
CAUSE_ROWS = 5
FINDINGS = 3
CHARACTERS = 220
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~!])")
_WORD_JOINER = "\N{WORD JOINER}"
_BOLD = re.compile(r"(?<!\\)\*\*(.+?)(?<!\\)\*\*")
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|[-:|]+\|")
_ESCAPE = re.compile(r"\\(.)")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def summary(findings: Document, report_sha256: str | None = None, failure: Failure | None = None) -> str:
    """Return the Markdown: verdict, three numbers, causes, top findings, unknowns, what was measured."""
    counts = {level: sum(row.level == level for row in findings.health) for level in ("error", "warning")}
    return _TEMPLATE.render(
        findings=findings,
        figures=three_figures(findings),
        causes=[row for row in figures.cause_rows(findings) if row.exposed_ns],
        unknown=[escaped(row.id.replace("_", " "), 40) for row in findings.abstained],
        formats=", ".join(sorted({source.format.replace("_", " ") for source in findings.sources})),
        health=" and ".join(counted(count, level) for level, count in counts.items() if count),
        report_sha256=report_sha256,
        failure=failure,
        CAUSE_ROWS=CAUSE_ROWS,
        FINDINGS=FINDINGS,
    )


def failed(failure: Failure | None, report_sha256: str) -> str:
    """Return the Markdown of a run that failed before it had any findings."""
    why = f"**A part of the report failed**: {escaped(failure.one_line())}\n" if failure else ""
    return f"### No findings\n\n{why}\nWhat was run so far: report.html, sha256 {report_sha256}.\n"


def escaped(text: object, limit: int = CHARACTERS) -> str:
    """Return `text` as one line of Markdown that shows exactly it.

    Backslashes take markup's meaning (in Jira's wiki markup too); an invisible word joiner keeps `@name`,
    `#1` and `https://` from becoming a mention, a reference or a link.
    """
    marked = (
        _MARKUP.sub(r"\\\1", plain(text, limit))
        .replace("&", "&amp;")
        .replace("\\<", "&lt;")
        .replace("\\>", "&gt;")
    )
    broken = re.sub(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=\bwww)(?=\.)|(?<=\bGH)(?=-\d)", _WORD_JOINER, marked)
    return re.sub(r"^([-+#=]|\d+(?=[.)](?:\s|$)))", r"\\\1", broken)


def _evidence(row: Evidence) -> str:
    who = f"{row.who}: " if row.who else ""
    value = "" if row.value is None else f" = {row.value}"
    return escaped(f"{who}{row.what}{value}", 140)


_TEMPLATES = Environment(  # the text is Markdown, and every name in it goes through `escaped`
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=False,
    keep_trailing_newline=False,
    autoescape=False,  # noqa: S701
)
_TEMPLATES.filters |= {
    word.__name__: word for word in (badge, cause_name, counted, duration, escaped, gain_words, share)
} | {"evidence": _evidence, "sentence": sentence}
_TEMPLATE = _TEMPLATES.get_template("ticket.md.j2")


def as_wiki(markdown: str) -> str:
    """Return the comment in Jira's wiki markup.

    A backslash takes a character's meaning there too, but two of them break the line; and Jira escapes HTML
    itself.
    """
    return "\n".join(_translated(markdown, _wiki_text, "h3. ", "* ", ("||", "|")))


def as_plain(markdown: str) -> str:
    """Return the comment as plain text for Slack, markup off; it wants `&`, `<` and `>` escaped."""
    return "\n".join(_translated(markdown, _plain_text, "", "• ", (" · ", " · ")))


def _translated(
    markdown: str, text: Callable[[str], str], heading: str, item: str, bars: tuple[str, str]
) -> Iterator[str]:
    lines = markdown.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if _RULE.fullmatch(line):
            continue
        if line.startswith("|"):
            bar = bars[0] if _RULE.fullmatch(following) else bars[1]
            cells = [text(cell.strip()) for cell in _BAR.split(line)[1:-1]]
            yield f"{bar}{bar.join(cells)}{bar}".strip(" ·")
        elif line.startswith("### "):
            yield heading + text(line.removeprefix("### "))
        elif line.startswith("- "):
            yield item + text(line.removeprefix("- "))
        else:
            yield text(line)


def _wiki_text(text: str) -> str:
    bold = _BOLD.sub(r"*\1*", text)
    return _unescaped_entities(bold.replace("\\\\", "&#92;"))


def _plain_text(text: str) -> str:
    return _ESCAPE.sub(r"\1", _BOLD.sub(r"\1", text))


def _unescaped_entities(text: str) -> str:
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return text
