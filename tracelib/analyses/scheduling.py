"""Scheduler states summed up: per thread, how much of it was polling, and how many threads wanted a CPU at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import overlay

if TYPE_CHECKING:
    from tracelib.analyses.window import Window
    from tracelib.trace import Trace

_STATES = ("running", "runnable", "throttled", "blocked", "unknown")
SCHEDULING = pl.Schema(
    {
        "thread": pl.Int32(),
        "role": pl.String(),
        **{f"{state}_ns": pl.Int64() for state in _STATES},
        "migrations": pl.Int64(),
        "inferred_ns": pl.Int64(),
    }
)


def scheduling(trace: Trace, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return how long each thread was in each state.

    One row per thread of `thread_states`: `thread` (Int32), `role` (String), `running_ns`, `runnable_ns`, `throttled_ns`,
    `blocked_ns`, `unknown_ns` (Int64; they add up to the window; runnable, throttled and blocked are null where they cannot
    be told apart, see :func:`tells_shortage`), `migrations` (Int64: times it came to another CPU than
    the one it ran on before), `inferred_ns` (Int64: part of the states that is rebuilt, not recorded). Sorted by
    `runnable_ns` + `throttled_ns`, largest first.
    """
    ran = pl.col("cpu").filter(pl.col("state") == "running").drop_nulls()
    spent = [
        pl.col("dur_ns").filter(pl.col("state") == state).sum().alias(f"{state}_ns") for state in _STATES
    ]
    summed = thread_states.group_by("thread").agg(
        *spent,
        migrations=(ran.diff().drop_nulls() != 0).sum().cast(pl.Int64),
        inferred_ns=pl.col("dur_ns").filter("inferred").sum(),
    )
    named = (
        summed.join(trace.threads.select("thread", "role"), on="thread", how="left")
        .select(list(SCHEDULING))
        .match_to_schema(SCHEDULING)
    )
    if not tells_shortage(thread_states):
        hidden = [f"{state}_ns" for state in ("runnable", "throttled", "blocked")]
        return named.with_columns(pl.lit(None, pl.Int64).alias(name) for name in hidden).sort(
            "running_ns", "thread", descending=[True, False]
        )
    waited = pl.col("runnable_ns") + pl.col("throttled_ns")
    return named.sort(waited, "thread", descending=[True, False])


def tells_shortage(thread_states: pl.DataFrame) -> bool:
    """Return whether a thread that waits for a CPU can be told from one that sleeps.

    That takes wake-ups, or the state in which threads leave their CPU (nsys records neither): without them a thread is
    only ever seen running, and "no shortage" would be a guess.
    """
    seen = thread_states["state"].unique().cast(pl.String).to_list()
    return not {"runnable", "throttled", "blocked"}.isdisjoint(seen)


#: Roles whose threads make up the server.
SERVER = ("api_server", "engine", "worker")
DEMAND = pl.Schema({"ts_ns": pl.Int64(), "dur_ns": pl.Int64(), "running": pl.Int32(), "runnable": pl.Int32()})


def demand(trace: Trace, window: Window, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return the number of running and of runnable (throttled included) threads over time.

    Threads of the server's roles; all but the recorders' and the system's where no role is known.

    One row per stretch: `ts_ns`, `dur_ns` (Int64), `running`, `runnable` (Int32). The rows cover the window without gap or
    overlap. Sorted by `ts_ns`. Empty if scheduler events do not tell who waits for a CPU: running threads alone are no demand.
    """
    role = trace.threads.select("thread", "role")
    known = role.filter(pl.col("role").is_in(SERVER))
    counted = known if known.height else role.filter(pl.col("role").is_null())
    rows = thread_states.filter(pl.col("thread").is_in(counted["thread"].implode())).select(
        "ts_ns",
        end=pl.col("ts_ns") + pl.col("dur_ns"),
        running=(pl.col("state") == "running").cast(pl.Int32),
        runnable=pl.col("state").is_in(["runnable", "throttled"]).cast(pl.Int32),
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
    return line.filter(pl.col("dur_ns") > 0).select(list(DEMAND)).match_to_schema(DEMAND).sort("ts_ns")


def demand_at(demand: pl.DataFrame, q: float) -> int | None:
    """Return the number of threads that wanted a CPU at most for the share `q` of the time; None where nobody can say."""
    steps = demand.with_columns(n=pl.col("running") + pl.col("runnable")).sort("n")
    reached = steps.filter(pl.col("dur_ns").cum_sum() >= q * int(steps["dur_ns"].sum()))
    return int(reached["n"][0]) if reached.height else None


THREAD_LOAD = pl.Schema(
    {
        "thread": pl.Int32(),
        "running_ns": pl.Int64(),
        "spinning_ns": pl.Int64(),
        "working_ns": pl.Int64(),
        "wanting_ns": pl.Int64(),
    }
)


def thread_load(trace: Trace, thread_states: pl.DataFrame, spinning: pl.DataFrame) -> pl.DataFrame:
    """Return how busy each thread of the server was.

    Takes the frames `thread_states` and `spinning`.

    One row per thread: `thread` (Int32), `running_ns` (Int64: on a CPU), `spinning_ns` (Int64: the part in which it polled),
    `working_ns` (Int64: the rest), `wanting_ns` (Int64: runnable or throttled). Sorted by `working_ns`, largest first. A
    thread that works nearly all the time is one that more CPUs cannot help: only less work, or more threads, can.
    """
    server = trace.threads.filter(pl.col("role").is_in(SERVER))["thread"]
    own = thread_states.filter(pl.col("thread").is_in(server.implode())).select(
        "thread", "ts_ns", "dur_ns", "state"
    )
    ran = own.filter(pl.col("state") == "running")
    polled = overlay(ran, spinning, "thread").filter(pl.col("kind").is_not_null())
    summed = own.group_by("thread").agg(
        running_ns=pl.col("dur_ns").filter(pl.col("state") == "running").sum(),
        wanting_ns=pl.col("dur_ns").filter(pl.col("state").is_in(["runnable", "throttled"])).sum(),
    )
    spun = polled.group_by("thread").agg(spinning_ns=pl.col("dur_ns").sum())
    rows = summed.join(spun, on="thread", how="left").with_columns(pl.col("spinning_ns").fill_null(0))
    worked = rows.with_columns(working_ns=pl.col("running_ns") - pl.col("spinning_ns"))
    return (
        worked.select(list(THREAD_LOAD))
        .match_to_schema(THREAD_LOAD)
        .sort("working_ns", "thread", descending=[True, False])
    )
