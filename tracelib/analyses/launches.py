"""Which host call launched each GPU operation, and how late (ATTRIBUTION.md, "Launch metrics").

Calls and operations are joined by correlation id within their process, never by flow arrows (traces lose those) and
never by name. Of several calls with one id the outermost counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.intervals import union
from tracelib.trace import ordered

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

__all__ = ["graph_coverage", "launches"]

KEY = ["source", "pid", "correlation"]


def launches(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the GPU operations that start in the window, each with its launch.

    One row per operation: `gpu`, `stream`, `ts_ns`, `dur_ns`, `name`, `kind`, `graph`, `collective` (as in `gpu_ops`),
    `call_thread` (Int32), `call_ts_ns`, `call_dur_ns` (Int64), `call_name` (Categorical) of the launch call, all null if
    none was recorded; `api_ns` = the call's duration; `launch_to_start_ns` = start - call's begin (SKIP's t_l);
    `return_to_start_ns` = start - call's return, negative values kept; `late` (Boolean): the GPU was idle when the call
    began. Sorted by `gpu`, `ts_ns`, `stream`.
    """
    starts = pl.col("ts_ns").is_between(window.start_ns, window.end_ns, closed="left")
    ops = (
        trace.gpu_ops.lazy()
        .filter(starts)
        .select(*KEY, "gpu", "stream", "ts_ns", "dur_ns", "name", "kind", "graph", "collective")
        .collect()
    )
    calls = _calls(trace)
    joined = ops.join(calls, on=KEY, how="left", maintain_order="left")
    if joined.height > ops.height:  # several calls have one id
        joined = ops.join(_outermost(calls), on=KEY, how="left", maintain_order="left")
    begin, returned = pl.col("call_ts_ns"), pl.col("call_ts_ns") + pl.col("call_dur_ns")
    timed = joined.drop(KEY).with_columns(
        api_ns=pl.col("call_dur_ns"),
        launch_to_start_ns=pl.col("ts_ns") - begin,
        return_to_start_ns=pl.col("ts_ns") - returned,
    )
    return ordered("gpu_ops", _with_late(timed, trace.gpu_ops))


def graph_coverage(ops: pl.DataFrame) -> float | None:
    """Return kernels launched by graphs / kernels, of what :func:`launches` returns.

    None where nothing tells: there are no kernels, or graphs were recorded as one operation each (nsys's default), and
    how many kernels such a one holds is not recorded.
    """
    kernels = ops.filter(pl.col("kind") == "kernel")
    if kernels.is_empty() or (ops["kind"] == "graph").any():
        return None
    return kernels["graph"].count() / kernels.height


def _calls(trace: Trace) -> pl.DataFrame:
    """One row per launch call: the key, then call_thread, call_ts_ns, call_dur_ns, call_name."""
    api = trace.slices.filter(
        pl.col("correlation").is_not_null() & pl.col("category").is_in(["runtime", "driver"])
    )
    return api.join(
        trace.threads.select("thread", "pid"), on="thread", how="left", maintain_order="left"
    ).select(*KEY, call_thread="thread", call_ts_ns="ts_ns", call_dur_ns="dur_ns", call_name="name")


def _outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Return of the calls of one id the first, of those the longest."""
    return calls.sort("call_ts_ns", "call_dur_ns", descending=[False, True]).unique(
        KEY, keep="first", maintain_order=True
    )


def _with_late(ops: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    gpus, call = ops["gpu"].to_numpy(), ops["call_ts_ns"].fill_null(0).to_numpy()
    idle = np.ones(ops.height, bool)
    for (gpu,), spans in union(every, "gpu").group_by("gpu"):
        own = np.flatnonzero(gpus == gpu)
        before = np.searchsorted(spans["ts_ns"].to_numpy(), call[own], side="right") - 1
        ends = np.append((spans["ts_ns"] + spans["dur_ns"]).to_numpy(), np.iinfo(np.int64).min)
        idle[own] = ends[before] <= call[own]
    return ops.with_columns(late=pl.when(pl.col("call_ts_ns").is_not_null()).then(pl.Series(idle)))
