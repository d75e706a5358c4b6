"""Hardware counters in an nsys export: `GPU_METRICS` (``nsys profile --gpu-metrics-devices``).

A row's `typeId` and `metricId` point to its name in `TARGET_INFO_GPU_METRICS`; the lowest byte of `typeId` is the GPU
(Nsight Systems User Guide, "GPU Metrics").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import FRAMES

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables

__all__ = ["gpu_metrics"]


def gpu_metrics(database: Tables) -> pl.DataFrame:
    """Return the readings of GPU counters as :data:`tracelib.schema.COUNTERS` has them (without `source`)."""
    columns = {"timestamp": pl.Int64, "typeId": pl.Int64, "metricId": pl.Int64, "value": pl.Float64}
    rows = database.read("GPU_METRICS", columns).drop_nulls(["timestamp", "value"])
    names = database.read(
        "TARGET_INFO_GPU_METRICS", {"typeId": pl.Int64, "metricId": pl.Int64, "metricName": pl.String}
    ).drop_nulls()
    names = names.unique(["typeId", "metricId"], keep="first", maintain_order=True)
    rows = rows.join(names, on=["typeId", "metricId"], how="left", maintain_order="left")
    unnamed = pl.lit("metric ") + pl.col("metricId").cast(pl.String)
    return rows.select(
        pl.lit(0, pl.Int32).alias("source"),
        ts_ns="timestamp",
        name=pl.coalesce("metricName", unnamed, pl.lit("[unnamed]")).cast(pl.Categorical()),
        track=(pl.lit("GPU ") + (pl.col("typeId") % 256).cast(pl.String)).cast(pl.Categorical()),
        value="value",
    ).match_to_schema(FRAMES["counters"])
