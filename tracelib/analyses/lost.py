"""Ledger 2: why each GPU did no useful work, for every nanosecond that it lost (docs/numbers.md, "Ledger 2").

An idle gap is put to the thread that launched the operation which ends it: what that thread did until its
launch call began, the call itself, and the device's own latency after it. While that thread waits for another
process, the question goes upstream, to what that process did at the same moment. A collective's waiting is
put to the rank that arrived last (:mod:`tracelib.analyses.stragglers`).

Beside the ledger: how much host time each cause took, of which only the exposed part cost the GPUs anything.
"""

from collections.abc import Mapping

import polars as pl

from tracelib.analyses.stragglers import asked, collective_wait, line, waits
from tracelib.analyses.thread_states import CPU_STATE
from tracelib.analyses.upstream import Upstream
from tracelib.intervals import begin, each, end, in_order, merge_equal, overlay, union
from tracelib.trace import Trace

LOST_KIND = pl.Enum(["idle", "collective_wait"])
LOST = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "lost": LOST_KIND,
        "thread": pl.Int32(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "cpu_state": CPU_STATE,
        "what": pl.Categorical(),
    }
)
CAUSES = pl.Schema(
    {name: LOST[name] for name in ("gpu", "cause", "sub_cause", "cpu_state")} | {"ns": pl.Int64()}
)
HOST_TIME = pl.Schema(
    {
        "cause": pl.String(),
        "sub_cause": pl.String(),
        "total_ns": pl.Int64(),
        "union_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "count": pl.Int64(),
    }
)

#: Sub-causes that only the GPU side knows.
INSIDE_A_GRAPH, NOT_STARTED = "inside a graph", "launched, not started"
NO_LAUNCH = "no launch found"
#: The columns of a piece of lost time that say who is to blame.
_BLAME = ["thread", "cause", "sub_cause", "what"]
#: How long a launched operation takes to start on an idle device at most: so many times the run's median for
#: such launches, and never longer than this. What is beyond is not the host's: it had done its part.
LATENCY_TIMES, LATENCY_NS = 10, 1_000_000
#: Rows of host activity that are summed up at a time.
PART = 2**17


def lost(
    trace: Trace,
    gpu_states: pl.DataFrame,
    launches: pl.DataFrame,
    whole_collectives: pl.DataFrame,
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    ipc: pl.DataFrame,
    replicas: pl.DataFrame,
) -> pl.DataFrame:
    """Return every piece of lost GPU time with its cause.

    Takes the frames of the analyses of the same names.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `lost` (Enum: idle, collective_wait),
    `thread` (Int32: the thread blamed, after following waits upstream; null = none known), `cause`,
    `sub_cause` (String), `cpu_state` (Enum: what the blamed thread's CPU state was), `what` (Categorical: its
    innermost slice). Per GPU the pieces add up to `idle` + `collective_wait` exactly. Sorted by `gpu`,
    `ts_ns`.
    """
    span = (begin(gpu_states), end(gpu_states)) if gpu_states.height else (0, 0)
    upstream = upstreams(trace, host_activity, thread_states, ipc, replicas, span)
    idle = idle_pieces(gpu_states, launches, thread_states, upstream, latency_bound(launches))
    waited = waits(whole_collectives, span[0])
    waiting = collective_wait(gpu_states, waited, line(asked(waited), gpu_states, idle))
    pieces = pl.concat(
        [
            idle.select(waiting.columns).with_columns(lost=pl.lit("idle", LOST_KIND)),
            waiting.with_columns(lost=pl.lit("collective_wait", LOST_KIND)),
        ]
    )
    return in_order(pieces.select(list(LOST)).match_to_schema(LOST), "gpu")


def upstreams(
    trace: Trace,
    host_activity: pl.DataFrame,
    thread_states: pl.DataFrame,
    ipc: pl.DataFrame,
    replicas: pl.DataFrame,
    span: tuple[int, int],
) -> dict[int, Upstream]:
    """Return who waits for whom, by replica; the first stands for threads that are of none."""
    if replicas.is_empty():
        return {0: Upstream(trace, host_activity, thread_states, ipc, span)}
    out = {}
    for (number,), own in replicas.group_by("replica", maintain_order=True):
        threads = trace.threads.join(own, on="thread", how="semi", maintain_order="left")
        out[number] = Upstream(trace.replace(threads=threads), host_activity, thread_states, ipc, span)
    return out


def _blamed(pieces: pl.DataFrame, upstream: Mapping[int, Upstream]) -> pl.DataFrame:
    """Put each piece to the replica of its thread; one of a thread that is of none to the first."""
    parts: list[pl.DataFrame] = []
    for replica in reversed(list(upstream.values())[1:]):
        own = pl.col("thread").is_in(replica.trace.threads["thread"].implode()).fill_null(value=False)
        parts.append(replica.blame(pieces.filter(own)))
        pieces = pieces.filter(~own)
    return pl.concat([upstream[0].blame(pieces), *parts])


def idle_pieces(
    gpu_states: pl.DataFrame,
    launches: pl.DataFrame,
    thread_states: pl.DataFrame,
    upstream: Mapping[int, Upstream],
    bound_ns: int,
) -> pl.DataFrame:
    """Return the idle pieces of some GPUs with their causes and CPU states.

    Takes the frames `gpu_states` and `launches` of these GPUs, `thread_states`, an :class:`Upstream` for each
    replica, and what :func:`latency_bound` says of the whole run. One row per piece: `gpu`, `ts_ns`, `dur_ns`
    and :data:`tracelib.analyses.stragglers.BLAME`; in no order.
    """
    cpu = thread_states.select("thread", "ts_ns", "dur_ns", cpu_state="state")
    blamed = overlay(_idle(gpu_states, launches, upstream, bound_ns), cpu, "thread")
    return blamed.with_columns(pl.col("cpu_state").fill_null("unknown"))


def _idle(
    gpu_states: pl.DataFrame, launches: pl.DataFrame, upstream: Mapping[int, Upstream], bound_ns: int
) -> pl.DataFrame:
    gaps = gpu_states.filter(pl.col("state") == "idle").select(
        "gpu", "ts_ns", "dur_ns", until=pl.col("ts_ns") + pl.col("dur_ns")
    )
    ended = gaps.join(
        launches.select(
            "gpu", "call_thread", "call_ts_ns", "call_dur_ns", "graph", until="ts_ns", op=pl.lit(1)
        ),
        on=["gpu", "until"],
        how="left",
        maintain_order="left",
    )
    if ended.height > gaps.height:
        # Several operations start together at a gap's end: the one launched first had the gap to itself.
        ended = ended.sort("gpu", "until", "call_ts_ns", nulls_last=True).unique(
            ["gpu", "until"], keep="first", maintain_order=True
        )
    main = _main_thread(launches)
    edge = ended.filter(pl.col("op").is_null()).join(main, on="gpu", how="left").with_columns(thread="main")
    launched = ended.filter(pl.col("call_ts_ns").is_not_null()).with_columns(thread="call_thread")
    unlaunched = ended.filter(pl.col("op").is_not_null() & pl.col("call_ts_ns").is_null())
    launched, within = _within_graphs(launched, launches)
    before, call, after = _parts(launched)
    latency, beyond = _latency(after, bound_ns)
    blamed = _blamed(pl.concat([before, edge.select("gpu", "thread", "ts_ns", "dur_ns")]), upstream)
    return pl.concat(
        [
            blamed.select("gpu", "ts_ns", "dur_ns", *_BLAME),
            upstream[0].within_call(call).select("gpu", "ts_ns", "dur_ns", *_BLAME),
            _named(latency, "kernel_launch", "latency"),
            _named(_of_no_thread(beyond), "unattributed", NOT_STARTED),
            _named(_of_no_thread(within), "device", INSIDE_A_GRAPH),
            _named(_of_no_thread(unlaunched), "unattributed", NO_LAUNCH),
        ]
    )


def _main_thread(launches: pl.DataFrame) -> pl.DataFrame:
    """Return per GPU the thread that launched most on it: gpu, main."""
    counted = launches.drop_nulls("call_thread").group_by("gpu", main="call_thread").len()
    most = counted.sort("gpu", "len", "main").unique("gpu", keep="last", maintain_order=True)
    return most.select("gpu", "main")


def _parts(launched: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Cut gaps at the launch call: before it, the call, after it; each (gpu, thread, ts_ns, dur_ns)."""
    begin, until = pl.col("ts_ns"), pl.col("until")
    call = pl.max_horizontal(begin, pl.min_horizontal("call_ts_ns", until))
    end_of_call = pl.col("call_ts_ns") + pl.col("call_dur_ns")
    returned = pl.max_horizontal(call, pl.min_horizontal(end_of_call, until))
    before, inside, after = (
        launched.select("gpu", "thread", ts_ns=a, dur_ns=b - a).filter(pl.col("dur_ns") > 0)
        for a, b in ((begin, call), (call, returned), (returned, until))
    )
    return before, inside, after


def _within_graphs(launched: pl.DataFrame, launches: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the gaps but those between two nodes of one graph launch, where the host has nothing to do."""
    nodes = launches.filter(pl.col("graph").is_not_null()).select(
        "gpu", "call_thread", "call_ts_ns", ts_ns=pl.col("ts_ns") + pl.col("dur_ns")
    )
    key = ["gpu", "ts_ns", "call_thread", "call_ts_ns"]
    of_graph = launched.filter(pl.col("graph").is_not_null())
    within = of_graph.join(nodes.unique(key), on=key, how="semi", maintain_order="left")
    rest = launched.join(
        within.select("gpu", "ts_ns"), on=["gpu", "ts_ns"], how="anti", maintain_order="left"
    )
    return rest, within.select("gpu", "ts_ns", "dur_ns")


def latency_bound(launches: pl.DataFrame) -> int:
    """Return how long a launched operation takes to start on an idle device at most, ns."""
    starts = launches.filter("late", pl.col("return_to_start_ns") > 0)["return_to_start_ns"]
    usual = float(starts.median() or LATENCY_NS)  # type: ignore[arg-type]
    return min(LATENCY_NS, round(LATENCY_TIMES * usual))


def _latency(after: pl.DataFrame, bound_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cut the time after launch calls at the longest start of a device; beyond it, nobody knows why."""
    latency = after.with_columns(pl.col("dur_ns").clip(upper_bound=bound_ns))
    beyond = after.with_columns(ts_ns=pl.col("ts_ns") + bound_ns, dur_ns=pl.col("dur_ns") - bound_ns)
    return latency, beyond.filter(pl.col("dur_ns") > 0)


def _of_no_thread(pieces: pl.DataFrame) -> pl.DataFrame:
    return pieces.with_columns(thread=pl.lit(None, pl.Int32))


def _named(pieces: pl.DataFrame, cause: str, sub_cause: str | None) -> pl.DataFrame:
    return pieces.select(
        "gpu",
        "ts_ns",
        "dur_ns",
        "thread",
        cause=pl.lit(cause),
        sub_cause=pl.lit(sub_cause, pl.String),
        what=pl.lit(None, pl.Categorical()),
    )


def causes(lost: pl.DataFrame) -> pl.DataFrame:
    """Return `lost` summed up.

    One row per GPU, cause, sub-cause and CPU state: `gpu` (Int32), `cause`, `sub_cause` (String), `cpu_state`
    (Enum), `ns` (Int64). Adds up to `lost`. Sorted by GPU, then largest first.
    """
    key = list(CAUSES)[:-1]
    summed = lost.group_by(key).agg(ns=pl.col("dur_ns").sum())
    return summed.sort("gpu", "ns", *key[1:], descending=[False, True, False, False, False])


def host_time(host_activity: pl.DataFrame, lost: pl.DataFrame) -> pl.DataFrame:
    """Return how much host time each cause took, and how much lost GPU time it exposed.

    Takes the frames of the analyses of those names.

    One row per cause and sub-cause: `cause`, `sub_cause` (String, null = none), `total_ns` (Int64, summed
    over threads), `union_ns` (Int64, time in which at least one thread did it), `exposed_ns` (Int64, lost GPU
    time given to it, summed over GPUs), `count` (Int64, stretches). Time in which a thread waits for another
    process is nobody's work and not counted on the host's side: the frame `ipc` has it. What only the
    GPU side knows (the sub-cause latency; imbalance, no_work) has null host columns. Sorted by `exposed_ns`,
    largest first.
    """
    key = ["cause", "sub_cause"]
    parts = each(lambda part: _work(part, key), list(host_activity.iter_slices(PART)) or [host_activity])
    total = pl.concat([summed for summed, _ in parts]).group_by(key).agg(pl.col("total_ns", "count").sum())
    numbers = total.select(*key, _key=pl.int_range(pl.len(), dtype=pl.Int32))
    numbered = pl.concat(
        [
            stretches.join(numbers, on=key, nulls_equal=True).select("_key", "ts_ns", "dur_ns")
            for _, stretches in parts
        ]
    )
    covered = union(numbered, "_key").group_by("_key").agg(union_ns=pl.col("dur_ns").sum())
    worked = (
        total.join(numbers.join(covered, on="_key"), on=key, nulls_equal=True)
        .drop("_key")
        .with_columns(pl.col(key).cast(pl.String))
    )
    exposed = lost.group_by(key).agg(exposed_ns=pl.col("dur_ns").sum())
    rows = (
        worked.join(exposed, on=key, how="full", nulls_equal=True, coalesce=True)
        .with_columns(pl.col("exposed_ns").fill_null(0))
        .select(list(HOST_TIME))
        .match_to_schema(HOST_TIME)
    )
    order = ["exposed_ns", "total_ns", "cause", "sub_cause"]
    return rows.sort(order, descending=[True, True, False, False], nulls_last=True)


def _work(host_activity: pl.DataFrame, key: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was nobody's waiting: summed up, and as stretches.

    Neighbours of one cause become one stretch, which leaves far fewer.
    """
    works = host_activity.filter(pl.col("cause").is_not_null() & pl.col("waits_for").is_null())
    summed = works.group_by(key).agg(total_ns=pl.col("dur_ns").sum(), count=pl.len().cast(pl.Int64))
    return summed, merge_equal(works, ["thread", *key])
