"""Ledger 4 as a picture: where each request's time to first token went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.phrases import p50_p95_max
from tracelib.charts.theme import PALE, Look, finished, marker, safe
from tracelib.words import counted, duration, share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

#: Bars drawn; of more requests, those with the longest time to first token.
REQUESTS = 120
#: What the parts of a request's time to first token are called, in their order.
PARTS = {
    "before_tokenize_ns": "before the tokenizer",
    "tokenize_ns": "tokenize",
    "queue_ns": "queue before the engine",
    "broadcast_ns": "engine to workers",
    "gpu_useful_ns": "GPU useful",
    "gpu_wait_ns": "GPU waiting in a collective",
    "gpu_idle_ns": "GPU idle",
    "gpu_collective_ns": "collective, waiting not known",
    "back_ns": "back to the first token",
    "unknown_ns": "not known",
}
LOOKS = {
    "before_tokenize_ns": Look("#CC79A7", "x"),
    "tokenize_ns": Look("#E69F00"),
    "queue_ns": Look("#F0E442", "."),
    "broadcast_ns": Look("#D55E00", "/"),
    "gpu_useful_ns": Look("#0072B2"),
    "gpu_wait_ns": Look("#33A382", "\\"),
    "gpu_idle_ns": Look(PALE.colour, "/"),
    "gpu_collective_ns": Look("#8C8C8C", "."),
    "back_ns": Look("#56B4E9", "x"),
    "unknown_ns": Look("#FFFFFF", "x"),
}


def requests_chart(results: Results) -> go.Figure | None:
    """Return one stacked bar per request in order of arrival, its parts adding up to its time to first token.

    None if no request's first token is known.
    """
    answered = results.requests.filter(pl.col("ttft_ns").is_not_null())
    if answered.is_empty():
        return None
    slowest = answered.sort("ttft_ns", descending=True).head(REQUESTS).sort("arrived_ns")
    figure = go.Figure()
    for part, appearance in LOOKS.items():
        if slowest[part].sum():
            figure.add_bar(
                x=list(range(1, len(slowest) + 1)),
                y=(slowest[part] / 1e6).to_list(),
                name=PARTS[part],
                marker=marker(appearance),
                text=[safe(name, 24) for name in slowest["id"]],
                textposition="none",
                customdata=[
                    f"arrived at {duration(ns)}" for ns in slowest["arrived_ns"] - results.window.start_ns
                ],
                hovertemplate="%{text}, %{customdata}: %{y:.1f} ms<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack", bargap=0.08, margin={"t": 50})
    title = "requests in order of arrival"
    if len(slowest) < len(answered):
        title = f"the {len(slowest)} slowest of {len(answered)} requests, in order of arrival"
    figure.update_xaxes(title_text=title, showgrid=False)
    figure.update_yaxes(title_text="ms to the first token", rangemode="tozero")
    return finished(figure, _sentence(answered), _table(answered), 360)


def _sentence(answered: pl.DataFrame) -> str:
    half, most, _ = p50_p95_max(answered["ttft_ns"])
    total = int(answered["ttft_ns"].sum())
    sums = {part: int(answered[part].sum()) for part in PARTS}
    not_known = sums.pop("unknown_ns")
    largest = max(sums, key=lambda part: sums[part])
    return (
        f"Half of {counted(len(answered), 'request')} had their first token within {half}, 95 % within "
        f"{most}; the largest part that is known is {PARTS[largest]}, {share(sums[largest] / total)} of all."
        f"{_doubt(answered, not_known / total)}"
    )


def _doubt(answered: pl.DataFrame, part: float) -> str:
    if not part:
        return ""
    reasons = answered.group_by("unknown_why").agg(pl.col("unknown_ns").sum()).drop_nulls()
    why = reasons.sort("unknown_ns", "unknown_why")["unknown_why"][-1]
    return f" {share(part)} of it is not known, mostly because {why}."


def _table(answered: pl.DataFrame) -> list[list[str]]:
    total = int(answered["ttft_ns"].sum())
    body = [
        [name, *p50_p95_max(answered[part].drop_nulls()), share(int(answered[part].sum()) / total)]
        for part, name in {**PARTS, "ttft_ns": "time to first token"}.items()
    ]
    return [["part", "p50", "p95", "max", "share of all"], *body]
