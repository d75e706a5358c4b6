"""Ledger 4 as a picture: where each request's time to first token went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.sentences import PARTS, requests_sentence
from tracelib.charts.theme import Look, duration, finished, marker, safe, share
from tracelib.findings.finding import quantile

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["requests_chart"]

#: Bars drawn; of more requests, those with the longest time to first token.
REQUESTS = 120
LOOKS = {
    part: Look(PARTS[part], colour, pattern)
    for part, colour, pattern in (
        ("before_tokenize_ns", "#CC79A7", "x"),
        ("tokenize_ns", "#E69F00", ""),
        ("queue_ns", "#F0E442", "."),
        ("broadcast_ns", "#D55E00", "/"),
        ("gpu_useful_ns", "#0072B2", ""),
        ("gpu_wait_ns", "#33A382", "\\"),
        ("gpu_idle_ns", "#D4D4D4", "/"),
        ("gpu_collective_ns", "#8C8C8C", "."),
        ("back_ns", "#56B4E9", "x"),
        ("unknown_ns", "#FFFFFF", "x"),
    )
}


def requests_chart(results: Results) -> go.Figure | None:
    """Return one stacked bar per request in order of arrival, its parts adding up to its time to first token.

    None if no request's first token is known.
    """
    known = results.requests.filter(pl.col("ttft_ns").is_not_null())
    if known.is_empty():
        return None
    shown = known.sort("ttft_ns", descending=True).head(REQUESTS).sort("arrived_ns")
    names = [safe(name, 24) for name in shown["id"]]
    at = [f"arrived at {duration(ns)}" for ns in shown["arrived_ns"] - results.window.start_ns]
    figure = go.Figure()
    for part, appearance in LOOKS.items():
        if shown[part].sum():
            figure.add_bar(
                x=list(range(1, len(shown) + 1)),
                y=(shown[part] / 1e6).to_list(),
                name=appearance.label,
                marker=marker(appearance),
                text=names,
                textposition="none",
                customdata=at,
                hovertemplate="%{text}, %{customdata}: %{y:.1f} ms<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack", bargap=0.08, margin={"t": 50})
    which = (
        "requests in order of arrival"
        if len(shown) == len(known)
        else f"the {len(shown)} slowest of {len(known)} requests, in order of arrival"
    )
    figure.update_xaxes(title_text=which, showgrid=False)
    figure.update_yaxes(title_text="ms to the first token", rangemode="tozero")
    return finished(figure, requests_sentence(results), _table(known), 360)


def _table(known: pl.DataFrame) -> list[list[str]]:
    total = int(known["ttft_ns"].sum())
    parts = {**PARTS, "ttft_ns": "time to first token"}
    body = [
        [
            words,
            *(duration(quantile(known[part].drop_nulls(), q)) for q in (0.5, 0.95, 1)),
            share(int(known[part].sum()) / total),
        ]
        for part, words in parts.items()
    ]
    return [["part", "p50", "p95", "max", "share of all"], *body]
