"""How a run shows itself: a summary as text, and as HTML without link or script.

Every text in it comes from untrusted files: none reaches a terminal or a page as it is.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Protocol

import polars as pl

from tracelib.words import SERVER, count, counted, duration, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Frames whose rows are counted.
EVENTS = ("gpu_ops", "slices", "samples", "sched", "counters")
SOURCE_COLUMNS = ("file", "format", "recorder", "clock", "tied by", "error", "covers", "rows")
ROLE_COLUMNS = ("role", "rank", "processes", "threads", "names")
LEVELS = ("error", "warning", "info")
LONGEST_CELL, LONGEST_REMARK, MOST_IDS = 60, 300, 4


class Frames(Protocol):
    """The frames of a run that a summary needs (a `Trace`, which imports this module)."""

    @property
    def sources(self) -> pl.DataFrame: ...
    @property
    def threads(self) -> pl.DataFrame: ...
    @property
    def gpus(self) -> pl.DataFrame: ...
    @property
    def health(self) -> pl.DataFrame: ...


def as_text(trace: Frames) -> str:
    """Return the summary for a terminal."""
    tables = (_text_table(SOURCE_COLUMNS, _source_rows(trace)), _text_table(ROLE_COLUMNS, _role_rows(trace)))
    parts = [_headline(trace), *tables, "\n".join(_remarks(trace))]
    return "\n\n".join(part for part in parts if part)


def as_html(trace: Frames) -> str:
    """Return the summary for Jupyter."""
    tables = _html_table(SOURCE_COLUMNS, _source_rows(trace)) + _html_table(ROLE_COLUMNS, _role_rows(trace))
    remarks = "".join(f"<li>{html.escape(line)}</li>" for line in _remarks(trace))
    return (
        f"<div><p><b>tracelib run</b>: {html.escape(_headline(trace))}</p>{tables}"
        f"<details><summary>Trace health</summary><ul>{remarks}</ul></details></div>"
    )


def _headline(trace: Frames) -> str:
    first, last = trace.sources["first_ns"].drop_nulls(), trace.sources["last_ns"].drop_nulls()
    span = duration(max(last) - min(first) if first.len() and last.len() else None)
    rows = _row_counts({name: getattr(trace, name).height for name in EVENTS}) or "no events"
    files, gpus = counted(trace.sources.height, "file"), counted(trace.gpus.height, "GPU")
    return f"{files}, {gpus}, span {span}: {rows}"


def _row_counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{count(number)} {name}" for name, number in rows.items() if number)


def _source_rows(trace: Frames) -> list[list[str]]:
    by_source = {name: dict(getattr(trace, name).group_by("source").len().iter_rows()) for name in EVENTS}
    rows = []
    for source in trace.sources.iter_rows(named=True):
        events = {name: sources.get(source["source"], 0) for name, sources in by_source.items()}
        span = None if source["first_ns"] is None else source["last_ns"] - source["first_ns"]
        error = "" if source["error_ns"] is None else duration(source["error_ns"])
        texts = [source[column] or "" for column in ("file", "format", "recorder", "clock", "tied_by")]
        cells = [*texts, error, duration(span), _row_counts(events)]
        rows.append([plain(cell, LONGEST_CELL) for cell in cells])
    return rows


def _role_rows(trace: Frames) -> list[list[str]]:
    server = trace.threads.filter(pl.col("role").is_in(SERVER))
    distinct = [pl.col(name).drop_nulls().unique().sort().head(MOST_IDS) for name in ("pid", "name")]
    roles = server.group_by("role", "rank").agg(*distinct, threads=pl.len())
    return [
        [
            role,
            "" if rank is None else str(rank),
            ", ".join(map(str, pids)),
            str(threads),
            plain(", ".join(names), LONGEST_CELL),
        ]
        for role, rank, pids, names, threads in roles.sort("role", "rank", nulls_last=True).iter_rows()
    ]


def _remarks(trace: Frames) -> list[str]:
    files = {
        number: f"{plain(file)}: " for number, file in trace.sources.select("source", "file").iter_rows()
    }
    rows = trace.health.select("source", pl.col("level").cast(pl.String), "message", "fix").rows()
    lines = []
    for source, level, message, fix in sorted(rows, key=lambda row: LEVELS.index(row[1])):
        advice = f" -> {plain(fix, LONGEST_REMARK)}" if fix else ""
        lines.append(f"{level}: {files.get(source, '')}{plain(message, LONGEST_REMARK)}{advice}")
    return lines


def _text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
