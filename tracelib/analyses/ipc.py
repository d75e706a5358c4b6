"""Messages between the server's processes, as their own ranges show them, and the steps that they begin."""

from functools import partial

import polars as pl

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.analyses.window import Window
from tracelib.classify import slice_causes, slices_named
from tracelib.intervals import outermost, overlay, union
from tracelib.slice_rules import Rules
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
SENDERS = pl.Schema(
    {
        "thread": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "sender": pl.Int32(),
        "under_way": pl.Boolean(),
    }
)
#: Whose work a role waits for when it waits for "upstream".
UPSTREAM = {"worker": "engine", "engine": "api_server", "api_server": "clients"}
#: A message is under way while the process that sends it works without a longer pause; a wait that its thread
#: interrupts to ask again can end so long before the message was sent.
PAUSE_NS = 1_000_000
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
    """Return a number for the process of each thread: thread, process (Int64).

    A thread whose process is not known is one by itself.
    """
    alone = pl.when(pl.col("pid").is_null()).then("thread")
    return trace.threads.select(
        "thread", process=pl.struct("host", "pid", alone).rank("dense").cast(pl.Int64)
    )


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


def senders(
    waits: pl.DataFrame, sent: pl.DataFrame, busy: pl.DataFrame, dequeuing: pl.Series
) -> pl.DataFrame:
    """Return which thread sent the message that each wait ended with, and since when it was under way.

    Takes `waits` (`thread`, `ts_ns`, `dur_ns`: when threads did nothing themselves), `sent` (the rows of
    `ipc` in which those whom they wait for send, and `of`: a number of those who work for it), what
    :func:`busy` says of these, and the threads that take messages from a queue: what they take was enqueued,
    if anything was. The message is the last one that
    began to be sent in the wait, or else the first one up to `PAUSE_NS` after it. What was done before the
    last pause of that length was not done for this message.

    One row per stretch: `thread` (Int32), `ts_ns`, `dur_ns` (Int64), `sender` (Int32), `under_way` (Boolean).
    Waits without such a message have none. Sorted by `thread`, `ts_ns`.
    """
    enqueued = sent.filter(pl.col("kind") == "enqueue")
    takes = pl.col("thread").is_in(dequeuing.implode())
    parts = [(waits.filter(takes), sent if enqueued.is_empty() else enqueued), (waits.filter(~takes), sent)]
    ended = pl.concat([_with_message(own, messages) for own, messages in parts])
    since = pl.max_horizontal(
        "ts_ns", pl.min_horizontal(pl.col("busy_ns").fill_null(pl.col("ts_ns")), "until")
    )
    begun = ended.sort("message_ns").join_asof(
        busy.select("of", busy_ns="ts_ns").sort("busy_ns"),
        left_on="message_ns",
        right_on="busy_ns",
        by="of",
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    )
    cut = begun.with_columns(since=since)
    idle = cut.with_columns(dur_ns=pl.col("since") - pl.col("ts_ns"), under_way=pl.lit(value=False))
    works = cut.with_columns(
        ts_ns="since", dur_ns=pl.col("until") - pl.col("since"), under_way=pl.lit(value=True)
    )
    rows = pl.concat([part.select(list(SENDERS)) for part in (idle, works)])
    return rows.filter(pl.col("dur_ns") > 0).match_to_schema(SENDERS).sort("thread", "ts_ns")


def _with_message(waits: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Return the waits that have a message: thread, ts_ns, until, sender, of, message_ns."""
    over = pl.col("ts_ns") + pl.col("dur_ns")
    messages = sent.select("of", sender="thread", message_ns="ts_ns", over=over).sort("message_ns")
    rows = waits.select("thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")).sort("until")
    asked = partial(pl.DataFrame.join_asof, left_on="until", right_on="message_ns", coalesce=False)
    last = asked(rows, messages, strategy="backward", allow_exact_matches=False)
    inside = (pl.col("over") > pl.col("ts_ns")).fill_null(value=False)
    missed = last.filter(~inside).select(rows.columns)
    later = asked(missed, messages, strategy="forward", tolerance=PAUSE_NS)
    return pl.concat([last.filter(inside), later.drop_nulls("sender")]).drop("over")


def busy(rows: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Return when some threads worked, pauses of up to `PAUSE_NS` counted in: of, ts_ns, dur_ns.

    Takes their rows of `host_activity`, and of `thread_states` those of the threads that send, both with
    `of`, a number of those who are at work together: one that sends and
    is ready to run has been woken, and one on a CPU that is not seen to wait works at what no source names.
    """
    state = pl.col("state").cast(pl.String)
    waits = rows.filter(pl.col("waits_for").is_not_null()).select("thread", "ts_ns", "dur_ns", "waits_for")
    unseen = overlay(states.filter(state == "running"), waits, "thread").filter(pl.col("waits_for").is_null())
    kept_off = states.filter(state.is_in(WAITS_FOR_CPU))
    parts = [rows.filter(pl.col("waits_for").is_null()), unseen, kept_off]
    spans = pl.concat([part.select("of", "ts_ns", dur_ns=pl.col("dur_ns") + PAUSE_NS) for part in parts])
    return union(spans, "of").select("of", "ts_ns", dur_ns=pl.col("dur_ns") - PAUSE_NS)


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


def answering_steps(log: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that made each first token: row, next_ns, sent_ns, received_ns, done_ns.

    The one that gave it is on each worker the last that was done by then: `sent_ns`, and of the last worker
    `received_ns` and `done_ns`. `next_ns` = when the engine began to send the first step after the prompt was
    tokenized. Where the log has `scheduled`, `next_ns` and `sent_ns` are that, and `received_ns` is of the
    first step sent since. No row where some worker shows no step since; `sent_ns` and `next_ns` null where
    the workers' steps are not known to be of one message.
    """
    workers, sent = steps.select("process").unique(), pl.col("sent_ns")
    since = pl.coalesce("scheduled", "since")
    asked = (
        log.select("row", "scheduled", "first_token", since=since)
        .join(workers, how="cross")
        .sort("first_token")
    )
    given = asked.join_asof(
        steps.sort("done_ns"),
        left_on="first_token",
        right_on="done_ns",
        by="process",
        strategy="backward",
        check_sortedness=False,
        coalesce=False,
    ).filter(pl.col("received_ns") >= pl.col("since"))
    one = (sent.null_count() == 0) & (sent.n_unique() == 1) & (sent.min() >= pl.col("since").first())
    answered = given.group_by("row", "since", "scheduled").agg(
        pl.len().alias("workers"),
        pl.col("received_ns", "done_ns").max(),
        sent_ns=pl.when(one).then(sent.min()),
    )
    placed = _first_since(answered.filter(pl.col("workers") == workers.height), steps)
    doubt = sent.is_null() | (pl.col("doubt_ns") < pl.col("received_ns")).fill_null(value=False)
    taken = ~doubt & pl.col("scheduled").is_not_null()
    return placed.select(
        "row",
        "done_ns",
        received_ns=pl.when(taken).then("first_ns").otherwise("received_ns"),
        **{name: pl.when(~doubt).then(pl.coalesce("scheduled", name)) for name in ("next_ns", "sent_ns")},
    )


def _first_since(placed: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the first step sent since `since`: next_ns, first_ns (when it was received).

    Also doubt_ns: when the first one since was received whose sending is not recorded.
    """
    sent = pl.col("sent_ns")
    sure = steps.filter(sent.is_not_null()).group_by(next_ns=sent).agg(first_ns=pl.col("received_ns").max())
    unsure = steps.filter(sent.is_null()).select(doubt_ns="received_ns").unique()
    for times in (sure, unsure):
        name = times.columns[0]
        placed = placed.sort("since").join_asof(
            times.sort(name), left_on="since", right_on=name, strategy="forward", coalesce=False
        )
    return placed
