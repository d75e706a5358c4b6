"""How long GPU operations took from their launch to their start, on a logarithmic axis."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from tracelib.charts.bins import log_edges
from tracelib.charts.names import gpu_names
from tracelib.charts.sentences import launches_sentence
from tracelib.charts.theme import duration, finished, share
from tracelib.findings.finding import quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["launches_chart", "log_axis"]


def launches_chart(results: Results) -> go.Figure | None:
    """Return the distribution of `launch_to_start` (late launches apart from queued ones) and of `return_to_start`.

    Late = the device was idle when the call began, so the whole wait is cost; queued = it had other work. Operations
    that started before their call returned have a negative `return_to_start`: no place on a logarithmic axis, so the
    table counts them. None without a launch.
    """
    known = results.launches.filter(pl.col("launch_to_start_ns").is_not_null())
    if known.is_empty():
        return None
    returned = known["return_to_start_ns"].drop_nulls()
    borders = log_edges(pl.concat([known["launch_to_start_ns"], returned]))
    late = pl.col("late").fill_null(value=False)
    figure = go.Figure(
        [
            _bars(
                known.filter(late)["launch_to_start_ns"],
                borders,
                "late: call to start, device idle",
                "#D55E00",
                "/",
            ),
            _bars(
                known.filter(~late)["launch_to_start_ns"],
                borders,
                "queued: call to start, device at work",
                "#0072B2",
                "",
            ),
            _line(returned, borders),
        ]
    )
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    figure.update_xaxes(title_text="from the launch", **log_axis(borders))
    figure.update_yaxes(title_text="GPU operations", rangemode="tozero")
    return finished(figure, launches_sentence(results), _table(results, known), 380)


def log_axis(borders: NDArray[np.float64]) -> dict[str, Any]:
    """Return a logarithmic time axis over `borders` (ns) with a worded tick at each decade."""
    first, last = int(np.floor(np.log10(borders[0]))), int(np.ceil(np.log10(borders[-1])))
    words = {
        0: "1 ns",
        1: "10 ns",
        2: "100 ns",
        3: "1 µs",
        4: "10 µs",
        5: "100 µs",
        6: "1 ms",
        7: "10 ms",
        8: "100 ms",
        9: "1 s",
    }
    decades = range(first, last + 1, 2 if last - first > 6 else 1)
    ticks = [words.get(d, f"{10 ** (d - 9):g} s") for d in decades]
    span = [np.log10(borders[0]), np.log10(borders[-1])]
    return {"type": "log", "tickvals": [10.0**d for d in decades], "ticktext": ticks, "range": span}


def binned(values: pl.Series, borders: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of `values` lie between the borders; zero counts as the first bin, negative values nowhere."""
    kept = values.filter(values >= 0).to_numpy().astype(np.float64)
    counts: NDArray[np.int64] = np.histogram(np.clip(kept, borders[0], None), borders)[0]
    return counts


def bars(values: pl.Series, borders: NDArray[np.float64]) -> dict[str, Any]:
    """Return x, y, width and hover words of a histogram's bars on a logarithmic axis."""
    words = [f"{duration(a)} to {duration(b)}" for a, b in itertools.pairwise(borders)]
    return {
        "x": borders[:-1],
        "offset": 0,
        "width": np.diff(borders),
        "y": binned(values, borders),
        "customdata": words,
        "hovertemplate": "%{y} took %{customdata}<extra>%{fullData.name}</extra>",
    }


def _bars(values: pl.Series, borders: NDArray[np.float64], name: str, colour: str, pattern: str) -> go.Bar:
    hatch = (
        {"shape": pattern, "bgcolor": colour, "fgcolor": "rgba(255,255,255,0.75)", "size": 6}
        if pattern
        else None
    )
    return go.Bar(
        **bars(values, borders), name=name, marker={"color": colour, "line": {"width": 0}, "pattern": hatch}
    )


def _line(values: pl.Series, borders: NDArray[np.float64]) -> go.Scatter:
    counts = binned(values, borders)
    return go.Scatter(
        x=borders,
        y=np.append(counts, counts[-1]),
        mode="lines",
        name="call's return to start (negative ones left out)",
        line={"shape": "hv", "color": "#767676", "dash": "dot", "width": 2},
        hoverinfo="skip",
    )


def _table(results: Results, known: pl.DataFrame) -> list[list[object]]:
    names = gpu_names(results)
    body: list[list[object]] = []
    for (gpu,), own in known.sort("gpu").group_by("gpu", maintain_order=True):
        start, back = own["launch_to_start_ns"], own["return_to_start_ns"].drop_nulls()
        body.append(
            [
                names.get(gpu, str(gpu)),
                len(own),
                *(duration(quantile(start, q)) for q in (0.5, 0.95, 1)),
                *(duration(quantile(back, q)) for q in (0.5, 0.95, 1)),
                int((back < 0).sum()),
                share(int(own["late"].sum()) / own.height),
            ]
        )
    header: list[object] = [
        "device",
        "operations",
        "call to start p50",
        "p95",
        "max",
        "return to start p50",
        "p95",
        "max",
        "started before the return",
        "late",
    ]
    return [header, *body]
