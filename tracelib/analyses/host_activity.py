"""What each host thread was doing at each moment, by its innermost slice that has a meaning.

A slice without a meaning of its own (an annotation that no rule knows) is looked through: the thread is then
inside the nearest enclosing slice that has one. A slice that covers what is inside it (run-time compilation)
leaves the inner ones their names only. Where no slice covers a thread, its CPU samples tell, each for the
time since the sample before it, at most one sampling period; they also tell of slices that outlast their
siblings (:mod:`tracelib.analyses.long_slices`).
"""

import functools
from collections.abc import Sequence

import numpy as np
import polars as pl

from tracelib.analyses.cpu_samples import AWAITS_MESSAGE
from tracelib.analyses.dispatch import BETWEEN_LAUNCHES, bursts, earned, polling, with_spans
from tracelib.analyses.long_slices import refined_by_samples, waiting_decided
from tracelib.analyses.scheduling import server_threads
from tracelib.analyses.window import Window
from tracelib.classify import helper_threads, slice_meanings
from tracelib.intervals import (
    beneath,
    clip,
    in_order,
    in_parts,
    innermost,
    merge_equal,
    order_of,
    overlay,
    under,
)
from tracelib.slice_rules import Rules
from tracelib.trace import Trace
from tracelib.words import SERVER

HOST_ACTIVITY = pl.Schema(
    {
        "thread": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.Categorical(),
        "cause": pl.Categorical(),
        "sub_cause": pl.Categorical(),
        "waits_for": pl.Categorical(),
        "seen_by": pl.Categorical(),
    }
)

#: Sub-causes of `other` of which the interpreter's or the kernel's entry is all that a call chain names.
NAMES_NOTHING = ("python", "kernel")
SLICE = pl.lit("slice").cast(pl.Categorical)
#: Slices whose meaning counts; those whose meaning counts only where no enclosing slice has one; those that
#: cover all inside.
_FLAGS = (~pl.col("weak"), pl.col("weak"), pl.col("covers"))


def host_activity(
    trace: Trace,
    window: Window,
    rules: Rules,
    thread_states: pl.DataFrame,
    sample_stretches: pl.DataFrame,
    launches: pl.DataFrame,
    replicas: pl.DataFrame,
) -> pl.DataFrame:
    """Return what each thread did over time.

    Takes the frames of the analyses of those names.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `name` (Categorical: the slice's name,
    or the function of a sample), `cause`, `sub_cause` (Categorical), `waits_for` (Categorical: the role whose
    work this thread waits for, "upstream" = the one before its own; null = it does not wait), `seen_by`
    (Categorical: slice or sample). Moments without slice or sample have no row. Sorted by `thread`, `ts_ns`.

    docs/numbers.md, "Ledger 2", defines them; the rules are data (`tracelib/rules.toml`).
    """
    own, said = _with_meanings(trace, window, rules)
    slices, meanings = with_spans(own, said, launches, rules)
    strong, weak, covering = (_having(slices, meanings, flag, window) for flag in _FLAGS)
    strong = _but_the_means_of_waits(strong, meanings)
    line = innermost(strong, "thread")
    plain = _plain(line, strong, meanings, covering["thread"].unique(), window)
    apart = _in_words(line.filter(~plain), strong, meanings, window)
    apart = _covered(_decided(apart, trace, thread_states, replicas), covering, meanings)
    faint_line = innermost(weak, "thread")
    words = _in_words(faint_line, weak, meanings, window)
    sampled = _in_waits(_sampled(sample_stretches), ((line, strong), (faint_line, weak)), meanings)
    sampled = _of_its_range(sampled, words)
    inferred = weak["meaning"].gather(faint_line["row"]) >= said.height
    hidden, spans = (
        _decided(_in_words(faint_line.filter(kind), weak, meanings, window), trace, thread_states, replicas)
        for kind in (~inferred, inferred)
    )
    # A sample that names something knows more than a range that names nothing, and than a span.
    unnamed, faint = (
        rows["sub_cause"].cast(pl.String).eq(BETWEEN_LAUNCHES).fill_null(value=False)
        for rows in (hidden, sampled)
    )
    faint |= sampled["waits_for"].is_not_null()
    layers = [
        hidden.filter(~unnamed),
        sampled.filter(~faint),
        spans,
        hidden.filter(unnamed),
        sampled.filter(faint),
    ]
    quiet = functools.reduce(lambda first, second: beneath(first, second, "thread"), layers)
    others = pl.concat([apart, under(line, quiet, "thread")])
    whole = _together(line, plain, strong, meanings, others)
    whole = earned(polling(whole), bursts(launches, thread_states), launches, trace.threads)
    del own, slices, line, strong  # the largest frames of all
    compilers = _compilers(trace, sampled)
    refined = refined_by_samples(whole, sampled, sample_stretches, compilers, thread_states)
    return refined.match_to_schema(HOST_ACTIVITY)


def _but_the_means_of_waits(slices: pl.DataFrame, meanings: pl.DataFrame) -> pl.DataFrame:
    """Leave out collectives over the CPU in slices that wait for another process: they are how those wait.

    SGLang's other schedulers get the requests that the first one received by a broadcast.
    """
    names = meanings["sub_cause"].cast(pl.String).eq_missing("cpu_collective")
    collective = names.gather(slices["meaning"])
    if not collective.any():
        return slices
    others = slices.filter(~collective)
    begins = slices.filter(collective).select("thread", "ts_ns", dur_ns=pl.lit(1, pl.Int64)).unique()
    inside = overlay(begins.sort(pl.all()), innermost(others, "thread"), "thread")
    waits = meanings["waits_for"].is_not_null().gather(others["meaning"]).gather(inside["row"])
    means = inside.filter(waits.fill_null(value=False)).select(
        "thread", "ts_ns", collective=pl.lit(value=True)
    )
    marked = slices.with_columns(collective=collective)
    return marked.join(means, on=means.columns, how="anti", maintain_order="left").drop("collective")


def _with_meanings(trace: Trace, window: Window, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the slices (thread, ts_ns, dur_ns, name, category, meaning), and the table of meanings.

    `meaning` is the row of that table: a number instead of the words of it, for there may be tens of millions
    of slices.
    """
    host = _threads_of_overhead(trace.slices, window)
    helpers = helper_threads(trace.threads, rules)
    if helpers.len():
        host = host.filter(~pl.col("thread").is_in(helpers.implode()))
    number, meanings = slice_meanings(host, rules)
    between = (
        pl.when("between_launches").then(pl.lit(BETWEEN_LAUNCHES)).otherwise("sub_cause").alias("sub_cause")
    )
    meanings = meanings.with_columns(between)
    words = pl.col("cause", "sub_cause", "waits_for", "may_wait_for").cast(pl.Categorical)
    slices = host.select("thread", "ts_ns", "dur_ns", "name", "category", number.alias("meaning"))
    return slices, meanings.with_columns(words)


def _having(slices: pl.DataFrame, meanings: pl.DataFrame, flag: pl.Expr, window: Window) -> pl.DataFrame:
    """Return the host slices that overlap the window, have a cause, and whose meaning is `flag`."""
    kept = meanings.select(flag & pl.col("cause").is_not_null()).to_series()

    def chosen(part: pl.DataFrame) -> pl.DataFrame:
        return part.filter(kept.gather(part["meaning"]) & _of_host(window))

    return in_parts(chosen, slices).drop("category") if kept.any() else slices.clear().drop("category")


def _plain(
    line: pl.DataFrame, slices: pl.DataFrame, meanings: pl.DataFrame, covered: pl.Series, window: Window
) -> pl.Series:
    """Say which stretches of innermost slices mean what the slice means.

    Most of them do, so they are put into words last, and once.

    The others lie over the window's edge, on a thread with a covering slice, or their slice may have waited.
    """
    may_wait = meanings["may_wait_for"].is_not_null()
    inside = (pl.col("ts_ns") >= window.start_ns) & (pl.col("ts_ns") + pl.col("dur_ns") <= window.end_ns)

    def plain(part: pl.DataFrame) -> pl.DataFrame:
        waits = may_wait.gather(slices["meaning"].gather(part["row"]))
        return part.select(plain=inside & ~waits & ~pl.col("thread").is_in(covered.implode()))

    return in_parts(plain, line)["plain"]


def _in_words(
    line: pl.DataFrame, slices: pl.DataFrame, meanings: pl.DataFrame, window: Window
) -> pl.DataFrame:
    """Return what innermost slices say in the window.

    The columns are those of `HOST_ACTIVITY`, `may_wait_for`, and the slice's `whole_ts`, `whole_ns`.
    """
    at = clip(line, window.start_ns, window.end_ns)
    own = slices.select("name", "meaning", whole_ts="ts_ns", whole_ns="dur_ns").select(
        pl.all().gather(at["row"])
    )
    words = meanings.select(pl.col("cause", "sub_cause", "waits_for", "may_wait_for").gather(own["meaning"]))
    return pl.concat([at, own, words], how="horizontal").with_columns(seen_by=SLICE)


def _together(
    line: pl.DataFrame, plain: pl.Series, slices: pl.DataFrame, meanings: pl.DataFrame, others: pl.DataFrame
) -> pl.DataFrame:
    """Return the `plain` stretches of innermost slices in words, and `others` among them, in order."""
    words = ["cause", "sub_cause", "waits_for", "seen_by"]
    numbered = others.select(
        "thread", "ts_ns", "dur_ns", row=pl.int_range(pl.len(), dtype=pl.UInt32) + slices.height
    )
    lines = pl.concat([line, in_order(numbered, "thread")])
    kept = np.append(plain.arg_true().to_numpy(), np.arange(line.height, lines.height, dtype=np.uint32))
    order = order_of(lines["thread"].gather(kept).to_numpy(), lines["ts_ns"].gather(kept).to_numpy())
    at = lines.select(pl.all().gather(kept if order is None else kept[order]))
    meaning = pl.int_range(pl.len(), dtype=pl.UInt32) + meanings.height
    what = pl.concat([slices.select("name", "meaning"), others.select("name", meaning=meaning)])
    own = what.select(pl.all().gather(at["row"]))
    table = pl.concat([meanings.with_columns(seen_by=SLICE).select(words), others.select(words)])
    spelled = table.select(pl.all().gather(own["meaning"]))
    return pl.concat([at, own, spelled], how="horizontal").select(list(HOST_ACTIVITY))


def _decided(
    rows: pl.DataFrame, trace: Trace, thread_states: pl.DataFrame, replicas: pl.DataFrame
) -> pl.DataFrame:
    """Return the columns of `HOST_ACTIVITY`, with rows that may have waited cut into waiting and not."""
    sure = pl.col("may_wait_for").is_null()
    maybe = in_order(waiting_decided(rows.filter(~sure), trace, thread_states, replicas), "thread")
    # Whether the thread had a CPU does not make one range several.
    same = [column for column in HOST_ACTIVITY if column not in ("ts_ns", "dur_ns")]
    maybe = merge_equal(maybe, [*same, "whole_ts"])
    return pl.concat([frame.select(list(HOST_ACTIVITY)) for frame in (rows.filter(sure), maybe)])


def _covered(timeline: pl.DataFrame, covering: pl.DataFrame, meanings: pl.DataFrame) -> pl.DataFrame:
    """Give what lies inside a covering slice that slice's cause; in no order."""
    if covering.is_empty():
        return timeline
    at = innermost(covering, "thread")
    number = covering["meaning"].gather(at["row"])
    line = at.drop("row").with_columns(
        meanings[c].gather(number).alias(f"_{c}") for c in ("cause", "sub_cause", "waits_for")
    )
    touched = pl.col("thread").is_in(line["thread"].unique().implode())
    inside = pl.col("_cause").is_not_null() & (pl.col("cause") != "profiler")
    cut = overlay(timeline.filter(touched), line, "thread").with_columns(
        cause=pl.when(inside).then("_cause").otherwise("cause"),
        sub_cause=pl.when(inside).then("_sub_cause").otherwise("sub_cause"),
        waits_for=pl.when(inside).then("_waits_for").otherwise("waits_for"),
    )
    return pl.concat([timeline.filter(~touched), cut.select(timeline.columns)])


def _compilers(trace: Trace, sampled: pl.DataFrame) -> pl.DataFrame:
    """Return when run-time compilers ran as processes of their own: samples on threads not of the server."""
    server = server_threads(trace)
    compiles = (pl.col("sub_cause") == "jit_compile") & ~pl.col("thread").is_in(server.implode())
    return sampled.filter(compiles).select("ts_ns", "dur_ns")


def _of_host(window: Window) -> pl.Expr:
    """Say which slices lie on host threads and overlap the window."""
    inside = (pl.col("ts_ns") < window.end_ns) & (pl.col("ts_ns") + pl.col("dur_ns") > window.start_ns)
    return inside & (pl.col("category") != "gpu_annotation")


def _threads_of_overhead(slices: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the slices; the recorder's own overhead, which has no thread, is put to the delayed call."""
    adrift = slices.filter(pl.col("thread").is_null()).filter(_of_host(window))
    if adrift.is_empty():
        return slices
    threaded = slices.filter(pl.col("thread").is_not_null())
    calls = threaded.filter(pl.col("category").is_in(["runtime", "driver"]) & _of_host(window))
    placed = (
        adrift.drop("thread")
        .sort("ts_ns")
        .join_asof(
            calls.select(
                "source", "thread", "ts_ns", call_ns="ts_ns", call_end=pl.col("ts_ns") + pl.col("dur_ns")
            ).sort("ts_ns"),
            on="ts_ns",
            by="source",
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("call_end") > pl.col("ts_ns"))
        .select(slices.columns)
    )
    return pl.concat([threaded, placed])


def _sampled(sample_stretches: pl.DataFrame) -> pl.DataFrame:
    """Return what the samples say a thread was at: the columns of `HOST_ACTIVITY`, and `taken_ns`."""
    # Spinning burns CPU time (Ledger 3); as a cause of lost GPU time it is what the spinner waits for.
    spins, kind = pl.col("cause") == "spin", pl.col("sub_cause")
    message = kind.is_in(["yield", "poll"])
    awaited = pl.when(message).then(pl.lit("ipc")).when(kind == "device_wait").then(pl.lit("sync"))
    dispatch = ((pl.col("cause") == "kernel_launch") & (kind == "dispatch")) | _unnamed()
    named = sample_stretches.with_columns(
        cause=pl.when(spins).then(awaited).when(dispatch).then(pl.lit("host_work")).otherwise("cause"),
        sub_cause=pl.when(spins & message)
        .then(pl.lit("wait"))
        .when(dispatch)
        .then(pl.lit(BETWEEN_LAUNCHES))
        .when(~spins)
        .then("sub_cause"),
        name="symbol",
        waits_for=pl.lit(None, pl.String),
        seen_by=pl.lit("sample"),
    ).filter(pl.col("cause").is_not_null() & (pl.col("cause") != "other"))
    return named.select(*(pl.col(c).cast(t) for c, t in HOST_ACTIVITY.items()), "taken_ns")


def _of_its_range(sampled: pl.DataFrame, words: pl.DataFrame) -> pl.DataFrame:
    """Leave out ranges that name nothing, and in which the sample was not taken: it saw something else."""
    unnamed = words.filter(pl.col("sub_cause").cast(pl.String) == BETWEEN_LAUNCHES)
    ranges = unnamed.select(
        "thread", "ts_ns", "dur_ns", _since="whole_ts", _until=pl.col("whole_ts") + pl.col("whole_ns")
    )
    inside = pl.col("taken_ns").is_between("_since", "_until").fill_null(value=True)
    return (
        overlay(sampled, ranges, "thread").filter(inside).select(list(HOST_ACTIVITY)).sort("thread", "ts_ns")
    )


def _in_waits(
    sampled: pl.DataFrame, lines: Sequence[tuple[pl.DataFrame, pl.DataFrame]], meanings: pl.DataFrame
) -> pl.DataFrame:
    """Return the samples that name no work, and were taken in a slice that waits, as that wait.

    A loop that polls is nearly always sampled in a poll; no frame need cover what lies between two polls.
    `lines` are innermost slices with the slices that they are of; those of the first hide the second.
    """
    words = ["cause", "sub_cause", "waits_for"]
    vague = ((pl.col("sub_cause") == BETWEEN_LAUNCHES) | AWAITS_MESSAGE).fill_null(value=False)
    rows = sampled.filter(vague)
    at = rows.select("thread", ts_ns="taken_ns", dur_ns=pl.lit(1, pl.Int64))
    meaning = pl.repeat(None, rows.height, dtype=pl.UInt32, eager=True)
    for line, slices in lines:
        found = slices["meaning"].gather(overlay(at, line, "thread")["row"])
        meaning = meaning.zip_with(meaning.is_not_null(), found)
    waits = meanings["waits_for"].gather(meaning).is_not_null()
    told = meanings.select(pl.col(words).gather(meaning.filter(waits)))
    waiting = pl.concat([rows.filter(waits).drop(words), told], how="horizontal").select(sampled.columns)
    return in_order(pl.concat([sampled.filter(~vague), rows.filter(~waits), waiting]), "thread")


def _unnamed() -> pl.Expr:
    """Say which samples show that a thread of the server works, and not at what.

    Next to a sample in which its thread polls, such a one is polling, too: the loop around the question.
    """
    nothing = (pl.col("cause") == "other") & pl.col("sub_cause").is_in(NAMES_NOTHING)
    unknown = pl.col("cause").is_null() & pl.col("stack").is_not_null()
    server = pl.col("role").is_in(SERVER)
    return (server & (nothing | unknown) & ~pl.col("beside_polls")).fill_null(value=False)
