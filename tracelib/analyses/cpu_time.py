"""Ledger 3: what the CPUs were spent on, by role and cause, from CPU samples (docs/numbers.md, "Ledger 3").

Also what the same samples say of single threads: when one was on a CPU only to ask again (polling), and when
one that a GPU waited for likely slept for the interpreter lock. CPython lets one thread of a process run
Python at a time (Python/ceval_gil.c). A thread asleep inside framework or Python code while a sibling
executes bytecode fits a wait for that lock; it may as well have slept for something else. So this is likely,
never certain.
"""

import polars as pl

from tracelib.analyses.cpu_samples import symbols, weighed_samples
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.window import Window
from tracelib.classify import sample_causes, slice_causes, slices_named
from tracelib.intervals import clip, fill, merge_equal, overlay, union
from tracelib.slice_rules import Rules
from tracelib.trace import Trace

CPU_TIME = pl.Schema(
    {
        "role": pl.String(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "samples": pl.Int64(),
        "cpu_ns": pl.Int64(),
        "share": pl.Float64(),
        "ci_low": pl.Float64(),
        "ci_high": pl.Float64(),
    }
)
SPINNING = pl.Schema({"thread": pl.Int32(), "ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "kind": pl.String()})
POLLS = pl.Schema(
    {
        "kind": pl.String(),
        "count": pl.Int64(),
        "p50_ns": pl.Int64(),
        "p95_ns": pl.Int64(),
        "max_ns": pl.Int64(),
        "total_ns": pl.Int64(),
    }
)
GIL_WAITS = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "thread": pl.Int32(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
    }
)

#: Causes of a stack that do not contradict polling: nothing in it says what the thread is at.
VAGUE = ("other", "ipc", "gil")
#: Two-sided 95 % of the normal distribution.
Z = 1.96
#: The interpreter itself, as the innermost frame's library.
INTERPRETER = r"(^|/)(python[0-9.]*|libpython[0-9.]*\.so[.\d]*)$"


def cpu_time(trace: Trace, window: Window, thread_states: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return CPU time by role and cause.

    A sample weighs the time that it stands for (:mod:`tracelib.analyses.cpu_samples`); where scheduler events
    prove a thread's running time, its samples are scaled to that. Idle and system threads are left out.

    `spin` is busy polling: `yield` (sched_yield), `device_wait` (the driver polls inside a synchronous call),
    `openmp` (idle OpenMP threads), `poll` (any other code of a thread whose open range waits for another
    process: it is on a CPU, so it asks again and again).

    One row per role, cause and sub-cause: `role`, `cause`, `sub_cause` (String; role null = unknown),
    `samples` (Int64), `cpu_ns` (Int64), `share` (Float64, of all `cpu_ns`), `ci_low`, `ci_high` (Float64:
    Wilson's 95 % interval of the share, from the number of samples). Sorted by `cpu_ns`, largest first. Empty
    without samples.
    """
    in_window = pl.col("ts_ns").is_between(window.start_ns, window.end_ns)
    idle = trace.threads.filter(pl.col("tid") == 0)["thread"]
    timed = weighed_samples(trace).filter(in_window & ~pl.col("thread").is_in(idle.implode()))
    samples = sample_causes(timed, trace.threads, trace.stacks, rules).filter(
        pl.col("role").fill_null("") != "system"
    )
    if samples.is_empty():
        return pl.DataFrame(schema=CPU_TIME)
    vague = pl.col("cause").fill_null("other").is_in(VAGUE) | (pl.col("tier") == "fallback")
    polls = (pl.col("waiting") & vague).fill_null(value=False)
    weighed = _waiting(_weighed(samples, thread_states), trace, rules).with_columns(
        cause=pl.when(polls).then(pl.lit("spin")).otherwise("cause").fill_null("unattributed"),
        sub_cause=pl.when(polls).then(pl.lit("poll")).otherwise("sub_cause"),
    )
    rows = weighed.group_by("role", "cause", "sub_cause").agg(
        samples=pl.len().cast(pl.Int64), cpu_ns=pl.col("weight").sum().round().cast(pl.Int64)
    )
    return (
        _with_shares(rows)
        .select(list(CPU_TIME))
        .match_to_schema(CPU_TIME)
        .sort("cpu_ns", "role", "cause", "sub_cause", descending=[True, False, False, False])
    )


def _waiting(samples: pl.DataFrame, trace: Trace, rules: Rules) -> pl.DataFrame:
    """Add `waiting`: the thread is inside a range that waits for another process."""
    waits = slice_causes(trace.slices, rules).filter(pl.col("waits") & ~pl.col("weak"))
    ranges = slices_named(trace.slices, waits).filter(pl.col("thread").is_not_null())
    begun = ranges.select("thread", begin="ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns"))
    last = samples.sort("ts_ns").join_asof(
        begun.sort("begin"),
        left_on="ts_ns",
        right_on="begin",
        by="thread",
        strategy="backward",
        check_sortedness=False,
    )
    waiting = (pl.col("until") > pl.col("ts_ns")).fill_null(value=False)
    return last.with_columns(waiting=waiting).drop("begin", "until")


def _weighed(samples: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Add `weight` in ns: `stands_ns`, scaled to the thread's running time where all of it is recorded."""
    ran = thread_states.group_by("thread").agg(
        running=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        unknown=pl.col("dur_ns").filter(pl.col("state") == "unknown").sum(),
    )
    sampled = samples.group_by("thread").agg(sampled=pl.col("stands_ns").sum())
    recorded = (pl.col("unknown") * 50 < pl.col("running")) & (pl.col("running") > 0)
    factor = (
        ran.filter(recorded)
        .join(sampled, on="thread")
        .select("thread", factor=pl.col("running") / pl.col("sampled"))
    )
    return samples.join(factor, on="thread", how="left").with_columns(
        weight=pl.col("stands_ns") * pl.col("factor").fill_null(1.0)
    )


def _with_shares(rows: pl.DataFrame) -> pl.DataFrame:
    """Add each row's share of all CPU time and Wilson's interval, as if the samples were drawn one by one."""
    n, share = int(rows["samples"].sum()), pl.col("cpu_ns") / pl.col("cpu_ns").sum()
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    spread = Z / (1 + Z * Z / n) * (share * (1 - share) / n + Z * Z / (4 * n * n)).sqrt()
    return rows.with_columns(
        share=share, ci_low=(middle - spread).clip(0, 1), ci_high=(middle + spread).clip(0, 1)
    )


def sample_stretches(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the samples as the stretches that they stand for.

    One row per sample: the columns of `samples`, `role`, `cause`, `sub_cause`, `tier` as of
    :func:`tracelib.classify.sample_causes`; `symbol` (Categorical: the function it was in, as of
    :func:`tracelib.analyses.cpu_samples.symbols`; null = no call chain); `ts_ns`, `dur_ns` = the time since
    the thread's sample before it, what it stands for at most, cut to the window. Sorted by `thread`, `ts_ns`.
    """
    samples = sample_causes(weighed_samples(trace), trace.threads, trace.stacks, rules).join(
        symbols(trace.stacks), on="stack", how="left", maintain_order="left"
    )
    ordered = samples.sort("thread", "ts_ns")
    before = pl.col("ts_ns").shift(1).over("thread", order_by="ts_ns")
    start = pl.max_horizontal(before, pl.col("ts_ns") - pl.col("stands_ns"))
    stretches = ordered.with_columns(ts_ns=start, dur_ns=pl.col("ts_ns") - start)
    return clip(stretches, window.start_ns, window.end_ns)


def spinning(
    window: Window,
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    sample_stretches: pl.DataFrame,
    sampled_turns: pl.DataFrame,
) -> pl.DataFrame:
    """Return when each thread was on a CPU only to ask again (polled).

    Takes the frames of the analyses of those names. A thread polls while its innermost slice waits for
    another process or for the device and the scheduler saw it on a CPU; elsewhere while its samples say so:
    of its turns on a CPU, and where no scheduler event shows these, for one period at most each.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `kind` (String: `poll` = another
    process's message, `device_wait`, and from samples also `yield`, `openmp`, `nccl_proxy`). Sorted by
    `thread`, `ts_ns`.
    """
    by_slice = _on_cpu_while_waiting(host_activity, thread_states)
    spins = pl.col("cause") == "spin"
    states = thread_states.select("thread", "ts_ns", "dur_ns", "state")
    unseen = overlay(sample_stretches.filter(spins), states, "thread").filter(
        (pl.col("state") == "unknown").fill_null(value=True)
    )
    columns = ["thread", "ts_ns", "dur_ns", pl.col("sub_cause").alias("kind")]
    sampled = pl.concat([frame.select(columns) for frame in (sampled_turns.filter(spins), unseen)])
    threads = sampled["thread"].drop_nulls().unique().to_list()
    free = fill(by_slice, "thread", threads, window.start_ns, window.end_ns).filter(pl.col("kind").is_null())
    added = overlay(free.drop("kind"), sampled.sort("thread", "ts_ns"), "thread").filter(
        pl.col("kind").is_not_null()
    )
    rows = pl.concat([by_slice, added.select(by_slice.columns)]).sort("thread", "ts_ns")
    return merge_equal(rows, ["thread", "kind"]).select(list(SPINNING)).match_to_schema(SPINNING)


def polls(spinning: pl.DataFrame) -> pl.DataFrame:
    """Return how long polls last on a CPU at a time.

    Takes the frame `spinning`; a poll ends when its thread leaves the CPU or has what it waits for. Of kinds
    that only samples show, a length is a number of sampling periods.

    One row per kind: `kind` (String), `count`, `p50_ns`, `p95_ns`, `max_ns` (nearest rank), `total_ns`
    (Int64). Sorted by `total_ns`, largest first.
    """
    length = pl.col("dur_ns")
    summed = spinning.group_by("kind").agg(
        count=pl.len(),
        p50_ns=nearest_rank(length, 0.5),
        p95_ns=nearest_rank(length, 0.95),
        max_ns=length.max(),
        total_ns=length.sum(),
    )
    rows = summed.select(pl.col(name).cast(dtype) for name, dtype in POLLS.items())
    return rows.sort("total_ns", "kind", descending=[True, False])


def _on_cpu_while_waiting(host_activity: pl.DataFrame, thread_states: pl.DataFrame) -> pl.DataFrame:
    waits, device = pl.col("waits_for").is_not_null(), pl.col("cause") == "sync"
    waiting = host_activity.filter((waits | device) & (pl.col("seen_by") == "slice")).select(
        "thread", "ts_ns", "dur_ns", kind=pl.when(waits).then(pl.lit("poll")).otherwise(pl.lit("device_wait"))
    )
    states = thread_states.select("thread", "ts_ns", "dur_ns", "state")
    running = overlay(waiting, states, "thread").filter(pl.col("state") == "running")
    return running.drop("state").sort("thread", "ts_ns")


def gil_waits(trace: Trace, lost: pl.DataFrame, sample_stretches: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that fits a wait for the interpreter lock.

    Takes the frames of the analyses of those names.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `thread` (Int32: the blamed one), `cause`,
    `sub_cause` (String: of the lost time): those of cause `gil`, whose samples sit in the lock, and those of
    a thread asleep in framework or Python code while a sibling's sample lies in the interpreter. Sorted by
    `gpu`, `ts_ns`.
    """
    process = trace.threads.select("thread", _process=pl.struct("host", "pid").rank("dense").cast(pl.Int32))
    in_lock = lost.filter(pl.col("cause") == "gil").select(list(GIL_WAITS))
    in_python = (pl.col("sub_cause") == "dispatch") | (pl.col("cause") == "unattributed")
    asleep = lost.filter((pl.col("cpu_state") == "blocked") & in_python.fill_null(value=False)).select(
        list(GIL_WAITS)
    )
    interpreter = pl.col("library").cast(pl.String).str.contains(INTERPRETER)
    executes = trace.stacks.filter((pl.col("depth") == 0) & interpreter)["stack"]
    runs = sample_stretches.filter(pl.col("stack").is_in(executes.implode()))
    holds = union(runs.join(process, on="thread").select("_process", "ts_ns", "dur_ns"), "_process")
    waits = overlay(
        asleep.join(process, on="thread", how="left", maintain_order="left"),
        holds.with_columns(_held=pl.lit(value=True)),
        "_process",
    ).filter(pl.col("_held").is_not_null())
    rows = pl.concat([in_lock, waits.select(list(GIL_WAITS))])
    return rows.match_to_schema(GIL_WAITS).sort("gpu", "ts_ns")
