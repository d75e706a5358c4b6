"""What NCCL says of a collective in its NVTX ranges: message size, communicator, number of ranks.

NCCL attaches a binary payload to each range (nccl, src/include/nvtx_payload_schemas.h); the export describes its fields in
`NVTX_PAYLOAD_SCHEMAS` and `NVTX_PAYLOAD_SCHEMA_ENTRIES`, and holds the bytes in `NVTX_EVENTS.binaryData` where it was made
with ``--include-blobs=true``. Before them stand 32 bytes, little-endian: domain u32, 4 unused, schema u32, 4 unused, size of
the payload u64, size of all u64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.sources.nsys.threads import process

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables
    from tracelib.sources.remarks import Remarks

__all__ = ["with_messages"]

_HEADER = 32
_DOMAIN, _SCHEMA = 0, 8  # where they stand in it
#: NCCL's names of the fields that are read, and their width in bytes.
_FIELDS = {
    "NCCL communicator ID": ("communicator", pl.UInt64),
    "Message size [bytes]": ("message", pl.UInt64),
    "No. of ranks": ("ranks", pl.UInt32),
}
_PAYLOADS = pl.Schema(
    {
        "globalTid": pl.Int64(),
        "start": pl.Int64(),
        "end": pl.Int64(),
        "communicator": pl.UInt64(),
        "message": pl.UInt64(),
        "ranks": pl.UInt32(),
    }
)


def with_messages(
    operations: pl.DataFrame, host: pl.DataFrame, database: Tables, notes: Remarks
) -> pl.DataFrame:
    """Return `operations` (:func:`tracelib.sources.nsys.gpu_ops.gpu_ops`) with what NCCL says of its collectives.

    Adds `group` (Categorical: the communicator's number, the same on all its ranks), and fills `group_size` and `bytes`.
    A collective belongs to the innermost NCCL range in which the call that launched it began, on that call's thread; those
    that were launched by a group or a graph began in no such range: null.
    """
    fields = _fields(database)
    collectives = operations.filter(pl.col("collective").is_not_null())
    if fields.is_empty() or collectives.is_empty():
        return operations
    known = _payloads(database, fields)
    if known.is_empty():
        notes.add(
            "info",
            "NCCL's message sizes and communicators are not in this export",
            "nsys export -t sqlite --lazy=false --include-blobs=true",
        )
        return operations
    said = _of_launches(known, collectives, host)
    rows = operations.with_columns(key=process("globalPid")).join(
        said, on=["key", "correlation"], how="left", maintain_order="left"
    )
    is_collective = pl.col("collective").is_not_null()
    return rows.with_columns(
        pl.when(is_collective).then(pl.coalesce("bytes", "message")).otherwise("bytes").alias("bytes"),
        pl.when(is_collective).then("group").alias("group"),
        pl.when(is_collective).then(pl.coalesce("ranks", "group_size")).alias("group_size"),
    ).drop("key", "message", "ranks")


def _fields(database: Tables) -> pl.DataFrame:
    """Return the fields of NCCL's payloads: `domain`, `schema`, `size` (of the payload), `field` (NCCL's name), `offset`."""
    numbers = dict.fromkeys(("domainId", "schemaId", "offset"), pl.Int64)
    entries = database.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", {**numbers, "name": pl.String})
    sizes = database.read(
        "NVTX_PAYLOAD_SCHEMAS", dict.fromkeys(("domainId", "schemaId", "payloadSize"), pl.Int64)
    )
    known = entries.filter(pl.col("name").is_in(list(_FIELDS))).with_columns(pl.col("offset").fill_null(0))
    return (
        known.join(sizes.unique(), on=["domainId", "schemaId"])
        .select(domain="domainId", schema="schemaId", size="payloadSize", field="name", offset="offset")
        .drop_nulls()
        .filter(pl.col("offset").is_between(0, pl.col("size") - 4))
        .unique(["domain", "schema", "field"], keep="first", maintain_order=True)
    )


def _payloads(database: Tables, fields: pl.DataFrame) -> pl.DataFrame:
    """Return one row per range with a payload of NCCL: see `_PAYLOADS`."""
    columns = {**dict.fromkeys(("globalTid", "start", "end"), pl.Int64), "binaryData": pl.Binary}
    rows = database.read("NVTX_EVENTS", columns).drop_nulls()
    data = pl.col("binaryData")
    rows = rows.filter(data.bin.size() >= _HEADER).with_columns(
        domain=_number(_DOMAIN, pl.UInt32), schema=_number(_SCHEMA, pl.UInt32)
    )
    parts = [pl.DataFrame(schema=_PAYLOADS)]
    for (domain, schema, size), of_schema in fields.group_by("domain", "schema", "size"):
        mine = rows.filter(
            (pl.col("domain") == domain) & (pl.col("schema") == schema) & (data.bin.size() >= _HEADER + size)
        )
        found = {
            name: _number(_HEADER + offset, dtype)
            for field, offset in of_schema.select("field", "offset").iter_rows()
            for name, dtype in (_FIELDS[field],)
        }
        absent = {name: pl.lit(None, dtype) for name, dtype in _FIELDS.values() if name not in found}
        parts.append(mine.select("globalTid", "start", "end", **found, **absent).select(list(_PAYLOADS)))
    return pl.concat(parts)


def _number(offset: int, dtype: type[pl.DataType]) -> pl.Expr:
    """Return the little-endian number at `offset` of the payload, null where the payload ends before it."""
    width = 4 if dtype is pl.UInt32 else 8
    part = pl.col("binaryData").bin.slice(offset, width)
    return pl.when(part.bin.size() == width).then(part).bin.reinterpret(dtype=dtype, endianness="little")


def _of_launches(known: pl.DataFrame, collectives: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return what NCCL says of each launch: `key` (process), `correlation`, `message` Int64, `group`, `ranks` (Int32)."""
    launches = host.filter(pl.col("correlation").is_in(collectives["correlation"].unique().implode()))
    calls = launches.select("globalTid", "correlation", start="ts_ns").drop_nulls().sort("start")
    ranges = known.filter(pl.col("message").is_not_null() & pl.col("communicator").is_not_null()).sort(
        "start"
    )
    sizes = known.select("communicator", pl.col("ranks").cast(pl.Int32, strict=False))
    sizes = sizes.drop_nulls().unique("communicator", keep="first", maintain_order=True)
    inside = calls.join_asof(
        ranges.select("globalTid", "start", "end", "communicator", "message"),
        on="start",
        by="globalTid",
        strategy="backward",
        check_sortedness=False,
    ).filter(pl.col("start") <= pl.col("end"))
    named = inside.join(sizes, on="communicator", how="left", maintain_order="left")
    return named.select(
        "correlation",
        "ranks",
        key=process("globalTid"),
        message=pl.col("message").cast(pl.Int64, strict=False),
        group=pl.col("communicator").cast(pl.String).cast(pl.Categorical()),
    ).unique(["key", "correlation"], keep="first", maintain_order=True)
