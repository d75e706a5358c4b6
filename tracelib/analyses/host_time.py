"""Host time by cause: all of it, and the part that cost the GPUs something (ATTRIBUTION.md, "total" and "exposed")."""

from __future__ import annotations

import polars as pl

from tracelib.intervals import each, merge_equal, union

__all__ = ["HOST_TIME", "host_time"]

HOST_TIME = pl.Schema(
    {
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "total_ns": pl.Int64(),
        "union_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "count": pl.Int64(),
    }
)

#: Rows that are looked at at a time.
PART = 2**17


def host_time(activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return how much host time each cause took, and how much lost GPU time it exposed.

    Takes the frames of `host_activity` and `lost`.

    One row per cause and sub-cause: `cause`, `sub_cause` (String, null = none), `total_ns` (Int64, summed over threads),
    `union_ns` (Int64, time in which at least one thread did it), `exposed_ns` (Int64, lost GPU time given to it, summed
    over GPUs), `count` (Int64, stretches). Time in which a thread waits
    for another process is nobody's work and not counted on the host's side: the frame `ipc` has it. Causes that only the GPU side knows (latency, imbalance, no_work) have null
    host columns. Sorted by `exposed_ns`, largest first.
    """
    key = ["cause", "sub_cause"]
    parts = each(lambda part: _worked(part, key), list(activity.iter_slices(PART)) or [activity])
    total = pl.concat([summed for summed, _ in parts]).group_by(key).agg(pl.col("total_ns", "count").sum())
    numbers = total.select(*key, _key=pl.int_range(pl.len(), dtype=pl.Int32))
    named = pl.concat(
        [
            stretches.join(numbers, on=key, nulls_equal=True).select("_key", "ts_ns", "dur_ns")
            for _, stretches in parts
        ]
    )
    covered = union(named, "_key").group_by("_key").agg(union_ns=pl.col("dur_ns").sum())
    total = (
        total.join(numbers.join(covered, on="_key"), on=key, nulls_equal=True)
        .drop("_key")
        .with_columns(pl.col(key).cast(pl.String))
    )
    exposed = lost.group_by(key).agg(exposed_ns=pl.col("dur_ns").sum())
    joined = total.join(exposed, on=key, how="full", nulls_equal=True, coalesce=True)
    filled = (
        joined.with_columns(pl.col("exposed_ns").fill_null(0))
        .select(list(HOST_TIME))
        .match_to_schema(HOST_TIME)
    )
    return filled.sort(
        "exposed_ns", "total_ns", "cause", "sub_cause", descending=[True, True, False, False], nulls_last=True
    )


def _worked(activity: pl.DataFrame, key: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was nobody's waiting, summed up, and as stretches: neighbours of one cause are one, which leaves far fewer."""
    told = activity.filter(pl.col("cause").is_not_null() & pl.col("waits_for").is_null())
    summed = told.group_by(key).agg(total_ns=pl.col("dur_ns").sum(), count=pl.len().cast(pl.Int64))
    return summed, merge_equal(told, ["thread", *key])
