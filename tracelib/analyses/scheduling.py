"""Scheduler states summed up: how busy each thread was, how many wanted a CPU, who had it meanwhile.

docs/numbers.md, "Scheduler states", defines them.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.window import Window
from tracelib.intervals import clip, innermost, overlay
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

CPU_CONTENTION = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "thread": pl.Int32(),
        "cause": pl.String(),
        "by": pl.Int32(),
        "by_role": pl.String(),
        "doing": pl.String(),
        "kind": pl.String(),
    }
)
POLLING_BESIDE = pl.Schema(
    {name: CPU_CONTENTION[name] for name in ("gpu", "ts_ns", "dur_ns", "thread", "by", "kind")}
)
Floats = NDArray[np.float64]
#: Known CPU states of what a thread does stand for unknown ones if they are so much of it.
ENOUGH = 0.05
#: More CPUs than a machine has.
CPUS = 2**16


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


def cpu_waits(trace: Trace, thread_states: pl.DataFrame) -> pl.DataFrame:
    """Return which threads were ready to run and did not, and who had the CPU meanwhile.

    One row per thread of the server, or per thread at all where no server's is known, that lacked a CPU:
    `thread` (Int32), `waits` (UInt32: how often), `short_ns` (Int64: runnable or throttled, in all),
    `throttled_ns` (Int64: the part in which a quota stopped it), `longest_ns` (Int64), `running_ns` (Int64),
    `by` (Int32: the thread that had the CPU longest meanwhile, null = not known), `by_ns` (Int64: how long).
    Sorted by `short_ns`, largest first.
    """
    server = server_threads(trace)
    of_server = thread_states.filter(pl.col("thread").is_in(server.implode()))
    states = of_server if of_server.height else thread_states
    short = pl.col("state").is_in(WAITS_FOR_CPU)
    ns = pl.col("dur_ns")
    summed = states.group_by("thread").agg(
        waits=short.sum(),
        short_ns=ns.filter(short).sum(),
        throttled_ns=_time_in("throttled"),
        longest_ns=ns.filter(short).max(),
        running_ns=_time_in("running"),
    )
    others = states.filter(short & pl.col("by").is_not_null()).group_by("thread", "by").agg(by_ns=ns.sum())
    first = others.sort("by_ns", "by", descending=[True, False]).unique(
        "thread", keep="first", maintain_order=True
    )
    return (
        summed.filter(pl.col("short_ns") > 0)
        .join(first, on="thread", how="left")
        .sort("short_ns", "thread", descending=[True, False])
    )


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


def cpu_contention(
    trace: Trace,
    lost: pl.DataFrame,
    thread_states: pl.DataFrame,
    host_activity: pl.DataFrame,
    spinning: pl.DataFrame,
    sample_stretches: pl.DataFrame,
) -> pl.DataFrame:
    """Return the lost GPU time whose blamed thread was ready to run, with the thread that ran on its CPU.

    Takes the frames of the analyses of those names.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `thread` (Int32: the blamed one), `cause`
    (String: of the lost time), `by` (Int32: the thread that had the CPU; null = not known), `by_role`
    (String), `doing` (String: its cause; `spin` if it polled, `profiler` if it was a recorder, or its
    samples were in one's code; null = nothing recorded), `kind` (String: the sub-cause, or how it polled).
    Adds up to the runnable part of `lost`. Sorted by `gpu`, `ts_ns`.
    """
    short = lost.filter(pl.col("cpu_state") == "runnable").select("gpu", "ts_ns", "dur_ns", "thread", "cause")
    waits = (pl.col("state") == "runnable") & pl.col("thread").is_in(short["thread"].unique().implode())
    waited = _with_place(thread_states.filter(waits), trace.threads)
    ran = _with_place(thread_states.filter(pl.col("state") == "running"), trace.threads)
    placed = overlay(short, waited.select("thread", "ts_ns", "dur_ns", "_place"), "thread")
    beaten = overlay(placed, _on_each_cpu(ran), "_place")
    polls = _doing(beaten, spinning.rename({"kind": "_polls"}))
    works = _doing(polls, host_activity.select("thread", "ts_ns", "dur_ns", _does="cause", _sub="sub_cause"))
    sampled = sample_stretches.select("thread", "ts_ns", "dur_ns", _sampled="cause", _sampled_sub="sub_cause")
    told = _doing(works, sampled)
    silent = pl.col("_does").is_null()
    # No range shows what the recorder does within it; samples do.
    by_sample = silent | (pl.col("_sampled") == "profiler").fill_null(value=False)
    named = told.with_columns(
        doing=pl.when(by_sample).then("_sampled").otherwise(pl.col("_does").cast(pl.String)),
        kind=pl.when(by_sample).then("_sampled_sub").otherwise(pl.col("_sub").cast(pl.String)),
    ).with_columns(
        doing=pl.when(pl.col("_polls").is_not_null()).then(pl.lit("spin")).otherwise("doing"),
        kind=pl.coalesce("_polls", "kind"),
    )
    named = named.join(
        trace.threads.select(by="thread", by_role="role"), on="by", how="left", maintain_order="left"
    )
    recorder = (pl.col("by_role") == "recorder").fill_null(value=False)
    named = named.with_columns(doing=pl.when(recorder).then(pl.lit("profiler")).otherwise("doing"))
    return named.select(list(CPU_CONTENTION)).match_to_schema(CPU_CONTENTION).sort("gpu", "ts_ns")


def _with_place(states: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Add `_place`, a number per CPU and host; null where the CPU is not known."""
    host = pl.col("host").fill_null("").rank("dense").cast(pl.Int32)
    placed = states.select("thread", "ts_ns", "dur_ns", "cpu").join(
        threads.select("thread", _host=host), on="thread", how="left", maintain_order="left"
    )
    return placed.with_columns(_place=pl.col("_host") * CPUS + pl.col("cpu"))


def _on_each_cpu(running: pl.DataFrame) -> pl.DataFrame:
    """Return who ran on each CPU over time: _place, ts_ns, dur_ns, by."""
    placed = running.filter(pl.col("_place").is_not_null())
    at = innermost(placed, "_place")  # rebuilt stretches may overlap: the one that began last had the CPU
    return at.select("_place", "ts_ns", "dur_ns", by=placed["thread"].gather(at["row"]))


def _doing(pieces: pl.DataFrame, timeline: pl.DataFrame) -> pl.DataFrame:
    """Cut the pieces by what their thread `by` did."""
    return overlay(pieces, timeline.rename({"thread": "by"}), "by")


def polling_beside(
    trace: Trace, cpu_contention: pl.DataFrame, thread_states: pl.DataFrame, spinning: pl.DataFrame
) -> pl.DataFrame:
    """Return the lost GPU time whose blamed thread was ready while another CPU did nothing but poll.

    Takes the frames of the analyses of those names. The blamed thread was kept off its own CPU by one that
    did not poll, while threads of its process are seen to run on the poller's CPU at other times: unless it
    is pinned by itself, it may have that CPU too.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `thread` (Int32: the blamed one), `by`
    (Int32: a thread that polled), `kind` (String: how). No moment of a GPU is in two rows. Sorted by `gpu`,
    `ts_ns`.
    """
    kept_off = cpu_contention.filter(~pl.col("doing").eq_missing(pl.lit("spin"))).drop("by", "kind")
    running = _with_place(thread_states.filter(pl.col("state") == "running"), trace.threads)
    polled = overlay(running.drop_nulls("_place"), spinning, "thread").filter(pl.col("kind").is_not_null())
    hosts = trace.threads.select(
        "thread", "pid", _host=pl.col("host").fill_null("").rank("dense").cast(pl.Int32)
    )
    ran_on = running.join(hosts, on="thread").select("pid", "_place").unique()
    wanting = kept_off.join(hosts, on="thread", how="left", maintain_order="left")
    at = innermost(polled, "_host")
    whose = polled.select("_place", "kind", by="thread").select(pl.all().gather(at["row"]))
    line = pl.concat([at.drop("row"), whose], how="horizontal")
    beside = overlay(wanting, line, "_host").filter(pl.col("by").is_not_null())
    free = beside.join(ran_on, on=["pid", "_place"], how="semi")
    return free.select(list(POLLING_BESIDE)).match_to_schema(POLLING_BESIDE).sort("gpu", "ts_ns")


# -------------------- with other CPUs
def at_once(rows: pl.DataFrame, moments: Floats) -> Floats:
    """Return how many of these stretches of time hold each moment."""
    begun, ended = (
        np.searchsorted(np.sort(values.to_numpy()), moments, side="right").astype(np.float64)
        for values in (rows["ts_ns"], rows["ts_ns"] + rows["dur_ns"])
    )
    return begun - ended


def over_demand(demand: pl.DataFrame, values: Floats, pieces: pl.DataFrame) -> Floats:
    """Return the mean of values, one for each row of `demand`, over each of the pieces; 1 outside them."""
    at, length = (demand[name].to_numpy().astype(np.float64) for name in ("ts_ns", "dur_ns"))
    begin = pieces["ts_ns"].to_numpy()
    until = begin + pieces["dur_ns"].to_numpy()
    edges = np.append(at, at[-1:] + length[-1:])
    sums = np.cumsum(np.append(0.0, values * length))
    low, high = (np.interp(moment, edges, sums) for moment in (begin, until))
    inside = np.clip(until, edges[0], edges[-1]) - np.clip(begin, edges[0], edges[-1])
    return np.where(inside > 0, (high - low) / np.maximum(inside, 1), 1.0)


def as_where_known(pieces: pl.DataFrame, share: Floats) -> Floats:
    """Let what a thread did in an unknown CPU state shrink as the same does in known ones."""
    unknown = pl.col("state").eq("unknown").fill_null(value=True)
    pieces = pieces.select("thread", "cause", "state", "dur_ns", share=share)
    known, length = pieces.filter(~unknown), pl.col("dur_ns")
    usual = known.group_by("thread", "cause").agg(
        usual=(length * pl.col("share")).sum() / length.sum(), known=length.sum()
    )
    whole = pieces.group_by("thread", "cause").agg(whole=length.sum())
    enough = usual.join(whole, on=["thread", "cause"], nulls_equal=True).filter(
        pl.col("known") >= ENOUGH * pl.col("whole")
    )
    both = pieces.join(enough, on=["thread", "cause"], how="left", nulls_equal=True, maintain_order="left")
    left = pl.when(unknown).then(pl.col("usual").fill_nan(1.0).fill_null(1.0)).otherwise("share")
    found: Floats = both.select(left).to_series().to_numpy()
    return found
