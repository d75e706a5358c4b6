"""Ledger 2 as a picture: what each GPU's lost time is charged to, crossed with the blamed thread's CPU state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import polars as pl

from tracelib.charts.lanes import shown_devices
from tracelib.charts.names import cause_label, gpu_names
from tracelib.charts.rows import grouped
from tracelib.charts.sentences import causes_sentence
from tracelib.charts.theme import CPU_STATES, duration, finished, marker, safe, share

if TYPE_CHECKING:
    from tracelib.analyses.results import Results

__all__ = ["causes_chart"]

ROWS = 24
REST = "the rest"
#: The share at a bar's end must fit beside the longest bar, on a phone too.
ROOM_FOR_SHARE = 1.25


def causes_chart(results: Results) -> go.Figure | None:
    """Return exposed time per device, cause and sub-cause as bars cut by CPU state, or None if nothing was lost.

    Longest bars first; a bar's end carries its share of the device's lost time. About :data:`ROWS` rows are drawn, at
    least three a device; a device's smaller ones are summed as "the rest".
    """
    if not results.causes["ns"].sum():
        return None
    rows = _rows(results)
    order = rows.group_by("gpu", "label").agg(pl.col("ns").sum())
    order = order.sort("gpu", pl.col("label") == REST, "ns", "label", descending=[False, False, True, False])
    names = gpu_names(results)
    places, axis = grouped([names.get(gpu, str(gpu)) for gpu in order["gpu"]], order["label"].to_list())
    figure = go.Figure([bar for state in CPU_STATES if (bar := _bar(rows, order, places, state)) is not None])
    figure.add_trace(_ends(order, places))
    figure.update_layout(barmode="stack", margin={"t": 60})
    longest = int(order["ns"].max()) / 1e6  # type: ignore[arg-type]
    figure.update_xaxes(
        title_text="ms of GPU time lost; colour: what the blamed thread did meanwhile",
        range=[0, longest * ROOM_FOR_SHARE],
    )
    figure.update_yaxes(**axis)
    return finished(figure, causes_sentence(results), _table(results), 130 + 24 * (places[-1] + 1))


def _labelled(causes: pl.DataFrame) -> pl.DataFrame:
    labels = [cause_label(c, s) for c, s in causes.select("cause", "sub_cause").iter_rows()]
    return causes.select(
        "gpu", pl.col("cpu_state").cast(pl.String), "ns", label=pl.Series(labels, dtype=pl.String)
    )


def _rows(results: Results) -> pl.DataFrame:
    """Return `gpu`, `label`, `cpu_state`, `ns` with each device's smaller causes summed."""
    devices = shown_devices(results)
    rows = _labelled(results.causes.filter(pl.col("gpu").is_in(devices) & (pl.col("ns") > 0)))
    keep = max(3, ROWS // max(1, len(devices)))
    total = (
        rows.group_by("gpu", "label")
        .agg(total=pl.col("ns").sum())
        .sort("total", "label", descending=[True, False])
    )
    kept = total.with_columns(rank=pl.int_range(pl.len()).over("gpu")).filter(pl.col("rank") < keep)
    marked = rows.join(kept.select("gpu", "label", kept=pl.lit(value=True)), on=["gpu", "label"], how="left")
    label = pl.when(pl.col("kept")).then("label").otherwise(pl.lit(REST))
    return marked.group_by("gpu", label.alias("label"), "cpu_state").agg(pl.col("ns").sum())


def _bar(rows: pl.DataFrame, order: pl.DataFrame, places: list[int], state: str) -> go.Bar | None:
    own = rows.filter(pl.col("cpu_state") == state).select("gpu", "label", own="ns")
    ns = order.join(own, on=["gpu", "label"], how="left", maintain_order="left")["own"].fill_null(0)
    if not ns.sum():
        return None
    appearance = CPU_STATES[state]
    words = [f"{safe(label)}: {duration(value)}" for label, value in zip(order["label"], ns, strict=True)]
    return go.Bar(
        y=places,
        x=(ns / 1e6).to_list(),
        orientation="h",
        name=safe(appearance.label),
        marker=marker(appearance),
        customdata=words,
        hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
    )


def _ends(order: pl.DataFrame, places: list[int]) -> go.Bar:
    """Return bars of no length whose text stands at the end of each stack."""
    lost = pl.col("ns").sum().over("gpu")
    parts = order.select(part=pl.col("ns") / lost)["part"]
    return go.Bar(
        y=places,
        x=[0] * len(order),
        orientation="h",
        text=[f"{share(p)}" for p in parts],
        textposition="outside",
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
        marker={"color": "rgba(0,0,0,0)"},
    )


def _table(results: Results) -> list[list[str]]:
    names = gpu_names(results)
    rows = _labelled(results.causes.filter(pl.col("ns") > 0)).sort(
        "ns", "gpu", "label", descending=[True, False, False]
    )
    lost = dict(results.causes.group_by("gpu").agg(pl.col("ns").sum()).iter_rows())
    body = [
        [
            names.get(r["gpu"], ""),
            r["label"],
            CPU_STATES[r["cpu_state"]].label,
            duration(r["ns"]),
            share(r["ns"] / lost[r["gpu"]]),
        ]
        for r in rows.head(30).iter_rows(named=True)
    ]
    return [["device", "charged to", "blamed thread", "lost", "share of the device's lost time"], *body]
