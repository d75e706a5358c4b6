"""Ledger 3: what the CPUs were spent on, by role and cause, from CPU samples (docs/numbers.md, "Ledger 3").

Also what the same samples say of single threads: when one was on a CPU only to ask again (polling), and when
one that a GPU waited for likely slept for the interpreter lock. CPython lets one thread of a process run
Python at a time (Python/ceval_gil.c). A thread asleep inside framework or Python code while a sibling
executes bytecode fits a wait for that lock; it may as well have slept for something else. So this is likely,
never certain.
"""

import polars as pl

from tracelib.analyses.cpu_samples import weighed_samples
from tracelib.analyses.ipc import thread_processes
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.window import Window
from tracelib.classify import sample_causes
from tracelib.intervals import fill, merge_equal, overlay, union
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


def cpu_time(
    trace: Trace, window: Window, thread_states: pl.DataFrame, host_activity: pl.DataFrame, rules: Rules
) -> pl.DataFrame:
    """Return CPU time by role and cause.

    Takes the frames of the analyses of those names.

    A sample weighs the time that it stands for (:mod:`tracelib.analyses.cpu_samples`); where scheduler events
    prove a thread's running time, its samples are scaled to that. Idle and system threads are left out.

    `spin` is busy polling: `yield` (sched_yield), `device_wait` (the driver polls inside a synchronous call),
    `openmp` (idle OpenMP threads), `poll` (any other code in a frame or range that waits for another process
    and names no work of its own: the thread is on a CPU, so it asks again and again).

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
    weighed = _polling(_weighed(samples, thread_states), host_activity).with_columns(
        pl.col("cause").fill_null("unattributed")
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


def _polling(samples: pl.DataFrame, host_activity: pl.DataFrame) -> pl.DataFrame:
    """Call samples polling that were taken in a range that waits, and name no work of their own.

    Of a driver without symbols only its library is known: in a range that waits for the device, it polls.
    """
    waits, device = pl.col("waits_for").is_not_null(), pl.col("cause") == "sync"
    ranges = host_activity.filter(waits | device).select(
        "thread", "ts_ns", "dur_ns", _in=pl.when(waits).then(pl.lit("poll")).otherwise(pl.lit("device_wait"))
    )
    moments = samples.with_columns(pl.col("ts_ns") - 1, dur_ns=pl.lit(1, pl.Int64)).sort("thread", "ts_ns")
    unread = (pl.col("cause") == "ipc") & (pl.col("sub_cause") == "serialize").fill_null(value=False)
    vague = pl.col("cause").fill_null("other").is_in(VAGUE) | (pl.col("tier") == "fallback")
    driver = (pl.col("sub_cause") == "api") & (pl.col("tier") == "library")
    polls = (
        pl.when(pl.col("_in") == "poll").then(vague & ~unread).when(pl.col("_in").is_not_null()).then(driver)
    )
    return overlay(moments, ranges, "thread").with_columns(
        cause=pl.when(polls).then(pl.lit("spin")).otherwise("cause"),
        sub_cause=pl.when(polls).then("_in").otherwise("sub_cause"),
    )


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


def spinning(
    window: Window, host_activity: pl.DataFrame, thread_states: pl.DataFrame, sample_stretches: pl.DataFrame
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
    on_cpu = pl.col("state").cast(pl.String).fill_null("unknown").is_in(["running", "unknown"])
    sampled = overlay(sample_stretches.filter(spins), states, "thread").filter(on_cpu)
    sampled = sampled.select("thread", "ts_ns", "dur_ns", kind="sub_cause")
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
    process = thread_processes(trace).select("thread", _process=pl.col("process").cast(pl.Int32))
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
