"""How long each worker waited for its next step, against the time between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl

from tracelib.charts.bins import log_edges
from tracelib.charts.collectives import PATTERNS
from tracelib.charts.launches import bars, log_axis
from tracelib.charts.names import thread_names
from tracelib.charts.sentences import dequeues, ipc_sentence
from tracelib.charts.theme import INK, TEMPLATE, duration, finished, safe, share
from tracelib.findings.finding import quantile

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["ipc_chart"]


def ipc_chart(results: Results) -> go.Figure | None:
    """Return the distribution of dequeue latency per rank and, as a line, the median step; None without a dequeue."""
    rows = dequeues(results)
    if rows.is_empty():
        return None
    steps = rows["step_ns"].drop_nulls()
    borders = log_edges(pl.concat([rows["dur_ns"], steps]))
    figure = go.Figure()
    for i, (rank, own) in enumerate(_by_rank(rows)):
        colour, shape = TEMPLATE.layout.colorway[i % 8], PATTERNS[i % 8]
        hatch = (
            {"shape": shape, "bgcolor": colour, "fgcolor": "rgba(255,255,255,0.75)", "size": 6}
            if shape
            else None
        )
        marker = {"color": colour, "line": {"width": 0}, "pattern": hatch}
        figure.add_bar(**bars(own["dur_ns"], borders), name=safe(rank), marker=marker)
    if len(steps):
        step = max(1.0, float(quantile(steps, 0.5) or 0))
        figure.add_vline(x=step, line={"dash": "dash", "color": INK})
        at = {"x": float(np.log10(step)), "y": 1, "yref": "paper", "xanchor": "left", "showarrow": False}
        figure.add_annotation(text=f" median step {duration(step)}", **at)
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    figure.update_xaxes(
        title_text="dequeue latency: how long a worker waited for its next step", **log_axis(borders)
    )
    figure.update_yaxes(title_text="dequeues", rangemode="tozero")
    return finished(figure, ipc_sentence(results), _table(results, rows), 360)


def _by_rank(rows: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    groups = rows.sort("rank", "thread", nulls_last=True).group_by("rank", maintain_order=True)
    return [("worker" if rank is None else f"rank {rank}", own) for (rank,), own in groups]


def _table(results: Results, rows: pl.DataFrame) -> list[list[object]]:
    names = thread_names(results)
    body: list[list[object]] = []
    for (thread,), own in rows.group_by("thread", maintain_order=True):
        paired = own.filter(pl.col("step_ns").is_not_null())
        part = int(paired["dur_ns"].sum()) / int(paired["step_ns"].sum()) if len(paired) else None
        latency = [duration(quantile(own["dur_ns"], q)) for q in (0.5, 0.95, 1)]
        body.append(
            [names.get(thread, ""), len(own), *latency, duration(int(own["dur_ns"].sum())), share(part)]
        )
    return [["worker", "dequeues", "p50", "p95", "max", "total", "share of the time between steps"], *body]
