"""Threads and processes of an nsys export, and the numbers under which the frames know them.

A `globalTid` packs hardware id (8 bits), VM id (8), process (24) and thread (24) into a signed 64-bit integer; a
`globalPid` is the same with a thread of 0 (Nsight Systems User Guide, "Serialized process and thread identifiers").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.sources.nsys.names import looked_up

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables

__all__ = ["FIELD", "numbered", "only_process", "pid", "process", "ranks", "threads", "tid"]

#: What a process's or a thread's field can hold.
FIELD = 1 << 24


def process(column: str) -> pl.Expr:
    """Return what identifies the process in `column`, a globalTid or globalPid."""
    return pl.col(column) // FIELD


def pid(column: str) -> pl.Expr:
    """Return the process id in `column`."""
    return process(column) % FIELD


def tid(column: str) -> pl.Expr:
    """Return the thread id in `column`."""
    return pl.col(column) % FIELD


def threads(
    database: Tables, texts: pl.DataFrame, used: pl.Series, given: pl.DataFrame, host: str | None
) -> pl.DataFrame:
    """Return the threads `used` (globalTid) and those that the export names in the same processes.

    `given` are the names that programs gave through NVTX (`globalTid`, `name`), `host` is the machine's. One row per thread: `globalTid` Int64 and the columns of :data:`tracelib.schema.THREADS`.
    """
    named = _thread_names(database, texts, given)
    seen = used.drop_nulls().unique().to_frame("globalTid")
    beside = named.select("globalTid").join(
        seen.select(key=process("globalTid")).unique(),
        left_on=process("globalTid"),
        right_on="key",
        how="semi",
    )
    both = pl.concat([seen, beside.select("globalTid")]).unique().sort("globalTid")
    both = both.join(named, on="globalTid", how="left", maintain_order="left").with_columns(
        key=process("globalTid")
    )
    both = both.join(_process_names(database, named), on="key", how="left", maintain_order="left")
    return both.with_row_index("thread").select(
        "globalTid",
        pl.col("thread").cast(pl.Int32),
        host=pl.lit(host, pl.String),
        pid=pid("globalTid"),
        tid=tid("globalTid"),
        name="name",
        process="process",
        role=pl.lit(None, pl.String),
        rank=pl.lit(None, pl.Int32),
    )


def _thread_names(database: Tables, texts: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Return `globalTid`, `name`: the name the system knows, else the one given through NVTX."""
    listed = database.read("ThreadNames", dict.fromkeys(("nameId", "priority", "globalTid"), pl.Int64))
    listed = listed.sort("priority", descending=True, nulls_last=True, maintain_order=True)
    listed = listed.select("globalTid", name=looked_up(listed["nameId"], texts).cast(pl.String))
    return pl.concat([listed, given]).drop_nulls().unique("globalTid", keep="first", maintain_order=True)


def _process_names(database: Tables, named: pl.DataFrame) -> pl.DataFrame:
    """Return `key`, `process`: the process's name, else that of its main thread."""
    listed = database.read("PROCESSES", {"globalPid": pl.Int64, "name": pl.String})
    listed = listed.select(key=process("globalPid"), process="name")
    main = named.filter(tid("globalTid") == pid("globalTid")).select(key=process("globalTid"), process="name")
    return pl.concat([listed, main]).drop_nulls().unique("key", keep="first", maintain_order=True)


def ranks(database: Tables) -> pl.DataFrame:
    """Return `process` (id), `rank` Int32 of the processes whose MPI rank the export tells."""
    columns = dict.fromkeys(("globalTid", "globalPid", "rank"), pl.Int64)
    rows = database.read("MPI_RANKS", columns).with_columns(thread=pl.coalesce("globalTid", "globalPid"))
    return (
        rows.select(process=pid("thread"), rank=pl.col("rank").cast(pl.Int32, strict=False))
        .drop_nulls()
        .unique()
    )


def only_process(column: pl.Series) -> int | None:
    """Return the globalPid of the only process in `column`, globalTids; None if there are several or none."""
    found = column.to_frame("of").select(process("of")).to_series().drop_nulls().unique()
    return int(found[0]) * FIELD if len(found) == 1 else None


def numbered(column: pl.Series, known: pl.DataFrame) -> pl.Series:
    """Return the number in `threads` of each globalTid in `column`."""
    rows = column.alias("globalTid").to_frame()
    return rows.join(known.select("globalTid", "thread"), on="globalTid", how="left", maintain_order="left")[
        "thread"
    ]
