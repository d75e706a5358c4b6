"""What is dispatch, the framework's work of launching, and what is the host's (docs/numbers.md, "causes").

Dispatch must be earned. Only a thread that launches can dispatch. There, an operator, a module's forward,
compiled code and a graph's replay are dispatch wherever they are; any other Python, and ranges around a step
of the model, only between two launches of one burst. All else that no rule names is the host's own work, by
the role of the thread.

Names can also mark where something begins and ends, the `[[span]]` of `tracelib/rules.toml`: a step's range
names nothing before the first thing that its model does, and a scheduler that polls passes through its idle
branch again and again.
"""

import polars as pl

from tracelib.analyses.long_slices import OUTLIER
from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.intervals import overlay
from tracelib.slice_rules import Rules, SpanRule

#: The sub-cause of activity that is dispatch between launches, while that is not decided.
BETWEEN_LAUNCHES = "between launches"
#: Two launches are of one burst if their distance is less than so many times the usual one of the thread, and
#: never if it is longer than this: a thread that launches once a step has no bursts.
TIMES_USUAL, LONGEST_NS = 10, 1_000_000
#: A thread that waits in several pieces, with no more than this between them, waits once.
POLL_NS = 200_000


def bursts(launches: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return when each thread was between two launches of one burst.

    The distance is from a launch's begin to the next one's, without the time in which the thread had no CPU:
    a thread that was kept from launching is in its burst still. The usual distance is the thread's median.

    One row per two launches: `thread` (Int32), `ts_ns`, `dur_ns` (Int64). Sorted by `thread`, `ts_ns`.
    """
    calls = launches.select(thread="call_thread", ts_ns="call_ts_ns").drop_nulls().unique()
    apart = (
        calls.sort("thread", "ts_ns")
        .with_columns(dur_ns=pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns") - pl.col("ts_ns"))
        .drop_nulls()
        .with_row_index("_gap")
    )
    kept_off = pl.col("state").cast(pl.String).is_in(WAITS_FOR_CPU)
    states = thread_states.filter(kept_off).select("thread", "ts_ns", "dur_ns", _off=pl.lit(value=True))
    off = overlay(apart, states, "thread").filter("_off").group_by("_gap").agg(_off_ns=pl.col("dur_ns").sum())
    own = apart.join(off, on="_gap", how="left", maintain_order="left").with_columns(
        _own=pl.col("dur_ns") - pl.col("_off_ns").fill_null(0)
    )
    longest = pl.min_horizontal(TIMES_USUAL * pl.col("_own").median().over("thread"), LONGEST_NS)
    return own.filter(pl.col("_own") < longest).select("thread", "ts_ns", "dur_ns")


def polling(activity: pl.DataFrame) -> pl.DataFrame:
    """Return rows of host activity in which a loop's own moments between two of its polls wait as these do.

    Such a moment is shorter than `POLL_NS`, no range names it, and it lies between two waits without a gap:
    the loop asked, got nothing, and asks again. A sample hardly was taken in it, but in what came before or
    after. Rows in the order of `activity`, sorted by `thread`, `ts_ns`.
    """
    unnamed = activity["sub_cause"].cast(pl.String).eq(BETWEEN_LAUNCHES).fill_null(value=False)
    unnamed |= activity["seen_by"].cast(pl.String).eq("sample")
    at = (unnamed & (activity["dur_ns"] < POLL_NS)).arg_true().cast(pl.Int64)
    at = at.filter((at > 0) & (at < activity.height - 1))
    columns = activity.select("thread", "ts_ns", "waits_for", end=pl.col("ts_ns") + pl.col("dur_ns"))
    before, own, after = (columns.select(pl.all().gather(at + step)) for step in (-1, 0, 1))
    meet = (before["end"] == own["ts_ns"]) & (own["end"] == after["ts_ns"])
    same = (before["thread"] == own["thread"]) & (after["thread"] == own["thread"])
    polled = at.filter(meet & same & before["waits_for"].is_not_null() & after["waits_for"].is_not_null())
    if polled.is_empty():
        return activity
    source = pl.int_range(activity.height, eager=True).scatter(polled, polled - 1)
    words = ("cause", "sub_cause", "waits_for")
    return activity.with_columns(activity[word].gather(source) for word in words)


def earned(
    activity: pl.DataFrame, launching: pl.DataFrame, launches: pl.DataFrame, threads: pl.DataFrame
) -> pl.DataFrame:
    """Return rows of host activity with what is dispatch decided; `launching` is what :func:`bursts` returns.

    Adds up to the time of `activity`; sorted by `thread`, `ts_ns` as that is.
    """
    activity = _by_role(activity, threads)
    launchers = launches["call_thread"].drop_nulls().unique()
    sub_cause = pl.col("sub_cause").cast(pl.String)
    dispatch = (sub_cause == "dispatch") & (pl.col("cause").cast(pl.String) == "kernel_launch")
    elsewhere = dispatch & ~pl.col("thread").is_in(launchers.implode())
    unowned = (pl.col("cause").cast(pl.String) == "host_work") & sub_cause.is_null()  # but for the role
    doubtful = ((sub_cause == BETWEEN_LAUNCHES) | elsewhere | unowned).fill_null(value=False)
    if not activity.select(doubtful.any()).item():
        return activity
    roles = threads.select("thread", _role=pl.col("role").fill_null("other"))
    inside = launching.with_columns(_burst=pl.lit(value=True))
    cut = overlay(activity.filter(doubtful), inside, "thread").join(
        roles, on="thread", how="left", maintain_order="left"
    )
    burst = pl.col("_burst").fill_null(value=False) & ~unowned
    work = pl.coalesce(pl.when(sub_cause == "input_pipeline").then(sub_cause), "_role")
    decided = cut.with_columns(
        cause=pl.when(burst)
        .then(pl.lit("kernel_launch"))
        .otherwise(pl.lit("host_work"))
        .cast(pl.Categorical),
        sub_cause=pl.when(burst).then(pl.lit("dispatch")).otherwise(work).cast(pl.Categorical),
    )
    return pl.concat([activity.filter(~doubtful), decided.select(activity.columns)]).sort("thread", "ts_ns")


def _by_role(activity: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, host work that a rule names (a grammar's bitmask) put to the role of its thread."""
    unplaced = (pl.col("cause").cast(pl.String) == "host_work") & pl.col("sub_cause").is_null()
    if not activity.select(unplaced.any()).item():
        return activity
    known = threads.drop_nulls("role")
    role = pl.col("thread").replace_strict(
        known["thread"], known["role"], default="other", return_dtype=pl.String
    )
    return activity.with_columns(
        sub_cause=pl.when(unplaced).then(role.cast(pl.Categorical)).otherwise("sub_cause")
    )


def with_spans(
    slices: pl.DataFrame, meanings: pl.DataFrame, launches: pl.DataFrame, rules: Rules
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return slices and meanings as of :func:`tracelib.classify.slice_meanings`, and a slice for each span.

    `launches` is the frame of the analysis. A span bears the name of the slice that begins it.
    """
    calls = launches.select(thread="call_thread", at="call_ts_ns").drop_nulls().unique().sort("at")
    made = [(rule, _spans(slices, calls, rule)) for rule in rules.spans]
    told = [(rule, rows) for rule, rows in made if rows.height]
    if not told:
        return slices, meanings
    rows = [
        rows.with_columns(meaning=pl.lit(meanings.height + n, slices.schema["meaning"]))
        for n, (_, rows) in enumerate(told)
    ]
    columns = ("cause", "sub_cause", "waits_for", "weak", "covers")
    said = [{column: getattr(rule, column) for column in columns} for rule, _ in told]
    more = pl.DataFrame(said, schema={column: meanings.schema[column] for column in columns})
    filled = more.with_columns(between_launches=pl.lit(value=False))
    whole = pl.concat([meanings, filled], how="diagonal")
    return pl.concat([slices, *(part.select(slices.columns) for part in rows)]), whole


def _spans(slices: pl.DataFrame, calls: pl.DataFrame, rule: SpanRule) -> pl.DataFrame:
    begins = _named(slices, rule.begin)
    if rule.bare:
        framed = slices.filter(pl.col("category") == "python")["thread"].unique()
        begins = begins.filter(~pl.col("thread").is_in(framed.implode()))
    if begins.is_empty():
        return begins
    ends = _named(slices, rule.end).select("thread", end="ts_ns").sort("end")
    closed = begins.sort("ts_ns").join_asof(
        ends,
        left_on="ts_ns",
        right_on="end",
        by="thread",
        strategy="forward",
        allow_exact_matches=False,
        coalesce=False,
        check_sortedness=False,
    )
    again = pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns")
    own = pl.col("ts_ns") + pl.col("dur_ns")
    fits = (pl.col("end") <= again).fill_null(value=True) & ((pl.col("end") <= own) | (not rule.inside))
    launched = calls.select("thread", first="at").sort("first")
    first = closed.filter(fits).join_asof(
        launched,
        left_on="ts_ns",
        right_on="first",
        by="thread",
        strategy="forward",
        coalesce=False,
        check_sortedness=False,
    )
    kept = first if rule.launches else first.filter((pl.col("first") >= pl.col("end")).fill_null(value=True))
    lasts = kept.with_columns(dur_ns=pl.col("end") - pl.col("ts_ns"))
    if not rule.bare:
        return lasts
    # Without frames, nobody knows what made a span outlast its siblings by far.
    return lasts.filter(pl.col("dur_ns") <= OUTLIER * pl.col("dur_ns").median().over("thread"))


def _named(slices: pl.DataFrame, pattern: str) -> pl.DataFrame:
    names = slices["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.contains(pattern))
    return slices.filter(pl.col("name").is_in(wanted.implode()) & (pl.col("category") != "gpu_annotation"))
