"""Which GPU operations took the GPUs' time, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.theme import count, duration, finished, plain, safe, share
from tracelib.intervals import clip

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["kernels_chart"]

ROWS = 15
CHARACTERS = 44


def kernels_chart(results: Results) -> go.Figure | None:
    """Return the names of GPU operations that took longest in the window, all GPUs summed; None without any."""
    rows = _by_name(results)
    if rows.is_empty():
        return None
    top = rows.head(ROWS)
    colours = ["#56B4E9" if collective else "#0072B2" for collective in top["collective"]]
    patterns = ["/" if collective else "" for collective in top["collective"]]
    figure = go.Figure(
        go.Bar(
            y=list(range(len(top))),
            x=(top["ns"] / 1e6).to_list(),
            orientation="h",
            marker={"color": colours, "pattern": {"shape": patterns}},
            customdata=[
                f"{safe(r['name'])}: {duration(r['ns'])} in {count(r['n'], 'run')}"
                for r in top.iter_rows(named=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(
        title_text="ms of GPU time, all GPUs summed (hatched: collectives)", rangemode="tozero"
    )
    labels = [safe(name, CHARACTERS) for name in top["name"]]
    figure.update_yaxes(
        tickvals=list(range(len(top))), ticktext=labels, range=[len(top) - 0.4, -0.6], showgrid=False
    )
    return finished(figure, _sentence(rows), _table(rows), 110 + 26 * len(top))


def _by_name(results: Results) -> pl.DataFrame:
    """Return `name`, `collective` (Boolean), `ns`, `n` per name, longest first; operations that overlap count each."""
    inside = clip(results.trace.gpu_ops, results.window.start_ns, results.window.end_ns)
    return (
        inside.group_by(pl.col("name").cast(pl.String), pl.col("collective").is_not_null())
        .agg(ns=pl.col("dur_ns").sum(), n=pl.len())
        .sort("ns", "name", descending=[True, False])
    )


def _sentence(rows: pl.DataFrame) -> str:
    total = int(rows["ns"].sum())
    first, half = rows.row(0, named=True), int((rows["ns"].cum_sum() < total / 2).sum()) + 1
    return (
        f"Of {duration(total)} of GPU operations {share(first['ns'] / total)} are {plain(first['name'], CHARACTERS)}; "
        f"{count(half, 'name')} of {len(rows)} make half of it."
    )


def _table(rows: pl.DataFrame) -> list[list[object]]:
    total = int(rows["ns"].sum())
    body: list[list[object]] = [
        [r["name"], r["n"], duration(r["ns"]), duration(r["ns"] / r["n"]), share(r["ns"] / total)]
        for r in rows.head(30).iter_rows(named=True)
    ]
    return [["operation", "runs", "total", "mean", "share"], *body]
