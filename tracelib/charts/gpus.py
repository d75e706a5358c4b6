"""What the GPUs did: their states, their utilisation as it is and as monitoring shows it, their kernels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.results import Results
from tracelib.charts.lanes import DEVICES, shown_devices
from tracelib.charts.phrases import AS_MONITORED, gpu_names, gpu_shares
from tracelib.charts.theme import (
    CAUSES,
    GPU_STATES,
    INK,
    PALE,
    SINCE_START,
    Look,
    finished,
    hatch,
    label,
    marker,
    safe,
    stairs,
)
from tracelib.intervals import clip
from tracelib.intervals.cover import bin_borders, ms_since_start, state_shares
from tracelib.words import counted, duration, plain, rate, share

USEFUL_BLUE, SPIN_BLUE, COLLECTIVE_BLUE = (
    GPU_STATES[state].colour for state in ("compute", "collective_wait", "collective_transfer")
)
KERNELS = 15
#: A GPU stands apart whose useful share is so many median deviations from the median, and at least so far.
APART, LEAST_APART = 5, 0.03
#: So many of them are named.
OUTLIERS = 5
KERNEL_CHARACTERS = 44


def states_chart(results: Results) -> go.Figure | None:
    """Return one bar per GPU cut into its states in per cent of the window; None without a GPU.

    Useful states stand on the left, so that the axis shows both the useful part and the busy part of a bar.
    """
    if results.gpu_time.is_empty():
        return None
    names = gpu_names(results)
    time = results.gpu_time.with_columns(
        pl.col("state").cast(pl.String), total=pl.col("ns").sum().over("gpu")
    )
    gpus = time["gpu"].unique().sort().to_list()
    labels = [safe(names.get(gpu, gpu)) for gpu in gpus]
    bars = [_state_bar(time, gpus, labels, state) for state in GPU_STATES]
    figure = go.Figure([bar for bar in bars if bar is not None])
    figure.update_layout(barmode="stack", margin={"t": 60})
    figure.update_xaxes(title_text="% of the window", range=[0, 100])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return finished(figure, _states_sentence(results), _states_table(results), 150 + 32 * len(gpus))


def _state_bar(time: pl.DataFrame, gpus: list[int], labels: list[str], state: str) -> go.Bar | None:
    own = {row["gpu"]: row for row in time.filter(pl.col("state") == state).iter_rows(named=True)}
    parts = [own[gpu]["ns"] / own[gpu]["total"] if gpu in own else 0.0 for gpu in gpus]
    if not any(parts):
        return None
    return go.Bar(
        y=labels,
        x=[100 * part for part in parts],
        orientation="h",
        name=safe(label("gpu_state", state)),
        marker=marker(GPU_STATES[state]),
        text=[share(part) if part >= 0.04 else "" for part in parts],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        customdata=[duration(own[gpu]["ns"]) if gpu in own else "" for gpu in gpus],
        hovertemplate="%{y}: %{customdata}, %{x:.1f} %<extra>%{fullData.name}</extra>",
    )


def _states_sentence(results: Results) -> str:
    shares = gpu_shares(results.gpu_time).with_columns(gap=pl.col("busy") - pl.col("useful"))
    row = shares.sort("gap", "gpu", descending=[True, False]).row(0, named=True)
    name = gpu_names(results).get(row["gpu"], "one")
    who = f"The GPU of {name}" if name.startswith("rank") else name
    head = (
        f"{who} looked busy for {share(row['busy'])} of the window "
        f"and did useful work for {share(row['useful'])}"
    )
    if row["doubtful"]:
        return (
            f"{head}; {share(row['doubtful'])} in collectives, where waiting cannot be told from transfer: "
            "not all of their ranks were recorded or matched."
        )
    return f"{head}; {duration(row['spin_ns'])} went into spinning for late ranks."


def _states_table(results: Results) -> list[list[str]]:
    names = gpu_names(results)
    present = results.gpu_time.filter(pl.col("ns") > 0)["state"].cast(pl.String).unique().to_list()
    states = [state for state in GPU_STATES if state in present]
    ns = {(gpu, state): ns for gpu, state, ns in results.gpu_time.select("gpu", "state", "ns").iter_rows()}
    header = ["device", "useful", "busy", *(label("gpu_state", state) for state in states)]
    body = [
        [
            names.get(row["gpu"], str(row["gpu"])),
            share(row["useful"]),
            share(row["busy"]),
            *(duration(ns.get((row["gpu"], state), 0)) for state in states),
        ]
        for row in gpu_shares(results.gpu_time).iter_rows(named=True)
    ]
    return [header, *body]


def staircase_chart(results: Results, bins: int = 100) -> go.Figure | None:
    """Return per GPU the useful and the busy share of `bins` equal bins as stairs.

    The hatched step between them is spinning. None without a GPU; of more than :data:`DEVICES`, all of them
    as a heatmap of the useful share.
    """
    if results.gpu_states.is_empty():
        return None
    if results.gpu_states["gpu"].n_unique() > DEVICES:
        return _heatmap(results, bins)
    devices, names = shown_devices(results), gpu_names(results)
    borders = bin_borders(results.window.start_ns, results.window.end_ns, bins)
    ms = ms_since_start(borders)
    figure = make_subplots(rows=len(devices), cols=1, shared_xaxes=True, vertical_spacing=0.12 / len(devices))
    for row, gpu in enumerate(devices, start=1):
        for trace in _utilisation_stairs(results, gpu, borders):
            figure.add_trace(trace.update(showlegend=row == 1), row=row, col=1)
        figure.update_yaxes(
            title_text=safe(names.get(gpu, gpu)),
            range=[0, 100],
            tickvals=[0, 50, 100],
            ticksuffix=" %",
            row=row,
            col=1,
        )
    figure.update_xaxes(title_text=SINCE_START, row=len(devices), col=1)
    figure.update_xaxes(range=[0, float(ms[-1])])
    figure.update_layout(margin={"t": 50})
    height = 120 + 110 * len(devices)
    return finished(figure, _staircase_sentence(results), _states_table(results), height)


def _heatmap(results: Results, bins: int) -> go.Figure:
    """Return a row per GPU: its useful share by colour over time, and over the window as a bar."""
    names, shares = gpu_names(results), gpu_shares(results.gpu_time)
    gpus = shares["gpu"].to_list()
    borders = bin_borders(results.window.start_ns, results.window.end_ns, bins)
    by_gpu = results.gpu_states.partition_by("gpu", as_dict=True)
    rows = [state_shares(by_gpu[gpu,], list(USEFUL), borders).sum(axis=0) * 100 for gpu in gpus]
    ms = ms_since_start(borders)
    figure = make_subplots(cols=2, shared_yaxes=True, column_widths=[0.82, 0.18], horizontal_spacing=0.02)
    labels = [safe(names.get(gpu, gpu)) for gpu in gpus]
    figure.add_heatmap(
        z=np.round(rows).astype(np.uint8),
        x=((ms[:-1] + ms[1:]) / 2).astype("float32"),
        y=labels,
        zmin=0,
        zmax=100,
        colorscale=[[0, CAUSES["host_work"].colour], [0.5, PALE.colour], [1, USEFUL_BLUE]],
        colorbar={"title": "useful", "ticksuffix": " %", "len": 0.5},
        hovertemplate="%{y}: %{z} % useful at %{x:.0f} ms<extra></extra>",
    )
    figure.add_bar(
        x=(shares["useful"] * 100).round(1).to_list(),
        y=labels,
        orientation="h",
        marker={"color": USEFUL_BLUE},
        showlegend=False,
        hovertemplate="%{y}: %{x:.1f} % useful<extra></extra>",
        row=1,
        col=2,
    )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(title_text=SINCE_START, col=1)
    figure.update_xaxes(title_text="% of the window", range=[0, 100], col=2)
    sentence = f"{_staircase_sentence(results)} {_spread(shares, names)}"
    return finished(figure, sentence, _states_table(results), 120 + max(14 * len(gpus), 200))


def _spread(shares: pl.DataFrame, names: Mapping[int, str]) -> str:
    """Say between which useful shares the GPUs lie, and which of them stand apart from the others."""
    ordered = shares.sort("useful", "gpu").select("gpu", "useful").rows()
    (least, low), (most, high) = ordered[0], ordered[-1]
    middle = float(shares.select(pl.col("useful").median()).item())
    deviation = (pl.col("useful") - middle).abs()
    typical = float(shares.select(deviation.median()).item())
    apart = shares.filter(deviation > max(APART * typical, LEAST_APART)).select("gpu", "useful").rows()
    named = [f"{names.get(gpu, gpu)} ({share(part)})" for gpu, part in apart[:OUTLIERS]]
    more = f" and {len(apart) - OUTLIERS} more" if len(apart) > OUTLIERS else ""
    who = f"apart from the others: {', '.join(named)}{more}" if named else "none stands apart"
    return (
        f"Their median is {share(middle)}, from {share(low)} ({names.get(least, least)}) to {share(high)} "
        f"({names.get(most, most)}); {who}."
    )


def _utilisation_stairs(
    results: Results, gpu: int, borders: NDArray[np.int64]
) -> tuple[go.Scatter, go.Scatter]:
    own, ms = results.gpu_states.filter(pl.col("gpu") == gpu), ms_since_start(borders)
    useful = state_shares(own, list(USEFUL), borders).sum(axis=0) * 100
    busy = 100 - 100 * state_shares(own, ["idle"], borders)[0]
    hover = "%{y:.0f} % at %{x:.0f} ms"
    return (
        stairs(
            ms,
            useful.astype("float32"),
            name="useful",
            legendgroup="useful",
            hovertemplate=hover,
            fill="tozeroy",
            fillcolor=USEFUL_BLUE,
            line={"shape": "hv", "color": USEFUL_BLUE, "width": 1},
        ),
        stairs(
            ms,
            busy.astype("float32"),
            name=AS_MONITORED,
            legendgroup=AS_MONITORED,
            hovertemplate=hover,
            fill="tonexty",
            fillcolor=SPIN_BLUE,
            fillpattern=hatch("/", SPIN_BLUE, "rgba(255,255,255,0.8)", size=5),
            line={"shape": "hv", "color": INK, "width": 1.5, "dash": "dot"},
        ),
    )


def _staircase_sentence(results: Results) -> str:
    shares = gpu_shares(results.gpu_time)
    useful, busy = shares.select(pl.col("useful", "busy").mean()).row(0)
    return (
        f"{counted(len(shares), 'GPU')} did useful work for {share(useful)} of GPU time; monitoring, which "
        f"counts spinning as busy, would have shown {share(busy)}."
    )


def kernels_chart(results: Results) -> go.Figure | None:
    """Return the GPU operations that took longest in the window, by name, all GPUs summed; None without."""
    kernels = _time_by_name(results)
    if kernels.is_empty():
        return None
    top = kernels.head(KERNELS)
    figure = go.Figure(
        go.Bar(
            y=list(range(len(top))),
            x=(top["ns"] / 1e6).to_list(),
            orientation="h",
            marker={
                "color": [COLLECTIVE_BLUE if collective else USEFUL_BLUE for collective in top["collective"]],
                "pattern": {"shape": ["/" if collective else "" for collective in top["collective"]]},
            },
            customdata=[
                f"{safe(row['name'])}: {duration(row['ns'])} in {counted(row['n'], 'run')}"
                for row in top.iter_rows(named=True)
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_xaxes(
        title_text="ms of GPU time, all GPUs summed (hatched: collectives)", rangemode="tozero"
    )
    labels = [safe(name, KERNEL_CHARACTERS) for name in top["name"]]
    figure.update_yaxes(
        tickvals=list(range(len(top))), ticktext=labels, range=[len(top) - 0.4, -0.6], showgrid=False
    )
    return finished(figure, _kernels_sentence(kernels), _kernels_table(kernels), 110 + 26 * len(top))


def _time_by_name(results: Results) -> pl.DataFrame:
    """Return `name`, `collective` (Boolean), `ns`, `n`, longest first; operations that overlap count each."""
    inside = clip(results.trace.gpu_ops, results.window.start_ns, results.window.end_ns)
    return (
        inside.group_by(pl.col("name").cast(pl.String), pl.col("collective").is_not_null())
        .agg(ns=pl.col("dur_ns").sum(), n=pl.len())
        .sort("ns", "name", descending=[True, False])
    )


def _kernels_sentence(kernels: pl.DataFrame) -> str:
    total, first = int(kernels["ns"].sum()), kernels.row(0, named=True)
    half = int((kernels["ns"].cum_sum() < total / 2).sum()) + 1
    name, part = plain(first["name"], KERNEL_CHARACTERS), share(first["ns"] / total)
    makes = "makes" if half == 1 else "make"
    return (
        f"{name} takes {part} of {duration(total)} of GPU operations; "
        f"{half} of {counted(len(kernels), 'name')} {makes} up half of it."
    )


def _kernels_table(kernels: pl.DataFrame) -> list[list[object]]:
    total = int(kernels["ns"].sum())
    body: list[list[object]] = [
        [row["name"], row["n"], duration(row["ns"]), duration(row["ns"] / row["n"]), share(row["ns"] / total)]
        for row in kernels.iter_rows(named=True)
    ]
    return [["operation", "runs", "total", "mean", "share"], *body]


# -------------------- of several runs
def kernels_compared_chart(changed: pl.DataFrame) -> go.Figure | None:
    """Return the kernels whose share of the GPUs' time changed most from the first run to the last.

    `changed` is the frame of :func:`tracelib.analyses.comparison.kernel_changes`. None without a kernel.
    """
    rows = changed.filter(pl.col("run") == pl.col("run").last())
    if rows.is_empty():
        return None
    top = rows.head(KERNELS)
    labels = [safe(_kernel(row), KERNEL_CHARACTERS + 8) for row in top.iter_rows(named=True)]
    figure = go.Figure()
    for name, column, appearance in (
        ("first run", "share_before", Look("#56B4E9", "/")),
        ("last run", "share_after", Look("#0072B2")),
    ):
        figure.add_bar(
            y=list(range(len(top))),
            x=(top[column] * 100).to_list(),
            orientation="h",
            name=name,
            marker=marker(appearance),
            customdata=labels,
            hovertemplate="%{customdata}: %{x:.2f} %<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(title_text="% of the GPUs' time", rangemode="tozero")
    figure.update_yaxes(
        tickvals=list(range(len(top))), ticktext=labels, range=[len(top) - 0.4, -0.6], showgrid=False
    )
    figure.update_layout(barmode="group", margin={"t": 50})
    return finished(figure, _changed_sentence(rows), _kernel_rows(rows), 130 + 34 * len(top))


def kernels_in_words(changed: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that changed most from the first run to the last, as a table to read.

    `changed` is the frame of :func:`tracelib.analyses.comparison.kernel_changes`. One row per kernel, all
    String: `kernel`, `seen in`, then `share`, `per second` and `mean` of the first and of the last run.
    """
    rows = changed.filter(pl.col("run") == pl.col("run").last()).head(KERNELS)
    head, *body = _kernel_rows(rows)
    cells = [[plain(row[0], KERNEL_CHARACTERS), *row[1:]] for row in body]
    return pl.DataFrame(cells, schema=dict.fromkeys(map(str, head), pl.String), orient="row")


def _kernel(row: Mapping[str, Any]) -> str:
    return plain(row["name"], KERNEL_CHARACTERS) + ("" if row["seen"] == "both" else f" ({row['seen']})")


def _changed_sentence(rows: pl.DataFrame) -> str:
    seen = dict(rows["seen"].value_counts().iter_rows())
    row = rows.row(0, named=True)
    mean = (
        f", {duration(row['mean_before_ns'])} to {duration(row['mean_after_ns'])} on average"
        if row["seen"] == "both"
        else ""
    )
    before, after = (share(row[f"share_{when}"]) for when in ("before", "after"))
    lead = (
        f"Of {counted(rows.height, 'kernel')}, {seen.get('new', 0)} are new and {seen.get('gone', 0)} gone; "
    )
    if before == after and row["seen"] == "both":
        return f"{lead}no kernel's share of the GPUs' time changed."
    return f"{lead}the share of {_kernel(row)} changed most, {before} to {after} of the GPUs' time{mean}."


def _kernel_rows(rows: pl.DataFrame) -> list[list[object]]:
    both = ("first run", "last run")
    head: list[object] = [
        "kernel",
        "seen in",
        *(f"{what}, {run}" for what in ("share", "per second", "mean") for run in both),
    ]
    body: list[list[object]] = [
        [
            row["name"],
            {"both": "both", "new": "last run", "gone": "first run"}[row["seen"]],
            *(share(row[f"share_{side}"]) for side in ("before", "after")),
            *(rate(row[f"per_second_{side}"]) for side in ("before", "after")),
            *(duration(row[f"mean_{side}_ns"]) for side in ("before", "after")),
        ]
        for row in rows.iter_rows(named=True)
    ]
    return [head, *body]
