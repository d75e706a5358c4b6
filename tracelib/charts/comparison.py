"""Several runs side by side, with the band in which noise alone would move each figure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracelib.analyses.replay import Load
from tracelib.charts.phrases import AS_MONITORED, WORDS
from tracelib.charts.theme import GPU_STATES, INK, Look, finished, look, marker, safe
from tracelib.words import NOT_KNOWN, cause_name, counted, duration, plain, rate, request_part_name, share

LOST_TO, TTFT_IN = "lost to ", "ttft in "
#: Steps of a waterfall that fall and grow, and its two ends.
FELL, GREW, TOTAL = Look("#009E73"), Look("#D55E00", "/"), Look(INK)
#: Parts that moved by less of the whole are one step of a waterfall.
LEAST_STEP = 0.01
#: A sentence names parts until they make up this share of a change.
MOST = 0.9
#: Changes that a sentence names.
SAID = 4
#: Changes of a share of GPU time that are smaller are not worth a word.
LEAST_SHARE = 0.005
FIGURES: dict[str, str] = WORDS["figures"]


def utilisation_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return useful and apparent GPU utilisation of each run against its cores; None where no run has a GPU.

    `figures` is the frame of :func:`tracelib.analyses.comparison.comparison`.
    """
    series = {
        "useful": ("useful", GPU_STATES["compute"]),
        "busy": (AS_MONITORED, GPU_STATES["collective_wait"]),
    }
    return _bars(figures, series, "% of GPU time", 100)


def losses_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return each run's lost GPU time by cause, stacked; None where nothing was lost."""
    lost = figures.filter(pl.col("figure").str.starts_with(LOST_TO)).sort("value", descending=True)
    causes = [name.removeprefix(LOST_TO) for name in lost["figure"].unique(maintain_order=True)]
    series = {f"{LOST_TO}{cause}": (cause_name(cause), look("cause", cause)) for cause in causes}
    return _bars(figures, series, "% of GPU time lost", 100, mode="stack", also_compared=["CPU shortage"])


def first_tokens_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return the runs' times to first token; None where no run has a request log."""
    series = {"ttft p50": ("p50", Look("#E69F00")), "ttft p95": ("p95", Look("#8F3B00", "x"))}
    return _bars(figures, series, "ms to the first token", 1e-6)


def tokens_chart(figures: pl.DataFrame, kind: str) -> go.Figure | None:
    """Return the runs' tokens per second of `kind` (decode, prompt); None where no run tells them."""
    appearance = {"decode": Look("#009E73"), "prompt": Look("#56B4E9", "/")}[kind]
    return _bars(figures, {f"{kind} tokens": (kind, appearance)}, f"{kind} tokens per second", 1)


def waterfall_chart(changed: pl.DataFrame) -> go.Figure | None:
    """Return the steps from the first run to the last: of the mean time to first token, else lost GPU time.

    `changed` is the frame of :func:`tracelib.analyses.comparison.changes`. None where neither is known of
    both.
    """
    rows = changed.filter(pl.col("run") == pl.col("run").last())
    parts = rows.filter(pl.col("figure").str.starts_with(TTFT_IN))
    unit, scale, axis = "ns", 1e-6, "ms to the first token, mean"
    if parts.is_empty():
        parts = rows.filter(pl.col("figure").str.starts_with(LOST_TO))
        unit, scale, axis = "share", 100, "% of GPU time lost"
    if parts.is_empty():
        return None
    before, after = float(parts["before"].sum()), float(parts["after"].sum())
    steps = [row for row in parts.to_dicts() if abs(row["change"]) >= LEAST_STEP * max(before, after)]
    rest = after - before - sum(row["change"] for row in steps)
    moves = [(_step_name(row["figure"], beyond=row["beyond_noise"]), row["change"]) for row in steps]
    if abs(rest) > LEAST_STEP / 10 * max(before, after):
        moves.append(("all else", rest))
    figure = go.Figure(_waterfall(before, moves, after, unit, scale))
    figure.update_xaxes(title_text=axis, rangemode="tozero")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_layout(showlegend=False, margin={"t": 20, "r": 70})
    table: list[list[object]] = [["part", "first run", "last run", "change"], *_step_rows(parts, unit)]
    sentence = _waterfall_sentence(changed["run"].last(), parts, unit)
    return finished(figure, sentence, table, 180 + 34 * len(moves))


def _waterfall(
    before: float, moves: Sequence[tuple[str, float]], after: float, unit: str, scale: float
) -> go.Bar:
    """Return bars that each begin where the one before ends (plotly's own are not in its smallest bundle)."""
    levels = list(itertools.accumulate((change for _, change in moves), initial=before))
    bars = [
        ("first run", 0.0, before, _in_words(before, unit), TOTAL),
        *(
            (name, min(ends), abs(change), _moved(change, unit), FELL if change < 0 else GREW)
            for (name, change), ends in zip(moves, itertools.pairwise(levels), strict=True)
        ),
        ("last run", 0.0, after, _in_words(after, unit), TOTAL),
    ]
    names, bases, sizes, text, looks = zip(*bars, strict=True)
    return go.Bar(
        y=names,
        x=[scale * size for size in sizes],
        base=[scale * base for base in bases],
        orientation="h",
        marker={
            "color": [look.colour for look in looks],
            "pattern": {"shape": [look.pattern for look in looks], "fgcolor": "rgba(255,255,255,0.75)"},
        },
        text=text,
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{text}<extra></extra>",
    )


def _step_name(figure: str, *, beyond: bool | None) -> str:
    part = figure.removeprefix(TTFT_IN)
    name = request_part_name(part) if part != figure else cause_name(figure.removeprefix(LOST_TO))
    return safe(name) + ("" if beyond else "<br>within noise" if beyond is False else "<br>noise not known")


def _step_rows(parts: pl.DataFrame, unit: str) -> list[list[object]]:
    return [
        [
            _step_name(row["figure"], beyond=True),
            *(_in_words(row[side], unit) for side in ("before", "after")),
            _moved(row["change"], unit),
        ]
        for row in parts.iter_rows(named=True)
    ]


def _waterfall_sentence(run: object, parts: pl.DataFrame, unit: str) -> str:
    before, after, change = (float(parts[column].sum()) for column in ("before", "after", "change"))
    what = "the mean time to first token" if unit == "ns" else "lost GPU time"
    largest = [
        f"{_step_name(row['figure'], beyond=True)} {_moved(row['change'], unit)}"
        for row in _making_up(parts, change)
    ]
    return (
        f"From the first run to {plain(run, 60)}, {what} goes from {_in_words(before, unit)} to "
        f"{_in_words(after, unit)}: {', '.join(largest) or 'no part moved that way'}."
    )


def _bars(
    figures: pl.DataFrame,
    series: Mapping[str, tuple[str, Look]],
    title: str,
    scale: float,
    mode: str = "group",
    also_compared: Sequence[str] = (),
) -> go.Figure | None:
    """Return the figures that are keys of `series` as bars of each run, times `scale`."""
    shown = figures.filter(pl.col("figure").is_in(list(series)))
    if shown.is_empty():
        return None
    figure = go.Figure()
    for key, (name, appearance) in series.items():
        own = shown.filter(pl.col("figure") == key)
        figure.add_bar(
            x=[_run_label(row) for row in own.iter_rows(named=True)],
            y=(own["value"] * scale).to_list(),
            name=safe(name),
            marker=marker(appearance),
            hovertemplate="%{y:.1f}<extra>%{fullData.name}</extra>",
            error_y=None if mode == "stack" else _whiskers(own, scale),
        )
    order = [_run_label(row) for row in _by_cores(shown).iter_rows(named=True)]
    figure.update_xaxes(categoryorder="array", categoryarray=order)
    figure.update_yaxes(title_text=title, rangemode="tozero")
    figure.update_layout(barmode=mode, margin={"t": 50})
    sentence = _changes_sentence(figures, [*series, *also_compared])
    return finished(figure, sentence, _table(shown), 380)


def _whiskers(own: pl.DataFrame, scale: float) -> dict[str, object]:
    above, below = pl.col("high") - pl.col("value"), pl.col("value") - pl.col("low")
    bands = own.select(above=above * scale, below=below * scale).fill_null(0)
    return {"array": bands["above"].to_list(), "arrayminus": bands["below"].to_list(), "color": INK}


def _by_cores(figures: pl.DataFrame) -> pl.DataFrame:
    return figures.unique("run", maintain_order=True).sort("cores", maintain_order=True, nulls_last=True)


def _run_label(row: dict[str, object]) -> str:
    cores = "cores not known" if row["cores"] is None else counted(int(str(row["cores"])), "core")
    return f"{safe(row['run'], 30)}<br>{cores}"


def _changes_sentence(figures: pl.DataFrame, keys: Sequence[str]) -> str:
    """Say how figures differ between the run with the fewest cores and that with the most.

    A difference counts as noise while the two bands overlap.
    """
    runs = _by_cores(figures)["run"]
    if len(runs) < 2:
        return "One run alone: nothing to compare it with."
    changes = "; ".join(change for key in keys if (change := _change(figures, key, runs[0], runs[-1])))
    between = f"From {plain(runs[0], 60)} to {plain(runs[-1], 60)}"
    return f"{between}: {changes or 'none of these figures is known for both'}."


def _change(figures: pl.DataFrame, key: str, first: str, last: str) -> str:
    rows = {row["run"]: row for row in figures.filter(pl.col("figure") == key).iter_rows(named=True)}
    if first not in rows or last not in rows:
        return ""
    before, after = rows[first], rows[last]
    if key.startswith(LOST_TO) and max(before["value"], after["value"]) < 0.01:
        return ""
    return f"{figure_name(key)} {_written(before)} to {_written(after)}{_doubt(before, after)}"


def _doubt(before: dict[str, float | None], after: dict[str, float | None]) -> str:
    bands = [before["low"], before["high"], after["low"], after["high"]]
    if any(end is None for end in bands):
        return " (noise not known)"
    low1, high1, low2, high2 = (float(end) for end in bands if end is not None)
    return " (within noise)" if low1 <= high2 and low2 <= high1 else " (more than noise)"


def _written(row: dict[str, object], column: str = "value") -> str:
    value = None if row[column] is None else float(str(row[column]))
    return _in_words(value, str(row["unit"]))


def _in_words(value: float | None, unit: str) -> str:
    if unit == "threads":
        return NOT_KNOWN if value is None else f"{value:.2f}"
    return {"share": share, "ns": duration, "1/s": rate}[unit](value)


def _table(shown: pl.DataFrame) -> list[list[object]]:
    body: list[list[object]] = [
        [
            row["run"],
            NOT_KNOWN if row["cores"] is None else row["cores"],
            figure_name(row["figure"]),
            *(_written(row, column) for column in ("value", "low", "high")),
        ]
        for row in shown.iter_rows(named=True)
    ]
    return [["run", "cores", "figure", "value", "95 % band from", "to"], *body]


def side_by_side(figures: pl.DataFrame) -> pl.DataFrame:
    """Return the figures in words, as a table to read.

    One row per figure: `figure` (String), then a column per run (String): the value, its 95 % band in
    brackets; "" = not known for this run. In the order of `figures`.
    """
    cells = [
        {"figure": figure_name(row["figure"]), "run": row["run"], "cell": _banded(row)}
        for row in figures.iter_rows(named=True)
    ]
    schema = dict.fromkeys(("figure", "run", "cell"), pl.String)
    wide = pl.DataFrame(cells, schema=schema).pivot("run", index="figure", values="cell", maintain_order=True)
    return wide.fill_null("")


def figure_name(key: str) -> str:
    """Return what a figure is called."""
    if key.startswith(TTFT_IN):
        return f"of it: {request_part_name(key.removeprefix(TTFT_IN))}"
    return FIGURES.get(key) or f"time lost to {cause_name(key.removeprefix(LOST_TO))}"


def what_changed(changed: pl.DataFrame) -> list[str]:
    """Return a sentence for each later run: what changed beyond noise, the largest first.

    `changed` is the frame of :func:`tracelib.analyses.comparison.changes`.
    """
    return [
        f"{run}: {_first_tokens(rows)}{_gpu_time(rows)}"
        for (run,), rows in changed.group_by("run", maintain_order=True)
    ]


def loads_compared(loads: Mapping[str, Load]) -> list[str]:
    """Return how the requests of each run come, and what that means for the comparison."""
    said = [f"{run}: {load.why}." for run, load in loads.items()]
    closed = [load.closed for load in loads.values() if load.known]
    if any(closed):
        said.append(
            "Where clients wait for answers a faster server is asked more often: the runs hold other amounts "
            "of work, queues and steps form anew, and tracelib whatif, which keeps each step's prompts, "
            "may predict less of the change in time to first token than there is."
        )
    if len(set(closed)) > 1:
        said.append("The loads are of two kinds: a difference in time to first token may be the load's own.")
    return said


def _first_tokens(rows: pl.DataFrame) -> str:
    """Say how the first token moved, and which parts make up most of that; means add up, medians do not."""
    half, mean = (rows.filter(pl.col("figure") == name) for name in ("ttft p50", "ttft mean"))
    if half.is_empty():
        return ""
    before, after, relative = half.select("before", "after", "relative").row(0)
    lead = f"time to first token p50 {duration(before)} to {duration(after)}, {signed(relative)}"
    if mean.is_empty():
        return f"{lead}. "
    whole = mean["change"][0]
    told = [
        f"{request_part_name(row['figure'].removeprefix(TTFT_IN))} {_moved(row['change'], 'ns')}"
        f"{'' if row['beyond_noise'] else ' (within noise)'}"
        for row in _making_up(rows.filter(pl.col("figure").str.starts_with(TTFT_IN)), whole)
    ]
    where = f": {', '.join(told)}" if told else ""
    return f"{lead}; on average {_moved(whole, 'ns')}{where}. "


def _making_up(parts: pl.DataFrame, whole: float) -> list[dict[str, Any]]:
    """Return the largest of the parts that moved as the whole did, until they make up most of it."""
    same = parts.filter(pl.col("change") * whole > 0).sort(pl.col("change").abs(), descending=True)
    before = same["change"].cum_sum().shift(1, fill_value=0.0).abs()
    return same.filter(before < MOST * abs(whole)).to_dicts()


def _moved(change: float, unit: str) -> str:
    sign = "+" if change > 0 else "-"
    return (
        f"{sign}{100 * abs(change):.1f} points"
        if unit == "share"
        else f"{sign}{_in_words(abs(change), unit)}"
    )


def _gpu_time(rows: pl.DataFrame) -> str:
    large = pl.col("change").abs() >= LEAST_SHARE
    shares = _largest(rows.filter((pl.col("unit") == "share") & (pl.col("figure") != "busy") & large))
    told = [f"{figure_name(figure)} {_moved(change, 'share')}" for figure, change in shares]
    return f"Of GPU time: {', '.join(told)}." if told else "No share of GPU time changed beyond noise."


def _largest(rows: pl.DataFrame) -> list[tuple[str, float]]:
    sure = rows.filter(pl.col("beyond_noise").fill_null(value=False))
    return list(
        sure.sort(pl.col("change").abs(), descending=True).head(SAID).select("figure", "change").iter_rows()
    )


def signed(relative: float | None) -> str:
    """Return a relative change in per cent, with its sign.

    >>> signed(-0.567), signed(0.1), signed(None)
    ('-57 %', '+10 %', 'from 0')
    """
    if relative is None:
        return "from 0"
    return f"{'+' if relative >= 0 else '-'}{100 * abs(relative):.0f} %"


def _banded(row: dict[str, object]) -> str:
    band = "" if row["low"] is None else f" ({_written(row, 'low')} to {_written(row, 'high')})"
    return _written(row) + band
