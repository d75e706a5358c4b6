"""Ledger 1: what each GPU did at each moment of the window (ATTRIBUTION.md, "GPU time")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import layered

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

__all__ = ["GPU_STATE", "LOST", "USEFUL", "gpu_states", "gpu_time"]

#: `collective`: a collective whose ranks could not be matched, so waiting cannot be told from transfer.
GPU_STATE = pl.Enum(["compute", "copy", "collective_transfer", "collective", "collective_wait", "idle"])
USEFUL = ("compute", "copy", "collective_transfer")
LOST = ("collective_wait", "idle")


def gpu_states(trace: Trace, window: Window, met: pl.DataFrame) -> pl.DataFrame:
    """Return each GPU's state over time; a state earlier in :data:`GPU_STATE` hides the later ones.

    `met` is the frame of :func:`tracelib.analyses.collectives.collectives` for the same window.

    One row per stretch: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `state` (Enum). Per GPU the rows cover the window
    without gap or overlap. Sorted by `gpu`, `ts_ns`.
    """
    ops = trace.gpu_ops.select("gpu", "ts_ns", "dur_ns", "kind", "collective")
    plain = ops.filter(pl.col("collective").is_null())
    known = met.filter("matched")
    wait = known.select("gpu", "ts_ns", dur_ns="wait_ns")
    transfer = known.select(
        "gpu", ts_ns=pl.col("ts_ns") + pl.col("wait_ns"), dur_ns=pl.col("dur_ns") - pl.col("wait_ns")
    )
    layers = [
        ("compute", plain.filter(pl.col("kind").is_in(["kernel", "graph"]))),
        ("copy", plain.filter(pl.col("kind").is_in(["memcpy", "memset"]))),
        ("collective_transfer", transfer),
        ("collective", met.filter(~pl.col("matched"))),
        ("collective_wait", wait),
    ]
    gpus = trace.gpu_ops["gpu"].unique().sort().to_list()
    if not gpus:
        return pl.DataFrame(
            schema={"gpu": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "state": GPU_STATE}
        )
    timeline = layered(layers, "gpu", gpus, window.start_ns, window.end_ns, rest="idle")
    return timeline.select("gpu", "ts_ns", "dur_ns", pl.col("state").cast(GPU_STATE))


def gpu_time(states: pl.DataFrame) -> pl.DataFrame:
    """Return the ledger of `gpu_states`.

    One row per GPU and state, states that did not occur included: `gpu` (Int32), `state` (Enum), `ns` (Int64). Per GPU,
    `ns` adds up to the window exactly.
    """
    grid = (
        states.select("gpu")
        .unique()
        .join(pl.DataFrame({"state": GPU_STATE.categories}, schema={"state": GPU_STATE}), how="cross")
    )
    spent = states.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum())
    return (
        grid.join(spent, on=["gpu", "state"], how="left")
        .with_columns(pl.col("ns").fill_null(0))
        .sort("gpu", "state")
    )
