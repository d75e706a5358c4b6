"""The picture: every lane of the server on one axis, over the whole window or in the detail of a stretch.

The overview bins every lane and draws, per bin, the share of each state as a stacked strip: a strip's height
is 100 % of the bin, so it reads the same for 10 s and for 10 min. One trace per state draws it in all lanes,
as closed stairs.
"""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.results import Results
from tracelib.charts.lanes import Lane, lanes, legend, not_shown, time_in
from tracelib.charts.phrases import charged_to, shortage_of_cpus, useful_and_busy
from tracelib.charts.theme import GRID, SINCE_START, Look, finished, hatch, label, look, marker, safe
from tracelib.findings.finding import whole_ns
from tracelib.intervals import clip
from tracelib.intervals.cover import bin_borders, ms_since_start, state_shares, widened
from tracelib.words import cause_name, duration, share

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
    borders = bin_borders(results.window.start_ns, results.window.end_ns, min(bins, MAX_BINS))
    ms, feet = ms_since_start(borders), _feet(rows)
    stacks = [np.cumsum(lane.heights(borders), axis=0) for lane in rows]
    figure = go.Figure()
    for palette, state in legend(rows):
        polygons = [
            polygon
            for lane, stack, foot in zip(rows, stacks, feet, strict=True)
            if lane.palette == palette and state in lane.states()
            for polygon in _polygons(stack, lane.states().index(state), foot, ms)
        ]
        figure.add_trace(_state_trace(palette, state, polygons))
    for lane, foot in zip(rows, feet, strict=True):
        figure.add_trace(_hover(lane, foot, ms, state_shares(lane.pieces, lane.states(), borders)))
    _axes(figure, rows, feet, float(ms[-1]))
    return finished(figure, timeline_sentence(results), _table(results, rows), _height(feet))


def timeline_sentence(results: Results) -> str:
    """Say what the picture shows, in shares of GPU time: useful and busy, the first causes, CPU shortage."""
    start = f"In the window of {duration(results.window.duration_ns)} "
    if results.gpu_time.is_empty():
        return f"{start}no GPU was recorded."
    gpus = useful_and_busy(results, results.gpu_time)
    lost = charged_to(results.lost, "dur_ns", whole_ns(results))
    short = f"; {shortage_of_cpus(results)}" if results.lost.height else ""
    return f"{start}{gpus}; {lost}{short}.{not_shown(results)}"


def _feet(rows: tuple[Lane, ...]) -> list[float]:
    """Return the foot of each lane's strip: first lane on top, half a lane of air between groups."""
    feet, foot = [], 0.0
    for before, lane in zip((None, *rows), rows, strict=False):
        foot -= 1.0 if before is None or before.group == lane.group else 1.6
        feet.append(foot)
    return feet


def _height(feet: list[float]) -> int:
    return round(-feet[-1] * ROW_PX) + 150


def _state_trace(palette: str, state: str, polygons: list[tuple[NDArray[Any], NDArray[Any]]]) -> go.Scatter:
    """Return one state of every lane as closed polygons of stairs (`hv` lines), a gap between polygons."""
    gap = np.array([np.nan], dtype=np.float32)
    appearance: Look = look(palette, state)
    paint = appearance.paint
    return go.Scatter(
        x=np.concatenate([part for x, _ in polygons for part in (x, gap)]).astype(np.float32),
        y=np.concatenate([part for _, y in polygons for part in (y, gap)]).astype(np.float32),
        mode="lines",
        name=safe(label(palette, state)),
        legendgroup=palette,
        fill="toself",
        fillcolor=paint,
        fillpattern=hatch(appearance.pattern, paint, "rgba(255,255,255,0.6)", size=5, fillmode="overlay"),
        line={"width": 0, "shape": "hv", "color": paint},
        hoverinfo="skip",
    )


def _polygons(
    stack: NDArray[np.float64], row: int, foot: float, ms: NDArray[np.float32]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return the outlines of one row of a lane's stacked heights, one for each run of bins that have any."""
    top = stack[row]
    floor = stack[row - 1] if row else np.zeros_like(top)
    outlines = []
    for first, last in _runs(top > floor + 1e-6):
        x, y = _outline(ms[first : last + 1], floor[first:last], top[first:last])
        outlines.append((x, foot + STRIP * y))
    return outlines


def _runs(there: NDArray[np.bool_]) -> list[tuple[int, int]]:
    steps = np.diff(np.concatenate([[0], there.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True))


def _outline(
    x: NDArray[np.float32], floor: NDArray[np.float64], top: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Return the outline of stairs as `hv` points: the top, then the floor backwards; equal steps are one."""
    up = np.concatenate([[True], np.diff(top) != 0])
    down = np.concatenate([np.diff(floor) != 0, [True]])
    along = np.concatenate([x[:-1][up], x[-1:], x[1:][down][::-1], x[:1], x[:1]])
    height = np.concatenate([top[up], top[-1:], floor[down][::-1], floor[:1], top[:1]])
    return along, height


def _hover(lane: Lane, foot: float, ms: NDArray[np.float32], shares: NDArray[np.float64]) -> go.Scatter:
    """Return an invisible line through the lane that shows each bin's shares when pointed at."""
    lines = [
        f"{safe(label(lane.palette, state))} %{{customdata[{i}]}} %" for i, state in enumerate(lane.states())
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


def _axes(figure: go.Figure, rows: tuple[Lane, ...], feet: list[float], end_ms: float) -> None:
    """Name the lanes on the left, give each its figure on the right, and the axis its unit."""
    middles = [foot + STRIP / 2 for foot in feet]
    figure.update_yaxes(
        tickvals=middles,
        ticktext=[safe(f"{lane.group}  {lane.label}") for lane in rows],
        showgrid=False,
        zeroline=False,
        range=[feet[-1] - 0.15, 0.05],
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
    figure.update_xaxes(title_text=SINCE_START, range=[0, end_ms], gridcolor=GRID, zeroline=False)
    figure.update_layout(margin={"r": 170, "t": 70}, hovermode="closest", hoverdistance=14)


def _table(results: Results, rows: tuple[Lane, ...]) -> list[list[str]]:
    table = [["lane", "in words", "share of the window"]]
    for lane in rows:
        parts = [
            f"{label(lane.palette, state)} {share(time_in(results, lane.pieces, state))}"
            for state in lane.states()
        ]
        table.append([f"{lane.group}: {lane.label}", lane.headline, ", ".join(parts)])
    return table


def detail_chart(results: Results, start_ns: int, end_ns: int) -> go.Figure | None:
    """Return every interval of every lane in ``[start_ns, end_ns)`` as a bar, at most :data:`MAX_BARS`.

    Where a lane holds more intervals than its share of the bars, its finest ones are shown as the state that
    covers most of each of as many equal pieces. None if the stretch holds nothing.
    """
    start_ns, end_ns = max(start_ns, results.window.start_ns), min(end_ns, results.window.end_ns)
    if end_ns <= start_ns:
        return None
    cut = [(lane, clip(lane.pieces, start_ns, end_ns)) for lane in lanes(results)]
    cut = [(lane, pieces) for lane, pieces in cut if not pieces.is_empty()]
    if not cut:
        return None
    budget = MAX_BARS // len(cut)
    rows = tuple(lane for lane, _ in cut)
    feet = _feet(rows)
    bars = pl.concat(
        _coarse(pieces, start_ns, end_ns, budget).with_columns(
            y=pl.lit(foot + STRIP / 2), palette=pl.lit(lane.palette)
        )
        for (lane, pieces), foot in zip(cut, feet, strict=True)
    )
    figure = go.Figure([_bars(bars, palette, state, start_ns) for palette, state in legend(rows)])
    _axes(figure, rows, feet, (end_ns - start_ns) / 1e6)
    offset = (start_ns - results.window.start_ns) / 1e6
    figure.update_xaxes(title_text=f"ms since {offset:.3f} ms after the window's start")
    figure.update_layout(barmode="overlay")
    sentence = _detail_sentence(results, start_ns, end_ns)
    return finished(figure, sentence, _table(results, rows), _height(feet))


def _detail_sentence(results: Results, start_ns: int, end_ns: int) -> str:
    base = results.window.start_ns
    where = f"Between {duration(start_ns - base)} and {duration(end_ns - base)} of the window"
    states = clip(results.gpu_states, start_ns, end_ns).select("gpu", "state", ns="dur_ns")
    if states.is_empty():
        return f"{where} no GPU was recorded."
    lost = charged_to(clip(results.lost, start_ns, end_ns), "dur_ns", int(states["ns"].sum()))
    return f"{where}, {useful_and_busy(results, states)}; {lost}."


def _coarse(pieces: pl.DataFrame, start_ns: int, end_ns: int, budget: int) -> pl.DataFrame:
    """Return at most `budget` pieces: as they are, or the dominant state of equal bins, neighbours joined."""
    if len(pieces) <= budget:
        return pieces.select("ts_ns", "dur_ns", "state")
    states = pieces["state"].unique().sort().to_list()
    borders = bin_borders(start_ns, end_ns, budget)
    shares = state_shares(pieces, states, borders)
    dominant = np.where(shares.sum(axis=0) >= 0.5, shares.argmax(axis=0), -1)
    begins = np.flatnonzero(np.concatenate([[True], np.diff(dominant) != 0]))
    ends = np.concatenate([begins[1:], [len(dominant)]])
    kept = dominant[begins] >= 0
    return pl.DataFrame(
        {
            "ts_ns": borders[begins][kept],
            "dur_ns": (borders[ends] - borders[begins])[kept],
            "state": [states[i] for i in dominant[begins][kept]],
        },
        schema={"ts_ns": pl.Int64, "dur_ns": pl.Int64, "state": pl.String},
    )


def _bars(bars: pl.DataFrame, palette: str, state: str, start_ns: int) -> go.Bar:
    own = bars.filter((pl.col("palette") == palette) & (pl.col("state") == state))
    name = safe(label(palette, state))
    return go.Bar(
        base=((own["ts_ns"] - start_ns) / 1e6).to_numpy(),
        x=(own["dur_ns"] / 1e6).to_numpy(),
        y=own["y"].to_numpy(),
        width=STRIP,
        orientation="h",
        marker=marker(look(palette, state)),
        name=name,
        hovertemplate=f"{name}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    )


def worst_chart(results: Results, cause: str) -> go.Figure | None:
    """Return every lane around the longest stretch lost to `cause`; None if no time was lost to it."""
    stretch = worst_stretch(results, cause)
    if stretch is None:
        return None
    start_ns, end_ns = stretch
    figure = detail_chart(results, *widened(start_ns, end_ns))
    if figure is not None:
        longest = f"The longest stretch lost to {cause_name(cause)} lasts {duration(end_ns - start_ns)}."
        figure.layout.meta["sentence"] = f"{longest} {figure.layout.meta['sentence']}"
    return figure


def worst_stretch(results: Results, cause: str) -> tuple[int, int] | None:
    """Return `(start_ns, end_ns)` of the longest stretch of a GPU's time lost to `cause`, or None."""
    own = results.lost.filter(pl.col("cause") == cause).sort("gpu", "ts_ns")
    if own.is_empty():
        return None
    end = pl.col("ts_ns") + pl.col("dur_ns")
    new = (pl.col("ts_ns") != end.shift(1).over("gpu")).fill_null(value=True)
    stretches = (
        own.with_columns(stretch=new.cum_sum())
        .group_by("stretch")
        .agg(start=pl.col("ts_ns").min(), end=end.max())
        .sort(pl.col("end") - pl.col("start"), "start", descending=[True, False])
    )
    start_ns, end_ns = stretches.select("start", "end").row(0)
    return start_ns, end_ns
