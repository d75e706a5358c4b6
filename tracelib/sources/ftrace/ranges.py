"""Begins and ends into ranges."""

from __future__ import annotations

import polars as pl

NO_RANGES = pl.DataFrame(
    schema={"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String}
)


def matched(rows: pl.DataFrame, last_ns: int) -> tuple[pl.DataFrame, int, int]:
    """Pair every begin with the next end of its key.

    Parameters
    ----------
    rows
        ts_ns, thread, name, ends Boolean, key: in the order of time. Begins and ends of one key take turns;
        for ranges that nest, the key holds the depth.
    last_ns
        End of a range whose end is not in the trace.

    Returns
    -------
    tuple
        One row per range (thread, ts_ns, dur_ns Int64 >= 0, name); how many did not end; how many ends had no
        begin.

    """
    turns = rows.with_columns(
        end_ns=pl.col("ts_ns").shift(-1).over("key"),
        ended=pl.col("ends").shift(-1).over("key").fill_null(value=False),
        begun=(~pl.col("ends").shift(1).over("key")).fill_null(value=False),
    )
    begins = turns.filter(~pl.col("ends"))
    end = pl.when("ended").then("end_ns").otherwise(pl.max_horizontal("ts_ns", pl.lit(last_ns, pl.Int64)))
    ranges = begins.select("thread", "ts_ns", (end - pl.col("ts_ns")).alias("dur_ns"), "name")
    stray = turns.filter(pl.col("ends") & ~pl.col("begun")).height
    return ranges, begins.height - int(begins["ended"].sum()), stray
