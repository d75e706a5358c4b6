"""Several runs side by side, with the band in which noise alone would move each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.theme import Look, count, duration, finished, look, marker, plain, safe, share

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "changes_sentence",
    "first_tokens_chart",
    "losses_chart",
    "side_by_side",
    "tokens_chart",
    "utilisation_chart",
]

USEFUL, BUSY = Look("useful", "#0072B2", ""), Look("busy, as monitoring shows it", "#A9CBE0", "/")
WORDS = {
    "useful": "useful GPU time",
    "busy": "apparent (busy) GPU time",
    "steps": "steps per second",
    "decode tokens": "tokens decoded per second",
    "prompt tokens": "prompt tokens taken in per second",
    "CPU shortage": "time lost while the blamed thread wanted a CPU",
    "ttft p50": "half of the first tokens' times",
    "ttft p95": "95 % of the first tokens' times",
}


def utilisation_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return useful and apparent GPU utilisation of each run against its cores; None where no run has a GPU.

    `figures` is the frame of :func:`tracelib.analyses.comparison.comparison`.
    """
    return _bars(figures, {"useful": USEFUL, "busy": BUSY}, "% of GPU time", "group")


def losses_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return each run's lost GPU time by cause, stacked; None where nothing was lost."""
    lost = figures.filter(pl.col("figure").str.starts_with("lost to ")).sort("value", descending=True)
    causes = lost["figure"].unique(maintain_order=True).to_list()
    looks = {name: look("cause", name.removeprefix("lost to ")) for name in causes}
    return _bars(figures, looks, "% of GPU time lost", "stack", said=[*causes, "CPU shortage"])


def first_tokens_chart(figures: pl.DataFrame) -> go.Figure | None:
    """Return the runs' times to first token; None where no run has a request log."""
    looks = {"ttft p50": Look("p50", "#E69F00", ""), "ttft p95": Look("p95", "#8F3B00", "x")}
    return _bars(figures, looks, "ms to the first token", "group", 1e-6)


def tokens_chart(figures: pl.DataFrame, kind: str) -> go.Figure | None:
    """Return the runs' tokens per second of `kind` (decode, prompt); None where no run tells them."""
    appearance = {"decode": Look("decode", "#009E73", ""), "prompt": Look("prompt", "#56B4E9", "/")}[kind]
    return _bars(figures, {f"{kind} tokens": appearance}, f"{kind} tokens per second", "group", 1)


def _bars(
    figures: pl.DataFrame,
    looks: dict[str, Look],
    title: str,
    mode: str,
    scale: float = 100,
    said: Sequence[str] = (),
) -> go.Figure | None:
    shown = figures.filter(pl.col("figure").is_in(list(looks)))
    if shown.is_empty():
        return None
    figure = go.Figure()
    for name, appearance in looks.items():
        own = shown.filter(pl.col("figure") == name)
        above, below = (pl.col("high") - pl.col("value")), (pl.col("value") - pl.col("low"))
        bands = own.select(above=above * scale, below=below * scale).fill_null(0)
        figure.add_bar(
            x=[_label(row) for row in own.iter_rows(named=True)],
            y=(own["value"] * scale).to_list(),
            name=appearance.label,
            marker=marker(appearance),
            hovertemplate="%{y:.1f}<extra>%{fullData.name}</extra>",
            error_y=None
            if mode == "stack"
            else {
                "array": bands["above"].to_list(),
                "arrayminus": bands["below"].to_list(),
                "color": "#767676",
            },
        )
    runs = shown.unique("run", maintain_order=True).sort("cores", maintain_order=True, nulls_last=True)
    figure.update_xaxes(
        categoryorder="array", categoryarray=[_label(row) for row in runs.iter_rows(named=True)]
    )
    figure.update_yaxes(title_text=title, rangemode="tozero")
    figure.update_layout(barmode=mode, margin={"t": 50})
    return finished(figure, changes_sentence(figures, said or list(looks)), _table(shown), 380)


def _label(row: dict[str, object]) -> str:
    cores = "cores not known" if row["cores"] is None else count(int(str(row["cores"])), "core")
    return f"{safe(row['run'], 30)}<br>{cores}"


def changes_sentence(figures: pl.DataFrame, names: Sequence[str]) -> str:
    """Say how the figures called `names` differ between the run with the fewest cores and that with the most.

    A difference counts as noise while the two bands overlap.
    """
    runs = figures.unique("run", maintain_order=True).sort("cores", maintain_order=True, nulls_last=True)
    if len(runs) < 2:
        return "One run alone: nothing to compare it with."
    first, last = runs["run"][0], runs["run"][-1]
    changes = [said for name in names if (said := _change(figures, name, first, last))]
    said = "; ".join(changes) or "none of these figures is known for both"
    return f"From {plain(first)} to {plain(last)}: {said}."


def _change(figures: pl.DataFrame, name: str, first: str, last: str) -> str:
    rows = {row["run"]: row for row in figures.filter(pl.col("figure") == name).iter_rows(named=True)}
    if first not in rows or last not in rows:
        return ""
    before, after = rows[first], rows[last]
    if name.startswith("lost to ") and max(before["value"], after["value"]) < 0.01:
        return ""
    words = WORDS.get(name) or f"time lost to {look('cause', name.removeprefix('lost to ')).label}"
    return f"{words} {value_of(before)} to {value_of(after)}{_doubt(before, after)}"


def _doubt(before: dict[str, float | None], after: dict[str, float | None]) -> str:
    bands = [before["low"], before["high"], after["low"], after["high"]]
    if any(end is None for end in bands):
        return " (noise not known)"
    low1, high1, low2, high2 = (float(end) for end in bands if end is not None)
    return " (within noise)" if low1 <= high2 and low2 <= high1 else " (more than noise)"


def value_of(row: dict[str, object], column: str = "value") -> str:
    """Return a figure in words: per cent, a time, or a rate."""
    if row[column] is None:
        return "not known"
    value = float(str(row[column]))
    return (
        share(value)
        if row["unit"] == "share"
        else duration(value)
        if row["unit"] == "ns"
        else f"{value:,.{0 if value >= 1000 else 1}f}/s"
    )


def _table(shown: pl.DataFrame) -> list[list[object]]:
    body: list[list[object]] = [
        [
            row["run"],
            "not known" if row["cores"] is None else row["cores"],
            row["figure"],
            *(value_of(row, c) for c in ("value", "low", "high")),
        ]
        for row in shown.iter_rows(named=True)
    ]
    return [["run", "cores", "figure", "value", "95 % band from", "to"], *body]


def side_by_side(figures: pl.DataFrame) -> pl.DataFrame:
    """Return the figures in words, as a table to read.

    One row per figure: `figure` (String), then a column per run (String): the value, its 95 % band in brackets; "" = the run
    cannot tell it. In the order of `figures`.
    """
    told = [
        {
            "figure": WORDS.get(row["figure"], row["figure"].replace("_", " ")),
            "run": row["run"],
            "cell": _banded(row),
        }
        for row in figures.iter_rows(named=True)
    ]
    schema = dict.fromkeys(("figure", "run", "cell"), pl.String)
    wide = pl.DataFrame(told, schema=schema).pivot("run", index="figure", values="cell", maintain_order=True)
    return wide.fill_null("")


def _banded(row: dict[str, object]) -> str:
    band = "" if row["low"] is None else f" ({value_of(row, 'low')} to {value_of(row, 'high')})"
    return value_of(row) + band
