"""Scheduler states summed up: per thread, how busy it was, and how many threads wanted a CPU at each moment.

docs/numbers.md, "Scheduler states", defines them.
"""

import polars as pl

from tracelib.analyses.window import Window
from tracelib.intervals import clip, overlay
from tracelib.trace import Trace
from tracelib.words import CPU_STATES, SERVER

#: States that only wake-ups, or the state in which threads leave their CPU, tell apart.
OFF_CPU = ("runnable", "throttled", "blocked")
#: A thread that wants a CPU and has none.
WAITS_FOR_CPU = ("runnable", "throttled")

SCHEDULING = pl.Schema(
    {
        "thread": pl.Int32(),
        "role": pl.String(),
        **{f"{state}_ns": pl.Int64() for state in CPU_STATES},
        "migrations": pl.Int64(),
        "inferred_ns": pl.Int64(),
    }
)
THREAD_LOAD = pl.Schema(
    {
        "thread": pl.Int32(),
        "running_ns": pl.Int64(),
        "spinning_ns": pl.Int64(),
        "working_ns": pl.Int64(),
        "wanting_ns": pl.Int64(),
    }
)
DEMAND = pl.Schema({"ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "running": pl.Int32(), "runnable": pl.Int32()})


def server_threads(trace: Trace) -> pl.Series:
    """Return the threads of the server's own processes; one Int32 per thread."""
    return trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]


def scheduling(trace: Trace, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return how long each thread was in each state.

    One row per thread of `thread_states`: `thread` (Int32), `role` (String), `running_ns`, `runnable_ns`,
    `throttled_ns`, `blocked_ns`, `unknown_ns` (Int64; they add up to the window; runnable, throttled and
    blocked are null where they cannot be told apart, see :func:`tells_shortage`), `migrations` (Int64: times
    it came to another CPU than the one it ran on before), `inferred_ns` (Int64: part of the states that is
    rebuilt, not recorded). Sorted by `runnable_ns` + `throttled_ns`, largest first.
    """
    ran = pl.col("cpu").filter(pl.col("state") == "running").drop_nulls()
    summed = thread_states.group_by("thread").agg(
        *(_time_in(state).alias(f"{state}_ns") for state in CPU_STATES),
        migrations=(ran.diff().drop_nulls() != 0).sum().cast(pl.Int64),
        inferred_ns=pl.col("dur_ns").filter("inferred").sum(),
    )
    named = (
        summed.join(trace.threads.select("thread", "role"), on="thread", how="left")
        .select(list(SCHEDULING))
        .match_to_schema(SCHEDULING)
    )
    if tells_shortage(thread_states):
        most = pl.col("runnable_ns") + pl.col("throttled_ns")
    else:
        named = named.with_columns(pl.lit(None, pl.Int64).alias(f"{state}_ns") for state in OFF_CPU)
        most = pl.col("running_ns")
    return named.sort(most, "thread", descending=[True, False])


def tells_shortage(thread_states: pl.DataFrame) -> bool:
    """Return whether a thread that waits for a CPU can be told from one that sleeps.

    That takes wake-ups, or the state in which threads leave their CPU (nsys records neither): without them a
    thread is only ever seen running, and "no shortage" would be a guess.
    """
    seen = thread_states["state"].unique().cast(pl.String).to_list()
    return not set(OFF_CPU).isdisjoint(seen)


def thread_load(trace: Trace, thread_states: pl.DataFrame, spinning: pl.DataFrame) -> pl.DataFrame:
    """Return how much of the window each of the server's threads worked on a CPU, polling apart.

    Takes the frames `thread_states` and `spinning`.

    One row per thread: `thread` (Int32), `running_ns` (Int64: on a CPU), `spinning_ns` (Int64: the part in
    which it polled), `working_ns` (Int64: the rest), `wanting_ns` (Int64: runnable or throttled). Sorted by
    `working_ns`, largest first. A thread that works nearly all the time is one that more CPUs cannot help:
    only less work, or more threads, can.
    """
    server = server_threads(trace)
    states = thread_states.filter(pl.col("thread").is_in(server.implode())).select(
        "thread", "ts_ns", "dur_ns", "state"
    )
    running = states.filter(pl.col("state") == "running")
    polled = overlay(running, spinning, "thread").filter(pl.col("kind").is_not_null())
    summed = states.group_by("thread").agg(
        running_ns=_time_in("running"), wanting_ns=_time_in(*WAITS_FOR_CPU)
    )
    spun = polled.group_by("thread").agg(spinning_ns=pl.col("dur_ns").sum())
    rows = summed.join(spun, on="thread", how="left").with_columns(pl.col("spinning_ns").fill_null(0))
    return (
        rows.with_columns(working_ns=pl.col("running_ns") - pl.col("spinning_ns"))
        .select(list(THREAD_LOAD))
        .match_to_schema(THREAD_LOAD)
        .sort("working_ns", "thread", descending=[True, False])
    )


def _time_in(*states: str) -> pl.Expr:
    return pl.col("dur_ns").filter(pl.col("state").is_in(states)).sum()


def demand(trace: Trace, window: Window, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return the number of running and of runnable (throttled included) threads over time.

    Threads of the server's roles; all but the recorders' and the system's where no role is known.

    One row per stretch: `ts_ns`, `dur_ns` (Int64), `running`, `runnable` (Int32). The rows cover what the
    scheduler events cover of the window, without gap or overlap. Sorted by `ts_ns`. Empty if scheduler events
    do not tell who waits for a CPU: running threads alone are not the demand.
    """
    roles = trace.threads.select("thread", "role")
    server = roles.filter(pl.col("role").is_in(SERVER))
    counted = server if server.height else roles.filter(pl.col("role").is_null())
    rows = thread_states.filter(pl.col("thread").is_in(counted["thread"].implode())).select(
        "ts_ns",
        end=pl.col("ts_ns") + pl.col("dur_ns"),
        running=(pl.col("state") == "running").cast(pl.Int32),
        runnable=pl.col("state").is_in(WAITS_FOR_CPU).cast(pl.Int32),
    )
    if rows.is_empty() or not tells_shortage(thread_states):
        return pl.DataFrame(schema=DEMAND)
    begins = rows.select("ts_ns", "running", "runnable")
    ends = rows.select("end", -pl.col("running"), -pl.col("runnable")).rename({"end": "ts_ns"})
    steps = pl.concat([begins, ends]).group_by("ts_ns").agg(pl.col("running", "runnable").sum()).sort("ts_ns")
    line = steps.with_columns(
        pl.col("running", "runnable").cum_sum(),
        dur_ns=pl.col("ts_ns").shift(-1).fill_null(window.end_ns) - pl.col("ts_ns"),
    )
    recorded = trace.sched.select(first=pl.col("ts_ns").min(), last=pl.col("ts_ns").max()).row(0)
    covered = clip(line.filter(pl.col("dur_ns") > 0), *recorded)
    return covered.select(list(DEMAND)).match_to_schema(DEMAND).sort("ts_ns")


def demand_at(demand: pl.DataFrame, q: float) -> int | None:
    """Return how many threads wanted a CPU at most for the share `q` of the time; None = not known."""
    steps = demand.with_columns(n=pl.col("running") + pl.col("runnable")).sort("n")
    reached = steps.filter(pl.col("dur_ns").cum_sum() >= q * int(steps["dur_ns"].sum()))
    return int(reached["n"][0]) if reached.height else None
