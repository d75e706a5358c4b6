"""Whom a thread waits for, until when, and which rank it was that it waited for last."""

import polars as pl

from tracelib.analyses.ipc import UPSTREAM
from tracelib.trace import Trace


def role_asked(waits_for: pl.Expr) -> pl.Expr:
    """Return the role that a thread waits for, by its own `role` where it waits for "upstream"."""
    role = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
    return pl.when(waits_for == "upstream").then(role).otherwise(waits_for)


def two_last(moments: pl.DataFrame, works: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return which two ranks were at work last before each moment: until, last, before (null = none).

    Takes the moments `until`; when threads worked (`thread`, `ts_ns`, `dur_ns`); and which rank has a thread
    (`thread`, `of`). Of those at work at the moment itself, the one whose work began last.
    """
    rows = works.select("thread", began="ts_ns", ended=pl.col("ts_ns") + pl.col("dur_ns")).sort("began")
    each = moments.join(ranks.filter(pl.col("thread").is_in(rows["thread"].unique().implode())), how="cross")
    seen = each.sort("until").join_asof(
        rows,
        left_on="until",
        right_on="began",
        by="thread",
        allow_exact_matches=False,
        check_sortedness=False,
        coalesce=False,
    )
    at_work = seen.drop_nulls("began").with_columns(pl.min_horizontal("ended", "until"))
    order = at_work.sort("until", "ended", "began", "thread", descending=[False, True, True, True])
    first = order.unique(["until", "of"], keep="first", maintain_order=True)
    return first.group_by("until").agg(last=pl.col("of").first(), before=pl.col("of").slice(1, 1).first())


def waits_until(maybe: pl.DataFrame, trace: Trace, replicas: pl.DataFrame) -> pl.Series:
    """Return until when each slice of `maybe` may have waited.

    That is the last moment in it at which the role that it waits for ended something, in the same replica
    (`replicas` is the frame of the analysis).

    Takes `thread`, `may_wait_for` (a role, or "upstream" = the one before the thread's own), `whole_ts`,
    `whole_ns` (the slice's begin and length). One Int64 a row, in ns: the slice's begin if nothing came (it
    did not wait); its end if no slice of that role was recorded at all (nobody can say).
    """
    roles = trace.threads.select("thread", "role").join(
        replicas.unique("thread", keep="first"), on="thread", how="left"
    )
    rows = maybe.select("thread", "may_wait_for", "whole_ts", until=pl.col("whole_ts") + pl.col("whole_ns"))
    rows = rows.with_row_index("_row").join(roles, on="thread", how="left")
    asking = rows.with_columns(asked=_in_replica(role_asked(pl.col("may_wait_for").cast(pl.String))))
    ends = _ends(trace, replicas, asking["asked"].unique())
    ended = asking.sort("until").join_asof(
        ends,
        left_on="until",
        right_on="came",
        by="asked",
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    )
    recorded = pl.col("asked").is_in(ends["asked"].unique().implode()).fill_null(value=False)
    last = pl.max_horizontal("whole_ts", "came")
    return ended.sort("_row").select(pl.when(recorded).then(last).otherwise("until")).to_series()


def _in_replica(role: pl.Expr) -> pl.Expr:
    return pl.concat_str(role, "replica", separator=" ")


def _ends(trace: Trace, replicas: pl.DataFrame, asked: pl.Series) -> pl.DataFrame:
    """Return when the threads of each role and replica in `asked` ended a slice: asked, came, by `came`."""
    roles = trace.threads.select("thread", "role").join(replicas, on="thread")
    whose = roles.select("thread", asked=_in_replica(pl.col("role"))).filter(
        pl.col("asked").is_in(asked.implode())
    )
    ends = trace.slices.select("thread", came=pl.col("ts_ns") + pl.col("dur_ns")).join(whose, on="thread")
    return ends.select("asked", "came").sort("came")
