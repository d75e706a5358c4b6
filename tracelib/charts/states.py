"""Ledger 1 as a picture: each GPU's window in its states, which add up to all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.names import gpu_names
from tracelib.charts.sentences import gpu_shares, states_sentence
from tracelib.charts.theme import GPU_STATES, duration, finished, look, marker, safe, share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["states_chart", "states_table"]


def states_chart(results: Results) -> go.Figure | None:
    """Return one bar per GPU cut into its states in per cent of the window; None without a GPU.

    Useful states stand on the left, so that a bar's useful part and its busy part are both read from the axis.
    """
    if results.gpu_time.is_empty():
        return None
    names = gpu_names(results)
    time = results.gpu_time.with_columns(
        pl.col("state").cast(pl.String), total=pl.col("ns").sum().over("gpu")
    )
    gpus = time["gpu"].unique().sort().to_list()
    labels = [safe(names.get(gpu, gpu)) for gpu in gpus]
    figure = go.Figure([bar for state in GPU_STATES if (bar := _bar(time, gpus, labels, state)) is not None])
    figure.update_layout(barmode="stack", margin={"t": 60})
    figure.update_xaxes(title_text="% of the window", range=[0, 100])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return finished(figure, states_sentence(results), states_table(results, names), 150 + 32 * len(gpus))


def _bar(time: pl.DataFrame, gpus: list[int], labels: list[str], state: str) -> go.Bar | None:
    own = {row["gpu"]: row for row in time.filter(pl.col("state") == state).iter_rows(named=True)}
    parts = [own[gpu]["ns"] / own[gpu]["total"] if gpu in own else 0.0 for gpu in gpus]
    if not any(parts):
        return None
    appearance = look("gpu_state", state)
    return go.Bar(
        y=labels,
        x=[100 * part for part in parts],
        orientation="h",
        name=safe(appearance.label),
        marker=marker(appearance),
        text=[share(part) if part >= 0.04 else "" for part in parts],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        customdata=[duration(own[gpu]["ns"]) if gpu in own else "" for gpu in gpus],
        hovertemplate="%{y}: %{customdata}, %{x:.1f} %<extra>%{fullData.name}</extra>",
    )


def states_table(results: Results, names: dict[int, str]) -> list[list[str]]:
    """Return one row per GPU: useful and busy shares, then the time in each state that occurs."""
    shares = {row["gpu"]: row for row in gpu_shares(results.gpu_time).iter_rows(named=True)}
    present = results.gpu_time.filter(pl.col("ns") > 0)["state"].cast(pl.String).unique().to_list()
    states = [state for state in GPU_STATES if state in present]
    ns = {
        (gpu, state): value for gpu, state, value in results.gpu_time.select("gpu", "state", "ns").iter_rows()
    }
    header = ["device", "useful", "busy", *(look("gpu_state", state).label for state in states)]
    body = [
        [
            names.get(gpu, str(gpu)),
            share(row["useful"]),
            share(row["busy"]),
            *(duration(ns.get((gpu, s), 0)) for s in states),
        ]
        for gpu, row in shares.items()
    ]
    return [header, *body]
