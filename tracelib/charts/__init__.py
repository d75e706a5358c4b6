"""Charts: results in, a plotly figure out, with the sentence that says what it shows and its numbers as a table.

A chart function returns None where its frame has no rows; `draw` then says why (`Results.missing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.charts.capacity import capacity_chart
from tracelib.charts.causes import causes_chart
from tracelib.charts.collectives import collectives_chart
from tracelib.charts.comparison import (
    first_tokens_chart,
    losses_chart,
    side_by_side,
    tokens_chart,
    utilisation_chart,
)
from tracelib.charts.cpu_time import cpu_time_chart
from tracelib.charts.demand import demand_chart
from tracelib.charts.drawn import Drawn, Notice
from tracelib.charts.exposure import exposure_chart
from tracelib.charts.flame import flame_chart
from tracelib.charts.ipc import ipc_chart
from tracelib.charts.kernels import kernels_chart
from tracelib.charts.launches import launches_chart
from tracelib.charts.moments import moments_chart, worst_chart
from tracelib.charts.overview import overview_png, overview_svg
from tracelib.charts.requests import requests_chart
from tracelib.charts.sentences import timeline_sentence
from tracelib.charts.staircase import staircase_chart
from tracelib.charts.states import states_chart
from tracelib.charts.theme import plain
from tracelib.charts.threads import threads_chart
from tracelib.charts.timeline import detail_chart, timeline_chart

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from tracelib.analyses.results import Results

__all__ = [
    "Drawn",
    "Notice",
    "capacity_chart",
    "causes_chart",
    "collectives_chart",
    "cpu_time_chart",
    "demand_chart",
    "detail_chart",
    "draw",
    "exposure_chart",
    "first_tokens_chart",
    "flame_chart",
    "ipc_chart",
    "kernels_chart",
    "launches_chart",
    "losses_chart",
    "moments_chart",
    "overview_png",
    "overview_svg",
    "requests_chart",
    "side_by_side",
    "staircase_chart",
    "states_chart",
    "threads_chart",
    "timeline_chart",
    "timeline_sentence",
    "tokens_chart",
    "utilisation_chart",
    "worst_chart",
]

#: The frame that each chart needs.
_FRAME = {
    "collectives_chart": "collectives",
    "cpu_time_chart": "cpu_time",
    "demand_chart": "demand",
    "exposure_chart": "host_activity",
    "flame_chart": "cpu_time",
    "ipc_chart": "ipc",
    "moments_chart": "host_activity",
    "launches_chart": "launches",
    "requests_chart": "requests",
    "threads_chart": "scheduling",
}


#: What charts draw that need a GPU, and nothing else that `Results.missing` tells of.
_OF_GPUS = ("causes_chart", "kernels_chart", "staircase_chart", "states_chart", "worst_chart")
#: What charts of several runs need.
_OF_RUNS = {
    "losses_chart": "no GPU operation was recorded, or none of their time was lost",
    "first_tokens_chart": "no run has a request log whose requests lie in its window (parameter requests)",
    "tokens_chart": "neither the names of the model's steps (execute_context_1(2048)_generation_8(8), step[DECODE bs=8]) nor a request log tell them",
    "utilisation_chart": "no GPU operation was recorded",
}


def draw(
    chart: Callable[..., go.Figure | None], results: Results | pl.DataFrame, *of: object
) -> Drawn | Notice:
    """Return the chart with its sentence, or a line that says why there is none.

    `results`: what the chart takes, most often the results of a run. `of`: what it takes besides (a cause, a role).
    """
    figure = chart(results, *of)
    if figure is not None:
        return Drawn(figure)
    what = " of ".join(plain(word).replace("_", " ") for word in (chart.__name__.removesuffix("_chart"), *of))
    return Notice(f"No chart of {what}: {_reason(chart.__name__, results)}.")


def _reason(name: str, results: Results | pl.DataFrame) -> str:
    if isinstance(results, pl.DataFrame):
        return _OF_RUNS.get(name, "none of the runs holds what it takes")
    if name in _OF_GPUS and results.gpu_states.is_empty():
        return "no GPU operation was recorded (torch.profiler on every worker, or nsys profile -t cuda,nvtx)"
    return results.missing.get(_FRAME.get(name, ""), "nothing of this kind in the window")
