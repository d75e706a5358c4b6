"""What host threads did, in an nsys export: CUDA and libc calls, waits, NVTX ranges, the profiler's own cost.

Tables and columns: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference".
`CUPTI_ACTIVITY_KIND_SYNCHRONIZATION` holds host waits (CUPTI's start and end of the synchronizing call), but
only their process: their thread is that of the CUDA call of the same correlation. Two kinds of its rows are
left out because no host thread waits: "stream wait" (one stream waits for another's event), and the row of a
query (``cudaEventQuery``), which only asks and returns at once.

NCCL attaches a binary payload to each of its ranges (nccl, src/include/nvtx_payload_schemas.h): message size,
communicator, number of ranks. The export describes its fields in `NVTX_PAYLOAD_SCHEMAS` and
`NVTX_PAYLOAD_SCHEMA_ENTRIES`, and holds the bytes in `NVTX_EVENTS.binaryData` where it was made with
``--include-blobs=true``. Before them stand 32 bytes, little-endian: domain u32, 4 unused, schema u32, 4
unused, size of the payload u64, size of all u64.
"""

import polars as pl

from tracelib.schema import SLICE_CATEGORY
from tracelib.sources.health import Remarks
from tracelib.sources.nsys.tables import UNKNOWN, Tables, enumeration, looked_up, without_version
from tracelib.sources.nsys.threads import only_process, process

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX = "NVTX_EVENTS"
#: Category of the slices of each table with the columns `start`, `end`, `globalTid` and `nameId` (or
#: `textId`: MPI, UCX); tables of this form that are not listed (other libraries' calls) give slices of
#: category "other".
CALLS = {
    RUNTIME: "runtime",
    "CUPTI_ACTIVITY_KIND_DRIVER": "driver",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead",
    "PROFILER_OVERHEAD": "overhead",
    "OSRT_API": "os",
    "SYSCALL": "os",
    "CUBLAS_EVENTS": "op",
    "CUDNN_EVENTS": "op",
}
#: What graphics queues did on a GPU, in the form of calls: no host time.
_WORKLOAD = "_WORKLOAD"
_NEEDED = ("start", "end", "globalTid")
_NAMES = ("nameId", "textId")
#: Only calls in these tables have CUPTI's correlation ids: other libraries count their own.
_CORRELATED = "CUPTI_"
#: ENUM_NSYS_EVENT_TYPE: the NVTX events that are moments and intervals, those of imported text files (nvtxt)
#: among them.
MARKS, RANGES = (34, 65), (59, 60, 70, 71)
_KINDS_SHOWN = 8
#: Those that name threads, domains, categories and CUDA's objects.
_THREAD_NAME = 39
_NAMING = (_THREAD_NAME, 32, 33, 64, 72, 73, 74, 75, 76, 97, 98, 99)
#: ENUM_CUPTI_SYNC_TYPE.
_SYNC = {0: "Unknown", 1: "Event sync", 2: "Stream wait sync", 3: "Stream sync", 4: "Context sync"}
_STREAM_WAITS = 2
_QUERY = "Query"
#: Names of runtime calls begin with cuda, those of driver calls with cu and a capital letter.
_DRIVER = "^cu[A-Z]"


def host_slices(database: Tables, texts: pl.DataFrame, notes: Remarks) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what host threads did, before the threads got their numbers, and the names that NVTX gave them.

    One row per interval: `globalTid`, `ts_ns`, `end_ns` (null = open) Int64, `name` Categorical, `category`,
    `correlation` Int64. One row per name: `globalTid`, `name` String.
    """
    calls = {
        table: _calls(database, table, category, texts)
        for table, category in _call_tables(database, notes).items()
    }
    waits = _waits(database, calls.get(RUNTIME), notes)
    marked, names = _nvtx(database, texts, notes)
    return pl.concat([*calls.values(), waits, marked]), names


def _call_tables(database: Tables, notes: Remarks) -> dict[str, str]:
    for name in sorted(CALLS.keys() & database.tables.keys()):
        absent = [column for column in _NEEDED if not database.has(name, column)]
        if absent or not _name_column(database, name):
            notes.add("warning", f"table {name} is left out: it has no {', '.join(absent) or 'nameId'}")
    return {name: CALLS.get(name, "other") for name in database.tables if is_calls(database, name)}


def is_calls(database: Tables, table: str) -> bool:
    """Say whether `table` holds calls of host threads, of whichever library."""
    is_host = table != NVTX and not table.endswith(_WORKLOAD)
    return is_host and database.has(table, *_NEEDED) and _name_column(database, table) is not None


def _name_column(database: Tables, table: str) -> str | None:
    return next((column for column in _NAMES if database.has(table, column)), None)


def _calls(database: Tables, table: str, category: str, texts: pl.DataFrame) -> pl.DataFrame:
    named = _name_column(database, table) or "nameId"
    columns = ["start", "end", "globalTid", named, *["correlationId"] * table.startswith(_CORRELATED)]
    rows = database.read(table, dict.fromkeys(columns, pl.Int64)).rename({named: "nameId"})
    if category != "runtime":
        return _slices(rows, looked_up(rows["nameId"], texts), pl.lit(category, SLICE_CATEGORY))
    name = looked_up(rows["nameId"], without_version(texts))
    distinct = name.unique()
    drivers = distinct.filter(distinct.cast(pl.String).str.contains(_DRIVER))
    driver, runtime = (pl.lit(kind, SLICE_CATEGORY) for kind in ("driver", "runtime"))
    return _slices(rows, name, pl.when(name.is_in(drivers.implode())).then(driver).otherwise(runtime))


def _slices(rows: pl.DataFrame, name: pl.Series, category: pl.Expr | pl.Series) -> pl.DataFrame:
    return rows.select(
        "globalTid",
        ts_ns="start",
        end_ns="end",
        name=name.fill_null(UNKNOWN),
        category=category,
        correlation=pl.when(pl.col("correlationId") != 0).then("correlationId")
        if "correlationId" in rows.columns
        else pl.lit(None, pl.Int64),
    )


def _waits(database: Tables, runtime: pl.DataFrame | None, notes: Remarks) -> pl.DataFrame:
    if runtime is None:
        runtime = pl.DataFrame(
            schema={"globalTid": pl.Int64, "correlation": pl.Int64, "name": pl.Categorical()}
        )
    rows = _waits_of_processes(database, runtime, notes)
    caller = (
        runtime.lazy()
        .filter(pl.col("correlation").is_in(rows["correlationId"].unique().implode()))
        .select(
            "globalTid",
            key=process("globalTid"),
            correlationId="correlation",
            call=pl.col("name").cast(pl.String),
        )
        .unique(["key", "correlationId"], keep="first", maintain_order=True)
        .collect()
    )
    waits = rows.join(caller, on=["key", "correlationId"], how="inner", maintain_order="left")
    lost = rows.height - waits.height
    notes.count(lost, "synchronization records left out: their CUDA call is not in the file")
    waits = waits.filter(~pl.col("call").str.contains(_QUERY))
    label = enumeration(database, "ENUM_CUPTI_SYNC_TYPE", _SYNC)
    name = waits["syncType"].replace_strict(label, default="Unknown", return_dtype=pl.String)
    return _slices(waits, name.cast(pl.Categorical()), pl.lit("sync", SLICE_CATEGORY))


def _waits_of_processes(database: Tables, runtime: pl.DataFrame, notes: Remarks) -> pl.DataFrame:
    """Return the waits with their process, `key`; if they name none, the only one that made CUDA calls."""
    columns = ("start", "end", "globalPid", "correlationId", "syncType")
    rows = database.read(SYNCHRONIZATION, dict.fromkeys(columns, pl.Int64))
    rows = rows.filter(pl.col("syncType").ne_missing(_STREAM_WAITS))
    if rows.height and rows["globalPid"].null_count() == rows.height:
        if caller := only_process(runtime["globalTid"]):
            only = f"{rows.height} waits name no process: taken to be of the only one that made CUDA calls"
            notes.add("info", only)
        rows = rows.with_columns(globalPid=pl.lit(caller, pl.Int64))
    notes.count(rows["globalPid"].null_count(), "synchronization records left out: they name no process")
    return rows.drop_nulls("globalPid").with_columns(key=process("globalPid"))


def _nvtx(database: Tables, texts: pl.DataFrame, notes: Remarks) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ranges and marks, and names of threads: a table with texts takes long and is read once."""
    columns = {
        **dict.fromkeys(("start", "end", "eventType", "globalTid", "textId"), pl.Int64),
        "text": pl.String,
    }
    records = database.read(NVTX, columns)
    given = records.filter(pl.col("eventType") == _THREAD_NAME)
    by_id = looked_up(given["textId"], texts).cast(pl.String)
    names = given.select("globalTid", name=pl.coalesce("text", by_id))
    rows = _intervals(records, notes)
    del records
    return _marked(rows, texts), names


def _marked(rows: pl.DataFrame, texts: pl.DataFrame) -> pl.DataFrame:
    named = rows.select(pl.col("text").cast(pl.Categorical()), other=looked_up(rows["textId"], texts))
    name = named.select(pl.coalesce("text", "other").fill_null("[unnamed]"))["text"]
    return rows.select(
        "globalTid",
        ts_ns="start",
        end_ns=pl.when(pl.col("eventType").is_in(MARKS)).then("start").otherwise(_known_end()),
        name=name,
        category=pl.lit("annotation", SLICE_CATEGORY),
        correlation=pl.lit(None, pl.Int64),
    )


def _intervals(rows: pl.DataFrame, notes: Remarks) -> pl.DataFrame:
    """Return the ranges and marks among the NVTX records; of unknown kind, what has an end is a range."""
    if rows["eventType"].null_count():
        untold = pl.col("eventType").is_null() & pl.col("end").is_not_null()
        rows = rows.with_columns(eventType=pl.when(untold).then(RANGES[0]).otherwise("eventType"))
    kind = pl.col("eventType")
    events = rows.filter(kind.is_in((*MARKS, *RANGES)))
    others = rows.filter(kind.is_in((*MARKS, *RANGES, *_NAMING)).not_() | kind.is_null())["eventType"]
    kinds = ", ".join(map(str, sorted(others.drop_nulls().unique())[:_KINDS_SHOWN])) or "not told"
    notes.count(len(others), f"NVTX records of other kinds are not read ({kinds})")
    return events


def _known_end() -> pl.Expr:
    """Return the end, null while open: exports before 2022 write 0 where they mean "none"."""
    return pl.when((pl.col("end") != 0) | (pl.col("start") <= 0)).then("end")


_HEADER = 32
_DOMAIN, _SCHEMA = 0, 8  # where they stand in it
#: NCCL's names of the fields that are read, and their width in bytes.
_FIELDS = {
    "NCCL communicator ID": ("communicator", pl.UInt64),
    "Message size [bytes]": ("message", pl.UInt64),
    "No. of ranks": ("ranks", pl.UInt32),
}
_PAYLOADS = pl.Schema(
    dict.fromkeys(("globalTid", "start", "end"), pl.Int64())
    | {name: kind() for name, kind in _FIELDS.values()}
)


def with_messages(
    operations: pl.DataFrame, host: pl.DataFrame, database: Tables, notes: Remarks
) -> pl.DataFrame:
    """Return `operations` (of :func:`~tracelib.sources.nsys.gpus.gpu_ops`) with what NCCL says of them.

    Adds `group` (Categorical: the communicator's number, the same on all its ranks), and fills `group_size`
    and `bytes`. A collective belongs to the innermost NCCL range in which the call that launched it began, on
    that call's thread; those that were launched by a group or a graph began in no such range: null.
    """
    fields = _fields(database)
    collectives = operations.filter(pl.col("collective").is_not_null())
    if fields.is_empty() or collectives.is_empty():
        return operations
    payloads = _payloads(database, fields)
    if payloads.is_empty():
        notes.say("no_nccl_payloads")
        return operations
    messages = _of_launches(payloads, collectives, host)
    rows = operations.with_columns(key=process("globalPid")).join(
        messages, on=["key", "correlation"], how="left", maintain_order="left"
    )
    is_collective = pl.col("collective").is_not_null()
    return rows.with_columns(
        pl.when(is_collective).then(pl.coalesce("bytes", "message")).otherwise("bytes").alias("bytes"),
        pl.when(is_collective).then("group").alias("group"),
        pl.when(is_collective).then(pl.coalesce("ranks", "group_size")).alias("group_size"),
    ).drop("key", "message", "ranks")


def _fields(database: Tables) -> pl.DataFrame:
    """Return the fields of NCCL's payloads: `domain`, `schema`, `size` (of all), `field` (name), `offset`."""
    numbers = dict.fromkeys(("domainId", "schemaId", "offset"), pl.Int64)
    entries = database.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", {**numbers, "name": pl.String})
    sizes = database.read(
        "NVTX_PAYLOAD_SCHEMAS", dict.fromkeys(("domainId", "schemaId", "payloadSize"), pl.Int64)
    )
    wanted = entries.filter(pl.col("name").is_in(list(_FIELDS))).with_columns(pl.col("offset").fill_null(0))
    return (
        wanted.join(sizes.unique(), on=["domainId", "schemaId"])
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
        present = {
            name: _number(_HEADER + offset, dtype)
            for field, offset in of_schema.select("field", "offset").iter_rows()
            for name, dtype in (_FIELDS[field],)
        }
        absent = {name: pl.lit(None, dtype) for name, dtype in _FIELDS.values() if name not in present}
        parts.append(mine.select("globalTid", "start", "end", **present, **absent).select(list(_PAYLOADS)))
    return pl.concat(parts)


def _number(offset: int, dtype: type[pl.DataType]) -> pl.Expr:
    """Return the little-endian number at `offset` of the payload, null where the payload ends before it."""
    width = 4 if dtype is pl.UInt32 else 8
    part = pl.col("binaryData").bin.slice(offset, width)
    return pl.when(part.bin.size() == width).then(part).bin.reinterpret(dtype=dtype, endianness="little")


def _of_launches(payloads: pl.DataFrame, collectives: pl.DataFrame, host: pl.DataFrame) -> pl.DataFrame:
    """Return what NCCL says of each launch: `key` (process), `correlation`, `message`, `group`, `ranks`."""
    launches = host.filter(pl.col("correlation").is_in(collectives["correlation"].unique().implode()))
    calls = launches.select("globalTid", "correlation", start="ts_ns").drop_nulls().sort("start")
    ranges = payloads.filter(pl.col("message").is_not_null() & pl.col("communicator").is_not_null()).sort(
        "start"
    )
    sizes = payloads.select("communicator", pl.col("ranks").cast(pl.Int32, strict=False))
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
