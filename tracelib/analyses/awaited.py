"""Whom a thread waits for, until when, and which rank it was that it waited for last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import polars as pl

from tracelib.analyses.ipc import UPSTREAM
from tracelib.intervals import begin, end, innermost, overlay, union
from tracelib.trace import Trace

WORKS = pl.col("waits_for").is_null()


def role_asked(waits_for: pl.Expr) -> pl.Expr:
    """Return the role that a thread waits for, by its own `role` where it waits for "upstream"."""
    role = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
    return pl.when(waits_for == "upstream").then(role).otherwise(waits_for)


@dataclass(frozen=True)
class Ranks:
    """What ranks say of themselves, so that others need not see all that they did.

    `last`: what each thread was at work on last before each moment that is asked of (`until`, `thread`,
    `began`, `ended`). `spent`: how long each thread did anything (`thread`, `ns`). `works`: when any rank
    worked (`ts_ns`, `dur_ns`). `busy`: the same of each, short pauses counted in (`of`, `ts_ns`, `dur_ns`).
    Of several ranks together it is the rows of each.
    """

    last: pl.DataFrame
    spent: pl.DataFrame
    works: pl.DataFrame
    busy: pl.DataFrame

    @classmethod
    def of(
        cls, host_activity: pl.DataFrame, served: pl.DataFrame, busy: pl.DataFrame, moments: pl.Series
    ) -> Ranks:
        """Return what ranks with these rows of `host_activity` say.

        `served` are the same rows, waits cut where their message was sent; `busy` is what
        :func:`tracelib.analyses.ipc.busy` says of them; `moments` is called `until`.
        """
        spent = host_activity.group_by("thread").agg(ns=pl.col("dur_ns").sum())
        works = served.filter(WORKS).select("ts_ns", "dur_ns", _one=pl.lit(0, pl.Int32))
        line = union(works, "_one").drop("_one")
        return cls(last_at_work(host_activity.filter(WORKS), moments), spent, line, busy)

    @classmethod
    def together(cls, parts: Sequence[Ranks]) -> Ranks:
        """Return what all of them say."""
        return cls(*(pl.concat([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def last_at_work(works: pl.DataFrame, moments: pl.Series) -> pl.DataFrame:
    """Return what each thread was at work on last before each moment: until, thread, began, ended.

    Takes when threads worked (`thread`, `ts_ns`, `dur_ns`). `ended` is no later than the moment.
    """
    rows = works.select("thread", began="ts_ns", ended=pl.col("ts_ns") + pl.col("dur_ns")).sort("began")
    each = moments.unique().to_frame().join(rows.select("thread").unique(), how="cross")
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
    return at_work.select("until", "thread", "began", "ended")


def two_last(last: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return which two ranks were at work last before each moment: until, last, before (null = none).

    Takes what :func:`last_at_work` returns, and which rank has a thread (`thread`, `of`). Of those at work at
    the moment itself, the one whose work began last.
    """
    rows = last.join(ranks, on="thread")
    order = rows.sort("until", "ended", "began", "thread", descending=[False, True, True, True])
    first = order.unique(["until", "of"], keep="first", maintain_order=True)
    return first.group_by("until").agg(last=pl.col("of").first(), before=pl.col("of").slice(1, 1).first())


def in_words(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of host activity with their meaning as text; `name` is called `what` in the ledgers."""
    return rows.rename({"name": "what"}).with_columns(
        pl.col("cause", "sub_cause", "waits_for").cast(pl.String)
    )


def stacked(layers: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one timeline of all rows, as if of one thread; an earlier layer hides the later ones."""
    rows = pl.concat(layers)
    if rows.is_empty():
        return rows
    first = begin(rows)
    whole = pl.DataFrame({"_key": [0], "ts_ns": [first], "dur_ns": [end(rows) - first]})
    out: list[pl.DataFrame] = []
    for layer in layers:
        at = innermost(layer.with_columns(_key=pl.lit(0, pl.Int64)), "_key")
        meaning = layer.drop("ts_ns", "dur_ns").select(pl.all().gather(at["row"]))
        cut = overlay(whole, pl.concat([at.drop("row"), meaning], how="horizontal"), "_key")
        out.append(cut.filter(pl.col("cause").is_not_null()).drop("_key"))
        whole = cut.filter(pl.col("cause").is_null()).select("_key", "ts_ns", "dur_ns")
    return pl.concat(out).select(layers[0].columns).sort("ts_ns")


def doubted(crossed: pl.DataFrame, awake: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return rows with a `state` in which it is unknown that they are blocked, while anything is awake."""
    one = pl.lit(0, pl.Int32)
    spans = pl.concat([rows.select("ts_ns", "dur_ns", _one=one) for rows in awake])
    line = union(spans, "_one").with_columns(_busy=pl.lit(value=True))
    cut = overlay(crossed.with_columns(_one=one), line, "_one")
    asleep = pl.col("state").fill_null("unknown") == "blocked"
    doubt = asleep & pl.col("_busy").fill_null(value=False)
    state = pl.when(doubt).then(pl.lit("unknown")).otherwise("state")
    return cut.with_columns(state=state).drop("_one", "_busy")


def decided(answer: pl.DataFrame, message: str, *, entrance: bool, annotates: bool) -> pl.DataFrame:
    """Give a cause to pieces whose question ends at a role; what nobody recorded of it is `message`.

    `entrance`: it is the front end, which has no work when it sleeps, or, if it `annotates` its work, when it
    has no range open.
    """
    silent = pl.col("cause").is_null()
    scheduler_saw = pl.col("sub_cause").fill_null("unknown")  # of a silent piece
    unseen = pl.lit(annotates) & (scheduler_saw == "unknown")
    nothing_to_do = silent & ((scheduler_saw == "asleep") | unseen) & pl.lit(entrance)
    return answer.with_columns(
        cause=pl.when(nothing_to_do)
        .then(pl.lit("no_work"))
        .when(silent)
        .then(pl.lit("ipc"))
        .otherwise("cause"),
        sub_cause=pl.when(nothing_to_do).then(None).when(silent).then(pl.lit(message)).otherwise("sub_cause"),
    )


def of_processes(last: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Return when a process is asked: process, ts_ns, dur_ns.

    Takes the waits with the two that were at work `last` and `before`, and those with the `process` that
    sent.
    """
    by = [last.select("ts_ns", "dur_ns", process=pl.col(name)) for name in ("last", "before")]
    return union(pl.concat([*by, sent.select("ts_ns", "dur_ns", "process")]).drop_nulls(), "process")


def during(rows: pl.DataFrame, spans: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, whole, that meet the spans of their rank; `ranks` says which one has a thread.

    Takes `thread`, `ts_ns`, `dur_ns`; `process`, `ts_ns`, `dur_ns`; and `thread`, `of`.
    """
    by_thread = ranks.join(spans, left_on="of", right_on="process").select("thread", "ts_ns", "dur_ns")
    line = by_thread.with_columns(_asked=pl.lit(value=True)).sort("thread", "ts_ns")
    numbered = rows.select("thread", "ts_ns", "dur_ns").with_row_index("_row")
    kept = overlay(numbered, line, "thread").filter("_asked")["_row"].unique().sort()
    return rows.select(pl.all().gather(kept))


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
