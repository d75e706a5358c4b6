"""One cause over time: the GPU time lost to it, above how many host threads were at it in the same moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracelib.charts.bins import cover, edges
from tracelib.charts.theme import count, duration, finished, look, share
from tracelib.charts.timeline import detail_chart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["moments_chart", "worst_chart", "worst_moment"]

#: The worst moment is shown with this much of its length on either side.
MARGIN = 0.5
LEAST_NS = 1_000_000


def moments_chart(results: Results, cause: str, bins: int = 100) -> go.Figure | None:
    """Return, per bin, the share of GPU time lost to `cause` (above) and the mean number of threads at it (below).

    None if the window holds nothing of the cause.
    """
    lost = results.lost.filter(pl.col("cause") == cause)
    work = results.host_activity.filter((pl.col("cause") == cause) & pl.col("waits_for").is_null())
    if lost.is_empty() and work.is_empty():
        return None
    borders = edges(results.window.start_ns, results.window.end_ns, bins)
    gpus = max(1, results.gpu_time["gpu"].n_unique())
    part = cover(lost["ts_ns"], lost["dur_ns"], borders) / (np.diff(borders) * gpus)
    threads = cover(work["ts_ns"], work["dur_ns"], borders) / np.diff(borders)
    ms = ((borders - borders[0]) / 1e6).astype(np.float32)
    words, colour = look("cause", cause).label, look("cause", cause).paint
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    figure.add_trace(_stairs(ms, 100 * part, f"GPU time lost to {words}", colour, "%{y:.0f} %"), row=1, col=1)
    figure.add_trace(_stairs(ms, threads, f"threads at {words}", "#8C8C8C", "%{y:.1f} threads"), row=2, col=1)
    figure.update_yaxes(title_text="GPU time lost", range=[0, 100], ticksuffix=" %", row=1, col=1)
    figure.update_yaxes(title_text="threads", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text="ms since the window's start", row=2, col=1)
    figure.update_xaxes(range=[0, float(ms[-1])])
    figure.update_layout(margin={"t": 50})
    return finished(figure, _sentence(words, part, threads, ms), _table(part, threads), 360)


def _stairs(
    ms: NDArray[np.float32], values: NDArray[np.float64], name: str, colour: str, hover: str
) -> go.Scatter:
    return go.Scatter(
        x=ms,
        y=np.append(values, values[-1]).astype(np.float32),
        mode="lines",
        name=name,
        fill="tozeroy",
        fillcolor=colour,
        line={"shape": "hv", "color": colour, "width": 1},
        hovertemplate=hover + " at %{x:.0f} ms",
    )


def _sentence(
    words: str, part: NDArray[np.float64], threads: NDArray[np.float64], ms: NDArray[np.float32]
) -> str:
    worst, busiest = int(part.argmax()), float(threads.max())
    at = f"between {ms[worst]:.0f} and {ms[worst + 1]:.0f} ms"
    crowd = f"at most {busiest:.1f} threads were at it on average in one of {len(part)} equal pieces of the window"
    if not part.any():
        return f"No GPU time was lost to {words}; {crowd}."
    return f"{share(float(part.mean()))} of all GPU time was lost to {words}, most {at} ({share(float(part[worst]))}); {crowd}."


def _table(part: NDArray[np.float64], threads: NDArray[np.float64]) -> list[list[object]]:
    quantiles = (("p50", 50), ("p95", 95), ("max", 100))
    body: list[list[object]] = [
        [name, share(float(np.percentile(part, q))), f"{np.percentile(threads, q):.2f}"]
        for name, q in quantiles
    ]
    return [[f"of {count(len(part), 'equal piece')}", "GPU time lost to it", "threads at it"], *body]


def worst_moment(results: Results, cause: str) -> tuple[int, int] | None:
    """Return the longest stretch of one GPU's time lost to `cause` as `(start_ns, end_ns)`; None if none was lost."""
    own = results.lost.filter(pl.col("cause") == cause).sort("gpu", "ts_ns")
    if own.is_empty():
        return None
    end = pl.col("ts_ns") + pl.col("dur_ns")
    new = (pl.col("ts_ns") != end.shift(1).over("gpu")).fill_null(value=True)
    stretches = (
        own.with_columns(stretch=new.cum_sum())
        .group_by("stretch")
        .agg(start=pl.col("ts_ns").min(), end=end.max())
    )
    worst = stretches.sort(pl.col("end") - pl.col("start"), "start", descending=[True, False]).row(
        0, named=True
    )
    return worst["start"], worst["end"]


def worst_chart(results: Results, cause: str) -> go.Figure | None:
    """Return every lane around the longest stretch lost to `cause`, to be zoomed into; None if none was lost."""
    found = worst_moment(results, cause)
    if found is None:
        return None
    start, end = found
    margin = max(round(MARGIN * (end - start)), LEAST_NS)
    figure = detail_chart(results, start - margin, end + margin)
    if figure is not None:
        words = look("cause", cause).label
        figure.layout.meta["sentence"] = (
            f"The longest stretch lost to {words} lasts {duration(end - start)}. {figure.layout.meta['sentence']}"
        )
    return figure
