"""The bricks of a report's HTML: escaped text, tables, and an object that Jupyter shows."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelib.report.text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Column", "Markup", "Section", "bar", "esc", "items", "table"]


class Markup(str):
    """Text that is HTML already; anything else that reaches a table is escaped."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A piece of the report: HTML for the page and for Jupyter, and the same in a line of plain text."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        """Return the plain text, for consoles."""
        return self.text


@dataclass(frozen=True)
class Column:
    """A table's column: its head, what the head means (shown on hover and to screen readers), and if it holds numbers."""

    head: str
    number: bool = False
    meaning: str = ""


def esc(text: object, limit: int | None = None) -> Markup:
    """Return `text` safe in HTML text and in quoted attributes, unseen characters made visible."""
    return text if isinstance(text, Markup) else Markup(html.escape(plain(text, limit), quote=True))


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    *,
    anchor: str = "",
    quiet: bool = False,
) -> Markup:
    """Return a table whose first cell in each row is the row's head; cells that are not :class:`Markup` are escaped.

    `quiet`: the caption is for screen readers only, because a heading says the same.
    """
    head = "".join(_head(column) for column in columns)
    body = "".join(_row(columns, row) for row in rows)
    identity = f' id="{esc(anchor)}"' if anchor else ""
    return Markup(
        f'<div class="scroll{" quiet" if quiet else ""}" tabindex="0" role="region" aria-label="{esc(caption)}"><table{identity}>'
        f"<caption>{esc(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def items(texts: Iterable[object], *, ordered: bool = False) -> Markup:
    """Return a list of `texts`, or nothing if there are none."""
    inner = "".join(f"<li>{esc(text)}</li>" for text in texts)
    tag = "ol" if ordered else "ul"
    return Markup(f"<{tag}>{inner}</{tag}>" if inner else "")


def bar(value: float, kind: str = "") -> Markup:
    """Return a bar of length `value` (0..1); the number itself must stand beside it."""
    length = max(0.0, min(1.0, value)) * 100
    return Markup(
        f'<span class="bar {esc(kind)}" aria-hidden="true"><i style="width:{length:.1f}%"></i></span>'
    )


def _head(column: Column) -> str:
    title = f' title="{esc(column.meaning)}"' if column.meaning else ""
    return f'<th scope="col"{_number(column)}{title}>{esc(column.head)}</th>'


def _row(columns: Sequence[Column], row: Sequence[object]) -> str:
    first, *rest = row
    cells = "".join(
        f"<td{_number(column)}>{esc(cell)}</td>" for column, cell in zip(columns[1:], rest, strict=True)
    )
    return f'<tr><th scope="row">{esc(first)}</th>{cells}</tr>'


def _number(column: Column) -> str:
    return ' class="n"' if column.number else ""
