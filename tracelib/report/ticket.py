"""The ticket's comment: findings as at most 30 lines of Markdown, and the same in other systems' markup.

GitHub, GitLab and Jira show the Markdown alike. Names out of traces are escaped: they cannot become markup,
links, mentions or issue references.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracelib.findings import figures
from tracelib.report.sections.findings import three_figures
from tracelib.words import cause_name, counted, duration, plain, sentence, share, verdict_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelib.findings import Document, Evidence, Finding
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
    blocks = [
        _head(findings),
        [
            f"- **{escaped(head)}: {escaped(value)}** ({escaped(meaning)})"
            for head, value, meaning in three_figures(findings)
        ],
        _causes(findings),
        _findings(findings),
        _unknown(findings),
        _measured(findings, report_sha256),
        _failure(failure),
    ]
    lines = [line for block in blocks if block for line in (*block, "")][:-1]
    return "\n".join(lines) + "\n"


def failed(failure: Failure | None, report_sha256: str) -> str:
    """Return the Markdown of a run that failed before it had any findings."""
    lines = [
        "### No findings",
        "",
        *_failure(failure),
        "",
        f"What was run so far: report.html, sha256 {report_sha256}.",
    ]
    return "\n".join(lines) + "\n"


def _failure(failure: Failure | None) -> list[str]:
    return [] if failure is None else [f"**A part of the report failed**: {escaped(failure.one_line())}"]


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


def _head(findings: Document) -> list[str]:
    verdict = findings.verdict
    ticket = f"{escaped(findings.ticket, 40)}: " if findings.ticket else ""
    state = escaped(sentence(verdict_name(verdict.state)))
    first_token = f"{escaped(findings.requests.sentence, 500)} " if findings.requests else ""
    before = (
        f" Record first: {escaped('; '.join(verdict.record_first), 400)}." if verdict.record_first else ""
    )
    said = f"{first_token}{escaped(verdict.sentence, 500)}{before}"
    return [
        f"### {ticket}{escaped(findings.title, 120)}",
        "",
        f"**{state}** ({escaped(verdict.confidence)} confidence). {said}",
    ]


def _causes(findings: Document) -> list[str]:
    rows = [row for row in figures.cause_rows(findings) if row.exposed_ns]
    if not rows:
        return []
    lines = [
        _cells(
            sentence(cause_name(row.cause)),
            share(row.exposed_share),
            duration(row.exposed_ns),
            duration(row.shortage_ns),
        )
        for row in rows[:CAUSE_ROWS]
    ]
    rest = sum(row.exposed_ns for row in rows[CAUSE_ROWS:])
    if rest:
        lines.append(
            _cells("Others", share(sum(r.exposed_share for r in rows[CAUSE_ROWS:])), duration(rest), "")
        )
    return [
        "| Cause of lost GPU time | Share of window | Lost, all GPUs | CPU shortage in it |",
        "|---|---:|---:|---:|",
        *lines,
    ]


def _cells(*cells: str) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def _findings(findings: Document) -> list[str]:
    return [line for finding in findings.findings[:FINDINGS] for line in _finding(finding)]


def _finding(finding: Finding) -> Sequence[str]:
    cost = "" if finding.exposed_share is None else f", {share(finding.exposed_share)} of the window"
    if finding.gain_share is not None:
        cost = f", gain up to {share(finding.gain_share)} of the window"
    lines = [f"- **{escaped(finding.claim)}** ({escaped(finding.confidence)} confidence{cost})"]
    proof = "; ".join(_evidence(row) for row in finding.evidence[:2])
    advice = escaped(finding.advice[0]) if finding.advice else ""
    second = " ".join(
        part
        for part in (
            f"Evidence: {proof}." if proof else "",
            f"Change: {advice}" if advice else "",
            _first(finding),
        )
        if part
    )
    return [*lines, f"  {second}"] if second else lines


def _first(finding: Finding) -> str:
    """Return why the first finding stands first; the others follow from it."""
    return escaped(finding.place) if finding.place.startswith("First") else ""


def _evidence(row: Evidence) -> str:
    who = f"{row.who}: " if row.who else ""
    value = "" if row.value is None else f" = {row.value}"
    return escaped(f"{who}{row.what}{value}", 140)


def _unknown(findings: Document) -> list[str]:
    names = [escaped(row.id.replace("_", " "), 40) for row in findings.abstained]
    if not names:
        return []
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [f"Not known from these files: {', '.join(names[:6])}{more}. The report says how to record it."]


def _measured(findings: Document, report_sha256: str | None) -> list[str]:
    window, tool = findings.window, findings.tool
    formats = sorted({source.format.replace("_", " ") for source in findings.sources})
    counts = {level: sum(row.level == level for row in findings.health) for level in ("error", "warning")}
    worst = " and ".join(counted(count, level) for level, count in counts.items() if count)
    health = f" {worst} on the traces' health." if worst else ""
    report = f" Report: report.html, sha256 {report_sha256}." if report_sha256 else ""
    files = counted(len(findings.sources), "file")
    made = f"{escaped(tool.name)} {escaped(tool.version)}"
    line = (
        f"Measured over {duration(window.duration_ns)} ({escaped(window.why)}) from {files} "
        f"({escaped(', '.join(formats))}) by {made}.{health}{report}"
    )
    return [line]


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
