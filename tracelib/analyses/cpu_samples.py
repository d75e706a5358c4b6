"""What time each CPU sample stands for, whatever event took it, and which function it was in.

A thread may be sampled by several events at once; each of them would count all its time again, so one is
chosen: a clock, else cycles, else whichever took most samples. A sample of a clock stands for its period.
Cycles count time at a rate, and other events at none that lasts; so for cycles that rate, and for the others
the time between samples, is read off the moments at which a thread was sampled twice in a row on one CPU:
half of these are no further apart than the sampling itself.
"""

import polars as pl

from tracelib.intervals import overlay
from tracelib.trace import Trace

SAMPLED_TURNS = pl.Schema(
    {
        "thread": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
    }
)
#: Sampling periods of a thread's own time on a CPU up to which its nearest sample tells what it did.
REACH = 2

#: Letters behind an event that say where and how it is counted, and the CPU's unit that counts it.
MODIFIERS, UNIT = r":[ukhIGHpPSDeWbRX]+$", r"^\w+/(.*)/$"
#: Which events are preferred; the rest comes last.
CLOCK, CYCLES = r"^cpu-clock", r"^(?:cpu-|ref-)?cycles\b"
PREFERRED = (CLOCK, r"^task-clock", CYCLES)
#: Counters of the kernel that say how often something happened, whatever time went by.
NO_TIME = (
    r"^(?:page-faults|(?:minor-|major-|alignment-|emulation-)?faults|context-switches|cs|dummy|bpf-output"
    r"|(?:cpu-)?migrations|cgroup-switches)\b"
)
#: Samples whose event and period say what time they stand for: a thread that runs has one each `period`.
BY_CLOCK = pl.col("event").cast(pl.String).str.contains("^(?:cpu|task)-clock") & (pl.col("period") > 0)
#: Libraries whose functions say least of what is done: the kernel, the C library, the interpreter.
VAGUE = r"^\[[a-z]|(?:^|/)(?:ld-|lib(?:c|m|pthread)[-.]|python[0-9.]*$|libpython)"


def weighed_samples(trace: Trace) -> pl.DataFrame:
    """Return the samples of each thread's chosen event with the time that they stand for.

    One row per sample: the columns of :data:`tracelib.schema.SAMPLES`, and `stands_ns` (Int64). In the same
    order. Samples of which nothing tells the time (the only one of its event without a period) are left out.
    """
    chosen = _chosen(trace.samples).filter(pl.col("_rank").is_not_null())
    rates = _rates(chosen, trace)
    clock = pl.when(BY_CLOCK).then("period")
    by_rate = (pl.col("period") * pl.col("_ns_per_count")).round()
    stands = pl.coalesce(clock, by_rate, "_interval").cast(pl.Int64)
    weighed = chosen.join(rates, on=["source", "_event"], how="left", maintain_order="left", nulls_equal=True)
    return (
        weighed.with_columns(stands_ns=stands)
        .filter(pl.col("stands_ns") > 0)
        .select(*trace.samples.columns, "stands_ns")
    )


def _chosen(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of the event that is chosen for their thread, its name in `_event`."""
    named = samples.with_columns(_event=pl.col("event").cast(pl.String).fill_null(""))
    events = named.select("_event").unique()
    base = pl.col("_event").str.replace(MODIFIERS, "").str.replace(UNIT, "${1}")
    rank = pl.lit(len(PREFERRED))
    for n, pattern in reversed(list(enumerate(PREFERRED))):
        rank = pl.when(base.str.contains(pattern)).then(n).otherwise(rank)
    ranked = events.with_columns(
        _base=base, _rank=pl.when(~base.str.contains(NO_TIME)).then(rank).cast(pl.Int8)
    )
    rows = named.join(ranked, on="_event", how="left", maintain_order="left")
    counted = rows.drop_nulls("_rank").group_by("thread", "_rank", "_base").len()
    best = counted.sort("thread", "_rank", "len", "_base", descending=[False, False, True, False])
    first = best.unique("thread", keep="first", maintain_order=True).select("thread", "_base")
    return rows.join(first, on=["thread", "_base"], how="semi", nulls_equal=True).select(
        *named.columns, "_rank"
    )


def _rates(samples: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return per `source` and `_event` what `samples` tell: `_ns_per_count` of cycles, `_interval` (ns)."""
    key = ["source", "_event"]
    idle = trace.threads.filter(pl.col("tid") == 0)["thread"]
    told = BY_CLOCK.fill_null(value=False) | pl.col("thread").is_in(idle.implode())
    rows = samples.sort("source", "_event", "cpu", "ts_ns").with_columns(
        _again=pl.all_horizontal(
            pl.col(c).eq_missing(pl.col(c).shift(1)) for c in ("source", "_event", "cpu", "thread")
        ),
        _gap=pl.col("ts_ns") - pl.col("ts_ns").shift(1),
    )
    twice = rows.filter(pl.col("_again") & (pl.col("_gap") > 0) & ~told)
    counts = (pl.col("_rank") == PREFERRED.index(CYCLES)) & (pl.col("period") > 0)
    return twice.group_by(key).agg(
        _ns_per_count=(pl.col("_gap") / pl.col("period")).filter(counts).median(),
        _interval=pl.col("_gap").median().round(),
    )


def symbols(stacks: pl.DataFrame) -> pl.DataFrame:
    """Return the function that says most of what each call chain does: `stack`, `symbol` (Categorical).

    It is the innermost one outside the kernel, the C library and the interpreter; where there is none, the
    innermost one. A chain without any known function goes by its innermost binary's name.
    """
    frames = stacks.select("stack", "depth", *(pl.col(c).cast(pl.String) for c in ("symbol", "library")))
    known = pl.col("symbol").fill_null("[unknown]") != "[unknown]"
    vague = pl.col("library").fill_null("").str.contains(VAGUE)
    binary = pl.col("library").str.split("/").list.last()
    return (
        frames.with_columns(
            symbol=pl.when(known).then("symbol").otherwise(binary), _known=known, _telling=known & ~vague
        )
        .sort("stack", ~pl.col("_telling"), ~pl.col("_known"), "depth")
        .unique("stack", keep="first", maintain_order=True)
        .select("stack", pl.col("symbol").cast(pl.Categorical))
    )


def sampled_turns(thread_states: pl.DataFrame, sample_stretches: pl.DataFrame) -> pl.DataFrame:
    """Return what the samples say of each thread's turns on a CPU.

    Takes the frames of the analyses of those names. A thread that takes turns shorter than the sampling
    period is sampled once in several of them. So nearness is counted in the thread's own time on a CPU: each
    moment of it goes to the nearest sample, at most `REACH` periods away.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `cause`, `sub_cause` (String: of the
    sample, as of :func:`tracelib.classify.sample_causes`). Sorted by `thread`, `ts_ns`.
    """
    turns = (
        thread_states.filter(pl.col("state") == "running")
        .sort("thread", "ts_ns")
        .select("thread", began="ts_ns", dur_ns="dur_ns", ts_ns=_own_time(pl.col("dur_ns")))
    )
    taken = sample_stretches.filter(pl.col("thread").is_not_null()).with_columns(
        at=pl.col("ts_ns") + pl.col("dur_ns")
    )
    placed = (
        taken.sort("at")
        .join_asof(
            turns.select("thread", "began", turn="dur_ns", own="ts_ns").sort("began"),
            left_on="at",
            right_on="began",
            by="thread",
            check_sortedness=False,
        )
        .drop_nulls("own")
        .with_columns(own=pl.col("own") + pl.min_horizontal(pl.col("at") - pl.col("began"), "turn"))
    )
    told = overlay(turns, _nearest(placed), "thread").filter(pl.col("cause").is_not_null())
    wall = told.join(turns.select("thread", "began", own="ts_ns"), on=["thread", "began"])
    rows = wall.with_columns(ts_ns=pl.col("began") + pl.col("ts_ns") - pl.col("own"))
    return rows.select(list(SAMPLED_TURNS)).match_to_schema(SAMPLED_TURNS).sort("thread", "ts_ns")


def _own_time(length: pl.Expr) -> pl.Expr:
    """Return how long each thread had been on a CPU before each of its turns, which are in order."""
    return length.cum_sum().over("thread") - length


def _nearest(placed: pl.DataFrame) -> pl.DataFrame:
    """Return the stretch of its thread's own time to which each sample is the nearest."""
    ordered = placed.sort("thread", "own").unique(["thread", "own"], keep="first", maintain_order=True)
    own, reach = pl.col("own"), REACH * pl.col("stands_ns")
    before = (own + own.shift(1).over("thread")) // 2
    after = (own + own.shift(-1).over("thread")) // 2
    spans = ordered.with_columns(
        start=pl.max_horizontal(before, own - reach), end=pl.min_horizontal(after, own + reach)
    )
    return spans.select("thread", "cause", "sub_cause", ts_ns="start", dur_ns=pl.col("end") - pl.col("start"))
