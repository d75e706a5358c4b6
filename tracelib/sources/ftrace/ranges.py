"""Begins and ends into ranges that nest."""

from __future__ import annotations

import polars as pl

NO_RANGES = pl.DataFrame(
    schema={"thread": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String}
)


def matched(rows: pl.DataFrame, last_ns: int) -> tuple[pl.DataFrame, int, int]:
    """Return the ranges (thread, ts_ns, dur_ns, name), how many did not end, how many ends had no begin.

    `rows` has ts_ns, thread, name, ends Boolean and key, of each key in the order of time: what began last
    ends first. A range whose end is missing ends at `last_ns`.
    """
    depth = pl.when("ends").then(-1).otherwise(1).cum_sum().over("key")
    level = pl.when("ends").then(depth).otherwise(depth - 1)  # begins and ends of one level take turns
    turns = rows.with_columns(pl.struct("key", level.alias("level")).alias("key"))
    turns = turns.with_columns(
        end_ns=pl.col("ts_ns").shift(-1).over("key"),
        ended=pl.col("ends").shift(-1).over("key").fill_null(value=False),
        begun=(~pl.col("ends").shift(1).over("key")).fill_null(value=False),
    )
    begins = turns.filter(~pl.col("ends"))
    end = pl.when("ended").then("end_ns").otherwise(pl.max_horizontal("ts_ns", pl.lit(last_ns, pl.Int64)))
    ranges = begins.select("thread", "ts_ns", (end - pl.col("ts_ns")).alias("dur_ns"), "name")
    stray = turns.filter(pl.col("ends") & ~pl.col("begun")).height
    return ranges, begins.height - int(begins["ended"].sum()), stray
