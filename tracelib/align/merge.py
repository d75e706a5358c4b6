"""Many traces of one file each into one trace: equal threads become one, times move to the timeline.

Two rows are the same thread if host, process id and thread id agree and the names do not contradict each
other; a source that does not know process ids (ftrace without record-tgid) is joined by thread id alone, if
that is unique on its host. Threads and GPUs of an untied source never join others': no row of it can meet
another source's by accident.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelib.align.hosts import bare_name, best_name, compatible
from tracelib.align.ties import Tie, source_row
from tracelib.schema import FRAMES, IDLE
from tracelib.sources import format_named
from tracelib.trace import Trace

TIMED = ("slices", "gpu_ops", "samples", "sched", "counters")
DURATIONS = ("slices", "gpu_ops")
#: Names of each (host group, process id).
Mains = defaultdict[tuple[int, int | None], set[str | None]]


@dataclass
class _Thread:
    """One thread as the sources saw it."""

    host: int  # index of the group of sources that share a host
    pid: int | None
    tid: int
    seen: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)  # source: (name, process)


def merge(
    traces: Sequence[Trace], ties: Sequence[Tie], hosts: Sequence[int], names: Sequence[str | None]
) -> Trace:
    """Return one trace of `traces`, times moved by `ties`.

    `hosts` gives, for each trace, the group of sources that run on one host; `names` each group's host name,
    None if no source knows it. Untied sources must have a group of their own.
    """
    formats = [source_row(trace)["format"] for trace in traces]
    threads, thread_ids = _threads(traces, hosts)
    gpus, gpu_ids = _gpus(traces, hosts, names)
    parts = [
        _renumbered(trace, index, ties[index], thread_ids[index], gpu_ids[index], stacks)
        for index, (trace, stacks) in enumerate(zip(traces, _stack_starts(traces), strict=True))
    ]
    frames = {
        name: pl.concat([part[name] for part in parts]) for name in FRAMES if name not in ("threads", "gpus")
    }
    frames["threads"] = _threads_frame(threads, formats, names)
    frames["gpus"] = gpus
    return Trace.of(frames)


def _threads(traces: Sequence[Trace], hosts: Sequence[int]) -> tuple[list[_Thread], list[dict[int, int]]]:
    """Return the distinct threads, and each source's local thread id -> index among them."""
    merged: list[_Thread] = []
    mains = _main_names(traces, hosts)
    by_ids: defaultdict[tuple[int, int | None, int], list[int]] = defaultdict(list)
    by_tid: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    local: list[dict[int, int]] = [{} for _ in traces]
    rows = [(index, row) for index, trace in enumerate(traces) for row in trace.threads.iter_rows(named=True)]
    for index, row in sorted(rows, key=lambda item: item[1]["pid"] is None):  # stable: those with a pid first
        group = hosts[index]
        near = by_tid[group, row["tid"]] if row["pid"] is None else by_ids[group, row["pid"], row["tid"]]
        same = _match(row, [i for i in near if index not in merged[i].seen], merged, mains)
        if same is None:
            same = len(merged)
            merged.append(_Thread(group, row["pid"], row["tid"]))
            by_ids[group, row["pid"], row["tid"]].append(same)
            by_tid[group, row["tid"]].append(same)
        merged[same].seen[index] = (bare_name(row["name"]), bare_name(row["process"]))
        local[index][row["thread"]] = same
    return merged, local


def _main_names(traces: Sequence[Trace], hosts: Sequence[int]) -> Mains:
    """Return the names of each process and of its main thread: what its other threads may still be called."""
    names: Mains = defaultdict(set)
    for group, trace in zip(hosts, traces, strict=True):
        for pid, tid, name, process in trace.threads.select("pid", "tid", "name", "process").iter_rows():
            if pid is not None:
                names[group, pid] |= {bare_name(process)} | ({bare_name(name)} if pid == tid else set())
    return names


def _match(row: dict[str, Any], near: Sequence[int], merged: Sequence[_Thread], mains: Mains) -> int | None:
    """Return which of the threads `near` is `row`'s, None if none or, without a process id, several fit."""
    name = bare_name(row["name"])
    fits = [
        candidate
        for candidate in near
        if all(
            compatible(name, other, mains[merged[candidate].host, merged[candidate].pid])
            for other, _ in merged[candidate].seen.values()
        )
    ]
    return fits[0] if len(fits) == 1 or (fits and row["pid"] is not None) else None


def _threads_frame(
    threads: Sequence[_Thread], formats: Sequence[str], names: Sequence[str | None]
) -> pl.DataFrame:
    ranks = [format_named(name).thread_name_rank for name in formats]
    order = [sorted(thread.seen, key=lambda index: (ranks[index], index)) for thread in threads]
    processes: defaultdict[tuple[int, int | None], deque[str | None]] = defaultdict(deque)
    for thread, sources in zip(threads, order, strict=True):
        own_names = processes[thread.host, thread.pid]
        if thread.pid == thread.tid:  # the main thread's names come first
            own_names.extendleft(thread.seen[i][0] for i in reversed(sources))
        own_names.extend(thread.seen[i][1] for i in sources)
    process = {key: best_name(own) for key, own in processes.items() if key[1] is not None}
    rows = []
    for number, (thread, sources) in enumerate(zip(threads, order, strict=True)):
        own = process.get((thread.host, thread.pid)) or best_name(thread.seen[i][1] for i in sources)
        inherited = () if thread.pid == thread.tid else (own,)
        rows.append(
            {
                "thread": number,
                "host": names[thread.host],
                "pid": thread.pid,
                "tid": thread.tid,
                "name": best_name((thread.seen[i][0] for i in sources), inherited),
                "process": own,
            }
        )
    return pl.DataFrame(rows, schema=FRAMES["threads"])


def _gpus(
    traces: Sequence[Trace], hosts: Sequence[int], names: Sequence[str | None]
) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """Return the GPUs that ran something, one per (host, device, rank or source), and each source's ids.

    They are numbered by rank, whatever their files' names: rank 2 before rank 10; those without come last.
    """
    keys: dict[tuple[int, int | None, str], int] = {}
    rows: list[dict[str, Any]] = []
    local: list[dict[int, int]] = [{} for _ in traces]
    for index, trace in enumerate(traces):
        used = set(trace.gpu_ops["gpu"].unique().to_list())
        for row in trace.gpus.filter(pl.col("gpu").is_in(sorted(used))).iter_rows(named=True):
            rank = row["rank"] if row["rank"] is not None else source_row(trace)["rank"]
            own = f"gpu {row['gpu']} of source {index}"  # a merged file has several of one number
            key = (hosts[index], row["device"], own if rank is None else f"rank {rank}")
            if key not in keys:
                keys[key] = len(rows)
                rows.append(
                    {**row, "gpu": len(rows), "host": names[hosts[index]] or row["host"], "rank": rank}
                )
            local[index][row["gpu"]] = keys[key]
    order = sorted(rows, key=lambda row: (row["rank"] is None, row["rank"] or 0))  # stable: else as they came
    number = {row["gpu"]: place for place, row in enumerate(order)}
    numbered = [{gpu: number[met] for gpu, met in ids.items()} for ids in local]
    return pl.DataFrame([row | {"gpu": number[row["gpu"]]} for row in order], schema=FRAMES["gpus"]), numbered


def _stack_starts(traces: Sequence[Trace]) -> list[int]:
    starts, at = [], 0
    for trace in traces:
        starts.append(at)
        highest = trace.stacks["stack"].max()
        at += int(highest) + 1 if isinstance(highest, int) else 0
    return starts


def _renumbered(
    trace: Trace, index: int, tie: Tie, threads: dict[int, int], gpus: dict[int, int], stacks: int
) -> dict[str, pl.DataFrame]:
    frames = {
        name: frame.with_columns(source=pl.lit(index, pl.Int32))
        for name, frame in trace.frames().items()
        if "source" in frame.columns
    }
    frames["health"] = trace.health.with_columns(source=pl.lit(index, pl.Int32))
    frames["stacks"] = trace.stacks.with_columns(pl.col("stack") + stacks)
    frames["samples"] = frames["samples"].with_columns(pl.col("stack") + stacks)
    for frame, columns in (("slices", ["thread"]), ("samples", ["thread"]), ("sched", ["prev", "next"])):
        frames[frame] = frames[frame].with_columns(
            _relabelled(column, {IDLE: IDLE, **threads}) for column in columns
        )
    frames["gpu_ops"] = frames["gpu_ops"].with_columns(_relabelled("gpu", gpus))
    for frame in TIMED:
        frames[frame] = _moved(frames[frame], tie, frame in DURATIONS)
    frames["sources"] = _sources(frames["sources"], tie)
    return frames


def _relabelled(column: str, ids: dict[int, int]) -> pl.Expr:
    if not ids:
        return pl.col(column)
    return pl.col(column).replace_strict(ids, return_dtype=pl.Int32)


def _moved(frame: pl.DataFrame, tie: Tie, durations: bool) -> pl.DataFrame:  # noqa: FBT001
    start = tie.moved(pl.col("ts_ns"))
    if not durations or not tie.drift_ppb:
        return frame.with_columns(ts_ns=start)
    # Ends move as starts do, so that a child still ends inside its parent.
    return frame.with_columns(ts_ns=start, dur_ns=tie.moved(pl.col("ts_ns") + pl.col("dur_ns")) - start)


def _sources(sources: pl.DataFrame, tie: Tie) -> pl.DataFrame:
    return sources.with_columns(
        tied_by=pl.lit(tie.method),
        offset_ns=pl.lit(tie.offset_ns, pl.Int64),
        error_ns=pl.lit(tie.error_ns, pl.Int64),
        tied_with=pl.lit(tie.against, pl.String),
        anchor_kind=pl.lit(tie.kind or None, pl.String),
        anchors=pl.lit(tie.anchors or None, pl.Int64),
        residual_p50_ns=pl.lit(tie.p50_ns, pl.Int64),
        residual_p99_ns=pl.lit(tie.p99_ns, pl.Int64),
        drift_ppb=pl.lit(tie.drift_ppb, pl.Int64),
        first_ns=tie.moved(pl.col("first_ns")),
        last_ns=tie.moved(pl.col("last_ns")),
        recorded_from_ns=tie.moved(pl.col("recorded_from_ns")),
        recorded_to_ns=tie.moved(pl.col("recorded_to_ns")),
    )
