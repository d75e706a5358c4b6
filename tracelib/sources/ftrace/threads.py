"""Threads of an ftrace text: from the task column, the TGID column, and the fields of scheduler events."""

from __future__ import annotations

import polars as pl

from tracelib.schema import IDLE, THREADS

__all__ = ["parse_tasks", "thread_ids", "threads_of"]

TASK = r"^\s*(?P<name>.*)-(?P<tid>\d+)\s*(?:\(\s*(?P<pid>[\d-]+)\s*\))?\s*$"
#: What trace-cmd prints before the task when it reports several files or buffers: "trace.dat:       bash-557".
PREFIX = r"^\S+:\s{2,}(\S.*)$"
#: The kernel's stand-in for a name that it has forgotten.
FORGOTTEN = "<...>"
NAMES = pl.DataFrame(schema={"tid": pl.Int64, "name": pl.String, "last": pl.UInt32, "rank": pl.Int32})
PROCESSES = pl.DataFrame(schema={"tid": pl.Int64, "pid": pl.Int64, "count": pl.UInt32})


def parse_tasks(tasks: pl.Series) -> pl.DataFrame:
    """Return one row per text of the task column, in their order: name, tid Int64, pid Int64 (null = no TGID)."""
    parts = tasks.to_frame("text").select(pl.col("text").str.extract_groups(TASK).struct.unnest())
    name = pl.col("name").str.strip_chars(" \t")
    return parts.select(
        pl.coalesce(name.str.extract(PREFIX), name).alias("name"),
        pl.col("tid").cast(pl.Int64, strict=False),
        pl.col("pid").cast(pl.Int64, strict=False),
    )


def thread_ids(tids: pl.Series) -> pl.DataFrame:
    """Return one row per thread id: tid Int64, thread Int32 (its row in `threads`; IDLE for 0)."""
    known = tids.drop_nulls().unique().sort()
    threads = known.filter(known > 0)
    rows = pl.DataFrame({"tid": threads, "thread": pl.int_range(threads.len(), dtype=pl.Int32, eager=True)})
    return pl.concat([pl.DataFrame({"tid": [0], "thread": [IDLE]}, schema=rows.schema), rows])


def threads_of(names: list[pl.DataFrame], processes: list[pl.DataFrame], ids: pl.DataFrame) -> pl.DataFrame:
    """Return the frame `threads`.

    Parameters
    ----------
    names
        Tables of one row per (tid, name) seen: tid, name, last (where it was seen last), rank (higher = more to be trusted).
    processes
        Tables of one row per (tid, pid) seen: tid, pid, count.
    ids
        Result of :func:`thread_ids`.

    """
    usable = (
        pl.concat([NAMES, *names]).filter(pl.col("name") != FORGOTTEN).drop_nulls("name").sort("rank", "last")
    )
    name = usable.group_by("tid", maintain_order=True).agg(pl.col("name").last())
    by_count = pl.concat([PROCESSES, *processes]).drop_nulls().sort("count", "pid")
    pid = by_count.group_by("tid", maintain_order=True).agg(pl.col("pid").last())
    rows = ids.filter(pl.col("thread") >= 0).join(name, on="tid", how="left").join(pid, on="tid", how="left")
    process = name.select(pl.col("tid").alias("pid"), pl.col("name").alias("process"))
    rows = rows.join(process, on="pid", how="left").sort("thread")
    missing = {column: pl.lit(None, dtype) for column, dtype in THREADS.items() if column not in rows.columns}
    return rows.with_columns(**missing).select(THREADS.names()).match_to_schema(THREADS)
