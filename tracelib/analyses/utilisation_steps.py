"""Bursts and starvation in turn: the staircase that GPU utilisation shows when its host is the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.gpu_states import LOST, USEFUL
from tracelib.intervals import merge_equal, overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window

UTILISATION_STEPS = pl.Schema(
    {"gpu": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "level": pl.Enum(["burst", "starved"])}
)

BINS = 100
#: No bin is shorter than this: gaps between single kernels are no staircase.
SHORTEST_NS = 10_000_000
#: Share of useful time in a burst's bin, and of what is not lost in a starved one's; what lies between is neither, and joins the stretch before it.
BURST, STARVED = 0.6, 0.2


def utilisation_steps(gpu_states: pl.DataFrame, window: Window, bins: int = BINS) -> pl.DataFrame:
    """Return the stretches in which each GPU was well used or starved, from its useful share in equal bins.

    Takes the frame `gpu_states`; there are at most `bins` bins, none shorter than 10 ms. Source: the
    article's "staircase" (bursts and starvation in turn with too few cores); the levels are this project's
    own: a burst is useful for at least 0.6 of a bin, a starved one for at most 0.2.

    One row per stretch: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `level` (Enum: burst, starved). Sorted by
    `gpu`, `ts_ns`.
    """
    bins = max(1, min(bins, window.duration_ns // SHORTEST_NS))
    edges = [window.start_ns + window.duration_ns * n // bins for n in range(bins + 1)]
    grid = pl.DataFrame({"ts_ns": edges[:-1], "end": edges[1:]}).select(
        "ts_ns", dur_ns=pl.col("end") - pl.col("ts_ns"), _bin=pl.int_range(pl.len(), dtype=pl.Int32)
    )
    whole = (
        gpu_states.select("gpu")
        .unique()
        .join(grid.filter(pl.col("dur_ns") > 0), how="cross")
        .sort("gpu", "ts_ns")
    )
    cut = overlay(whole, gpu_states.select("gpu", "ts_ns", "dur_ns", "state"), "gpu")
    useful, lost = (pl.col("dur_ns").filter(pl.col("state").is_in(of)).sum() for of in (USEFUL, LOST))
    total = pl.col("dur_ns").sum()
    part = cut.group_by("gpu", "_bin").agg(useful=useful / total, lost=lost / total)
    level = (
        pl.when(pl.col("useful") >= BURST)
        .then(pl.lit("burst"))
        .when(pl.col("lost") >= 1 - STARVED)
        .then(pl.lit("starved"))
    )
    told = (
        whole.join(part, on=["gpu", "_bin"])
        .sort("gpu", "ts_ns")
        .with_columns(level=level.forward_fill().over("gpu", order_by="ts_ns"))
        .drop_nulls("level")
    )
    steps = merge_equal(told, ["gpu", "level"])
    return (
        steps.with_columns(pl.col("level").cast(UTILISATION_STEPS["level"]))
        .select(list(UTILISATION_STEPS))
        .match_to_schema(UTILISATION_STEPS)
    )
