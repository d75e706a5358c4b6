"""One cause's host time: all of it, and the part that cost the GPUs something (ATTRIBUTION.md, "total" and "exposed")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.scheduling import tells_shortage
from tracelib.charts.sentences import NO_WAKEUPS, SHORT
from tracelib.charts.theme import Look, count, duration, finished, look, marker, plain, safe, share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["exposure_chart"]

#: Greys for what may have cost nothing; the cause's own look for what did.
TOTAL = Look("host time, all threads summed", "#D4D4D4", "", sheer="rgba(128,128,128,0.34)")
UNION = Look("at least one thread at it", "#8C8C8C", "")
EXPOSED = "exposed: GPU time lost to it, all GPUs summed"


def exposure_chart(results: Results, cause: str) -> go.Figure | None:
    """Return bars per sub-cause of `cause`: host time summed, its union, and the lost GPU time it exposed.

    None if the window holds nothing of the cause, neither on a host thread nor in the lost time.
    """
    rows = _rows(results, cause)
    if rows.is_empty():
        return None
    labels = [safe(plain(sub).replace("_", " ")) for sub in rows["sub_cause"].fill_null("no sub-cause")]
    figure = go.Figure()
    looks = {"total_ns": TOTAL, "union_ns": UNION, "exposed_ns": look("cause", cause)._replace(label=EXPOSED)}
    for column, appearance in looks.items():
        known = rows[column].is_not_null()
        figure.add_bar(
            y=[label for label, told in zip(labels, known, strict=True) if told],
            x=(rows[column].drop_nulls() / 1e6).to_list(),
            orientation="h",
            name=appearance.label,
            marker=marker(appearance),
            customdata=[duration(ns) for ns in rows[column].drop_nulls()],
            hovertemplate="%{y}: %{customdata}<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(barmode="group", bargap=0.3, margin={"t": 70})
    figure.update_xaxes(title_text="ms", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], showgrid=False)
    return finished(figure, _sentence(results, cause, rows), _table(rows), 150 + 66 * len(rows))


def _rows(results: Results, cause: str) -> pl.DataFrame:
    own = results.host_time.filter(pl.col("cause") == cause)
    some = (pl.col("total_ns").fill_null(0) > 0) | (pl.col("exposed_ns") > 0)
    return own.filter(some).sort("exposed_ns", "total_ns", descending=True, nulls_last=True)


def _sentence(results: Results, cause: str, rows: pl.DataFrame) -> str:
    words, exposed = look("cause", cause).label, int(rows["exposed_ns"].sum())
    total = int(rows["total_ns"].sum())
    said = (
        f"Host threads spent {duration(total)} on {words}" if total else f"No host thread's time was {words}"
    )
    if results.lost.is_empty():
        return f"{said}; no GPU time was lost, or no GPU recorded, so none of it is exposed."
    gpus = results.gpu_time["gpu"].n_unique()
    part = exposed / (results.window.duration_ns * gpus)
    cost = f"it cost {count(gpus, 'GPU')} {duration(exposed)}, {share(part)} of {'its' if gpus == 1 else 'their'} time"
    return f"{said}; {cost}{_shortage(results, cause, exposed)}."


def _shortage(results: Results, cause: str, exposed: int) -> str:
    """Say for how much of the exposed time the blamed thread had no CPU; nothing where nothing was exposed."""
    if not exposed:
        return ""
    if not tells_shortage(results.thread_states):
        return f"; whether the blamed thread wanted a CPU and had none {NO_WAKEUPS}"
    own = results.lost.filter(pl.col("cause") == cause)
    short = int(own.filter(pl.col("cpu_state").cast(pl.String).is_in(SHORT))["dur_ns"].sum())
    return f", and for {share(short / exposed)} of that the blamed thread wanted a CPU and had none"


def _table(rows: pl.DataFrame) -> list[list[object]]:
    body: list[list[object]] = [
        [
            r["sub_cause"] or "",
            duration(r["total_ns"]),
            duration(r["union_ns"]),
            duration(r["exposed_ns"]),
            r["count"] or 0,
        ]
        for r in rows.iter_rows(named=True)
    ]
    return [["sub-cause", "host time", "at least one thread", "exposed", "stretches"], *body]
