"""Threads: one row per thread id of a file, its name and process filled in from every line that shows it.

A scheduler event shows only thread ids, so two processes that used one id after another cannot be told apart.
"""

import numpy as np
import polars as pl

from tracelib.schema import IDLE, THREADS

#: What stands in place of a name that the kernel has forgotten, or that perf never learned.
STAND_IN = r"^(?::-?\d+|<\.\.\.>)$"
#: Subtracted from the places of names that count only where no other is shown. perf keeps track of names and
#: prints the present one in heads, with what a kworker works on; ftrace prints there what it last remembered,
#: cut in latency format.
LESS_TRUSTED = 2**62
NAMES = pl.Schema({"tid": pl.Int64, "name": pl.String, "last": pl.Int64})
PROCESSES = pl.Schema({"tid": pl.Int64, "pid": pl.Int64, "last": pl.Int64})


def threads(names: pl.DataFrame, processes: pl.DataFrame, host: str | None = None) -> pl.DataFrame:
    """Return the frame `threads`: one row per thread id above 0 that `names` or `processes` shows.

    `names` has tid, name (null = only the id is shown) and last, its place in the file: the latest name
    counts (see LESS_TRUSTED). `processes` has tid, pid and last: of several processes of a thread, that with
    the highest counts. The id of a process is also the id of its first thread. All threads are of `host`.
    """
    named = names.filter(~pl.col("name").str.contains(STAND_IN)).sort("last", maintain_order=True)
    name = named.group_by("tid", maintain_order=True).agg(pl.col("name").last())
    owned = processes.filter(pl.col("pid") > 0).sort("last", maintain_order=True)
    owner = owned.group_by("tid", maintain_order=True).agg(pl.col("pid").last())
    first_threads = owned.select(pl.col("pid").unique().alias("tid")).with_columns(own=pl.col("tid"))
    tids = pl.concat([names["tid"], processes["tid"]])
    process = name.select(pl.col("tid").alias("pid"), pl.col("name").alias("process"))
    rows = (
        tids.filter(tids > 0)
        .unique()
        .to_frame()
        .join(name, on="tid", how="left")
        .join(owner, on="tid", how="left")
        .join(first_threads, on="tid", how="left")
        .with_columns(pl.coalesce("pid", "own"))
        .join(process, on="pid", how="left")
        .sort("tid")
    )
    return rows.select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("thread"),
        pl.lit(host, pl.String).alias("host"),
        *("pid", "tid", "process", "name"),
        *(pl.lit(None, THREADS[column]).alias(column) for column in ("role", "rank")),
    ).match_to_schema(THREADS)


def number_of(tid: pl.Series, threads: pl.DataFrame) -> pl.Series:
    """Return each tid's row in `threads`: IDLE for 0, each CPU's idle task; null for null or unknown."""
    tids = threads["tid"].to_numpy()
    wanted = tid.fill_null(-1).to_numpy()
    place = np.searchsorted(tids, wanted)
    there = (
        (place < len(tids)) & (tids[np.minimum(place, len(tids) - 1)] == wanted)
        if len(tids)
        else np.zeros(len(wanted), dtype=bool)
    )
    rows = pl.Series("thread", np.where(wanted == 0, IDLE, place), dtype=pl.Int32)
    return pl.select(pl.when(pl.Series(there | (wanted == 0))).then(rows)).to_series().alias("thread")
