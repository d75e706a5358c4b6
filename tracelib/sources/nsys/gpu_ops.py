"""GPU work in an nsys export: kernels, copies, memsets and, in graph mode, whole graphs.

Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"; times are those of CUPTI's activity
records. A kernel appears once: in `CUPTI_ACTIVITY_KIND_KERNEL` or, recorded with ``--cuda-graph-trace=graph``, not at all
but within its graph's row of `CUPTI_ACTIVITY_KIND_GRAPH_TRACE`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import GPU_OP_KIND
from tracelib.sources.collective_names import collectives_by_name
from tracelib.sources.nsys.names import UNKNOWN, enumeration, looked_up

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables

__all__ = ["GPU_TABLES", "gpu_ops"]

GPU_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
    "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
}
_COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId", "graphNodeId")
_COLUMNS = {
    "kernel": (*_COMMON, "demangledName", "shortName"),
    "memcpy": (*_COMMON, "bytes", "copyKind", "srcKind", "dstKind"),
    "memset": (*_COMMON, "bytes", "memKind"),
    "graph": _COMMON,
}
#: CUpti_ActivityMemcpyKind, as PyTorch's profiler abbreviates them: the same copy has the same name in both tools.
_COPY = {
    0: "?",
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD unified",
    12: "DtoH unified",
    13: "DtoD unified",
}
#: As ENUM_CUDA_MEM_KIND has them, where the export lacks that table.
_MEMORY = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device static",
    6: "Managed static",
}


def gpu_ops(database: Tables, texts: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on the GPUs, before its process and GPU got their numbers.

    One row per operation: `globalPid`, `deviceId`, `stream`, `ts_ns`, `end_ns` Int64, `name` Categorical, `kind`,
    `correlation`, `graph`, `bytes` Int64, `collective` Categorical, `group_size` Int32, as :data:`tracelib.schema.GPU_OPS` has them; `graph`
    only tells what the row itself knows.
    """
    memory = enumeration(database, "ENUM_CUDA_MEM_KIND", _MEMORY)
    return pl.concat([_kind(database, kind, texts, memory) for kind in GPU_TABLES])


def _kind(database: Tables, kind: str, texts: pl.DataFrame, memory: dict[int, str]) -> pl.DataFrame:
    rows = database.read(GPU_TABLES[kind], dict.fromkeys(_COLUMNS[kind], pl.Int64))
    name = _names(rows, kind, texts, memory)
    kernels = (
        name if kind == "kernel" else pl.Series("name", [None], pl.Categorical()).new_from_index(0, len(name))
    )
    collectives = collectives_by_name(kernels)
    return rows.select(
        "globalPid",
        "deviceId",
        stream="streamId",
        ts_ns="start",
        end_ns="end",
        name=name,
        kind=pl.lit(kind, GPU_OP_KIND),
        correlation=pl.when(pl.col("correlationId") != 0).then("correlationId"),
        graph=_graph(),
        bytes=pl.col("bytes") if "bytes" in rows.columns else pl.lit(None, pl.Int64),
        collective=collectives["collective"],
        group_size=collectives["group_size"],
    )


def _graph() -> pl.Expr:
    """Return the graph's id, 0 where only the node is known, null outside of graphs (either is 0 or null there)."""
    return (
        pl.when(pl.col("graphId") > 0).then("graphId").when(pl.col("graphNodeId").fill_null(0) != 0).then(0)
    )


def _names(rows: pl.DataFrame, kind: str, texts: pl.DataFrame, memory: dict[int, str]) -> pl.Series:
    if kind == "kernel":
        name = looked_up(rows["demangledName"], texts)
        if name.null_count():
            short = looked_up(rows["shortName"], texts)
            name = pl.select(pl.coalesce(name, short).fill_null(UNKNOWN).alias("name")).to_series()
        return name
    if kind == "graph":
        parts: list[tuple[str, str, dict[int, str]]] = [("CUDA graph ", "graphId", {})]
    elif kind == "memset":
        parts = [("Memset (", "memKind", memory)]
    else:
        parts = [("Memcpy ", "copyKind", _COPY), (" (", "srcKind", memory), (" -> ", "dstKind", memory)]
    text = [pl.lit(before) + _named(column, meaning) for before, column, meaning in parts]
    closed = [pl.lit(")")] if kind != "graph" else []
    return rows.select(name=pl.concat_str([*text, *closed]).cast(pl.Categorical()))["name"]


def _named(column: str, meaning: dict[int, str]) -> pl.Expr:
    number = pl.col(column).cast(pl.String)
    return pl.col(column).replace_strict(meaning, default=number, return_dtype=pl.String).fill_null("?")
