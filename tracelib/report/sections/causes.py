"""The middle of a report: what took the GPU's time, the findings with their evidence, and what could not be known."""

from __future__ import annotations

from typing import Any

from tracelib.report import numbers
from tracelib.report.sections.html import Column, Markup, Section, bar, esc, items, table
from tracelib.report.sections.words import CAUSES, cause_name, sub_cause_name
from tracelib.report.text import count, duration, moment, share

__all__ = ["abstained", "causes_table", "finding_article", "findings_list"]

Findings = dict[str, Any]
EVIDENCE_ROWS = 12
EVIDENCE_CHARACTERS = 160

_COLUMNS = (
    Column("Cause", meaning="what the thread that should have fed the GPU was doing"),
    Column(
        "GPU time lost", number=True, meaning="exposed: the GPU idled or waited meanwhile, all GPUs summed"
    ),
    Column("Share", number=True, meaning="of all GPU time in the window"),
    Column(
        "CPU shortage",
        number=True,
        meaning="part of the loss in which that thread was ready and did not run: no CPU free, or a quota",
    ),
    Column(
        "All host time",
        number=True,
        meaning="of this kind, hidden behind GPU work or not, threads summed; waiting for another process is not counted. Less than what is lost where "
        "one thread held up several GPUs, each of which counts, or where messages were on their way and the device started up: that is no host time",
    ),
    Column("Mostly"),
)


def causes_table(findings: Findings) -> Section:
    """Return the causes of lost GPU time, exposed time first, all host time of that kind beside it."""
    rows = [row for row in numbers.cause_rows(findings) if row.exposed_ns or row.total_ns]
    if not numbers.devices(findings):
        return Section(
            '<p class="empty">The causes are not known: no GPU operation was recorded.</p>',
            "causes: not known",
        )
    body = table(
        "Lost GPU time by cause",
        _COLUMNS,
        [_cause_cells(row) for row in rows],
        anchor="causes-table",
        quiet=True,
    )
    return Section(body, "; ".join(f"{cause_name(row.cause)} {duration(row.exposed_ns)}" for row in rows))


def _cause_cells(row: numbers.CauseRow) -> tuple[object, ...]:
    meaning = CAUSES.get(row.cause, ("", ""))[1]
    name = Markup(
        f'<abbr class="c-{esc(row.cause)}" title="{esc(meaning)}">{esc(cause_name(row.cause))}</abbr>'
    )
    parts = (
        ", ".join(f"{sub_cause_name(sub)} {share(ns / row.exposed_ns)}" for sub, ns in row.sub_causes[:3])
        if row.exposed_ns
        else ""
    )
    of_window = Markup(f"{bar(row.exposed_share, 'c-' + row.cause)} {esc(share(row.exposed_share))}")
    return name, duration(row.exposed_ns), of_window, duration(row.shortage_ns), duration(row.total_ns), parts


def findings_list(findings: Findings) -> Section:
    """Return each finding, what to fix first on top: claim, gain, evidence, what to change, how to verify, what would disprove it."""
    found = findings["findings"]
    if not found:
        return Section('<p class="empty">No rule found anything to report in this window.</p>', "no findings")
    start = findings["window"]["start_ns"]
    body = "".join(finding_article(finding, start) for finding in found)
    return Section(body, "; ".join(str(finding["claim"]) for finding in found))


def finding_article(finding: dict[str, Any], start_ns: int) -> str:
    """Return one finding; times of its evidence are after `start_ns`."""
    anchor = f"finding-{finding['id']}"
    cost = "" if finding["exposed_ns"] is None else f"{duration(finding['exposed_ns'])} exposed"
    part = "" if finding["exposed_share"] is None else f"{share(finding['exposed_share'])} of the window lost"
    tags = [
        _gain(finding),
        cause_name(finding["cause"]) if finding["cause"] else "",
        cost,
        part,
        f"{finding['confidence']} confidence",
    ]
    chips = "".join(f"<li>{esc(tag)}</li>" for tag in tags if tag)
    return (
        f'<article class="finding" id="{esc(anchor)}"><h3>{esc(finding["claim"])} '
        f'<a class="anchor-link" href="#{esc(anchor)}" aria-label="link to this finding">#</a></h3>'
        f'<ul class="chips">{chips}</ul><p class="place">{esc(finding["place"])}</p>'
        f"{_evidence(finding['evidence'], start_ns, finding['claim'])}"
        f"<dl>{_part('What to change', items(finding['advice']))}{_part('How to verify', items(finding['verify']))}"
        f"{_part('What would disprove it', esc(finding['disproof']))}</dl></article>"
    )


def _gain(finding: dict[str, Any]) -> str:
    return "" if finding["gain_share"] is None else f"gain up to {share(finding['gain_share'])} of the window"


def _part(head: str, body: Markup) -> str:
    return f"<dt>{esc(head)}</dt><dd>{body}</dd>" if body else ""


def _evidence(rows: list[dict[str, Any]], start_ns: int, claim: str) -> str:
    if not rows:
        return ""
    columns = (
        Column("Who"),
        Column("What"),
        Column("Value", number=True),
        Column("When", number=True, meaning="after the window's start"),
        Column("For", number=True),
    )
    cells = [_evidence_cells(row, start_ns) for row in rows[:EVIDENCE_ROWS]]
    more = len(rows) - EVIDENCE_ROWS
    rest = f'<p class="more">and {count(more)} more rows in findings.json</p>' if more > 0 else ""
    return table(f"Evidence: {claim}", columns, cells) + rest


def _evidence_cells(row: dict[str, Any], start_ns: int) -> tuple[object, ...]:
    when = "" if row["ts_ns"] is None else moment(row["ts_ns"], start_ns)
    length = "" if row["dur_ns"] is None else duration(row["dur_ns"])
    return (
        esc(row["who"] or "", EVIDENCE_CHARACTERS),
        esc(row["what"], EVIDENCE_CHARACTERS),
        _value(row["value"]),
        when,
        length,
    )


def _value(value: object) -> Markup:
    if isinstance(value, float):
        return esc(f"{value:.3g}" if abs(value) < 1000 else count(round(value)))
    if isinstance(value, int):
        return esc(count(value))
    return esc("" if value is None else value, EVIDENCE_CHARACTERS)


def abstained(findings: Findings) -> Section:
    """Return what could not be known, why, and the command that records it."""
    rows = findings["abstained"]
    if not rows:
        return Section(
            '<p class="empty">Nothing: these files answer every question that this report asks.</p>',
            "nothing",
        )
    asked: dict[tuple[str, str], list[str]] = {}  # what fails for one reason is one row
    for row in rows:
        asked.setdefault((row["reason"], row["record_with"]), []).append(str(row["id"]).replace("_", " "))
    cells = [
        (", ".join(names), reason, Markup(f"<code>{esc(command)}</code>" if command else ""))
        for (reason, command), names in asked.items()
    ]
    columns = (Column("Question"), Column("Why not"), Column("Record it with"))
    return Section(
        table("What could not be known", columns, cells, quiet=True),
        "; ".join(f"{row['id']}: {row['reason']}" for row in rows),
    )
