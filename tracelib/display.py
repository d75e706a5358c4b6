"""How a run shows itself: a summary that people read, as text and as HTML without link or script.

Every text in it comes from untrusted files: control characters are dropped, HTML is escaped.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Protocol

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence


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


_COUNTED = ("gpu_ops", "slices", "samples", "sched", "counters")


def plain(text: object, limit: int = 300) -> str:
    """Return text on one line, without what a terminal could obey."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def seconds(ns: int | None) -> str:
    """Return a length of time, in seconds or ms."""
    if ns is None:
        return "not known"
    return f"{ns / 1e9:.3f} s" if ns >= 1e9 else f"{ns / 1e6:.3f} ms"


def _sources(trace: Frames) -> list[list[str]]:
    rows = [["file", "format", "recorder", "clock", "tied by", "error", "covers", "rows"]]
    counts = {name: dict(getattr(trace, name).group_by("source").len().iter_rows()) for name in _COUNTED}
    for source in trace.sources.iter_rows(named=True):
        number = source["source"]
        held = ", ".join(f"{counts[name][number]:,} {name}" for name in _COUNTED if counts[name].get(number))
        cover = None if source["first_ns"] is None else source["last_ns"] - source["first_ns"]
        error = "" if source["error_ns"] is None else f"{source['error_ns'] / 1000:.1f} µs"
        cells = [
            source["file"],
            source["format"],
            source["recorder"] or "",
            source["clock"],
            source["tied_by"] or "",
            error,
            seconds(cover),
            held,
        ]
        rows.append([plain(cell, 60) for cell in cells])
    return rows


def _roles(trace: Frames) -> list[list[str]]:
    known = trace.threads.filter(pl.col("role").is_in(["api_server", "engine", "worker"]))
    grouped = known.group_by("role", "rank").agg(
        pl.col("pid").drop_nulls().unique().sort(),
        pl.len(),
        pl.col("name").drop_nulls().unique().sort().head(4),
    )
    rows = [["role", "rank", "processes", "threads", "names"]]
    for row in grouped.sort("role", "rank", nulls_last=True).iter_rows(named=True):
        pids = ", ".join(map(str, row["pid"][:4]))
        rows.append(
            [
                row["role"],
                "" if row["rank"] is None else str(row["rank"]),
                pids,
                str(row["len"]),
                plain(", ".join(row["name"]), 60),
            ]
        )
    return rows


def _remarks(trace: Frames) -> list[str]:
    files = dict(trace.sources.select("source", "file").iter_rows())
    rows = trace.health.with_columns(pl.col("level").cast(pl.String)).iter_rows(named=True)
    order = ("error", "warning", "info")
    return [
        f"{row['level']}: {plain(files[row['source']]) + ': ' if row['source'] is not None else ''}{plain(row['message'])}"
        + (f" -> {plain(row['fix'])}" if row["fix"] else "")
        for row in sorted(rows, key=lambda row: order.index(row["level"]))
    ]


def counted(count: int, what: str) -> str:
    """Return "1 line" or "1,234 lines"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _headline(trace: Frames) -> str:
    rows = ", ".join(
        f"{getattr(trace, name).height:,} {name}" for name in _COUNTED if getattr(trace, name).height
    )
    first, last = trace.sources["first_ns"].drop_nulls(), trace.sources["last_ns"].drop_nulls()
    span = seconds(max(last) - min(first)) if first.len() and last.len() else "not known"
    files, gpus = counted(trace.sources.height, "file"), counted(trace.gpus.height, "GPU")
    return f"{files}, {gpus}, span {span}: {rows or 'no events'}"


def as_text(trace: Frames) -> str:
    """Return the summary for a terminal."""
    parts = [_headline(trace), _aligned(_sources(trace)), _aligned(_roles(trace)), "\n".join(_remarks(trace))]
    return "\n\n".join(part for part in parts if part)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def as_html(trace: Frames) -> str:
    """Return the summary for Jupyter."""
    remarks = "".join(f"<li>{html.escape(line)}</li>" for line in _remarks(trace))
    return (
        f"<div><p><b>tracelib run</b>: {html.escape(_headline(trace))}</p>{_table(_sources(trace))}{_table(_roles(trace))}"
        f"<details><summary>Trace health</summary><ul>{remarks}</ul></details></div>"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
