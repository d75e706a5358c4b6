"""What the server's threads did with their time: ran, wanted a CPU, were throttled, slept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.names import thread_names
from tracelib.charts.sentences import served, threads_sentence
from tracelib.charts.theme import CPU_STATES, duration, finished, marker, safe

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["threads_chart"]

THREADS = 24


def threads_chart(results: Results) -> go.Figure | None:
    """Return one bar per thread cut into CPU states, those that wanted a CPU longest first; None without scheduler events.

    Threads that only slept are left out; of the others, the :data:`THREADS` that ran or wanted to run most are drawn.
    """
    wanted = pl.sum_horizontal("running_ns", "runnable_ns", "throttled_ns")
    rows = served(results.scheduling).with_columns(wanted=wanted).filter(pl.col("wanted") > 0)
    if rows.is_empty():
        return None
    short = pl.sum_horizontal("runnable_ns", "throttled_ns")
    rows = (
        rows.sort("wanted", "thread", descending=[True, False])
        .head(THREADS)
        .sort(short, "wanted", "thread", descending=[True, True, False])
    )
    names = thread_names(results)
    figure = go.Figure()
    for state, appearance in CPU_STATES.items():
        ns = rows[f"{state}_ns"]
        if ns.sum():
            figure.add_bar(
                y=list(range(len(rows))),
                x=(ns / 1e6).to_list(),
                orientation="h",
                name=appearance.label,
                marker=marker(appearance),
                customdata=[duration(value) for value in ns],
                hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
            )
    figure.update_layout(barmode="stack", margin={"t": 50})
    labels = [safe(names.get(thread, "")) for thread in rows["thread"]]
    figure.update_yaxes(
        autorange="reversed", tickvals=list(range(len(rows))), ticktext=labels, showgrid=False
    )
    figure.update_xaxes(title_text="ms of the window", rangemode="tozero")
    return finished(figure, threads_sentence(results), _table(rows, names), 130 + 24 * len(rows))


def _table(rows: pl.DataFrame, names: dict[int, str]) -> list[list[object]]:
    header: list[object] = ["thread", *(look.label for look in CPU_STATES.values()), "moves between CPUs"]
    body: list[list[object]] = [
        [names.get(r["thread"], ""), *(duration(r[f"{state}_ns"]) for state in CPU_STATES), r["migrations"]]
        for r in rows.iter_rows(named=True)
    ]
    return [header, *body]
