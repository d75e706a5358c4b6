"""Ledger 3 as a picture: CPU time by role and cause, with the uncertainty that sampling leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.names import cause_label, role_name
from tracelib.charts.rows import grouped
from tracelib.charts.sentences import cpu_time_sentence
from tracelib.charts.theme import INK, duration, finished, look, marker, safe, share

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
    places, axis = grouped([role_name(role) for role in rows["role"]], labels)
    rows = rows.with_columns(place=pl.Series(places), label=pl.Series(labels, dtype=pl.String))
    figure = go.Figure([_bar(own, total) for _, own in rows.group_by("cause", maintain_order=True)])
    figure.update_xaxes(
        title_text="CPU seconds; whiskers: 95 % interval from the number of samples", rangemode="tozero"
    )
    figure.update_yaxes(**axis)
    figure.update_layout(barmode="overlay", showlegend=False)
    return finished(figure, cpu_time_sentence(results), _table(rows), 80 + 22 * (places[-1] + 1))


def _bar(own: pl.DataFrame, total_ns: int) -> go.Bar:
    """Return the bars of one cause, which share its look."""
    words = [
        f"{safe(r['label'])}: {duration(r['cpu_ns'])}, {share(r['share'])} of all CPU time, "
        f"95 % interval {share(r['ci_low'])} to {share(r['ci_high'])}"
        for r in own.iter_rows(named=True)
    ]
    up, down = (
        (own[a] - own[b]).clip(lower_bound=0) * total_ns / 1e9
        for a, b in (("ci_high", "share"), ("share", "ci_low"))
    )
    whiskers = {
        "type": "data",
        "array": up.to_list(),
        "arrayminus": down.to_list(),
        "thickness": 1.2,
        "color": INK,
    }
    return go.Bar(
        y=own["place"].to_list(),
        x=(own["cpu_ns"] / 1e9).to_list(),
        orientation="h",
        width=0.72,
        customdata=words,
        error_x=whiskers,
        marker=marker(look("cause", own["cause"][0])),
        hovertemplate="%{customdata}<extra></extra>",
    )


def _table(rows: pl.DataFrame) -> list[list[str]]:
    body = [
        [
            role_name(r["role"]),
            r["label"],
            duration(r["cpu_ns"]),
            share(r["share"]),
            f"{share(r['ci_low'])} to {share(r['ci_high'])}",
        ]
        for r in rows.iter_rows(named=True)
    ]
    return [["role", "cause", "CPU time", "share of all", "95 % interval"], *body]
