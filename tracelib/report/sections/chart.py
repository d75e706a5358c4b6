"""A chart in a report: the figure, the sentence that says what it shows, and the same numbers as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tracelib.report.sections.html import Column, Markup, Section, esc, table
from tracelib.report.text import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

__all__ = ["PLOTLY", "Chart", "chart", "frame_table", "picture"]

#: The mimetype under which JupyterLab draws plotly figures by itself.
PLOTLY = "application/vnd.plotly.v1+json"
TABLE_ROWS = 200


class PlotlyFigure(Protocol):
    """What a chart must be able to do: this module does not import plotly."""

    def to_plotly_json(self) -> dict[str, Any]:
        """Return the figure as plain data."""

    def to_json(self) -> str | None:
        """Return the figure as JSON."""


@dataclass(frozen=True)
class Chart:
    """A figure with its caption and table; Jupyter draws the figure, the report all three."""

    figure: dict[str, Any]
    caption: str
    table: str

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002 (IPython's signature)
        exclude: object = None,  # noqa: ARG002
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        data = {PLOTLY: self.figure, "text/plain": self.caption}
        return data, {PLOTLY: {"caption": self.caption, "table": self.table}}


def chart(figure: PlotlyFigure, caption: str, frame: pl.DataFrame | None = None) -> Chart:
    """Return `figure` with the sentence `caption` and, as its table, `frame`."""
    import json  # noqa: PLC0415 (only charts need it)

    plain_data = json.loads(figure.to_json() or "{}")
    return Chart(plain_data, caption, "" if frame is None else frame_table(frame, caption).html)


def frame_table(frame: pl.DataFrame, caption: str, limit: int = TABLE_ROWS) -> Section:
    """Return `frame` as an escaped HTML table of at most `limit` rows."""
    columns = [Column(name, number=dtype.is_numeric()) for name, dtype in frame.schema.items()]
    cut = frame.height > limit
    shown = table(caption, columns, [[_cell(value) for value in row] for row in frame.head(limit).rows()])
    more = f'<p class="more">the first {limit} of {frame.height} rows</p>' if cut else ""
    return Section(shown + more, caption)


def _cell(value: object) -> object:
    """Return a value as a table shows it: what is not known is no number, and no number has more digits than it means."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return "yes" if value is True else "no" if value is False else value


def picture(svg: str, caption: str) -> Section:
    """Return an inline SVG with its caption: the one picture that shows without JavaScript."""
    body = (
        f'<figure class="picture" aria-label="{esc(caption)}"><div class="scroll" tabindex="0">{Markup(svg)}</div>'
        f"<figcaption>{esc(caption)}</figcaption></figure>"
    )
    return Section(body, caption)
