"""How many of the server's threads wanted a CPU over time, against the CPUs there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.capacity import cpus_known
from tracelib.analyses.scheduling import demand_at
from tracelib.charts.bins import edges
from tracelib.charts.sentences import demand_sentence
from tracelib.charts.theme import CPU_STATES, finished, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["demand_chart"]


def demand_chart(results: Results, bins: int = 400) -> go.Figure | None:
    """Return running and runnable threads stacked, as means of `bins` equal bins, with the CPUs as a line.

    None without scheduler events. What stands above the line is work that waited.
    """
    if results.demand.is_empty() or not results.demand["dur_ns"].sum():
        return None
    borders = edges(results.window.start_ns, results.window.end_ns, bins)
    ms = (borders - borders[0]) / 1e6
    figure = go.Figure()
    for column in ("running", "runnable"):
        mean, appearance = weighted_mean(results.demand, column, borders), CPU_STATES[column]
        hatch = {
            "shape": appearance.pattern,
            "bgcolor": appearance.colour,
            "fgcolor": "rgba(255,255,255,0.6)",
            "size": 5,
        }
        figure.add_scatter(
            x=ms.astype(np.float32),
            y=np.append(mean, mean[-1]).astype(np.float32),
            stackgroup="demand",
            mode="lines",
            name=appearance.label,
            fillcolor=appearance.colour,
            fillpattern=hatch if appearance.pattern else None,
            line={"width": 0, "shape": "hv", "color": appearance.colour},
            hovertemplate="%{y:.1f} threads at %{x:.0f} ms",
        )
    cpus, how = cpus_known(results)
    if cpus is not None:
        for line in ({"color": "#FFFFFF", "width": 5}, {"color": "#1A1A1A", "width": 2.5, "dash": "dash"}):
            figure.add_scatter(
                x=[0, ms[-1]],
                y=[cpus, cpus],
                mode="lines",
                name=f"CPUs: {cpus} ({how})",
                hoverinfo="skip",
                line=line,
                showlegend="dash" in line,
            )
    figure.update_xaxes(title_text="ms since the window's start", range=[0, float(ms[-1])])
    figure.update_yaxes(title_text="threads of the server", rangemode="tozero")
    figure.update_layout(margin={"t": 50})
    return finished(figure, demand_sentence(results), _table(results), 340)


def weighted_mean(steps: pl.DataFrame, column: str, borders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of a step function in each bin; time that no step covers counts as 0."""
    base = int(borders[0])
    ordered = steps.sort("ts_ns")
    begin = ordered["ts_ns"].to_numpy() - base
    length = ordered["dur_ns"].to_numpy()
    height = ordered[column].to_numpy().astype(np.int64)
    corners = np.column_stack([begin, begin + length]).ravel()
    gained = np.column_stack([np.zeros_like(length), height * length]).ravel()
    total = np.interp(borders - base, corners, np.cumsum(gained), left=0.0)
    mean: NDArray[np.float64] = np.diff(total) / np.diff(borders)
    return mean


def _table(results: Results) -> list[list[object]]:
    cpus, how = cpus_known(results)
    total = int(results.demand["dur_ns"].sum())
    waiting = int(results.demand.filter(pl.col("runnable") > 0)["dur_ns"].sum())
    body: list[list[object]] = [
        [name, demand_at(results.demand, q)]
        for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1))
    ]
    body.append(["CPUs", how if cpus is None else f"{cpus} ({how})"])
    body.append(["time in which a thread waited for a CPU", share(waiting / total)])
    return [["threads running or runnable", "value"], *body]
