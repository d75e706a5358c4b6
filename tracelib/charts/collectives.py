"""How far apart the ranks arrived at their collectives, over time and as a distribution, and who came last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracelib.charts.bins import log_edges
from tracelib.charts.launches import bars, log_axis
from tracelib.charts.names import gpu_names
from tracelib.charts.sentences import arrivals, collectives_sentence
from tracelib.charts.theme import TEMPLATE, duration, finished, safe, share
from tracelib.findings.finding import quantile

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["collectives_chart"]

#: Points drawn over time; of more collectives, the largest skew of each bin and straggler stands for the bin.
POINTS = 1500
SYMBOLS = [
    "circle",
    "diamond-open",
    "square",
    "x-thin-open",
    "triangle-up",
    "cross-open",
    "star",
    "hexagon-open",
]
PATTERNS = ["", "/", "x", "\\", ".", "-", "|", "+"]


def collectives_chart(results: Results) -> go.Figure | None:
    """Return arrival skew over time (left) and its distribution (right), by the rank that came last; None if unmatched."""
    events = arrivals(results.collectives)
    if events.is_empty():
        return None
    names = gpu_names(results)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.62, 0.38], horizontal_spacing=0.09)
    borders = log_edges(events["skew_ns"])
    for i, gpu in enumerate(events["straggler"].unique().sort().to_list()):
        own = events.filter(pl.col("straggler") == gpu)
        name, colour = safe(f"{names.get(gpu, gpu)} last"), TEMPLATE.layout.colorway[i % 8]
        figure.add_trace(_points(results, own, name, colour, SYMBOLS[i % 8]), row=1, col=1)
        hatch = {"shape": PATTERNS[i % 8], "bgcolor": colour, "fgcolor": "rgba(255,255,255,0.75)", "size": 6}
        marker = {"color": colour, "line": {"width": 0}, "pattern": hatch if PATTERNS[i % 8] else None}
        bar = go.Bar(**bars(own["skew_ns"], borders), name=name, showlegend=False, marker=marker)
        figure.add_trace(bar, row=1, col=2)
    ticks = log_axis(borders)
    figure.update_yaxes(title_text="arrival skew", **ticks, row=1, col=1)
    figure.update_xaxes(title_text="ms since the window's start", row=1, col=1)
    figure.update_xaxes(title_text="arrival skew", **ticks, row=1, col=2)
    figure.update_yaxes(title_text="collectives", rangemode="tozero", row=1, col=2)
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    return finished(figure, collectives_sentence(results), _table(results, events, names), 380)


def _points(results: Results, own: pl.DataFrame, name: str, colour: str, symbol: str) -> go.Scatter:
    step = max(1, results.window.duration_ns // POINTS)
    at = pl.col("ts_ns") - results.window.start_ns
    worst = (
        own
        if len(own) <= POINTS
        else own.sort("skew_ns").unique(at // pl.lit(step, pl.Int64), keep="last").sort("ts_ns")
    )
    lowest = max(1.0, float(own["skew_ns"].filter(own["skew_ns"] > 0).min() or 1))  # type: ignore[arg-type]
    return go.Scatter(
        x=worst.select(at / 1e6).to_series().to_numpy(),
        y=worst["skew_ns"].clip(lower_bound=int(lowest)).to_numpy().astype("float64"),
        mode="markers",
        name=name,
        marker={"size": 5, "color": colour, "symbol": symbol, "opacity": 0.7},
        text=[duration(ns) for ns in worst["skew_ns"]],
        hovertemplate="%{text} at %{x:.1f} ms<extra>%{fullData.name}</extra>",
    )


def _table(results: Results, events: pl.DataFrame, names: dict[int, str]) -> list[list[object]]:
    waits = dict(
        results.collectives.filter("matched").group_by("gpu").agg(pl.col("wait_ns").sum()).iter_rows()
    )
    last = dict(events.group_by("straggler").len().iter_rows())
    body: list[list[object]] = [
        [
            names.get(gpu, str(gpu)),
            last.get(gpu, 0),
            share(last.get(gpu, 0) / len(events)),
            duration(waits.get(gpu, 0)),
        ]
        for gpu in sorted({*waits, *last})
    ]
    skews = [duration(quantile(events["skew_ns"], q)) for q in (0.5, 0.95, 1)]
    return [
        ["device", "came last", "share of collectives", "waited for others"],
        *body,
        ["all: arrival skew", f"p50 {skews[0]}", f"p95 {skews[1]}", f"max {skews[2]}"],
    ]
