"""What time each CPU sample stands for, whatever event took it, and which function it was in.

A thread may be sampled by several events at once; each of them would count all its time again, so one is
chosen: a clock, else cycles, else whichever took most samples. A sample of a clock stands for its period.
Cycles count time at a rate, and other events at none that lasts; so for cycles that rate, and for the others
the time between samples, is read off the moments at which a thread was sampled twice in a row on one CPU:
half of these are no further apart than the sampling itself.
"""

import polars as pl

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.analyses.window import Window
from tracelib.classify import sample_causes
from tracelib.intervals import clip, overlay
from tracelib.slice_rules import Rules
from tracelib.trace import Trace

#: Waiting for a message of another process.
AWAITS_MESSAGE = (pl.col("cause") == "ipc") & (pl.col("sub_cause") == "wait")
_SPAN = ("sample", "ts_ns", "dur_ns")

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


def sample_stretches(trace: Trace, window: Window, rules: Rules, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return which of its thread's time each sample tells of.

    Takes the frame `thread_states`. A thread that takes turns shorter than the sampling period is sampled
    once in several of them. So nearness is counted in the thread's own time on a CPU: each moment of it goes
    to the nearest sample, at most `REACH` periods away; the time in which it was ready for a turn goes with
    that turn, and none in which it slept. Where no scheduler event tells, a sample tells of the time since
    the one before it, one period at most.

    One row per stretch: the columns of `samples`, `stands_ns` (Int64), `role`, `cause`, `sub_cause`, `tier`
    as of :func:`tracelib.classify.sample_causes`; `symbol` (Categorical: the function it was in, as of
    :func:`symbols`; null = no call chain); `sample` (Int32: a number of the sample), `taken_ns` (Int64: when
    it was taken), `beside_polls` (Boolean: the sample of its thread before or after it polls), `ts_ns`,
    `dur_ns` (Int64: the stretch, cut to the window). No moment of a thread is in two
    rows. Sorted by `thread`, `ts_ns`.
    """
    told = sample_causes(weighed_samples(trace), trace.threads, trace.stacks, rules).join(
        symbols(trace.stacks), on="stack", how="left", maintain_order="left"
    )
    ordered = told.drop_nulls("thread").sort("thread", "ts_ns", maintain_order=True)
    polls = ((pl.col("cause") == "spin") | AWAITS_MESSAGE).fill_null(value=False)
    beside = pl.any_horizontal(
        polls.shift(n, fill_value=False).over("thread", order_by="taken_ns") for n in (1, -1)
    )
    samples = ordered.rename({"ts_ns": "taken_ns"}).with_columns(
        sample=pl.int_range(pl.len(), dtype=pl.Int32), beside_polls=beside
    )
    states = thread_states.select("thread", "ts_ns", "dur_ns", "state").sort("thread", "ts_ns")
    spans = pl.concat([_by_turns(samples, states), _by_clock(samples, states)])
    rows = clip(spans.filter(pl.col("dur_ns") > 0), window.start_ns, window.end_ns)
    return rows.join(samples, on="sample", maintain_order="left").sort("thread", "ts_ns")


def _by_clock(samples: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Return what samples tell where nobody knows whether the thread ran: sample, ts_ns, dur_ns."""
    before = pl.col("taken_ns").shift(1).over("thread", order_by="taken_ns")
    start = pl.max_horizontal(before, pl.col("taken_ns") - pl.col("stands_ns"))
    since = samples.select("sample", "thread", ts_ns=start, dur_ns=pl.col("taken_ns") - start)
    unseen = (pl.col("state") == "unknown").fill_null(value=True)
    return overlay(since, states, "thread").filter(unseen).select(_SPAN)


def _by_turns(samples: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Return what samples tell of their threads' turns, and of the time for which these were ready for them.

    One row per stretch: sample, ts_ns, dur_ns. What lies beyond time of which nothing is known is not near.
    """
    turns = _with_own_time(states)
    last = samples.sort("taken_ns").join_asof(
        turns.sort("ts_ns"),
        left_on="taken_ns",
        right_on="ts_ns",
        by="thread",
        allow_exact_matches=False,
        check_sortedness=False,
        coalesce=False,
    )
    into = pl.min_horizontal(pl.col("taken_ns") - pl.col("ts_ns"), "ran_ns")
    seen = (pl.col("state") != "unknown").fill_null(value=False)
    near = _nearest(last.filter(seen).with_columns(own_ns=pl.col("own_ns") + into))
    on_cpu = overlay(
        turns.select("line", began="ts_ns", since="own_ns", ts_ns="own_ns", dur_ns="ran_ns"), near, "line"
    ).drop_nulls("sample")
    ready = turns.filter(pl.col("state").is_in(WAITS_FOR_CPU)).select("line", "ts_ns", "dur_ns", "own_ns")
    for_turn = ready.sort("own_ns").join_asof(
        near.select("line", "sample", own_ns="ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")).sort(
            "own_ns"
        ),
        on="own_ns",
        by="line",
        check_sortedness=False,
    )
    moved = on_cpu.with_columns(ts_ns=pl.col("began") + pl.col("ts_ns") - pl.col("since"))
    return pl.concat([moved.select(_SPAN), for_turn.filter(pl.col("own_ns") < pl.col("until")).select(_SPAN)])


def _with_own_time(states: pl.DataFrame) -> pl.DataFrame:
    """Add `ran_ns` (each state's, on a CPU), `own_ns` (before it), and `line`, in which these are known."""
    gaps = (pl.col("state") == "unknown").cum_sum().over("thread")
    ran = pl.when(pl.col("state") == "running").then("dur_ns").otherwise(0)
    return states.with_columns(
        ran_ns=ran,
        own_ns=ran.cum_sum().over("thread") - ran,
        line=pl.struct("thread", gaps.alias("gaps")).rank("dense").cast(pl.Int32),
    )


def _nearest(placed: pl.DataFrame) -> pl.DataFrame:
    """Return the stretch of its thread's own time to which each sample is the nearest."""
    ordered = placed.sort("line", "own_ns", "sample").unique(
        ["line", "own_ns"], keep="first", maintain_order=True
    )
    own, reach = pl.col("own_ns"), REACH * pl.col("stands_ns")
    before = (own + own.shift(1).over("line")) // 2
    after = (own + own.shift(-1).over("line")) // 2
    spans = ordered.with_columns(
        start=pl.max_horizontal(before, own - reach), end=pl.min_horizontal(after, own + reach)
    )
    lasting = spans.filter(pl.col("end") > pl.col("start"))
    return lasting.select("line", "sample", ts_ns="start", dur_ns=pl.col("end") - pl.col("start"))
