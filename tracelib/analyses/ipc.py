"""Messages between the server's processes, as their own ranges show them, and the steps that they begin."""

import polars as pl

from tracelib.analyses.upstream import UPSTREAM
from tracelib.analyses.window import Window
from tracelib.classify import slice_causes, slices_named
from tracelib.intervals import outermost, union
from tracelib.rules import Rules
from tracelib.trace import Trace

IPC = pl.Schema(
    {
        "thread": pl.Int32(),
        "role": pl.String(),
        "rank": pl.Int32(),
        "kind": pl.String(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.Categorical(),
    }
)
WORKER_STEPS = pl.Schema(
    {"process": pl.Int64(), "sent_ns": pl.Int64(), "received_ns": pl.Int64(), "done_ns": pl.Int64()}
)


def ipc(trace: Trace, window: Window, rules: Rules) -> pl.DataFrame:
    """Return the IPC ranges that overlap the window, whole (not cut at its edges).

    One row per range of category annotation or Python frame, without those inside another of its kind (a
    dequeue's own polls): `thread` (Int32), `role` (String), `rank`
    (Int32), `kind` (String: dequeue, enqueue, send, recv), `ts_ns`, `dur_ns` (Int64), `name` (Categorical).
    Sorted by `ts_ns`, `thread`.
    """
    meaning = slice_causes(trace.slices, rules).filter(pl.col("direction").is_not_null() & ~pl.col("weak"))
    ranges = slices_named(trace.slices, meaning).filter(pl.col("dur_ns") > 0)
    messages = ranges.join(meaning, on=["name", "category"], how="inner")
    inside = messages.filter(
        (pl.col("ts_ns") < window.end_ns) & (pl.col("ts_ns") + pl.col("dur_ns") > window.start_ns)
    )
    named = outermost(inside, "thread", "direction").join(
        trace.threads.select("thread", "role", "rank"), on="thread", how="left"
    )
    return named.rename({"direction": "kind"}).select(list(IPC)).match_to_schema(IPC).sort("ts_ns", "thread")


def thread_processes(trace: Trace) -> pl.DataFrame:
    """Return a number for the process of each thread: thread, process (Int64)."""
    return trace.threads.select("thread", process=pl.struct("host", "pid").rank("dense").cast(pl.Int64))


def worker_steps(
    trace: Trace, requests_log: pl.DataFrame | None, ipc: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Return the steps that the workers took from the engine's queue, and that put work on a GPU.

    Takes the frames `ipc` and `launches` of the analyses, and `threads` of the trace. A step begins where a
    worker's dequeue ends and holds what the process launches until its next one.

    One row per worker process and step: `process` (Int64: a number of the worker's process), `sent_ns`
    (Int64: begin of the engine's enqueue; null = not exactly one began since the process's step before, or
    several engines send), `received_ns` (Int64: end of the dequeue), `done_ns` (Int64: end of the last GPU
    operation that was launched in the step). Sorted by `process`, `received_ns`.
    """
    if requests_log is None:
        return pl.DataFrame(schema=WORKER_STEPS)
    processes = thread_processes(trace)
    ranges = ipc.join(processes, on="thread")
    taken = union(_of(ranges, "worker", "dequeue"), "process")
    received = taken.select("process", received_ns=pl.col("ts_ns") + pl.col("dur_ns"))
    steps = _with_sent(received, union(_of(ranges, "engine", "enqueue"), "process"))
    done = last_done(launches.join(processes, left_on="call_thread", right_on="thread"), received)
    joined = steps.join(done, on=["process", "received_ns"])
    return joined.match_to_schema(WORKER_STEPS).sort("process", "received_ns")


def untaken(trace: Trace, ipc: pl.DataFrame) -> pl.DataFrame:
    """Return when each thread had been sent the message that it waits for in a dequeue, and had not taken it.

    Takes the frame `ipc`. The message is there when the first enqueue that ends inside the dequeue ends; of
    the role that the thread waits for, and of the only process of that role that sends. Where several send,
    nothing tells whose message it is.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `taken` (Boolean: false). Sorted by
    `thread`, `ts_ns`.
    """
    processes = thread_processes(trace)
    ranges = ipc.join(processes, on="thread")
    rows = [_untaken(ranges, role, upstream) for role, upstream in UPSTREAM.items()]
    return pl.concat(rows).with_columns(taken=pl.lit(value=False)).sort("thread", "ts_ns")


def _untaken(ranges: pl.DataFrame, role: str, upstream: str) -> pl.DataFrame:
    sent = union(_of(ranges, upstream, "enqueue"), "process")
    end = pl.col("ts_ns") + pl.col("dur_ns")
    waits = union(_of(ranges, role, "dequeue"), "thread").with_columns(until=end)
    if sent["process"].n_unique() != 1:
        return waits.select("thread", "ts_ns", "dur_ns").clear()
    arrived = waits.sort("ts_ns").join_asof(
        sent.select(there=end).sort("there"),
        left_on="ts_ns",
        right_on="there",
        strategy="forward",
        allow_exact_matches=False,
        coalesce=False,
    )
    late = arrived.filter(pl.col("there") < pl.col("until"))
    return late.select("thread", ts_ns="there", dur_ns=pl.col("until") - pl.col("there"))


def _of(ranges: pl.DataFrame, role: str, kind: str) -> pl.DataFrame:
    return ranges.filter((pl.col("role") == role) & (pl.col("kind") == kind))


def _with_sent(received: pl.DataFrame, enqueues: pl.DataFrame) -> pl.DataFrame:
    """Add when each step was sent: by the one message of the one engine that began since the step before."""
    begun = enqueues.sort("ts_ns").select(sent_ns="ts_ns", number=pl.int_range(1, pl.len() + 1))
    sent = received.sort("received_ns").join_asof(
        begun, left_on="received_ns", right_on="sent_ns", strategy="backward", coalesce=False
    )
    since = (
        pl.col("number")
        .fill_null(0)
        .diff()
        .over("process", order_by="received_ns")
        .fill_null(pl.col("number"))
    )
    sure = (since == 1) & (enqueues["process"].n_unique() == 1)
    return sent.select("process", "received_ns", sent_ns=pl.when(sure).then("sent_ns"))


def last_done(launched: pl.DataFrame, received: pl.DataFrame) -> pl.DataFrame:
    """Return when the last operation of each step ended: process, received_ns, done_ns."""
    ops = launched.select("process", "call_ts_ns", end=pl.col("ts_ns") + pl.col("dur_ns")).sort("call_ts_ns")
    during = ops.join_asof(
        received.sort("received_ns"),
        left_on="call_ts_ns",
        right_on="received_ns",
        by="process",
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    )
    return (
        during.drop_nulls("received_ns").group_by("process", "received_ns").agg(done_ns=pl.col("end").max())
    )
