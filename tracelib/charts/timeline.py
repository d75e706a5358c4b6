"""The picture: GPU states, launch threads, tokenizers, engine and IPC on one axis, in ms since the window's start.

The overview bins every lane and draws, per bin, the share of each state as a stacked strip: a strip's height is 100 % of
the bin, so it reads the same for 10 s and for 10 min. One trace per state draws it in all lanes, as closed stairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from tracelib.charts.bins import edges, occupancy
from tracelib.charts.lanes import Lane, lanes
from tracelib.charts.sentences import detail_sentence, timeline_sentence
from tracelib.charts.theme import GRID, finished, look, marker, plain, safe, share
from tracelib.intervals import clip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["MAX_BARS", "MAX_BINS", "detail_chart", "timeline_chart"]

MAX_BINS = 1500
MAX_BARS = 2000
STRIP = 0.82  # of a lane's height
ROW_PX = 30


def timeline_chart(results: Results, bins: int = 600) -> go.Figure | None:
    """Return the overview of the whole window, or None if no lane has events (`results.missing` says why).

    `bins` (at most :data:`MAX_BINS`) equal bins; a strip of height 1 is the whole bin.
    """
    rows = lanes(results)
    if not rows:
        return None
    borders = edges(results.window.start_ns, results.window.end_ns, min(bins, MAX_BINS))
    ms = ((borders - borders[0]) / 1e6).astype(np.float32)
    places = _places(rows)
    stacks = [np.cumsum(lane.heights(borders), axis=0) for lane in rows]
    figure = go.Figure()
    for palette, state in _legend(rows):
        drawn = [
            (s, lane.states().index(state), y)
            for lane, s, y in zip(rows, stacks, places, strict=True)
            if lane.palette == palette and state in lane.states()
        ]
        figure.add_trace(_stairs(palette, state, drawn, ms))
    for lane, place in zip(rows, places, strict=True):
        figure.add_trace(_hover(lane, place, ms, occupancy(lane.pieces, lane.states(), borders)))
    _axes(figure, rows, places, float(ms[-1]))
    return finished(figure, timeline_sentence(results), lane_table(results, rows), _height(places))


def _places(rows: tuple[Lane, ...]) -> list[float]:
    """Return the foot of each lane's strip: first lane on top, half a lane of air between groups."""
    feet, foot = [], 0.0
    for before, lane in zip((None, *rows), rows, strict=False):
        foot -= 1.0 if before is None or before.group == lane.group else 1.6
        feet.append(foot)
    return feet


def _height(places: list[float]) -> int:
    return round(-places[-1] * ROW_PX) + 150


def _legend(rows: tuple[Lane, ...]) -> list[tuple[str, str]]:
    found = {
        (lane.palette, state): None
        for name in ("gpu_state", "cpu_state", "cause")
        for lane in rows
        if lane.palette == name
        for state in lane.states()
    }
    return list(found)


def _stairs(
    palette: str, state: str, drawn: list[tuple[NDArray[np.float64], int, float]], ms: NDArray[np.float32]
) -> go.Scatter:
    """Return one state of every lane as closed polygons of stairs (`hv` lines), a gap between polygons."""
    xs: list[NDArray[Any]] = []
    ys: list[NDArray[Any]] = []
    for stack, row, foot in drawn:
        top = stack[row]
        floor = stack[row - 1] if row else np.zeros_like(top)
        for first, last in _runs(top > floor + 1e-6):
            x, y = _polygon(ms[first : last + 1], floor[first:last], top[first:last])
            xs += [x, np.array([np.nan], dtype=np.float32)]
            ys += [foot + STRIP * y, np.array([np.nan], dtype=np.float32)]
    appearance = look(palette, state)
    return go.Scatter(
        x=np.concatenate(xs).astype(np.float32),
        y=np.concatenate(ys).astype(np.float32),
        mode="lines",
        name=safe(appearance.label),
        legendgroup=palette,
        fill="toself",
        fillcolor=appearance.paint,
        fillpattern={
            "shape": appearance.pattern,
            "fgcolor": "rgba(255,255,255,0.6)",
            "fillmode": "overlay",
            "size": 5,
            "bgcolor": appearance.paint,
        }
        if appearance.pattern
        else None,
        line={"width": 0, "shape": "hv", "color": appearance.paint},
        hoverinfo="skip",
    )


def _runs(there: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return begin and end of each run of True."""
    steps = np.diff(np.concatenate([[0], there.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True))


def _polygon(
    x: NDArray[np.float32], floor: NDArray[np.float64], top: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the outline of stairs as `hv` points: along the top, then back along the floor; equal steps are one."""
    up = np.concatenate([[True], np.diff(top) != 0])
    down = np.concatenate([np.diff(floor) != 0, [True]])
    along = np.concatenate([x[:-1][up], x[-1:], x[1:][down][::-1], x[:1], x[:1]])
    height = np.concatenate([top[up], top[-1:], floor[down][::-1], floor[:1], top[:1]])
    return along, height


def _hover(lane: Lane, foot: float, ms: NDArray[np.float32], shares: NDArray[np.float64]) -> go.Scatter:
    """Return an invisible line through the lane that tells each bin's shares when pointed at."""
    lines = [
        f"{safe(look(lane.palette, s).label)} %{{customdata[{i}]}} %" for i, s in enumerate(lane.states())
    ]
    return go.Scatter(
        x=(ms[:-1] + ms[1:]) / 2,
        y=np.full(len(ms) - 1, foot + STRIP / 2, dtype=np.float32),
        mode="lines",
        line={"width": 0},
        opacity=0,
        showlegend=False,
        name=safe(f"{lane.group}: {lane.label}"),
        customdata=np.round(shares.T * 100).clip(0, 100).astype(np.uint8),
        hovertemplate="at %{x:.1f} ms<br>" + "<br>".join(lines),
    )


def _axes(figure: go.Figure, rows: tuple[Lane, ...], places: list[float], end_ms: float) -> None:
    """Name the lanes on the left, give each its figure on the right, and the axis its unit."""
    middles = [place + STRIP / 2 for place in places]
    figure.update_yaxes(
        tickvals=middles,
        ticktext=[safe(f"{lane.group}  {lane.label}") for lane in rows],
        showgrid=False,
        zeroline=False,
        range=[places[-1] - 0.15, 0.05],
        fixedrange=True,
        ticklabelstandoff=4,
    )
    for lane, middle in zip(rows, middles, strict=True):
        figure.add_annotation(
            x=1.005,
            xref="paper",
            y=middle,
            text=safe(lane.headline),
            showarrow=False,
            xanchor="left",
            font={"size": 12},
        )
    figure.update_xaxes(
        title_text="ms since the window's start", range=[0, end_ms], gridcolor=GRID, zeroline=False
    )
    figure.update_layout(margin={"r": 170, "t": 70}, hovermode="closest", hoverdistance=14)


def lane_table(results: Results, rows: tuple[Lane, ...]) -> list[list[str]]:
    """Return one row per lane: its name and the share of the window in each of its states."""
    length = results.window.duration_ns
    table = [["lane", "in words", "share of the window"]]
    for lane in rows:
        parts = [
            f"{look(lane.palette, s).label} {share(lane.share_of(s, window_ns=length))}"
            for s in lane.states()
        ]
        table.append([f"{lane.group}: {lane.label}", lane.headline, ", ".join(parts)])
    return table


def detail_chart(results: Results, start_ns: int, end_ns: int) -> go.Figure | None:
    """Return every interval of every lane in ``[start_ns, end_ns)`` as a bar, at most :data:`MAX_BARS`.

    Where a lane holds more intervals than its share of the bars, its finest ones are shown as the state that covers
    most of each of as many equal pieces. None if the stretch holds nothing.
    """
    start_ns, end_ns = max(start_ns, results.window.start_ns), min(end_ns, results.window.end_ns)
    cut = (
        [(lane, clip(lane.pieces, start_ns, end_ns)) for lane in lanes(results)] if end_ns > start_ns else []
    )
    cut = [(lane, pieces) for lane, pieces in cut if not pieces.is_empty()]
    if not cut:
        return None
    budget = MAX_BARS // len(cut)
    rows = tuple(lane for lane, _ in cut)
    places = _places(rows)
    bars = pl.concat(
        _coarse(pieces, start_ns, end_ns, budget).with_columns(
            y=pl.lit(y + STRIP / 2), palette=pl.lit(lane.palette)
        )
        for (lane, pieces), y in zip(cut, places, strict=True)
    )
    figure = go.Figure([_bars(bars, palette, state, start_ns) for palette, state in _legend(rows)])
    _axes(figure, rows, places, (end_ns - start_ns) / 1e6)
    offset = (start_ns - results.window.start_ns) / 1e6
    figure.update_xaxes(title_text=f"ms since {offset:.3f} ms after the window's start")
    figure.update_layout(barmode="overlay")
    return finished(
        figure, detail_sentence(results, start_ns, end_ns), lane_table(results, rows), _height(places)
    )


def _coarse(pieces: pl.DataFrame, start_ns: int, end_ns: int, budget: int) -> pl.DataFrame:
    """Return at most `budget` pieces: as they are, or the dominant state of equal bins, equal neighbours joined."""
    if len(pieces) <= budget:
        return pieces.select("ts_ns", "dur_ns", "state")
    states = pieces["state"].unique().sort().to_list()
    borders = edges(start_ns, end_ns, budget)
    held = occupancy(pieces, states, borders)
    best = np.where(held.sum(axis=0) >= 0.5, held.argmax(axis=0), -1)
    begins = np.flatnonzero(np.concatenate([[True], np.diff(best) != 0]))
    ends = np.concatenate([begins[1:], [len(best)]])
    kept = best[begins] >= 0
    return pl.DataFrame(
        {
            "ts_ns": borders[begins][kept],
            "dur_ns": (borders[ends] - borders[begins])[kept],
            "state": [states[i] for i in best[begins][kept]],
        },
        schema={"ts_ns": pl.Int64, "dur_ns": pl.Int64, "state": pl.String},
    )


def _bars(bars: pl.DataFrame, palette: str, state: str, start_ns: int) -> go.Bar:
    own = bars.filter((pl.col("palette") == palette) & (pl.col("state") == state))
    appearance = look(palette, state)
    return go.Bar(
        base=((own["ts_ns"] - start_ns) / 1e6).to_numpy(),
        x=(own["dur_ns"] / 1e6).to_numpy(),
        y=own["y"].to_numpy(),
        width=STRIP,
        orientation="h",
        marker=marker(appearance),
        name=safe(appearance.label),
        hovertemplate=f"{safe(plain(appearance.label))}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    )
