"""Framework slices that last far longer than their siblings, and what their samples say went on inside.

An attention op of 400 ms whose samples sit in a run-time compiler is compilation, not dispatch; so is one
that sleeps while a compiler that it started as a process of its own (ptxas, cicc) runs. Only what names a
cost of its own replaces the slice's meaning; a sample in the framework or the interpreter says no more than
the slice did. Nor is `schedule` scheduling while its samples sit in the collector: there, siblings or not,
what names another cost wins for its share. But where nearly all that is named inside a stretch is one such
cost, the rest of it is too: a compiler written in Python leaves samples without names.

A slice that may wait inside waits if it outlasts its siblings and no scheduler event tells.
"""

import polars as pl

from tracelib.analyses.awaited import waits_until
from tracelib.intervals import in_order, overlay, union
from tracelib.trace import Trace

#: A slice lasts far longer than its siblings from this many times the median of its name on, and from
#: `LONG_NS`.
OUTLIER = 10
LONG_NS = 1_000_000
#: So many rows of one name are needed to speak of siblings; with fewer, length alone decides.
SIBLINGS = 3

#: Causes of slices whose samples may say otherwise.
OVERRULED = ("host_work", "scheduling", "tokenization", "ipc")
#: While a thread sleeps in a slice of these, it may wait for a compiler.
MAY_COMPILE = ("kernel_launch", "host_work")
WORKS = pl.col("waits_for").is_null()
MEANT = pl.col("cause").cast(pl.String).is_in(OVERRULED)
#: Sub-causes of kernel_launch that a slice's name leaves open, and those that samples can put in their place.
OPEN = ("dispatch", "api")
EXACT = ("jit_compile", "module_load", "alloc")
#: Other causes that a sample can name inside them. The slice says itself for what it spins or waits.
OTHER = ("tokenization", "gc", "gil", "profiler")
#: A stretch is all of one cost if that makes so much of what its samples name, and lasts so long at least.
NEARLY_ALL, ENOUGH_NS = 0.75, 5_000_000


def outlasting(host_activity: pl.DataFrame, among: pl.Expr, *, alone: bool = True) -> pl.Series:
    """Return which of the rows `among` last far longer than the median of their thread and name.

    `alone`: so do long ones that have too few siblings to tell.
    One Boolean per row of `host_activity`.
    """
    lasts = (host_activity["dur_ns"] >= LONG_NS).arg_true()
    long = host_activity.select(pl.all().gather(lasts)).with_columns(lasts.alias("at")).filter(among)
    if long.is_empty():
        return pl.repeat(value=False, n=host_activity.height, eager=True)
    key = ["thread", "name"]
    rows = host_activity.select(*key, "dur_ns").with_row_index("at")
    siblings = rows.join(long.select(key).unique(), on=key, how="semi", nulls_equal=True)
    typical = siblings.group_by(key).agg(median=pl.col("dur_ns").median(), count=pl.len())
    few = pl.col("count") < SIBLINGS
    unusual = (
        few | (pl.col("dur_ns") > OUTLIER * pl.col("median"))
        if alone
        else ~few & (pl.col("dur_ns") > OUTLIER * pl.col("median"))
    )
    outliers = long.join(typical, on=key, nulls_equal=True).filter(unusual)["at"]
    return rows.select(pl.col("at").is_in(outliers.implode())).to_series()


def lost_in_long_slices(trace: Trace, host_activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that compilation, loading or a missing CPU may hide behind the name of an op.

    Takes the frames of the analyses of those names. One row per piece: those of `lost` whose thread was in a
    slice that outlasts its siblings, sorted by `ts_ns`. Empty where there are CPU samples: they were asked.
    """
    if trace.samples.height:
        return lost.clear()
    opened = (pl.col("cause") == "kernel_launch") & pl.col("sub_cause").is_in(OPEN)
    return _lost_in(outlasting(host_activity, opened & WORKS), host_activity, lost.filter(opened))


def lost_in_long_work(trace: Trace, host_activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that the collector may hide behind the name of scheduling or of host work.

    As :func:`lost_in_long_slices`, of ranges that have siblings.
    """
    if trace.samples.height:
        return lost.clear()
    loads = (pl.col("sub_cause").cast(pl.String) == "input_pipeline").fill_null(value=False)
    work = pl.col("cause").cast(pl.String).is_in(["host_work", "scheduling"]) & ~loads
    return _lost_in(outlasting(host_activity, work & WORKS, alone=False), host_activity, lost.filter(work))


def _lost_in(outlasts: pl.Series, host_activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    long = host_activity.filter(outlasts)
    begun = long.select("thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")).sort("ts_ns")
    inside = lost.sort("ts_ns").join_asof(
        begun, on="ts_ns", by="thread", strategy="backward", check_sortedness=False
    )
    return inside.filter(pl.col("ts_ns") < pl.col("until")).drop("until")


def waiting_decided(
    maybe: pl.DataFrame, trace: Trace, thread_states: pl.DataFrame, replicas: pl.DataFrame
) -> pl.DataFrame:
    """Decide about slices that may wait inside, as an engine's scheduler does: asleep = it waits.

    Where no scheduler event tells, a slice that lasts many times the median of its name, or whose median is
    longer than such work takes, waits until what it waits for came.
    """
    typical = maybe.group_by("thread", "name").agg(median_ns=pl.col("whole_ns").median())
    cut = overlay(maybe, thread_states.select("thread", "ts_ns", "dur_ns", "state"), "thread")
    cut = cut.join(typical, on=["thread", "name"], how="left", maintain_order="left")
    unlike = (pl.col("whole_ns") > OUTLIER * pl.col("median_ns")) | (pl.col("median_ns") >= LONG_NS)
    outlier = (pl.col("whole_ns") >= LONG_NS) & unlike
    state = pl.col("state").cast(pl.String).fill_null("unknown")
    doubt = (state == "unknown") & outlier
    asleep = cut.with_columns(
        waits_for=pl.when(state == "blocked").then("may_wait_for").otherwise("waits_for")
    )
    return pl.concat([asleep.filter(~doubt), *_cut_at_arrival(cut.filter(doubt), trace, replicas)])


def _cut_at_arrival(
    doubtful: pl.DataFrame, trace: Trace, replicas: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the stretches of slices that may have waited, up to what came for them, and after it."""
    end = pl.col("ts_ns") + pl.col("dur_ns")
    came = waits_until(doubtful, trace, replicas).alias("_came")
    middle = pl.max_horizontal("ts_ns", pl.min_horizontal("_came", end))
    before = doubtful.with_columns(came).with_columns(
        dur_ns=middle - pl.col("ts_ns"), waits_for="may_wait_for"
    )
    after = doubtful.with_columns(came).with_columns(ts_ns=middle, dur_ns=end - middle)
    long = pl.col("dur_ns") > 0
    return before.filter(long).drop("_came"), after.filter(long).drop("_came")


def refined_by_samples(
    activity: pl.DataFrame,
    sampled: pl.DataFrame,
    sample_stretches: pl.DataFrame,
    compilers: pl.DataFrame,
    thread_states: pl.DataFrame,
) -> pl.DataFrame:
    """Return `activity` with the stretches that outlast their siblings cut by what their samples say.

    `activity` and `sampled` have the columns of :data:`tracelib.analyses.host_activity.HOST_ACTIVITY`, one
    from slices (and from samples where there are none), one from samples; `sample_stretches` and
    `thread_states` are the frames of the analyses of those names; `compilers` (`ts_ns`, `dur_ns`) is when a
    run-time compiler ran as a process of its own.

    One row per stretch, as in `activity`, whose time it covers to the nanosecond; a replaced one has
    `seen_by` = sample. Sorted by `thread`, `ts_ns`.
    """
    if sampled.is_empty() and compilers.is_empty():
        return activity
    sub_cause = pl.col("sub_cause").fill_null("")
    launching = (pl.col("cause") == "kernel_launch") & sub_cause.is_in([*OPEN, "module_load"])
    works = pl.col("waits_for").is_null() & (pl.col("seen_by") == "slice")
    meant = activity.select(MEANT & works & (pl.col("dur_ns") >= LONG_NS)).to_series()
    outlasts = outlasting(activity, launching & works) | meant.fill_null(value=False)
    if not outlasts.any():
        return activity
    long, rest = activity.filter(outlasts).with_row_index("_stretch"), activity.filter(~outlasts)
    by_samples = _by_samples(long, sampled, thread_states)
    by_compilers = _asleep(by_samples, sample_stretches, compilers, thread_states)
    refined = _rest(by_compilers, sample_stretches)
    return in_order(pl.concat([rest, refined.select(activity.columns)]), "thread")


def _by_samples(long: pl.DataFrame, sampled: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Replace what samples name: all the time between two that agree, else a period in which the thread ran.

    In a slice that has a meaning of its own a sample tells of its period only. The recorder's interrupts come
    between other work: two samples in it do not say that all between them is its, nor does a thread that is
    ready wait for a CPU because of it.
    """
    states = thread_states.select("thread", "ts_ns", "dur_ns", _state="state")
    on_cpu = pl.col("_state").cast(pl.String).fill_null("unknown").is_in(["running", "unknown"])
    records = pl.col("cause").cast(pl.String) == "profiler"
    recorder = overlay(sampled.filter(records), states, "thread").filter(on_cpu).drop("_state")
    rows = pl.concat([sampled.filter(~records), recorder]).sort("thread", "ts_ns")
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
    ran = overlay(exact.filter(~pl.col("_agree")), states, "thread").filter(on_cpu)
    costs = pl.concat([exact.filter("_agree").drop("_agree"), ran.drop("_agree", "_state")])
    alone = rows.filter(named | pl.col("cause").is_in(OTHER)).select(
        "thread", "ts_ns", "dur_ns", _cause="cause", _sub="sub_cause"
    )
    opened = overlay(long.filter(~MEANT), costs.sort("thread", "ts_ns"), "thread")
    return _replaced(pl.concat([opened, overlay(long.filter(MEANT), alone, "thread")]))


def _asleep(
    long: pl.DataFrame, sample_stretches: pl.DataFrame, compilers: pl.DataFrame, thread_states: pl.DataFrame
) -> pl.DataFrame:
    """Give the moments in which the thread slept while a compiler ran to compilation.

    Where the scheduler does not tell, it slept if no sample of it lies there.
    """
    if compilers.is_empty() or thread_states.is_empty():
        return long
    states = thread_states.select("thread", "ts_ns", "dur_ns", _state="state")
    awake = union(sample_stretches, "thread").with_columns(_awake=pl.lit(value=True))
    one = pl.lit(0, pl.Int32)
    crossed = overlay(overlay(long, states, "thread"), awake, "thread").with_columns(_one=one)
    running = union(compilers.with_columns(_one=one), "_one").with_columns(_runs=pl.lit(value=True))
    cut = overlay(crossed, running, "_one")
    unseen = (pl.col("_state").fill_null("unknown") == "unknown") & pl.col("_awake").is_null()
    compiles = pl.col("cause").cast(pl.String).is_in(MAY_COMPILE)
    waits = (compiles & pl.col("_runs") & ((pl.col("_state") == "blocked") | unseen)).fill_null(value=False)
    return _replaced(
        cut.with_columns(
            _cause=pl.when(waits).then(pl.lit("kernel_launch").cast(pl.Categorical)),
            _sub=pl.when(waits).then(pl.lit("jit_compile").cast(pl.Categorical)),
        )
    ).drop("_state", "_awake", "_one", "_runs")


def _rest(refined: pl.DataFrame, sample_stretches: pl.DataFrame) -> pl.DataFrame:
    """Give what no sample names to the one cost that nearly all others of the same stretch name."""
    exact = (pl.col("seen_by") == "sample") & pl.col("sub_cause").is_in(EXACT).fill_null(value=False)
    telling = pl.col("tier").is_in(["named", "library"])
    spoken = union(sample_stretches.filter(telling).select("thread", "ts_ns", "dur_ns"), "thread")
    cut = overlay(refined, spoken.with_columns(_spoken=pl.lit(value=True)), "thread")
    named = cut.filter(exact | pl.col("_spoken").is_not_null())
    total = named.group_by("_stretch").agg(_total=pl.col("dur_ns").sum())
    costs = named.filter(exact).group_by("_stretch", _cause="cause", _sub="sub_cause")
    most = (pl.col("_ns") >= NEARLY_ALL * pl.col("_total")) & (pl.col("_ns") >= ENOUGH_NS)
    main_cost = (
        costs.agg(_ns=pl.col("dur_ns").sum())
        .join(total, on="_stretch")
        .filter(most)
        .select("_stretch", "_cause", "_sub")
    )
    free = (pl.col("seen_by") == "slice") & pl.col("_spoken").is_null()
    given = cut.join(main_cost, on="_stretch", how="left", maintain_order="left").with_columns(
        _cause=pl.when(free).then("_cause"), _sub=pl.when(free).then("_sub")
    )
    return _replaced(given).drop("_stretch", "_spoken")


def _replaced(cut: pl.DataFrame) -> pl.DataFrame:
    """Put `_cause` and `_sub` in; into a loading call only compilation: loading PTX compiles it."""
    loads = (pl.col("sub_cause") == "module_load").fill_null(value=False)
    compiles = (pl.col("_sub") == "jit_compile").fill_null(value=False)
    another = ~MEANT | (pl.col("_cause") != pl.col("cause"))
    replaced = pl.col("_cause").is_not_null() & (~loads | compiles) & another
    return cut.with_columns(
        cause=pl.when(replaced).then("_cause").otherwise("cause"),
        sub_cause=pl.when(replaced).then("_sub").otherwise("sub_cause"),
        seen_by=pl.when(replaced).then(pl.lit("sample").cast(pl.Categorical)).otherwise("seen_by"),
    ).drop("_cause", "_sub")
