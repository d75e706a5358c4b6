"""GPUs of an nsys export: which of the machine's each process means by its device 0.

A process counts the devices that it may use (`CUDA_VISIBLE_DEVICES`) from 0. `TARGET_INFO_CUDA_DEVICE` says which GPU each of
them is, but not in every version, nor of every process. Else the device is taken to be the GPU that CUDA gave this number
when nsys asked for all of them (`TARGET_INFO_GPU.cuDevice`: CUDA counts the fastest first, nsys by bus); and where that is
not noted either, the GPU of the same number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import FRAMES
from tracelib.sources.nsys.threads import FIELD, pid, ranks

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables
    from tracelib.sources.remarks import Remarks

__all__ = ["gpus"]

_DEVICES = 1 << 31


def gpus(
    database: Tables, operations: pl.DataFrame, host: str | None, notes: Remarks
) -> tuple[pl.DataFrame, pl.Series]:
    """Return the GPUs that ran `operations` or that the export lists, and the GPU of each operation.

    An operation whose device number makes no sense has no GPU.
    """
    devices = operations.select(key=_device(pid("globalPid"), "deviceId"))
    seen = _placed(database, devices.unique().drop_nulls())
    models = database.read("TARGET_INFO_GPU", {"id": pl.Int64, "name": pl.String})
    models = models.select(device="id", name="name").drop_nulls("device").unique("device", keep="first")
    known = pl.concat([seen.select("device"), models.select("device")]).unique().sort("device")
    known = known.filter(pl.col("device").is_between(0, _DEVICES - 1)).with_row_index("gpu")
    known = known.join(models, on="device", how="left", maintain_order="left")
    numbers = seen.join(known, on="device", how="left").select(
        "key", pl.col("gpu").cast(pl.Int32), "is_listed"
    )
    gpu = devices.join(numbers, on="key", how="left", maintain_order="left")["gpu"]
    _add_shared(operations, devices["key"], numbers, notes)
    driven = seen.join(known, on="device").select("gpu", process=pl.col("key") // _DEVICES)
    frame = known.with_columns(host=pl.lit(host, pl.String)).join(
        _rank_of_gpu(database, driven), on="gpu", how="left"
    )
    return frame.sort("gpu").select(FRAMES["gpus"].names()).cast(FRAMES["gpus"]), gpu


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
        "kernels overlap one of another process on the same GPU and stream number: the processes share the GPU (MPS), or "
        "each has its own by CUDA_VISIBLE_DEVICES and this export, which does not tell, shows them on one",
        "Record with nsys 2025 or later, which notes the GPU of each process.",
    )


def _rank_of_gpu(database: Tables, driven: pl.DataFrame) -> pl.DataFrame:
    """Return `gpu`, `rank`: the rank of the only process with one among those in `driven` (`gpu`, `process`)."""
    pairs = driven.join(ranks(database), on="process").select("gpu", "rank").unique()
    return pairs.group_by("gpu").agg("rank").filter(pl.col("rank").list.len() == 1).explode("rank")


def _device(process_id: pl.Expr, device: str) -> pl.Expr:
    """Return one number for a process's device; null where the device's own number makes no sense."""
    sound = pl.col(device).fill_null(0).is_between(0, _DEVICES - 1)
    return pl.when(sound).then(process_id.fill_null(0) % FIELD * _DEVICES + pl.col(device).fill_null(0))
