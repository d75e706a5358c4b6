"""Charts: results in, a plotly figure out, with the sentence that says what it shows and its numbers as a table.

A chart function returns None where its frame has no rows; `draw` then says why (`Results.missing`).
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from tracelib.charts.causes import causes_chart
from tracelib.charts.collectives import collectives_chart
from tracelib.charts.cpu_time import cpu_time_chart
from tracelib.charts.demand import demand_chart
from tracelib.charts.flame import flame_chart
from tracelib.charts.ipc import ipc_chart
from tracelib.charts.launches import launches_chart
from tracelib.charts.overview import overview_png, overview_svg
from tracelib.charts.requests import requests_chart
from tracelib.charts.sentences import timeline_sentence
from tracelib.charts.staircase import staircase_chart
from tracelib.charts.states import states_chart
from tracelib.charts.threads import threads_chart
from tracelib.charts.timeline import detail_chart, timeline_chart

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from tracelib.analyses.results import Results

__all__ = [
    "Notice", "causes_chart", "collectives_chart", "cpu_time_chart", "demand_chart", "detail_chart", "draw", "flame_chart", "ipc_chart",
    "launches_chart", "overview_png", "overview_svg", "requests_chart", "staircase_chart", "states_chart", "threads_chart",
    "timeline_chart", "timeline_sentence",
]  # fmt: skip

#: The frame that each chart needs.
_FRAME = {
    "causes_chart": "lost", "collectives_chart": "collectives", "cpu_time_chart": "cpu_time", "demand_chart": "demand", "ipc_chart": "ipc",
    "launches_chart": "launches", "requests_chart": "requests", "threads_chart": "scheduling",
}  # fmt: skip


class Notice:
    """A line of text in the place of a chart that cannot be drawn."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<p class="empty">{html.escape(self.text)}</p>'


def draw(chart: Callable[[Results], go.Figure | None], results: Results) -> go.Figure | Notice:
    """Return the chart, or a line that says why there is none."""
    figure = chart(results)
    if figure is not None:
        return figure
    what = chart.__name__.removesuffix("_chart").replace("_", " ")
    reason = results.missing.get(_FRAME.get(chart.__name__, ""), "nothing of this kind in the window")
    return Notice(f"No chart of {what}: {reason}.")
