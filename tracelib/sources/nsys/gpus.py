"""GPUs in an nsys export: which they are, what ran on them, and the readings of their counters.

Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference"; times are those of CUPTI's
activity records. A kernel appears once: in `CUPTI_ACTIVITY_KIND_KERNEL` or, recorded with
``--cuda-graph-trace=graph``, not at all but within its graph's row of `CUPTI_ACTIVITY_KIND_GRAPH_TRACE`.

A process counts the devices that it may use (`CUDA_VISIBLE_DEVICES`) from 0. `TARGET_INFO_CUDA_DEVICE` says
which GPU each of them is, but not in every version, nor of every process. Else the device is taken to be the
GPU that CUDA gave this number when nsys asked for all of them (`TARGET_INFO_GPU.cuDevice`: CUDA counts the
fastest first, nsys by bus); and where that is not noted either, the GPU of the same number.
"""

import polars as pl

from tracelib.schema import FRAMES, GPU_OP_KIND
from tracelib.sources.collective_names import collectives_by_name
from tracelib.sources.health import Remarks
from tracelib.sources.nsys.tables import UNKNOWN, Tables, enumeration, looked_up
from tracelib.sources.nsys.threads import FIELD, pid, ranks

_DEVICES = 1 << 31
#: Tables that name the GPUs, and their column of device numbers; the second is that of nsys before mid-2021.
MODELS = (("TARGET_INFO_GPU", "id"), ("TARGET_INFO_CUDA_GPU", "deviceId"))


def gpus(
    database: Tables, operations: pl.DataFrame, host: str | None, notes: Remarks
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the GPUs that ran `operations` or that the export lists, and the GPU of each operation.

    An operation whose device number makes no sense has no GPU.
    """
    devices = operations.select(key=_device(pid("globalPid"), "deviceId"))
    seen = _placed(database, devices.unique().drop_nulls())
    models = pl.concat(_models(database, table, number) for table, number in MODELS)
    models = models.drop_nulls("device").unique("device", keep="first", maintain_order=True)
    listed = pl.concat([seen.select("device"), models.select("device")]).unique().sort("device")
    listed = listed.filter(pl.col("device").is_between(0, _DEVICES - 1)).with_row_index("gpu")
    listed = listed.join(models, on="device", how="left", maintain_order="left")
    numbers = seen.join(listed, on="device", how="left").select(
        "key", pl.col("gpu").cast(pl.Int32), "is_listed"
    )
    gpu = devices.join(numbers, on="key", how="left", maintain_order="left")["gpu"]
    _add_shared(operations, devices["key"], numbers, notes)
    driven = seen.join(listed, on="device").select("gpu", process=pl.col("key") // _DEVICES)
    frame = listed.with_columns(host=pl.lit(host, pl.String)).join(
        _rank_of_gpu(database, driven), on="gpu", how="left"
    )
    return frame.sort("gpu").select(FRAMES["gpus"].names()).cast(FRAMES["gpus"]), gpu


def _models(database: Tables, table: str, number: str) -> pl.DataFrame:
    rows = database.read(table, {number: pl.Int64, "name": pl.String})
    return rows.select(device=number, name="name")


def _placed(database: Tables, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the processes' devices `keys` (:func:`_device`) with the GPU of each: `device`, `is_listed`."""
    listed = database.read("TARGET_INFO_CUDA_DEVICE", dict.fromkeys(("gpuId", "cudaId", "pid"), pl.Int64))
    listed = listed.select(key=_device(pl.col("pid"), "cudaId"), gpuId="gpuId").drop_nulls()
    number = pl.col("key") % _DEVICES
    rows = keys.join(listed.unique("key", keep="first"), on="key", how="left").with_columns(number=number)
    rows = rows.join(_by_cuda_number(database), on="number", how="left")
    return rows.select(
        "key", device=pl.coalesce("gpuId", "id", "number"), is_listed=pl.col("gpuId").is_not_null()
    )


def _by_cuda_number(database: Tables) -> pl.DataFrame:
    """Return `number`, `id`: the only GPU that CUDA calls so; of several machines' GPUs none is."""
    rows = database.read("TARGET_INFO_GPU", {"id": pl.Int64, "cuDevice": pl.Int64}).drop_nulls().unique()
    sound = pl.all_horizontal(pl.col("id", "cuDevice").is_between(0, _DEVICES - 1))
    return rows.filter(sound).unique("cuDevice", keep="none").select("id", number="cuDevice")


def _add_shared(operations: pl.DataFrame, keys: pl.Series, numbers: pl.DataFrame, notes: Remarks) -> None:
    """Say so where kernels of several processes overlap on a GPU that the export does not name for them.

    Only devices that more than one process is taken to have used are looked at.
    """
    guessed = numbers.filter(~pl.col("is_listed"))
    shared = guessed.filter(pl.len().over("gpu") > 1)
    if shared.is_empty():
        return
    rows = operations.select("kind", "stream", "ts_ns", "end_ns", key=keys).filter(pl.col("kind") == "kernel")
    rows = rows.join(shared.select("key", "gpu"), on="key").sort("gpu", "stream", "ts_ns")
    before = pl.col("end_ns", "key").shift(1).over("gpu", "stream").name.suffix("_before")
    rows = rows.with_columns(before)
    overlapping = rows.filter(
        (pl.col("ts_ns") < pl.col("end_ns_before")) & (pl.col("key") != pl.col("key_before"))
    ).height
    notes.count(
        overlapping,
        "kernels overlap one of another process on the same GPU and stream number: the processes "
        "share the GPU (MPS), or each has its own by CUDA_VISIBLE_DEVICES and this export, which does not "
        "tell, shows them on one",
        "Record with nsys 2025 or later, which notes the GPU of each process.",
    )


def _rank_of_gpu(database: Tables, driven: pl.DataFrame) -> pl.DataFrame:
    """Return `gpu`, `rank`: that of the only process with one among those in `driven` (`gpu`, `process`)."""
    pairs = driven.join(ranks(database), on="process").select("gpu", "rank").unique()
    return pairs.group_by("gpu").agg("rank").filter(pl.col("rank").list.len() == 1).explode("rank")


def _device(process_id: pl.Expr, device: str) -> pl.Expr:
    """Return one number for a process's device; null where the device's own number makes no sense."""
    sound = pl.col(device).fill_null(0).is_between(0, _DEVICES - 1)
    return pl.when(sound).then(process_id.fill_null(0) % FIELD * _DEVICES + pl.col(device).fill_null(0))


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
#: CUpti_ActivityMemcpyKind, as PyTorch's profiler abbreviates them: the same copy has the same name in both
#: tools.
_COPY = dict(
    enumerate(("?", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"))
) | {11: "HtoD unified", 12: "DtoH unified", 13: "DtoD unified"}
#: As ENUM_CUDA_MEM_KIND has them, where the export lacks that table.
_MEMORY = dict(
    enumerate(("Pageable", "Pinned", "Device", "Array", "Managed", "Device static", "Managed static"))
)


def gpu_ops(database: Tables, texts: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on the GPUs, before its process and GPU got their numbers.

    One row per operation: `globalPid`, `deviceId`, `stream`, `ts_ns`, `end_ns` Int64, `name` Categorical,
    `kind`, `correlation`, `graph`, `bytes` Int64, `collective` Categorical, `group_size` Int32, as
    :data:`tracelib.schema.GPU_OPS` has them; `graph` only tells what the row itself knows.
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
    """Return the graph's id, 0 where only the node is known, null outside of graphs (both are 0 or null)."""
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
