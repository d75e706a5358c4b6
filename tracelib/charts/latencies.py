"""How long launches, collectives and messages made somebody wait: distributions on a logarithmic axis."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from tracelib.analyses.collectives import waiting_caused
from tracelib.analyses.results import Results
from tracelib.charts.phrases import gpu_names, p50_p95_max, thread_names
from tracelib.charts.theme import COLOURS, INK, SINCE_START, SYMBOLS, finished, hatch, safe, stairs
from tracelib.findings.finding import quantile
from tracelib.words import counted, duration, share

#: Points drawn over time; of more collectives, the largest skew of each bin and straggler stands for the bin.
POINTS = 1500
#: Ranks that a chart tells apart by colour and hatch.
SERIES = 8
PATTERNS = ("", "/", "x", "\\", ".", "-", "|", "+")


def log_borders(values: pl.Series, per_decade: int = 6) -> NDArray[np.float64]:
    """Return borders of equal ratio that hold every positive value; at least one bin."""
    positive = values.filter(values > 0)
    low, high = positive.min(), positive.max()
    ends = np.array([low or 1.0, high or 1.0], dtype=np.float64)
    first, last = np.floor(np.log10(ends) * per_decade)
    borders: NDArray[np.float64] = 10 ** (np.arange(first, last + 2) / per_decade)
    return borders


def _log_axis(borders: NDArray[np.float64]) -> dict[str, Any]:
    """Return a logarithmic time axis over `borders` (ns) with a worded tick at each decade."""
    low, high = np.log10(borders[0]), np.log10(borders[-1])
    first, last = int(np.floor(low)), int(np.ceil(high))
    decades = range(first, last + 1, 2 if last - first > 6 else 1)
    return {
        "type": "log",
        "tickvals": [10.0**decade for decade in decades],
        "ticktext": [_power_of_ten(decade) for decade in decades],
        "range": [low, high],
    }


def _power_of_ten(decade: int) -> str:
    """Return 10 ** `decade` ns without digits that say nothing.

    >>> _power_of_ten(0), _power_of_ten(5), _power_of_ten(9), _power_of_ten(10)
    ('1 ns', '100 µs', '1 s', '10 s')
    """
    unit = min(decade // 3, 3)
    return f"{10 ** (decade - 3 * unit):g} {('ns', 'µs', 'ms', 's')[unit]}"


def _counts(values: pl.Series, borders: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of `values` each bin holds; zero counts in the first bin, negative values nowhere."""
    kept = values.filter(values >= 0).to_numpy().astype(np.float64)
    counts: NDArray[np.int64] = np.histogram(np.clip(kept, borders[0], None), borders)[0]
    return counts


def _bars(
    values: pl.Series, borders: NDArray[np.float64], colour: str, pattern: str, **traits: object
) -> go.Bar:
    return go.Bar(
        x=borders[:-1],
        offset=0,
        width=np.diff(borders),
        y=_counts(values, borders),
        customdata=[f"{duration(low)} to {duration(high)}" for low, high in itertools.pairwise(borders)],
        hovertemplate="%{y} took %{customdata}<extra>%{fullData.name}</extra>",
        marker={"color": colour, "line": {"width": 0}, "pattern": hatch(pattern, colour)},
        **traits,
    )


def launches_chart(results: Results) -> go.Figure | None:
    """Return the distributions of `launch_to_start` (late and queued launches apart) and `return_to_start`.

    Late = the device was idle when the call began, so the whole wait is cost; queued = it had other work.
    Operations that started before their call returned have a negative `return_to_start`: no place on a
    logarithmic axis, so the table counts them. None without a launch.
    """
    launches = results.launches.filter(pl.col("launch_to_start_ns").is_not_null())
    if launches.is_empty():
        return None
    returned = launches["return_to_start_ns"].drop_nulls()
    borders = log_borders(pl.concat([launches["launch_to_start_ns"], returned]))
    is_late = pl.col("late").fill_null(value=False)
    late, queued = (launches.filter(which)["launch_to_start_ns"] for which in (is_late, ~is_late))
    from_return = stairs(
        borders,
        _counts(returned, borders),
        name="call's return to start (negative ones left out)",
        line={"shape": "hv", "color": INK, "dash": "dot", "width": 2},
        hoverinfo="skip",
    )
    figure = go.Figure(
        [
            _bars(late, borders, "#D55E00", "/", name="late: call to start, device idle"),
            _bars(queued, borders, "#0072B2", "", name="queued: call to start, device at work"),
            from_return,
        ]
    )
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    figure.update_xaxes(title_text="from the launch", **_log_axis(borders))
    figure.update_yaxes(title_text="GPU operations", rangemode="tozero")
    return finished(figure, _launches_sentence(launches), _launches_table(results, launches), 380)


def _launches_sentence(launches: pl.DataFrame) -> str:
    half, most, _ = p50_p95_max(launches["launch_to_start_ns"])
    late = share(launches["late"].fill_null(value=False).mean())  # type: ignore[arg-type]
    return (
        f"Half of {counted(len(launches), 'GPU operation')} started within {half} of their launch call and "
        f"95 % within {most}; {late} were launched late, when the device was already idle."
    )


def _launches_table(results: Results, launches: pl.DataFrame) -> list[list[object]]:
    names = gpu_names(results)
    body: list[list[object]] = []
    for (gpu,), own in launches.sort("gpu").group_by("gpu", maintain_order=True):
        returned = own["return_to_start_ns"].drop_nulls()
        body.append(
            [
                names.get(gpu, str(gpu)),
                len(own),
                *p50_p95_max(own["launch_to_start_ns"]),
                *p50_p95_max(returned),
                int((returned < 0).sum()),
                share(int(own["late"].sum()) / own.height),
            ]
        )
    starts = ["call to start p50", "p95", "max", "return to start p50", "p95", "max"]
    return [["device", "operations", *starts, "started before the return", "late"], *body]


def collectives_chart(results: Results) -> go.Figure | None:
    """Return arrival skew over time and its distribution, by the rank that came last; None if unmatched."""
    arrivals = _arrivals(results.collectives)
    if arrivals.is_empty():
        return None
    names = gpu_names(results)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.62, 0.38], horizontal_spacing=0.09)
    borders = log_borders(arrivals["skew_ns"])
    for i, (last, own) in enumerate(_by_straggler(arrivals, names)):
        name, colour = safe(last), COLOURS[i % 8]
        figure.add_trace(_skew_points(results, own, name, colour, SYMBOLS[i % 8]), row=1, col=1)
        bars = _bars(own["skew_ns"], borders, colour, PATTERNS[i % 8], name=name, showlegend=False)
        figure.add_trace(bars, row=1, col=2)
    axis = _log_axis(borders)
    figure.update_yaxes(title_text="arrival skew", **axis, row=1, col=1)
    figure.update_xaxes(title_text=SINCE_START, row=1, col=1)
    figure.update_xaxes(title_text="arrival skew", **axis, row=1, col=2)
    figure.update_yaxes(title_text="collectives", rangemode="tozero", row=1, col=2)
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    sentence = _collectives_sentence(results, arrivals, names)
    return finished(figure, sentence, _collectives_table(results, arrivals, names), 380)


def _arrivals(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective whose ranks were matched.

    `event`, `ts_ns` (last arrival), `skew_ns`, `straggler` (null = closer together than the clocks can tell).
    """
    return (
        collectives.filter(pl.col("matched") & pl.col("skew_ns").is_not_null())
        .group_by("event")
        .agg(
            ts_ns=pl.col("last_start_ns").first(),
            skew_ns=pl.col("skew_ns").first(),
            straggler=pl.when("order_known").then("straggler").first(),
        )
        .sort("ts_ns", "event")
    )


def _by_straggler(arrivals: pl.DataFrame, names: dict[int, str]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield who came last and the collectives in which it did; of many ranks the most frequent by name."""
    often = arrivals["straggler"].drop_nulls().value_counts(sort=True)["straggler"].to_list()
    named = sorted(often if len(often) <= SERIES else often[: SERIES - 1])
    straggler = pl.col("straggler")
    for gpu in named:
        yield f"{names.get(gpu, gpu)} last", arrivals.filter(straggler == gpu)
    others = arrivals.filter(straggler.is_not_null() & ~straggler.is_in(named))
    if others.height:
        yield f"one of {len(often) - len(named)} others last", others
    unknown = arrivals.filter(straggler.is_null())
    if unknown.height:
        yield "order not known", unknown


def _skew_points(results: Results, own: pl.DataFrame, name: str, colour: str, symbol: str) -> go.Scatter:
    since_start = pl.col("ts_ns") - results.window.start_ns
    if len(own) > POINTS:
        time_bin = since_start // pl.lit(max(1, results.window.duration_ns // POINTS), pl.Int64)
        own = own.sort("skew_ns").unique(time_bin, keep="last").sort("ts_ns")
    lowest = max(1, int(own["skew_ns"].filter(own["skew_ns"] > 0).min() or 1))  # type: ignore[arg-type]
    return go.Scatter(
        x=own.select(since_start / 1e6).to_series().to_numpy(),
        y=own["skew_ns"].clip(lower_bound=lowest).to_numpy().astype("float64"),
        mode="markers",
        name=name,
        marker={"size": 5, "color": colour, "symbol": symbol, "opacity": 0.7},
        text=[duration(ns) for ns in own["skew_ns"]],
        hovertemplate="%{text} at %{x:.1f} ms<extra>%{fullData.name}</extra>",
    )


def _collectives_sentence(results: Results, arrivals: pl.DataFrame, names: dict[int, str]) -> str:
    half, most, _ = p50_p95_max(arrivals["skew_ns"])
    told = arrivals.drop_nulls("straggler")
    within = (
        f"In half of {counted(len(arrivals), 'collective')} the ranks arrived within {half} of each other, "
        f"in 95 % within {most}"
    )
    if told.is_empty():
        return f"{within}: too close together for their clocks to tell which came last."
    # The rank that the finding names, too: one that is often last, and hardly, costs little.
    worst = waiting_caused(results.collectives).row(0, named=True)
    return (
        f"{within}; {names.get(worst['straggler'], 'one rank')} caused {share(worst['part'])} of the waiting "
        f"in the {len(told):,} in which the clocks tell who came last (it came last in {worst['events']:,})."
    )


def _collectives_table(results: Results, arrivals: pl.DataFrame, names: dict[int, str]) -> list[list[object]]:
    matched = results.collectives.filter("matched")
    waits = dict(matched.group_by("gpu").agg(pl.col("wait_ns").sum()).iter_rows())
    told = arrivals.drop_nulls("straggler")
    last = dict(told.group_by("straggler").len().iter_rows())
    body: list[list[object]] = [
        [
            names.get(gpu, str(gpu)),
            last.get(gpu, 0),
            share(last.get(gpu, 0) / max(len(told), 1)),
            duration(waits.get(gpu, 0)),
        ]
        for gpu in sorted({*waits, *last})
    ]
    half, most, longest = p50_p95_max(arrivals["skew_ns"])
    return [
        ["device", "came last", "share of those in which the clocks tell", "waited for others"],
        *body,
        ["all: arrival skew", f"p50 {half}", f"p95 {most}", f"max {longest}"],
    ]


def ipc_chart(results: Results) -> go.Figure | None:
    """Return the distribution of dequeue latency per rank and the median step; None without a dequeue."""
    dequeues = _dequeues(results)
    if dequeues.is_empty():
        return None
    steps = dequeues["step_ns"].drop_nulls()
    borders = log_borders(pl.concat([dequeues["dur_ns"], steps]))
    figure = go.Figure()
    for i, (rank, own) in enumerate(_by_rank(dequeues)):
        colour = COLOURS[i % 8]
        figure.add_trace(_bars(own["dur_ns"], borders, colour, PATTERNS[i % 8], name=safe(rank)))
    if len(steps):
        step = max(1.0, float(quantile(steps, 0.5) or 0))
        figure.add_vline(x=step, line={"dash": "dash", "color": INK})
        at = {"x": float(np.log10(step)), "y": 1, "yref": "paper", "xanchor": "left", "showarrow": False}
        figure.add_annotation(text=f" median step {duration(step)}", **at)
    figure.update_layout(barmode="stack", bargap=0, margin={"t": 50})
    figure.update_xaxes(
        title_text="dequeue latency: how long a worker waited for its next step", **_log_axis(borders)
    )
    figure.update_yaxes(title_text="dequeues", rangemode="tozero")
    return finished(figure, _ipc_sentence(dequeues), _ipc_table(results, dequeues), 360)


def _dequeues(results: Results) -> pl.DataFrame:
    """Return the workers' dequeues with `rank` and `step_ns`, the time to the next dequeue's beginning."""
    ranks = results.trace.threads.select("thread", "rank")
    own = results.ipc.filter((pl.col("role") == "worker") & (pl.col("kind") == "dequeue"))
    step = pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns") - pl.col("ts_ns")
    return own.join(ranks, on="thread", how="left").with_columns(step_ns=step).sort("thread", "ts_ns")


def _by_rank(dequeues: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    ordered = dequeues.sort("rank", "thread", nulls_last=True)
    if ordered["rank"].n_unique() > SERIES:
        yield f"all {ordered['rank'].n_unique()} ranks", ordered
        return
    for (rank,), own in ordered.group_by("rank", maintain_order=True):
        yield "worker" if rank is None else f"rank {rank}", own


def _waiting_share(dequeues: pl.DataFrame) -> float | None:
    """Return the dequeues' time as a share of the time between steps; None without a pair of dequeues."""
    paired = dequeues.filter(pl.col("step_ns").is_not_null())
    return int(paired["dur_ns"].sum()) / int(paired["step_ns"].sum()) if len(paired) else None


def _ipc_sentence(dequeues: pl.DataFrame) -> str:
    half, most, _ = p50_p95_max(dequeues["dur_ns"])
    part = _waiting_share(dequeues)
    waiting = "" if part is None else f"; waiting is {share(part)} of the time between steps"
    return f"Half of {counted(len(dequeues), 'dequeue')} took up to {half} and 95 % up to {most}{waiting}."


def _ipc_table(results: Results, dequeues: pl.DataFrame) -> list[list[object]]:
    names = thread_names(results)
    body: list[list[object]] = [
        [
            names.get(thread, ""),
            len(own),
            *p50_p95_max(own["dur_ns"]),
            duration(int(own["dur_ns"].sum())),
            share(_waiting_share(own)),
        ]
        for (thread,), own in dequeues.group_by("thread", maintain_order=True)
    ]
    return [["worker", "dequeues", "p50", "p95", "max", "total", "share of the time between steps"], *body]
