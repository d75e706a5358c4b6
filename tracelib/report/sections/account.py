"""The end of a report: what the files were worth, how the figures were computed, and what made this page."""

from __future__ import annotations

from typing import Any

from tracelib.report.sections.html import Column, Markup, Section, esc, table
from tracelib.report.sections.words import CAUSES
from tracelib.report.text import count, duration

__all__ = ["footer", "health", "method"]

Findings = dict[str, Any]

_CLOCKS = {
    "declared": "as its recorder declares",
    "anchors": "by events that two files share",
    "user": "as you said",
    "untied": "not tied: reported alone",
}
_LEVELS = {"error": "Error", "warning": "Warning", "info": "Note"}


def health(findings: Findings) -> Section:
    """Return the sources, how their clocks were tied, what they lost, and every remark on their state."""
    columns = (
        Column("File"),
        Column("Format"),
        Column("Rows", number=True),
        Column("Covers", number=True, meaning="from its first to its last event"),
        Column("Clock tied"),
        Column("Error", number=True, meaning="estimated residual of the alignment"),
        Column("Lost", number=True),
    )
    files = table(
        "Files and their clocks", columns, [_source_cells(source) for source in findings["sources"]]
    )
    remarks = findings["health"]
    order = list(_LEVELS)
    worst_first = sorted(
        remarks, key=lambda row: order.index(row["level"]) if row["level"] in order else len(order)
    )
    return Section(
        files + _remarks(worst_first), "; ".join(f"{row['level']}: {row['message']}" for row in worst_first)
    )


def _source_cells(source: dict[str, Any]) -> tuple[object, ...]:
    rows = (
        ", ".join(f"{count(n)} {name.replace('_', ' ')}" for name, n in source["rows"].items() if n) or "none"
    )
    lost = source["lost"]
    losses = [
        f"{count(lost[key])} {word}"
        for key, word in (
            ("declared", "declared"),
            ("detected", "detected"),
            ("skipped_bytes", "bytes unreadable"),
        )
        if lost[key]
    ]
    cover = (
        None
        if source["first_ns"] is None or source["last_ns"] is None
        else source["last_ns"] - source["first_ns"]
    )
    tied = _CLOCKS.get(source["tied_by"] or "", source["tied_by"] or "not known")
    name = Markup(f"{esc(source['file'])}<small>{esc(source['recorder'] or '')}</small>")
    clock = Markup(f"{esc(tied)} ({esc(source['clock'] or 'unknown')})<small>{esc(_anchors(source))}</small>")
    return (
        name,
        source["format"].replace("_", " "),
        rows,
        duration(cover),
        clock,
        "" if source["error_ns"] is None else duration(source["error_ns"]),
        ", ".join(losses) or "nothing",
    )


def _anchors(source: dict[str, Any]) -> str:
    """Return by what a clock's tie was measured or checked, and what the anchors left of it."""
    found = source["residual"]
    if found is None:
        return ""
    left = (
        ""
        if found["p50_ns"] is None
        else f": median {duration(found['p50_ns'])}, p99 {duration(found['p99_ns'])}"
    )
    return f"{count(found['anchors'])} anchors ({found['kind']}) with {found['against']}{left}"


def _remarks(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return '<p class="empty">No remarks: every file was read whole.</p>'
    notes = [row for row in rows if row["level"] == "info"]
    alarms = "".join(_remark(row) for row in rows if row["level"] != "info")
    quiet = f"<details><summary>{len(notes)} notes on how the files were read</summary><ul class='remarks'>{''.join(map(_remark, notes))}</ul></details>"
    return (f'<ul class="remarks">{alarms}</ul>' if alarms else "") + (quiet if notes else "")


def _remark(row: dict[str, Any]) -> str:
    level = esc(_LEVELS.get(row["level"], row["level"]))
    where = f"{row['source']}: " if row["source"] and not row["message"].startswith(row["source"]) else ""
    fix = f" <em>{esc(row['fix'])}</em>" if row["fix"] else ""
    return f'<li class="{esc(row["level"])}"><b>{level}</b> {esc(where + row["message"])}{fix}</li>'


def method(findings: Findings) -> Section:
    """Return how the figures are defined and which window they are about."""
    window = findings["window"]
    causes = "".join(f"<dt>{esc(name)}</dt><dd>{esc(meaning)}</dd>" for name, meaning in CAUSES.values())
    body = (
        f"<p>Everything above is about one window of {esc(duration(window['duration_ns']))}: {esc(window['why'])}.</p>"
        "<p>Each nanosecond of it is, per GPU, in exactly one state: <b>compute</b> (a kernel that is no collective runs), "
        "<b>copy</b>, <b>collective: transfer</b> (every rank has arrived), <b>collective: waiting</b> (this rank waits for "
        "one that has not), or <b>idle</b>. <b>Busy</b> is all but idle, as monitoring shows it. <b>Useful</b> leaves "
        "out waiting. <b>Lost</b> is idle and waiting.</p>"
        "<p>Each lost nanosecond gets one cause: what the thread that launched the next GPU operation was doing at that "
        "moment, by its innermost recorded slice. While it waited for another process, what that process was doing; "
        "while a GPU waited for a late rank, what held up that rank. The causes add up to the loss exactly.</p>"
        "<p><b>Exposed</b> time is host time during which the GPU lost time; only that can be a root cause. Host time "
        "hidden behind GPU work costs nothing. <b>Gain up to</b> is what a finding's change can give back at most; time in which "
        "the thread in question lacked a CPU is counted for cores and quota alone, and gains of findings overlap: they do not add "
        "up. <b>CPU shortage</b> is the part in which the thread was ready to run and "
        "had no CPU: what more cores, or a higher quota, would give back.</p>"
        f"<details><summary>The causes, defined</summary><dl class='defined'>{causes}</dl></details>"
    )
    return Section(body, str(window["why"]))


def footer(findings: Findings) -> Section:
    """Return what made this report from what: version, time, parameters, files and their checksums."""
    tool = findings["tool"]
    parameters = [
        (name, _value(value)) for name, value in findings["parameters"].items() if value not in (None, [], "")
    ]
    files = [
        (source["file"], Markup(f"<code>{esc(source['sha256'] or 'not known')}</code>"))
        for source in findings["sources"]
    ]
    body = (
        f"<footer><p>{esc(tool['name'])} {esc(tool['version'])}, {esc(findings['generated_utc'])}.</p>"
        f"<details><summary>Parameters and checksums</summary>"
        f"{table('Parameters', (Column('Name'), Column('Value')), parameters)}"
        f"{table('Files', (Column('File'), Column('SHA-256')), files)}</details></footer>"
    )
    return Section(body, f"{tool['name']} {tool['version']}, {findings['generated_utc']}")


def _value(value: object) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
