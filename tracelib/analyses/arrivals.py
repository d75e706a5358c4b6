"""Whether a wait that no scheduler event shows was one: something must have come that ended it.

An engine's schedule step takes microseconds, or seconds where it waits inside for a request. Without scheduler events its
length alone cannot tell waiting from work. But a wait for another process ends when that one is done with something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.analyses.upstream import UPSTREAM

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["waits_until"]


def waits_until(maybe: pl.DataFrame, trace: Trace) -> pl.Series:
    """Return until when each slice of `maybe` may have waited: the last moment in it at which the role that it waits for ended something.

    Takes `thread`, `may_wait_for` (a role, or "upstream" = the one before the thread's own), `whole_ts`, `whole_ns` (the
    slice's begin and length). One Int64 a row, in ns: the slice's begin if nothing came (it did not wait); its end if no
    slice of that role was recorded at all (nobody can say).
    """
    roles = trace.threads.select("thread", "role")
    own = maybe.select("thread", "may_wait_for", "whole_ts", until=pl.col("whole_ts") + pl.col("whole_ns"))
    own = own.with_row_index("_row").join(roles, on="thread", how="left")
    upstream = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
    asked = pl.col("may_wait_for").cast(pl.String)
    asked = pl.when(asked == "upstream").then(upstream).otherwise(asked)
    ends = _ends(trace, own.select(asked.alias("asked")).to_series().unique())
    found = (
        own.with_columns(asked=asked)
        .sort("until")
        .join_asof(
            ends,
            left_on="until",
            right_on="came",
            by="asked",
            strategy="backward",
            check_sortedness=False,
            coalesce=False,
        )
    )
    recorded = pl.col("asked").is_in(ends["asked"].unique().implode()).fill_null(value=False)
    last = pl.max_horizontal("whole_ts", "came")
    return found.sort("_row").select(pl.when(recorded).then(last).otherwise("until")).to_series()


def _ends(trace: Trace, asked: pl.Series) -> pl.DataFrame:
    """Return when the threads of each role in `asked` ended a slice: asked, came; sorted by `came`."""
    whose = trace.threads.filter(pl.col("role").is_in(asked.implode())).select("thread", asked="role")
    ends = trace.slices.select("thread", came=pl.col("ts_ns") + pl.col("dur_ns")).join(whose, on="thread")
    return ends.select("asked", "came").sort("came")
