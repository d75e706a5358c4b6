"""What the GPUs' lost time is charged to, all causes at once or one of them by its parts and over time."""

import numpy as np
import plotly.graph_objects as go
import polars as pl
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, tells_shortage
from tracelib.charts.lanes import not_shown, shown_devices
from tracelib.charts.phrases import (
    NO_WAKEUPS,
    WORTH_A_WORD,
    charged_to,
    gpu_names,
    share_in,
    shortage_of_cpus,
)
from tracelib.charts.theme import (
    CLEAR,
    CPU_STATES,
    PALE,
    SINCE_START,
    Look,
    finished,
    label,
    look,
    marker,
    rows_under_headings,
    safe,
    stairs,
)
from tracelib.findings.finding import whole_ns
from tracelib.intervals.cover import bin_borders, covered_ns, ms_since_start
from tracelib.words import cause_label, cause_name, counted, duration, share, sub_cause_name

ROWS = 24
REST = "the rest"
#: The share at a bar's end must fit beside the longest bar, on a phone too.
ROOM_FOR_SHARE = 1.25
GREY = "#8C8C8C"


def causes_chart(results: Results) -> go.Figure | None:
    """Return lost time per device, cause and sub-cause as bars cut by CPU state; None if nothing was lost.

    Longest bars first; a bar's end carries its share of the device's window. About :data:`ROWS` rows are
    drawn, at least three a device; a device's smaller ones are summed as "the rest".
    """
    if not results.causes["ns"].sum():
        return None
    parts = _parts_to_draw(results)
    order = parts.group_by("gpu", "label").agg(pl.col("ns").sum())
    order = order.sort("gpu", pl.col("label") == REST, "ns", "label", descending=[False, False, True, False])
    names = gpu_names(results)
    devices = [names.get(gpu, str(gpu)) for gpu in order["gpu"]]
    places, axis = rows_under_headings(devices, order["label"].to_list())
    bars = [_state_bar(parts, order, places, state) for state in CPU_STATES]
    figure = go.Figure(
        [
            *(bar for bar in bars if bar is not None),
            _shares_at_ends(order, places, results.window.duration_ns),
        ]
    )
    figure.update_layout(barmode="stack", margin={"t": 60})
    longest = int(order["ns"].max()) / 1e6  # type: ignore[arg-type]
    figure.update_xaxes(
        title_text="ms of GPU time lost, % of the GPU's window; colour: what the blamed thread did meanwhile",
        range=[0, longest * ROOM_FOR_SHARE],
    )
    figure.update_yaxes(**axis)
    height = 130 + 24 * (places[-1] + 1)
    return finished(figure, causes_sentence(results), _causes_table(results), height)


def _labelled(causes: pl.DataFrame) -> pl.DataFrame:
    labels = [cause_label(cause, sub) for cause, sub in causes.select("cause", "sub_cause").iter_rows()]
    return causes.select(
        "gpu", pl.col("cpu_state").cast(pl.String), "ns", label=pl.Series(labels, dtype=pl.String)
    )


def _parts_to_draw(results: Results) -> pl.DataFrame:
    """Return `gpu`, `label`, `cpu_state`, `ns` with each device's smaller causes summed."""
    devices = shown_devices(results)
    parts = _labelled(results.causes.filter(pl.col("gpu").is_in(devices) & (pl.col("ns") > 0)))
    keep = max(3, ROWS // max(1, len(devices)))
    total = parts.group_by("gpu", "label").agg(total=pl.col("ns").sum())
    ranked = total.sort("total", "label", descending=[True, False])
    kept = ranked.with_columns(rank=pl.int_range(pl.len()).over("gpu")).filter(pl.col("rank") < keep)
    marked = parts.join(kept.select("gpu", "label", kept=pl.lit(value=True)), on=["gpu", "label"], how="left")
    shown = pl.when(pl.col("kept")).then("label").otherwise(pl.lit(REST))
    return marked.group_by("gpu", shown.alias("label"), "cpu_state").agg(pl.col("ns").sum())


def _state_bar(parts: pl.DataFrame, order: pl.DataFrame, places: list[int], state: str) -> go.Bar | None:
    own = parts.filter(pl.col("cpu_state") == state).select("gpu", "label", own="ns")
    ns = order.join(own, on=["gpu", "label"], how="left", maintain_order="left")["own"].fill_null(0)
    if not ns.sum():
        return None
    return go.Bar(
        y=places,
        x=(ns / 1e6).to_list(),
        orientation="h",
        name=safe(label("cpu_state", state)),
        marker=marker(CPU_STATES[state]),
        customdata=[f"{safe(row)}: {duration(value)}" for row, value in zip(order["label"], ns, strict=True)],
        hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
    )


def _shares_at_ends(order: pl.DataFrame, places: list[int], window_ns: int) -> go.Bar:
    parts = order["ns"] / window_ns
    return go.Bar(
        y=places,
        x=[0] * len(order),
        orientation="h",
        text=[share(part) for part in parts],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        marker={"color": CLEAR},
    )


def causes_sentence(results: Results) -> str:
    """Say how much GPU time was lost, to what, and for how much of it the blamed thread lacked a CPU."""
    total, whole = int(results.causes["ns"].sum()), whole_ns(results)
    if not total:
        return "No GPU time was lost."
    gpus = counted(results.causes["gpu"].n_unique(), "GPU")
    lost = f"{share(total / whole)} of GPU time: {charged_to(results.causes, 'ns', whole)}"
    return f"{gpus} lost {duration(total)}, {lost}; {shortage_of_cpus(results)}.{not_shown(results)}"


def _causes_table(results: Results) -> list[list[str]]:
    names = gpu_names(results)
    parts = _labelled(results.causes.filter(pl.col("ns") > 0))
    body = [
        [
            names.get(row["gpu"], ""),
            row["label"],
            label("cpu_state", row["cpu_state"]),
            duration(row["ns"]),
            share(row["ns"] / results.window.duration_ns),
        ]
        for row in parts.sort("ns", "gpu", "label", descending=[True, False, False]).iter_rows(named=True)
    ]
    return [["device", "charged to", "blamed thread", "lost", "share of the device's window"], *body]


def exposure_chart(results: Results, cause: str) -> go.Figure | None:
    """Return bars per sub-cause of `cause`: host time summed, its union, and the lost GPU time it exposed.

    None if the window holds nothing of the cause, neither on a host thread nor in the lost time.
    """
    own = results.host_time.filter(pl.col("cause") == cause)
    some = (pl.col("total_ns").fill_null(0) > 0) | (pl.col("exposed_ns") > 0)
    rows = own.filter(some).sort("exposed_ns", "total_ns", descending=True, nulls_last=True)
    if rows.is_empty():
        return None
    labels = [safe(sub_cause_name(sub)) if sub else "no sub-cause" for sub in rows["sub_cause"]]
    figure = go.Figure()
    # Greys for what may have cost nothing; the cause's own look for what did.
    for column, name, appearance in (
        ("total_ns", "host time, all threads summed", PALE),
        ("union_ns", "at least one thread at it", Look(GREY)),
        ("exposed_ns", "exposed: GPU time lost to it, all GPUs summed", look("cause", cause)),
    ):
        known = rows[column].is_not_null()
        figure.add_bar(
            y=[row for row, is_known in zip(labels, known, strict=True) if is_known],
            x=(rows[column].drop_nulls() / 1e6).to_list(),
            orientation="h",
            name=name,
            marker=marker(appearance),
            customdata=[duration(ns) for ns in rows[column].drop_nulls()],
            hovertemplate="%{y}: %{customdata}<extra>%{fullData.name}</extra>",
        )
    figure.update_layout(barmode="group", bargap=0.3, margin={"t": 70})
    figure.update_xaxes(title_text="ms", rangemode="tozero")
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], showgrid=False)
    sentence = _exposure_sentence(results, cause, rows)
    return finished(figure, sentence, _exposure_table(rows), 150 + 66 * len(rows))


def _exposure_sentence(results: Results, cause: str, rows: pl.DataFrame) -> str:
    name, exposed, total = cause_name(cause), int(rows["exposed_ns"].sum()), int(rows["total_ns"].sum())
    spent = (
        f"Host threads spent {duration(total)} on {name}" if total else f"No host thread spent time on {name}"
    )
    if results.lost.is_empty():
        return f"{spent}; no GPU time was lost, or no GPU recorded, so none of it is exposed."
    gpus = counted(results.gpu_time["gpu"].n_unique(), "GPU")
    cost = f"it cost {gpus} {duration(exposed)}, {share_in(results, exposed)} of GPU time"
    return f"{spent}; {cost}{_exposed_shortage(results, cause, exposed)}."


def _exposed_shortage(results: Results, cause: str, exposed: int) -> str:
    """Say for how much of the exposed time the blamed thread had no CPU; "" where nothing was exposed."""
    if not exposed:
        return ""
    if not tells_shortage(results.thread_states):
        return f"; whether the blamed thread wanted a CPU and had none {NO_WAKEUPS}"
    own = results.lost.filter(pl.col("cause") == cause)
    state = pl.col("cpu_state").cast(pl.String)
    short, unknown = (
        int(own.filter(of)["dur_ns"].sum()) for of in (state.is_in(WAITS_FOR_CPU), state == "unknown")
    )
    doubt = f" (not known for {share_in(results, unknown)})" if unknown >= WORTH_A_WORD * exposed else ""
    return f"; for {share_in(results, short)} the blamed thread wanted a CPU and had none{doubt}"


def _exposure_table(rows: pl.DataFrame) -> list[list[object]]:
    body: list[list[object]] = [
        [
            sub_cause_name(row["sub_cause"]) if row["sub_cause"] else "",
            *(duration(row[column]) for column in ("total_ns", "union_ns", "exposed_ns")),
            row["count"] or 0,
        ]
        for row in rows.iter_rows(named=True)
    ]
    return [["sub-cause", "host time", "at least one thread", "exposed", "stretches"], *body]


def moments_chart(results: Results, cause: str, bins: int = 100) -> go.Figure | None:
    """Return, per bin, the GPU time lost to `cause` (above) and the mean number of threads at it (below).

    None if the window holds nothing of the cause.
    """
    lost = results.lost.filter(pl.col("cause") == cause)
    work = results.host_activity.filter((pl.col("cause") == cause) & pl.col("waits_for").is_null())
    if lost.is_empty() and work.is_empty():
        return None
    borders = bin_borders(results.window.start_ns, results.window.end_ns, bins)
    gpus = max(1, results.gpu_time["gpu"].n_unique())
    part = covered_ns(lost["ts_ns"], lost["dur_ns"], borders) / (np.diff(borders) * gpus)
    threads = covered_ns(work["ts_ns"], work["dur_ns"], borders) / np.diff(borders)
    ms, name, paint = ms_since_start(borders), cause_name(cause), look("cause", cause).paint
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.1)
    above = _filled_stairs(ms, 100 * part, f"GPU time lost to {name}", paint, "%{y:.0f} %")
    below = _filled_stairs(ms, threads, f"threads at {name}", GREY, "%{y:.1f} threads")
    figure.add_trace(above, row=1, col=1)
    figure.add_trace(below, row=2, col=1)
    figure.update_yaxes(title_text="GPU time lost", range=[0, 100], ticksuffix=" %", row=1, col=1)
    figure.update_yaxes(title_text="threads", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title_text=SINCE_START, row=2, col=1)
    figure.update_xaxes(range=[0, float(ms[-1])])
    figure.update_layout(margin={"t": 50})
    sentence = _moments_sentence(name, part, threads, ms)
    return finished(figure, sentence, _moments_table(part, threads), 360)


def _filled_stairs(
    ms: NDArray[np.float32], heights: NDArray[np.float64], name: str, colour: str, hover: str
) -> go.Scatter:
    return stairs(
        ms,
        heights.astype(np.float32),
        name=safe(name),
        fill="tozeroy",
        fillcolor=colour,
        line={"shape": "hv", "color": colour, "width": 1},
        hovertemplate=f"{hover} at %{{x:.0f}} ms",
    )


def _moments_sentence(
    name: str, part: NDArray[np.float64], threads: NDArray[np.float64], ms: NDArray[np.float32]
) -> str:
    worst, busiest = int(part.argmax()), float(threads.max())
    crowd = (
        f"in the busiest of {len(part)} equal pieces of the window {busiest:.1f} threads were at it "
        "on average"
    )
    if not part.any():
        return f"No GPU time was lost to {name}; {crowd}."
    mean, most = share(float(part.mean())), share(float(part[worst]))
    between = f"between {ms[worst]:.0f} and {ms[worst + 1]:.0f} ms"
    return f"{mean} of all GPU time was lost to {name}, most {between} ({most}); {crowd}."


def _moments_table(part: NDArray[np.float64], threads: NDArray[np.float64]) -> list[list[object]]:
    body: list[list[object]] = [
        [name, share(float(np.percentile(part, q))), f"{np.percentile(threads, q):.2f}"]
        for name, q in (("p50", 50), ("p95", 95), ("max", 100))
    ]
    return [[f"of {counted(len(part), 'equal piece')}", "GPU time lost to it", "threads at it"], *body]
