"""GPU utilisation over time, as it was (useful) and as monitoring would have shown it (busy)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracelib.charts.bins import edges, occupancy
from tracelib.charts.lanes import shown_devices
from tracelib.charts.names import gpu_names
from tracelib.charts.sentences import USEFUL, staircase_sentence
from tracelib.charts.states import states_table
from tracelib.charts.theme import finished, safe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["staircase_chart"]

GAP, SPIN = "#767676", "#A9CBE0"


def staircase_chart(results: Results, bins: int = 100) -> go.Figure | None:
    """Return per GPU the useful and the busy share of `bins` equal bins as stairs; the hatched step between is spinning.

    None without a GPU; of more than eight, those that lost most.
    """
    if results.gpu_states.is_empty():
        return None
    devices, names = shown_devices(results), gpu_names(results)
    borders = edges(results.window.start_ns, results.window.end_ns, bins)
    ms = ((borders - borders[0]) / 1e6).astype(np.float32)
    titles = [safe(names.get(gpu, gpu)) for gpu in devices]
    figure = make_subplots(rows=len(devices), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(devices))
    for row, gpu in enumerate(devices, start=1):
        for trace in _stairs(*_shares(results, gpu, borders), ms, first=row == 1):
            figure.add_trace(trace, row=row, col=1)
        figure.update_yaxes(
            title_text=titles[row - 1], range=[0, 100], tickvals=[0, 50, 100], ticksuffix=" %", row=row, col=1
        )
    figure.update_xaxes(title_text="ms since the window's start", row=len(devices), col=1)
    figure.update_xaxes(range=[0, float(ms[-1])])
    figure.update_layout(margin={"t": 50})
    return finished(
        figure, staircase_sentence(results), states_table(results, names), 120 + 110 * len(devices)
    )


def _shares(
    results: Results, gpu: int, borders: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return useful and busy per cent of each bin."""
    own = results.gpu_states.filter(pl.col("gpu") == gpu)
    useful = occupancy(own, USEFUL, borders).sum(axis=0) * 100
    return useful, 100 - 100 * occupancy(own, ["idle"], borders)[0]


def _stairs(
    useful: NDArray[np.float64], busy: NDArray[np.float64], ms: NDArray[np.float32], *, first: bool
) -> tuple[go.Scatter, go.Scatter]:
    def stairs(values: NDArray[np.float64], name: str, **looks: object) -> go.Scatter:
        y = np.append(values, values[-1]).astype(np.float32)
        return go.Scatter(
            x=ms,
            y=y,
            mode="lines",
            name=name,
            legendgroup=name,
            showlegend=first,
            hovertemplate="%{y:.0f} % at %{x:.0f} ms",
            **looks,
        )

    hatch = {"shape": "/", "bgcolor": SPIN, "fgcolor": "rgba(255,255,255,0.8)", "size": 5}
    return (
        stairs(
            useful,
            "useful",
            fill="tozeroy",
            fillcolor="#0072B2",
            line={"shape": "hv", "color": "#0072B2", "width": 1},
        ),
        stairs(
            busy,
            "busy, as monitoring shows it",
            fill="tonexty",
            fillcolor=SPIN,
            fillpattern=hatch,
            line={"shape": "hv", "color": GAP, "width": 1.5, "dash": "dot"},
        ),
    )
