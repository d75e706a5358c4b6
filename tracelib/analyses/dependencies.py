"""What had to come before what in a run: the graph that :mod:`tracelib.analyses.replay` replays.

Nodes are a host thread's launch calls, the begins and ends of its waits, what it sends; the starts of GPU
operations; the ends of collectives. Edges are program order on each thread, stream order on each device,
launch to start, message to the end of the wait for it, an operation's end to that of the synchronisation
that waits for it, and, in a collective, the last rank's start to the end on all ranks.
docs/numbers.md, "What-if replay", defines the rules.
"""

import numpy as np
import polars as pl

from tracelib.analyses.collectives import handed_over
from tracelib.analyses.dispatch import POLL_NS
from tracelib.analyses.ipc import UPSTREAM, thread_processes
from tracelib.analyses.replay import BEGIN, CALL, END, MET, RELEASED, SENT, START, Builder, Graph, Ints
from tracelib.analyses.upstream import ENTRANCE, WORKS
from tracelib.analyses.window import Window
from tracelib.intervals import fill, merge_equal, merge_near, overlay
from tracelib.trace import Trace
from tracelib.words import SERVER

ARRIVAL_NS = 1_000_000  # a front end that did nothing for so long waited for a request
#: By so much the device's clock and the host's may differ: operations seem to end after synchronisations.
EDGE_NS = 10_000
#: Sub-causes of kernel_launch of which a graph leaves one launch.
BY_LAUNCH = ("api", "dispatch")
#: Sub-causes that a change can take away by themselves.
APART = ("jit_compile", "module_load", "alloc", "decode", "input_pipeline")
#: An operation that starts so soon after the end of one on another stream waited for it.
CROSS_NS = 20_000
#: An operation that starts so soon after the one before it was queued.
QUEUED_NS = 4_000
#: The usual gap between queued operations, and from a launch to the start on an idle device, if unknown.
GAP_NS, LATENCY_NS = 1_000, 5_000
#: An operation that starts later than so many times that after its launch waited for another one.
LATE = 4


def graph_of(
    trace: Trace,
    window: Window,
    launches: pl.DataFrame,
    collectives: pl.DataFrame,
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    ipc: pl.DataFrame,
    replicas: pl.DataFrame,
    *,
    steps: pl.DataFrame,
) -> Graph:
    """Return the run's graph, from the frames of the analyses of those names.

    `steps` are stretches of threads (thread, ts_ns, dur_ns, step) at whose edges host time is cut.
    """
    ops = _operations(launches, window)
    roles = trace.threads.select("thread", "role").join(thread_processes(trace), on="thread")
    threads = _threads(roles, ops, host_activity, thread_states, ipc)
    pieces = _pieces(threads, host_activity, thread_states, steps, window)
    made = Builder(window, {thread: n for n, thread in enumerate(threads)})
    calls, ops = _with_calls(ops, made)
    made.add(CALL, calls["thread"], calls["ts_ns"])
    starts, ends = _add_operations(ops, collectives, made)
    activity = host_activity.join(roles, on="thread").filter(pl.col("thread").is_in(threads))
    _add_synchronisations(activity, ops, starts, ends, roles, made)
    _add_messages(activity, ipc, replicas, made)
    _add_arrivals(activity, ipc, ops, made)
    return made.graph(pieces)


def _threads(
    roles: pl.DataFrame,
    ops: pl.DataFrame,
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    ipc: pl.DataFrame,
) -> list[int]:
    """Return the threads that launch, those of the server with ranges, and the front end's."""
    server = roles.filter(pl.col("role").is_in(SERVER))["thread"]
    ranged = host_activity.filter(pl.col("seen_by") == "slice")["thread"].unique()
    known = pl.concat([host_activity["thread"].unique(), thread_states["thread"].unique()])
    front = roles.filter(pl.col("role") == ENTRANCE)["thread"]
    named = [
        ranged.filter(ranged.is_in(server.implode())),
        known.filter(known.is_in(front.implode())),
        ipc["thread"],
        ops["call_thread"].drop_nulls(),
    ]
    return sorted(pl.concat(named).unique().to_list())


def _pieces(
    threads: list[int],
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    steps: pl.DataFrame,
    window: Window,
) -> pl.DataFrame:
    own, sub_cause = pl.col("thread").is_in(threads), pl.col("sub_cause").cast(pl.String)
    launching = (pl.col("cause") == "kernel_launch") & sub_cause.is_in(BY_LAUNCH)
    kinds = {
        "launching": launching.fill_null(value=False),
        "waits": pl.col("waits_for").is_not_null(),
        "part": pl.when(sub_cause.is_in(APART)).then(sub_cause),
    }
    activity = host_activity.filter(own).select("thread", "ts_ns", "dur_ns", "cause", **kinds)
    merged = merge_equal(activity, ["thread", "cause", *kinds])
    named = merged.with_columns(pl.col("cause").cast(pl.String))
    whole = fill(named, "thread", threads, window.start_ns, window.end_ns)
    whole = overlay(whole, steps, "thread")
    cut = overlay(whole, thread_states.filter(own).select("thread", "ts_ns", "dur_ns", "state"), "thread")
    number = pl.col("thread").replace_strict(threads, range(len(threads)), return_dtype=pl.Int64)
    return cut.with_columns(place=number * window.duration_ns + pl.col("ts_ns") - window.start_ns)


def _operations(launches: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the operations in stream order, times from the window's begin."""
    call = pl.col("call_ts_ns").clip(window.start_ns)
    return launches.select(
        "gpu",
        "stream",
        ts=pl.col("ts_ns") - window.start_ns,
        dur="dur_ns",
        recorded="ts_ns",
        call_thread=pl.when(call <= pl.col("ts_ns")).then("call_thread"),
        call=pl.when(call <= pl.col("ts_ns")).then(call - window.start_ns),
        returned=pl.min_horizontal("ts_ns", pl.col("call_ts_ns") + pl.col("call_dur_ns")) - window.start_ns,
        collective=pl.col("collective").is_not_null(),
    ).sort("gpu", "stream", "ts", maintain_order=True)


def _with_calls(ops: pl.DataFrame, made: Builder) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the launch calls, and the operations with the number of each one's node (-1 = none)."""
    calls = ops.select(thread="call_thread", ts_ns="call").drop_nulls().unique().sort("thread", "ts_ns")
    numbered = calls.with_columns(node=pl.int_range(pl.len(), dtype=pl.Int64) + made.count)
    joined = ops.join(
        numbered,
        left_on=["call_thread", "call"],
        right_on=["thread", "ts_ns"],
        how="left",
        maintain_order="left",
    )
    return calls, joined.with_columns(pl.col("node").fill_null(-1))


def _add_operations(ops: pl.DataFrame, collectives: pl.DataFrame, made: Builder) -> tuple[Ints, Ints]:
    """Add the operations; return the node of each one's start, and of its end (-1 = start and length)."""
    gpu, ts, dur, call, node = (
        ops[name].fill_null(-1).to_numpy() for name in ("gpu", "ts", "dur", "call", "node")
    )
    gpu = gpu.astype(np.int64)
    starts = made.add(START, None, ts, gpu, dur)
    ends = _add_collectives(ops, starts, collectives, made)
    same = np.append(False, (gpu[1:] == gpu[:-1]) & (np.diff(ops["stream"].to_numpy()) == 0))[: len(ts)]
    prior = np.where(same, np.arange(len(ts)) - 1, -1)
    done = np.where(same, np.append(0, (ts + dur)[:-1])[: len(ts)], -1)
    other = _ended_before(gpu, ts, dur, prior, done)
    free = np.maximum(done, np.where(other >= 0, (ts + dur)[other], -1))
    back, launched = np.maximum(ops["returned"].fill_null(-1).to_numpy(), call), node >= 0
    lag, late = ts - back, launched & (call >= free)
    usual = max(int(np.median(lag[late])), GAP_NS) if late.any() else LATENCY_NS
    after = ts - done
    gaps = after[same & (after > 0) & (after < QUEUED_NS) & ~late]
    gap = int(np.median(gaps)) if len(gaps) else GAP_NS
    of_one_call = same & launched & (node == np.append(-1, node[:-1])[: len(node)])
    queued = of_one_call | ~launched | ((call < free) & ((ts - free <= QUEUED_NS) | (lag > LATE * usual)))
    by_other = queued & (other >= 0)
    waits = np.where(queued & ~by_other, after, np.minimum(after, gap))
    _after(made, "order", starts, (starts, ends, dur), prior, waits)
    alone = ~same & (~launched | queued) & ~by_other  # nothing recorded came before
    made.edge("order", starts[alone], np.zeros(int(alone.sum()), np.int64), ts[alone])
    beside = np.where(by_other, ts - free, np.minimum(ts - free, gap))
    _after(made, "cross", starts, (starts, ends, dur), other, beside)
    shown = np.where(of_one_call, -1, node)
    line = made.line(ops["call_thread"].fill_null(-1))
    call_time = made.place(line, call), made.place(line, back)
    made.edge("cause", starts, shown, np.where(queued, np.minimum(lag, usual), lag), call_time)
    return starts, ends


def _after(
    made: Builder, name: str, nodes: Ints, of: tuple[Ints, Ints, Ints], which: Ints, waits: Ints
) -> None:
    """Add edges from the ends of operations `which` (-1 = none)."""
    starts, ends, dur = of
    ended = ends[which] >= 0
    before = np.where(which < 0, -1, np.where(ended, ends[which], starts[which]))
    made.edge(name, nodes, before, np.maximum(waits, 0) + np.where(ended, 0, dur[which]))


def _ended_before(gpu: Ints, ts: Ints, dur: Ints, prior: Ints, done: Ints) -> Ints:
    """Return the operation on another stream that each one started right behind (-1 = none)."""
    if not len(ts):
        return prior
    span = int((ts + dur).max()) + 1
    over = gpu * span + ts + dur
    by_end = np.argsort(over, kind="stable")
    found = np.searchsorted(over[by_end], gpu * span + ts, side="right") - 1
    last = by_end[np.maximum(found, 0)]
    ended = (ts + dur)[last]
    fits = (found >= 0) & (gpu[last] == gpu) & (last != np.arange(len(ts))) & (last != prior)
    return np.where(fits & (ts - ended <= CROSS_NS) & (ended > done), last, -1)


def _add_collectives(ops: pl.DataFrame, starts: Ints, collectives: pl.DataFrame, made: Builder) -> Ints:
    """Add the ends of collectives: as long after the last rank's start as recorded, on each rank."""
    ends = np.full(len(starts), -1)
    numbered = (
        ops.filter("collective")
        .select("gpu", ts_ns="recorded")
        .with_columns(row=np.flatnonzero(ops["collective"].to_numpy()))
    )
    met = (
        pl.concat([collectives.filter("matched"), handed_over(collectives, CROSS_NS)])
        .select("gpu", "ts_ns", "event")
        .join(numbered.unique(["gpu", "ts_ns"]), on=["gpu", "ts_ns"])
        .sort("event", "ts_ns", "gpu")
    )
    if met.is_empty():
        return ends
    row, event = met["row"].to_numpy(), met["event"].to_numpy()
    ts, dur, gpu = (ops[name].to_numpy()[row].astype(np.int64) for name in ("ts", "dur", "gpu"))
    here = made.add(MET, None, ts, gpu)
    made.edge("cause", here, starts[row], ts * 0)
    first = np.append(True, event[1:] != event[:-1])
    made.edge("order", here, np.where(first, -1, np.append(-1, here[:-1])), ts * 0)
    last = np.append(first[1:], True)
    group = np.cumsum(first) - 1
    began, final = ts[last][group], here[last][group]
    transfer = np.maximum(ts + dur - began, 0)
    ends[row] = made.add(END, None, np.maximum(ts + dur, began), gpu)
    made.edge("order", ends[row], starts[row], ts * 0)
    made.edge("cause", ends[row], final, transfer)
    return ends


def _add_waits(made: Builder, waits: pl.DataFrame) -> tuple[Ints, tuple[Ints, Ints]]:
    """Add the begin and the end of each wait; nothing but its own lag keeps the thread from `since` on.

    Takes thread, begin, end, since. Returns the ends' nodes, and from where to where the lag is.
    """
    line = made.line(waits["thread"])
    begin, end, since = (waits[name].to_numpy() - made.window.start_ns for name in ("begin", "end", "since"))
    begun = made.add(BEGIN, waits["thread"], begin)
    released = made.add(RELEASED, waits["thread"], end)
    span = made.place(line, np.clip(since, begin, end)), made.place(line, end)
    made.edge("order", released, begun, end * 0, span)
    return released, span


def _add_synchronisations(
    activity: pl.DataFrame, ops: pl.DataFrame, starts: Ints, ends: Ints, roles: pl.DataFrame, made: Builder
) -> None:
    """Let each synchronisation end with the last operation that ended in it."""
    of_process = (
        ops.join(roles, left_on="call_thread", right_on="thread").group_by("process").agg(pl.col("gpu").min())
    )
    synced = activity.filter(pl.col("cause").cast(pl.String) == "sync").join(of_process, on="process")
    if synced.is_empty():
        return
    merged = merge_near(synced.select("thread", "ts_ns", "dur_ns", "gpu"), EDGE_NS)
    over = ops.select(
        "gpu", over=pl.col("ts") + pl.col("dur") + made.window.start_ns, row=pl.int_range(pl.len())
    )
    found = (
        merged.with_columns(until=pl.col("end") + EDGE_NS)
        .sort("until")
        .join_asof(over.sort("over"), left_on="until", right_on="over", by="gpu", check_sortedness=False)
        .filter(pl.col("over") > pl.col("begin"))
        .with_columns(since=pl.min_horizontal("over", "end"))
    )
    released, lag = _add_waits(made, found)
    row = found["row"].to_numpy()
    early = (found["over"] - found["since"]).to_numpy()
    ended = ends[row] >= 0
    length = np.maximum(np.where(ended, 0, ops["dur"].to_numpy()[row] - early), 0)
    made.edge("cause", released, np.where(ended, ends[row], starts[row]), length, lag)


def _add_messages(activity: pl.DataFrame, ipc: pl.DataFrame, replicas: pl.DataFrame, made: Builder) -> None:
    """Let each wait for a message end with the last one that its replica sent in it.

    Threads that wait for others of their own role meet (a collective over the CPU): the last to come ends the
    wait of all.
    """
    sent = _sends(activity, ipc)
    waits = _message_waits(activity, sent).join(replicas, on="thread")
    of_replica = sent.join(replicas, left_on="sender", right_on="thread")
    messages = (
        waits.sort("end")
        .join_asof(
            of_replica.sort("sent_begin"),
            left_on="end",
            right_on="sent_begin",
            by=["asked", "replica"],
            check_sortedness=False,
        )
        .filter((pl.col("sent_end") > pl.col("begin")) & (pl.col("sender") != pl.col("thread")))
    )
    met = _meetings(waits.filter(pl.col("asked") == pl.col("role")))
    columns = ["thread", "begin", "end", "sender", "sent_end"]
    others = messages.join(met, on=["thread", "begin"], how="anti")
    found = pl.concat([met.select(columns), others.select(columns)]).with_columns(
        since=pl.min_horizontal("sent_end", "end")
    )
    released, lag = _add_waits(made, found)
    moments = (found["since"] - made.window.start_ns).to_numpy()
    source = made.add(SENT, found["sender"], moments)
    made.edge("cause", released, source, moments * 0, lag)


def _meetings(waits: pl.DataFrame) -> pl.DataFrame:
    """Return the waits during which another thread of the replica came, and the last to do so: `sender`."""
    others = waits.select("replica", sender="thread").unique()
    came = waits.select(sender="thread", sent_end=pl.col("begin") + 1).sort(
        "sent_end"
    )  # after an earlier wait
    pairs = waits.join(others, on="replica").filter(pl.col("sender") != pl.col("thread"))
    last = pairs.sort("end").join_asof(
        came, left_on="end", right_on="sent_end", by="sender", check_sortedness=False, coalesce=False
    )
    during = last.filter(pl.col("sent_end") > pl.col("begin"))
    return during.sort("sent_end").unique(["thread", "begin"], keep="last", maintain_order=True)


def _add_arrivals(activity: pl.DataFrame, ipc: pl.DataFrame, ops: pl.DataFrame, made: Builder) -> None:
    """Place the requests that come from outside: at their moments, or after the last answer before them."""
    arrivals = _arrivals(activity, made.window).with_columns(since="end")
    came, (since, until) = _add_waits(made, arrivals)
    at = (arrivals["end"] - made.window.start_ns).to_numpy()
    made.floors.append((came, at))
    answers = _answers(ipc, ops, made.window)
    last = np.searchsorted(answers["at"].to_numpy(), at, side="right") - 1
    answered = last >= 0
    of = answers[last[answered]]
    moments = of["at"].to_numpy()
    source = made.add(SENT, of["thread"], moments)
    lag = since[answered], until[answered]
    made.edge("cause", came[answered], source, at[answered] - moments, lag)
    made.answered.append(came[answered])


def _message_waits(activity: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    """Return waits for messages: thread, begin, end, role, asked. What a thread sends ends its wait."""
    roles = set(activity["role"].unique())
    waits = pl.col("waits_for").cast(pl.String)
    upstream = pl.col("role").replace_strict(UPSTREAM, default=None, return_dtype=pl.String)
    asked = pl.when(waits == "upstream").then(upstream).otherwise(waits)
    if "engine" not in roles:  # a worker that schedules by itself
        asked = pl.when(asked == "engine").then(pl.lit(ENTRANCE)).otherwise(asked)
    rows = activity.filter(pl.col("waits_for").is_not_null() & (pl.col("role") != ENTRANCE))
    own = sent.select(thread="sender", ts_ns="sent_begin", nth=pl.int_range(pl.len()).over("sender")).sort(
        "ts_ns"
    )
    named = rows.select("thread", "ts_ns", "dur_ns", "role", asked=asked).sort("ts_ns")
    between = named.join_asof(own, on="ts_ns", by="thread", check_sortedness=False)
    return merge_near(between, POLL_NS).drop("nth")


def _sends(activity: pl.DataFrame, ipc: pl.DataFrame) -> pl.DataFrame:
    """Return what each role sent, or, of one that no range shows to send, when its work ended.

    Columns asked (the role), sender, sent_begin, sent_end; sorted by sent_begin.
    """
    ranges = ipc.filter(pl.col("kind").is_in(["enqueue", "send"])).select(
        asked="role", sender="thread", sent_begin="ts_ns", sent_end=pl.col("ts_ns") + pl.col("dur_ns")
    )
    works = activity.filter(WORKS).select("thread", "ts_ns", "dur_ns", asked="role")
    silent = works.filter(~pl.col("asked").is_in(ranges["asked"].unique().implode()))
    ended = merge_near(silent, POLL_NS).select("asked", sender="thread", sent_begin="end", sent_end="end")
    return pl.concat([ranges, ended.match_to_schema(ranges.schema)]).sort("sent_begin")


def _arrivals(activity: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the stretches in which threads of the front end had no request: thread, begin, end."""
    works = activity.filter(WORKS, pl.col("role") == ENTRANCE)
    merged = merge_near(works.select("thread", "ts_ns", "dur_ns"), ARRIVAL_NS)
    before = pl.col("end").shift(1).over("thread").fill_null(window.start_ns)
    return merged.select("thread", end="begin", begin=before).filter(
        pl.col("end") - pl.col("begin") > ARRIVAL_NS
    )


def _answers(ipc: pl.DataFrame, ops: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return when workers answered, or where no range shows it, launched: thread, at; sorted by at."""
    answers = ipc.filter((pl.col("kind") == "send") & (pl.col("role") == "worker")).select(
        "thread", at=pl.col("ts_ns") + pl.col("dur_ns") - window.start_ns
    )
    if answers.is_empty():
        answers = ops.select(thread="call_thread", at="call").drop_nulls()
    return answers.filter(pl.col("at") >= 0).sort("at")
