"""Ledger 3 as a picture: CPU time by role and cause, with the uncertainty that sampling leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.causes import cause_label
from tracelib.charts.names import role_name
from tracelib.charts.sentences import cpu_time_sentence
from tracelib.charts.theme import duration, finished, look, marker, safe, share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["cpu_time_chart"]

ROWS = 24


def cpu_time_chart(results: Results) -> go.Figure | None:
    """Return one bar per role and cause in CPU seconds, whiskers = 95 % interval; None without CPU samples.

    The :data:`ROWS` largest rows are drawn, grouped by role, the role that used most first.
    """
    if results.cpu_time.is_empty():
        return None
    total = int(results.cpu_time["cpu_ns"].sum())
    rows = results.cpu_time.sort("cpu_ns", "role", "cause", descending=[True, False, False]).head(ROWS)
    rows = rows.with_columns(of_role=pl.col("cpu_ns").sum().over("role"))
    rows = rows.sort("of_role", "role", "cpu_ns", "cause", descending=[True, False, True, False])
    labels = [cause_label(c, s) for c, s in rows.select("cause", "sub_cause").iter_rows()]
    axis = [[safe(role_name(role)) for role in rows["role"]], [safe(label) for label in labels]]
    figure = go.Figure(_bars(rows, axis, total))
    figure.update_xaxes(
        title_text="CPU seconds; whiskers: 95 % interval from the number of samples", rangemode="tozero"
    )
    figure.update_yaxes(autorange="reversed", dividercolor="rgba(128,128,128,0.4)", showgrid=False)
    figure.update_layout(barmode="overlay", showlegend=False)
    return finished(figure, cpu_time_sentence(results), _table(rows, labels), 100 + 24 * len(rows))


def _bars(rows: pl.DataFrame, axis: list[list[str]], total_ns: int) -> go.Bar:
    looks = [marker(look("cause", cause)) for cause in rows["cause"]]
    shapes = [look("cause", cause).pattern for cause in rows["cause"]]
    colours = [m["color"] for m in looks]
    pattern = {
        "shape": shapes,
        "bgcolor": colours,
        "fgcolor": "rgba(255,255,255,0.75)",
        "size": 6,
        "solidity": 0.25,
    }
    words = [
        f"{duration(ns)}, {share(part)} of all CPU time, 95 % interval {share(low)} to {share(high)}"
        for ns, part, low, high in rows.select("cpu_ns", "share", "ci_low", "ci_high").iter_rows()
    ]
    up, down = (
        (rows[a] - rows[b]).clip(lower_bound=0) * total_ns / 1e9
        for a, b in (("ci_high", "share"), ("share", "ci_low"))
    )
    return go.Bar(
        y=axis, x=(rows["cpu_ns"] / 1e9).to_list(), orientation="h", customdata=words, hovertemplate="%{y}: %{customdata}<extra></extra>",
        marker={"color": colours, "line": {"width": 0}, "pattern": pattern},
        error_x={"type": "data", "array": up.to_list(), "arrayminus": down.to_list(), "thickness": 1.2, "color": "#767676"},
    )  # fmt: skip


def _table(rows: pl.DataFrame, labels: list[str]) -> list[list[str]]:
    body = [
        [
            role_name(r["role"]),
            label,
            duration(r["cpu_ns"]),
            share(r["share"]),
            f"{share(r['ci_low'])} to {share(r['ci_high'])}",
        ]
        for r, label in zip(rows.iter_rows(named=True), labels, strict=True)
    ]
    return [["role", "cause", "CPU time", "share of all", "95 % interval"], *body]
