"""Which host call launched each GPU operation, and how late (docs/numbers.md, "Launch metrics").

Calls and operations are joined by correlation id within their process, never by flow arrows (traces lose
those) and never by name. Of several calls with one id the outermost counts.

A launch call begins, returns, and its operation starts; in a busy server either of the last two comes first.
Tools take different pairs of these moments, and differ in what they do where the operation starts before the
call has returned: `launch_delays` gives them side by side. Sources: SKIP (arXiv 2504.11750: t_l, its sum
TKLQT); HTA, CUDA kernel launch statistics (`launch_delay`, negative values put to 0; flagged above 100 us);
Nsight Systems' report cuda_kern_exec_sum (Queue only where positive; Total); nsys-ai's skill cpu_gpu_pipeline
(starvation: a queue delay above 1 ms).
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.window import Window
from tracelib.intervals import union
from tracelib.schema import GPU_OPS
from tracelib.trace import Trace, ordered

#: Calls that launch kernels or graphs, whatever the toolkit.
LAUNCH = r"^(cuda|cu|hip)\w*Launch|^(ur|pi)EnqueueKernelLaunch|^zeCommandListAppendLaunchKernel"
#: What joins a launch call and its operation.
KEY = ["source", "pid", "correlation"]
_OF_OPERATION = ["gpu", "stream", "ts_ns", "dur_ns", "name", "kind", "graph", "collective"]

LAUNCHES = pl.Schema(
    {
        **{name: GPU_OPS[name] for name in _OF_OPERATION},
        "call_thread": pl.Int32(),
        "call_ts_ns": pl.Int64(),
        "call_dur_ns": pl.Int64(),
        "call_name": pl.Categorical(),
        "api_ns": pl.Int64(),
        "launch_to_start_ns": pl.Int64(),
        "return_to_start_ns": pl.Int64(),
        "late": pl.Boolean(),
    }
)
LAUNCH_DELAYS = pl.Schema(
    {
        "name": pl.String(),
        "by": pl.String(),
        "meaning": pl.String(),
        "operations": pl.Int64(),
        "sum_ns": pl.Int64(),
        "p50_ns": pl.Int64(),
        "p95_ns": pl.Int64(),
        "max_ns": pl.Int64(),
        "threshold_ns": pl.Int64(),
        "above_threshold": pl.Int64(),
    }
)

_BEGIN, _START = pl.col("call_ts_ns"), pl.col("ts_ns")
_RETURN, _END = _BEGIN + pl.col("call_dur_ns"), _START + pl.col("dur_ns")
_QUEUED = pl.when(_RETURN < _START).then(_START - _RETURN)
_KERNELS = pl.col("kind").is_in(["kernel", "graph"])


class Definition(NamedTuple):
    """How a tool defines the delay of a launch."""

    name: str
    by: str
    meaning: str
    value: pl.Expr  # in ns; null = the definition leaves the operation out
    operations: pl.Expr = pl.lit(value=True)
    threshold_ns: int | None = None


_NSYS = "nsys cuda_kern_exec_sum"
DEFINITIONS = (
    Definition("launch_to_start", "tracelib", "call's begin to operation's start", _START - _BEGIN),
    Definition(
        "return_to_start",
        "tracelib",
        "call's return to operation's start, negative values kept",
        _START - _RETURN,
    ),
    Definition("t_l", "SKIP", "call's begin to kernel's start; the sum is TKLQT", _START - _BEGIN, _KERNELS),
    Definition(
        "launch_delay",
        "HTA",
        "call's return to operation's start, negative values as 0",
        (_START - _RETURN).clip(lower_bound=0),
        threshold_ns=100_000,
    ),
    Definition("Queue", _NSYS, "call's return to kernel's start, where positive", _QUEUED, _KERNELS),
    Definition(
        "Total",
        _NSYS,
        "call's begin to the later of its return and the kernel's end",
        pl.max_horizontal(_RETURN, _END) - _BEGIN,
        _KERNELS,
    ),
    Definition(
        "starvation",
        "nsys-ai cpu_gpu_pipeline",
        "call's return to kernel's start, where positive",
        _QUEUED,
        _KERNELS,
        threshold_ns=1_000_000,
    ),
)


def launches(trace: Trace, window: Window) -> pl.DataFrame:
    """Return the GPU operations that start in the window, each with its launch.

    One row per operation: `gpu`, `stream`, `ts_ns`, `dur_ns`, `name`, `kind`, `graph`, `collective` (as in
    `gpu_ops`), `call_thread` (Int32), `call_ts_ns`, `call_dur_ns` (Int64), `call_name` (Categorical) of the
    launch call, all null if none was recorded; `api_ns` = the call's duration; `launch_to_start_ns` = start -
    call's begin (SKIP's t_l); `return_to_start_ns` = start - call's return, negative values kept; `late`
    (Boolean): the GPU was idle when the call began. Sorted by `gpu`, `ts_ns`, `stream`.
    """
    starts = pl.col("ts_ns").is_between(window.start_ns, window.end_ns, closed="left")
    ops = trace.gpu_ops.lazy().filter(starts).select(*KEY, *_OF_OPERATION).collect()
    joined = ops.join(_outermost(_calls(trace)), on=KEY, how="left", maintain_order="left")
    begin, returned = pl.col("call_ts_ns"), pl.col("call_ts_ns") + pl.col("call_dur_ns")
    timed = joined.drop(KEY).with_columns(
        api_ns=pl.col("call_dur_ns"),
        launch_to_start_ns=pl.col("ts_ns") - begin,
        return_to_start_ns=pl.col("ts_ns") - returned,
    )
    late = _with_late(timed, trace.gpu_ops).match_to_schema(LAUNCHES)
    return ordered("gpu_ops", late)


def graph_coverage(ops: pl.DataFrame) -> float | None:
    """Return kernels launched by graphs / kernels, of what :func:`launches` returns.

    None where nothing tells: there are no kernels, or graphs were recorded as one operation each (nsys's
    default), and how many kernels such a one holds is not recorded.
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


def launch_calls(trace: Trace) -> int:
    """Return how many calls that launch a kernel or a graph were recorded, their operation or not."""
    called = _calls(trace).filter(pl.col("call_name").cast(pl.String).str.contains(LAUNCH))
    return called.height


def _outermost(calls: pl.DataFrame) -> pl.DataFrame:
    """Return of the calls of one id the first, of those the longest.

    Before any join: of n operations and n calls with one id, a join would make n² rows.
    """
    if calls.select(KEY).n_unique() == calls.height:  # most often: nothing to sort
        return calls
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


def launch_delays(launches: pl.DataFrame) -> pl.DataFrame:
    """Return the delay from launch to start by each tool's definition, of the frame `launches`.

    One row per definition: `name`, `by` (String: whose it is), `meaning` (String), `operations` (Int64: how
    many it takes in; those without a recorded launch never), `sum_ns`, `p50_ns`, `p95_ns`, `max_ns` (Int64;
    null without operations), `threshold_ns` (Int64: above it, its author calls a launch late; null = none),
    `above_threshold` (Int64: how many are).
    """
    launched = launches.filter(_BEGIN.is_not_null())
    return pl.concat([_delay(launched, definition) for definition in DEFINITIONS])


def _delay(launched: pl.DataFrame, definition: Definition) -> pl.DataFrame:
    value, threshold = pl.col("value"), definition.threshold_ns
    quantiles = {"p50_ns": 0.5, "p95_ns": 0.95, "max_ns": 1.0}
    values = launched.filter(definition.operations).select(value=definition.value).drop_nulls()
    row = values.select(
        name=pl.lit(definition.name),
        by=pl.lit(definition.by),
        meaning=pl.lit(definition.meaning),
        operations=pl.len(),
        sum_ns=pl.when(pl.len() > 0).then(value.sum()),
        **{name: nearest_rank(value, share) for name, share in quantiles.items()},
        threshold_ns=pl.lit(threshold, pl.Int64),
        above_threshold=None if threshold is None else (value > threshold).sum(),
    )
    return row.select(pl.col(name).cast(dtype) for name, dtype in LAUNCH_DELAYS.items())
