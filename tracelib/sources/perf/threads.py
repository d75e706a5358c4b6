"""Who ran: one row per thread id of the file, filled in from every line that shows it."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracelib.schema import IDLE, THREADS

__all__ = ["number_of", "shared_ids", "threads"]

#: perf prints these where it does not know a thread's name.
PLACEHOLDER = r"^(?::-?\d+|<\.\.\.>)$"


def threads(seen: pl.DataFrame, host: str | None) -> pl.DataFrame:
    """Return the `threads` frame from `seen`: `tid`, `pid`, `comm`, `rank` (order of trust, then of time; the last wins).

    One row per thread id: a scheduler event shows only thread ids, so two processes that used one id after another
    cannot be told apart there. A thread is given the last name it had. The id of a process is also the id of its first
    thread.
    """
    named = seen.filter(pl.col("tid") > 0).with_columns(
        pl.when(~pl.col("comm").str.contains(PLACEHOLDER)).then("comm").alias("comm")
    )
    main = named.select(pl.col("pid").filter(pl.col("pid") > 0).unique().alias("tid")).with_columns(
        main=pl.col("tid")
    )
    last = pl.col("pid", "comm").sort_by("rank").drop_nulls().last()
    rows = (
        named.group_by("tid")
        .agg(last)
        .join(main, on="tid", how="left")
        .with_columns(pl.coalesce("pid", "main"))
        .sort("tid")
    )
    process = rows.filter(pl.col("pid") == pl.col("tid")).select("pid", pl.col("comm").alias("process"))
    return (
        rows.join(process, on="pid", how="left", maintain_order="left")
        .with_row_index("thread")
        .with_columns(
            pl.col("thread").cast(pl.Int32),
            pl.lit(host, pl.String).alias("host"),
            pl.col("comm").alias("name"),
            pl.lit(None, pl.String).alias("role"),
            pl.lit(None, pl.Int32).alias("rank"),
        )
        .select(THREADS.names())
    )


def shared_ids(seen: pl.DataFrame) -> int:
    """Return how many thread ids were shown with more than one process."""
    pairs = seen.filter((pl.col("tid") > 0) & (pl.col("pid") > 0)).select("tid", "pid").unique()
    return pairs.group_by("tid").len().filter(pl.col("len") > 1).height


def number_of(tid: pl.Series, threads: pl.DataFrame) -> pl.Series:
    """Return each tid's row in `threads` (Int32): IDLE for 0, the idle task of each CPU; null for null or unknown."""
    known = threads["tid"].to_numpy()
    wanted = tid.fill_null(-1).to_numpy()
    place = np.searchsorted(known, wanted)
    found = (
        (place < len(known)) & (known[np.minimum(place, len(known) - 1)] == wanted)
        if len(known)
        else wanted < -1
    )
    rows = pl.Series("thread", np.where(wanted == 0, IDLE, place), dtype=pl.Int32)
    return pl.select(pl.when(pl.Series(found | (wanted == 0))).then(rows)).to_series().alias("thread")
