"""Framework slices that last far longer than their siblings, and what their samples say went on inside.

An attention op of 400 ms whose samples sit in a run-time compiler is compilation, not dispatch; so is one that sleeps
while a compiler that it started as a process of its own (ptxas, cicc) runs. Only what names a cost of its own replaces
the slice's meaning; a sample in the framework or the interpreter says no more than the slice did. But where nearly all
that is named inside a stretch is one such cost, the rest of it is too: a compiler written in Python leaves samples
without names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import in_order, overlay, union

if TYPE_CHECKING:
    from tracelib.trace import Trace

#: A slice lasts far longer than its siblings from this many times the median of its name on, and from `LONG_NS`.
OUTLIER = 10
LONG_NS = 1_000_000
#: So many rows of one name are needed to speak of siblings; with fewer, length alone decides.
SIBLINGS = 3

#: Sub-causes of kernel_launch that a slice's name leaves open, and those that samples can put there instead.
OPEN = ("dispatch", "api")
EXACT = ("jit_compile", "module_load", "alloc")
#: Other causes that a sample can name inside them. Spinning and waiting are no news: the slice says for what.
OTHER = ("tokenization", "gc", "gil", "profiler")
#: A stretch is all of one cost if that makes so much of what its samples name, and lasts so long at least.
NEARLY_ALL, ENOUGH_NS = 0.75, 5_000_000


def outlasting(activity: pl.DataFrame, among: pl.Expr) -> pl.Series:
    """Return which rows `among` the rows last far longer than the median of the rows of the same thread and name."""
    lasts = (activity["dur_ns"] >= LONG_NS).arg_true()
    long = activity.select(pl.all().gather(lasts)).with_columns(lasts.alias("at")).filter(among)
    if long.is_empty():
        return pl.repeat(value=False, n=activity.height, eager=True)
    key = ["thread", "name"]
    rows = activity.select(*key, "dur_ns").with_row_index("at")
    siblings = rows.join(long.select(key).unique(), on=key, how="semi", nulls_equal=True)
    typical = siblings.group_by(key).agg(median=pl.col("dur_ns").median(), count=pl.len())
    unusual = (pl.col("dur_ns") > OUTLIER * pl.col("median")) | (pl.col("count") < SIBLINGS)
    found = long.join(typical, on=key, nulls_equal=True).filter(unusual)["at"]
    return rows.select(pl.col("at").is_in(found.implode())).to_series()


def refined_by_samples(
    activity: pl.DataFrame,
    sampled: pl.DataFrame,
    stretches: pl.DataFrame,
    compilers: pl.DataFrame,
    thread_states: pl.DataFrame,
) -> pl.DataFrame:
    """Return `activity` with the stretches that outlast their siblings cut by what their samples say.

    `activity` and `sampled` have the columns of :data:`tracelib.analyses.host_activity.HOST_ACTIVITY`, one from slices (and
    from samples where there are none), one from samples; `stretches` is the frame of
    :func:`tracelib.analyses.cpu_time.sample_stretches`; `compilers` (`ts_ns`, `dur_ns`) is when a run-time compiler ran as
    a process of its own.

    One row per stretch, as in `activity`, whose time it covers to the nanosecond; a replaced one has `seen_by` = sample.
    """
    sub = pl.col("sub_cause").fill_null("")
    open_ = (
        (pl.col("cause") == "kernel_launch")
        & sub.is_in([*OPEN, "module_load"])
        & pl.col("waits_for").is_null()
        & (pl.col("seen_by") == "slice")
    )
    if sampled.is_empty() and compilers.is_empty():
        return activity
    outlasts = outlasting(activity, open_)
    if not outlasts.any():
        return activity
    long, rest = activity.filter(outlasts), activity.filter(~outlasts)
    numbered = long.with_row_index("_stretch")
    named = _asleep(_by_samples(numbered, sampled, thread_states), stretches, compilers, thread_states)
    looked = _rest(named, stretches)
    return in_order(pl.concat([rest, looked.select(activity.columns)]), "thread")


def _by_samples(long: pl.DataFrame, sampled: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Replace what samples name: all the time between two that agree, else one period of the time that the thread ran.

    The recorder's interrupts come between other work: two samples in it do not say that all between them is its.
    """
    rows = sampled.sort("thread", "ts_ns")
    end = pl.col("ts_ns") + pl.col("dur_ns")
    same = pl.all_horizontal(
        pl.col(c).eq_missing(pl.col(c).shift(1)) for c in ("thread", "cause", "sub_cause")
    )
    same = same & (pl.col("cause") != "profiler")
    since = pl.when(same).then(end.shift(1)).otherwise("ts_ns").fill_null(pl.col("ts_ns"))
    named = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(EXACT)
    exact = (
        rows.with_columns(ts_ns=since, dur_ns=end - since, _agree=same.fill_null(value=False))
        .filter(named | pl.col("cause").is_in(OTHER))
        .select("thread", "ts_ns", "dur_ns", "_agree", _cause="cause", _sub="sub_cause")
    )
    states = thread_states.select("thread", "ts_ns", "dur_ns", _state="state")
    ran = overlay(exact.filter(~pl.col("_agree")), states, "thread").filter(
        pl.col("_state").fill_null("unknown").is_in(["running", "unknown"])
    )
    told = pl.concat([exact.filter("_agree").drop("_agree"), ran.drop("_agree", "_state")])
    return _replaced(overlay(long, told.sort("thread", "ts_ns"), "thread"))


def _asleep(
    long: pl.DataFrame, stretches: pl.DataFrame, compilers: pl.DataFrame, thread_states: pl.DataFrame
) -> pl.DataFrame:
    """Give the moments in which the thread slept while a compiler ran to compilation.

    Where the scheduler does not tell, it slept if no sample of it lies there.
    """
    if compilers.is_empty() or thread_states.is_empty():
        return long
    states = thread_states.select("thread", "ts_ns", "dur_ns", _state="state")
    awake = union(stretches, "thread").with_columns(_awake=pl.lit(value=True))
    crossed = overlay(overlay(long, states, "thread"), awake, "thread").with_columns(_one=pl.lit(0, pl.Int32))
    running = union(compilers.with_columns(_one=pl.lit(0, pl.Int32)), "_one").with_columns(
        _runs=pl.lit(value=True)
    )
    cut = overlay(crossed, running, "_one")
    unseen = (pl.col("_state").fill_null("unknown") == "unknown") & pl.col("_awake").is_null()
    waits = (pl.col("_runs") & ((pl.col("_state") == "blocked") | unseen)).fill_null(value=False)
    return _replaced(
        cut.with_columns(
            _cause=pl.when(waits).then(pl.lit("kernel_launch").cast(pl.Categorical)),
            _sub=pl.when(waits).then(pl.lit("jit_compile").cast(pl.Categorical)),
        )
    ).drop("_state", "_awake", "_one", "_runs")


def _rest(named: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Give what no sample names to the one cost that nearly all others of the same stretch name."""
    exact = (pl.col("seen_by") == "sample") & pl.col("sub_cause").is_in(EXACT).fill_null(value=False)
    spoken = stretches.filter(pl.col("tier").is_in(["named", "library"])).select("thread", "ts_ns", "dur_ns")
    cut = overlay(named, union(spoken, "thread").with_columns(_spoken=pl.lit(value=True)), "thread")
    known = cut.filter(exact | pl.col("_spoken").is_not_null())
    total = known.group_by("_stretch").agg(_known=pl.col("dur_ns").sum())
    costs = (
        known.filter(exact)
        .group_by("_stretch", _cause="cause", _sub="sub_cause")
        .agg(_ns=pl.col("dur_ns").sum())
    )
    most = (pl.col("_ns") >= NEARLY_ALL * pl.col("_known")) & (pl.col("_ns") >= ENOUGH_NS)
    one = costs.join(total, on="_stretch").filter(most).select("_stretch", "_cause", "_sub")
    free = (pl.col("seen_by") == "slice") & pl.col("_spoken").is_null()
    told = cut.join(one, on="_stretch", how="left", maintain_order="left").with_columns(
        _cause=pl.when(free).then("_cause"), _sub=pl.when(free).then("_sub")
    )
    return _replaced(told).drop("_stretch", "_spoken")


def _replaced(cut: pl.DataFrame) -> pl.DataFrame:
    """Put `_cause` and `_sub` in; into a loading call only compilation: loading PTX compiles it."""
    loads = pl.col("sub_cause") == "module_load"
    told = pl.col("_cause").is_not_null() & (
        ~loads | (pl.col("_sub") == "jit_compile").fill_null(value=False)
    )
    return cut.with_columns(
        cause=pl.when(told).then("_cause").otherwise("cause"),
        sub_cause=pl.when(told).then("_sub").otherwise("sub_cause"),
        seen_by=pl.when(told).then(pl.lit("sample").cast(pl.Categorical)).otherwise("seen_by"),
    ).drop("_cause", "_sub")


def lost_in_long_slices(trace: Trace, activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that run-time compilation, loading or a missing CPU may hide behind the name of an op.

    Takes the frames `host_activity` and `lost`. One row per piece: those of `lost` whose thread was in a slice far longer than
    its siblings (:mod:`tracelib.analyses.long_slices`), sorted by `ts_ns`. Empty where there are CPU samples: they were asked.
    """
    if trace.samples.height:
        return lost.clear()
    opened = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(OPEN)
    told = activity.filter(outlasting(activity, opened & pl.col("waits_for").is_null()))
    long = told.select("thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")).sort("ts_ns")
    inside = (
        lost.filter(opened)
        .sort("ts_ns")
        .join_asof(long, on="ts_ns", by="thread", strategy="backward", check_sortedness=False)
    )
    return inside.filter(pl.col("ts_ns") < pl.col("until")).drop("until")
