"""The index of a batch as one page: a table that reads worst first without JavaScript, and sorts by any column with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tracelib.report.sections.html import Markup, bar, esc
from tracelib.report.sections.words import VERDICTS, cause_name
from tracelib.report.text import UNKNOWN, duration, share

__all__ = ["index_page"]

_TEMPLATES = Path(__file__).parent / "templates" / "tracereport"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
#: head, key in index.json, whether it holds numbers
COLUMNS = (
    ("Run", "name", False),
    ("Verdict", "state", False),
    ("Lost to the host", "host_share", True),
    ("CPU shortage", "shortage_share", True),
    ("Lost in all", "lost_share", True),
    ("Useful", "useful_share", True),
    ("Mostly", "top_cause", False),
    ("Window", "window_ns", True),
)
_SORT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.closest("th"), body = head.closest("table").tBodies[0], at = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => row.cells[at].dataset.value;
  const known = row => value(row) !== "";
  const compare = head.classList.contains("n") ? (a, b) => value(a) - value(b) : (a, b) => value(a).localeCompare(value(b));
  const rows = [...body.rows].sort((a, b) => known(b) - known(a) || (down ? compare(b, a) : compare(a, b)));
  body.append(...rows);
});
"""
_STYLE = """
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 3px solid var(--link); }
th[aria-sort=descending] button::after { content: " \\2193"; } th[aria-sort=ascending] button::after { content: " \\2191"; }
td p { margin: .2rem 0 0; color: var(--soft); max-width: 30rem; }
"""


def index_page(index: dict[str, Any]) -> str:
    """Return the HTML of `index`, which is what index.json holds; its runs are worst first."""
    rows = index["runs"]
    failed = [row for row in rows if row["error"]]
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    head = "".join(_head(*column) for column in COLUMNS)
    body = "".join(_row(row) for row in rows if row["state"] is not None)
    title = f"{len(rows)} runs" if len(rows) != 1 else "1 run"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>tracelib: {title}</title><style>{style}{_STYLE}</style></head><body><main>"
        f'<header class="heading"><h1>{title}, worst first</h1><p>Shares are of each run\'s window, on its median GPU. '
        f"{esc(index['tool']['name'])} {esc(index['tool']['version'])}, {esc(index['generated_utc'])}.</p></header>"
        f"{_failures(failed)}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Runs, worst first"><table><caption>Runs</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></main><script>{_SORT}</script></body></html>\n"
    )


def _head(head: str, key: str, number: bool) -> str:  # noqa: FBT001 (a column of the table above)
    order = ' aria-sort="descending"' if key == "host_share" else ""
    return f'<th scope="col"{" class=" + chr(34) + "n" + chr(34) if number else ""}{order}><button type="button">{esc(head)}</button></th>'


def _failures(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    items = "".join(f'<li class="error"><b>{esc(row["name"])}</b> {esc(row["error"])}</li>' for row in rows)
    return f'<h2>Failed, in whole or in part</h2><ul class="remarks">{items}</ul><h2>Reports</h2>'


def _row(row: dict[str, Any]) -> str:
    cells = "".join(_cell(key, row, number=number) for _, key, number in COLUMNS[1:])
    link = f'<a href="{esc(quote(row["report"]))}">{esc(row["name"])}</a>'
    return f'<tr><th scope="row" data-value="{esc(row["name"])}">{link}</th>{cells}</tr>'


def _cell(key: str, row: dict[str, Any], *, number: bool) -> str:
    value = row[key]
    kind = ' class="n"' if number else ""
    return f'<td{kind} data-value="{esc("" if value is None else value)}">{_shown(key, row)}</td>'


def _shown(key: str, row: dict[str, Any]) -> Markup | str:
    value = row[key]
    if key == "state":
        return f"<strong>{esc(VERDICTS.get(value, value))}</strong> ({esc(row['confidence'])})<p>{esc(row['sentence'])}</p>"
    if key == "top_cause":
        return esc(UNKNOWN if value is None else cause_name(value))
    if key == "window_ns":
        return esc(duration(value))
    return esc(share(value)) + (
        bar(value, f"c-{row['top_cause']}") if key == "host_share" and value is not None else ""
    )
