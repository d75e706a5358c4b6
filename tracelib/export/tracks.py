"""A run as a viewer shows it: groups of tracks, each with slices. Every exporter draws these and no others.

From top to bottom: findings, then per GPU to what its time was lost, its state, its streams; then the
server's processes by role, each thread with what it did and whether it had a CPU; then counters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.results import Results
from tracelib.findings import Document
from tracelib.intervals import merge_equal
from tracelib.trace import Trace
from tracelib.words import SERVER, role_name

#: Ids of processes in a viewer must differ between hosts; Linux allows no pid beyond 2**22.
HOST_PIDS = 2**22
#: Columns that are not written out beside a slice: they say where it lies.
PLACE = ("ts_ns", "dur_ns", "name", "flows")
#: Frames of events, and whether an event has a length.
EVENTS = {"slices": True, "gpu_ops": True, "samples": False, "sched": False, "counters": False}
LAUNCH_ARROWS = pl.Schema({"flow": pl.Int64(), "slice": pl.Int64(), "op": pl.Int64()})
CALL_KEY = ["source", "pid", "correlation"]

#: One layer of nested slices, as beginnings and ends in order: the slice's row, and whether it ends there.
Layer = tuple["NDArray[np.int64]", "NDArray[np.bool_]"]


@dataclass(frozen=True)
class Group:
    """What tracks stand under: a process (`pid` known) or a heading of ours."""

    name: str
    pid: int | None = None


@dataclass(frozen=True)
class Track:
    """One track; `slices` has `ts_ns`, `dur_ns` (Int64), `name` (String), sorted by time, the longest first.

    Where arrows begin or end it has `flows` (List of Int64); any other column is a detail of the slice, null
    = none. `tid` is a thread's; `state_of_thread` marks the track of its CPU states.
    """

    group: Group
    name: str
    slices: pl.DataFrame
    tid: int | None = None
    state_of_thread: bool = False


def in_window(results: Results) -> Results:
    """Return `results` with the events of its trace that overlap the window, each of them whole."""
    start, end = results.window.start_ns, results.window.end_ns
    kept = {
        name: getattr(results.trace, name).filter(
            (pl.col("ts_ns") < end) & (pl.col("ts_ns") + (pl.col("dur_ns") if has_length else 0) >= start)
        )
        for name, has_length in EVENTS.items()
    }
    return replace(results, trace=results.trace.replace(**kept))


def first_ns(results: Results) -> int:
    """Return the first time in the run: no event of its files and no piece of its window comes before it."""
    starts = results.trace.sources["first_ns"].drop_nulls().to_list()
    return int(min([*starts, results.window.start_ns]))


def tracks(results: Results, findings: Document) -> Iterator[Track]:
    """Yield the tracks of a run in the order in which they are shown; `findings` is what `diagnose` gives."""
    yield from _findings(findings)
    arrows = launch_arrows(results.trace)
    yield from _gpus(results, arrows)
    yield from _threads(results, arrows)


def _sorted(slices: pl.DataFrame) -> pl.DataFrame:
    return slices.sort("ts_ns", "dur_ns", descending=[False, True], maintain_order=True)


def _findings(findings: Document) -> Iterator[Track]:
    schema = {"ts_ns": pl.Int64, "dur_ns": pl.Int64, "name": pl.String, "who": pl.String, "value": pl.String}
    for finding in findings.findings:
        evidence = [
            (row.ts_ns, row.dur_ns or 0, row.what, row.who, None if row.value is None else str(row.value))
            for row in finding.evidence
            if row.ts_ns is not None
        ]
        slices = pl.DataFrame(evidence, schema=schema, orient="row")
        slices = slices.with_columns(claim=pl.lit(finding.claim))
        yield Track(Group("Findings"), finding.id, _sorted(slices))


def _gpus(results: Results, arrows: pl.DataFrame) -> Iterator[Track]:
    ended = arrows.select("op", flows=pl.concat_list("flow"))
    ops = results.trace.gpu_ops.with_row_index("op").with_columns(pl.col("op").cast(pl.Int64))
    ops = ops.join(ended, on="op", how="left", maintain_order="left")
    for gpu in results.trace.gpus.iter_rows(named=True):
        group, own = Group(_gpu_name(gpu)), pl.col("gpu") == gpu["gpu"]
        pieces = merge_equal(results.lost.filter(own), ["gpu", "cause", "sub_cause", "cpu_state"])
        lost = pieces.select(
            "ts_ns",
            "dur_ns",
            "sub_cause",
            pl.col("cpu_state").cast(pl.String),
            name=pl.col("cause").cast(pl.String),
        )
        yield Track(group, "lost to", _sorted(lost))
        state = results.gpu_states.filter(own).with_columns(name=pl.col("state").cast(pl.String))
        yield Track(group, "state", _sorted(state.select("ts_ns", "dur_ns", "name")))
        for (stream,), rows in ops.filter(own).sort("stream").group_by("stream", maintain_order=True):
            details = rows.select(
                "ts_ns",
                "dur_ns",
                pl.col("name", "collective", "group").cast(pl.String),
                pl.col("kind").cast(pl.String).alias("category"),
                "bytes",
                "graph",
                "flows",
            )
            yield Track(
                group, f"stream {stream}", _sorted(details), tid=int(str(stream)) if stream is not None else 0
            )


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    rank = "" if gpu["rank"] is None else f" of rank {gpu['rank']}"
    place = ", ".join(str(part) for part in (gpu["name"], gpu["host"]) if part)
    return f"GPU {'?' if gpu['device'] is None else gpu['device']}{rank}" + (f" ({place})" if place else "")


def _threads(results: Results, arrows: pl.DataFrame) -> Iterator[Track]:
    begun = arrows.group_by("slice").agg(flows=pl.col("flow").sort())
    host = results.trace.slices.with_row_index("slice").with_columns(pl.col("slice").cast(pl.Int64))
    host = host.filter(pl.col("thread").is_not_null()).join(
        begun, on="slice", how="left", maintain_order="left"
    )
    details = host.select("thread", "ts_ns", "dur_ns", pl.col("name", "category").cast(pl.String), "flows")
    slices = {key[0]: rows.drop("thread") for key, rows in details.group_by("thread", maintain_order=True)}
    recorded = results.thread_states.filter(pl.col("state").cast(pl.String) != "unknown")
    states = recorded.select("thread", "ts_ns", "dur_ns", "cpu", name=pl.col("state").cast(pl.String))
    cpu = {key[0]: rows.drop("thread") for key, rows in states.group_by("thread", maintain_order=True)}
    for row, group in _by_role(results.trace):
        name = row["name"] or f"thread {row['tid']}"
        if row["thread"] in slices:
            yield Track(group, name, _sorted(slices[row["thread"]]), row["tid"])
        if row["thread"] in cpu:
            yield Track(
                group, f"CPU state of {name}", _sorted(cpu[row["thread"]]), row["tid"], state_of_thread=True
            )


def _by_role(trace: Trace) -> Iterator[tuple[dict[str, Any], Group]]:
    """Yield the threads and their processes, the server's roles first."""
    hosts = trace.threads["host"].unique().sort().to_list()
    order = {role: place for place, role in enumerate(reversed(SERVER))}
    rows = sorted(
        trace.threads.iter_rows(named=True),
        key=lambda row: (
            order.get(row["role"], len(order)),
            row["rank"] if row["rank"] is not None else -1,
            row["pid"] or 0,
            row["tid"],
        ),
    )
    groups: dict[int, Group] = {}
    for row in rows:
        own = row["pid"] if row["pid"] is not None else row["tid"]
        pid = own % HOST_PIDS + HOST_PIDS * hosts.index(row["host"])
        if pid not in groups:
            groups[pid] = Group(_process_name(row, several=len(hosts) > 1), pid)
        yield row, groups[pid]


def _process_name(row: Mapping[str, Any], *, several: bool) -> str:
    rank = "" if row["rank"] is None else f" rank {row['rank']}"
    role = f"{role_name(row['role'])}{rank}: " if row["role"] else ""
    where = f" on {row['host']}" if several and row["host"] else ""
    return f"{role}{row['process'] or row['name'] or 'unknown process'}{where}"


def counters(results: Results) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each counter's name and its readings: `ts_ns` (Int64), `value` (Float64), sorted by time.

    The number of the server's threads that run or want a CPU is one of them, where it is known.
    """
    for column in ("running", "runnable") if results.demand.height else ():
        yield (
            f"server threads {column}",
            results.demand.select("ts_ns", value=pl.col(column).cast(pl.Float64)),
        )
    for key, rows in results.trace.counters.group_by("name", "track", maintain_order=True):
        yield (
            " of ".join(str(part) for part in key if part is not None),
            rows.select("ts_ns", "value").sort("ts_ns"),
        )


def launch_arrows(trace: Trace) -> pl.DataFrame:
    """Return which host call launched which GPU operation, of those that were recorded on both sides.

    Joined by correlation id within a process, the outermost call of an id, as
    :mod:`tracelib.analyses.launches` does.

    One row per GPU operation with a known launch: `flow` (Int64, from 1), `slice` (Int64, row of
    `trace.slices`), `op` (Int64, row of `trace.gpu_ops`). Sorted by `flow`.
    """
    calls = (
        trace.slices.with_row_index("slice")
        .filter(pl.col("correlation").is_not_null() & pl.col("category").is_in(["runtime", "driver"]))
        .join(trace.threads.select("thread", "pid"), on="thread")
        .sort("dur_ns", "slice", descending=[True, False])
        .unique(CALL_KEY, keep="first", maintain_order=True)
    )
    ops = trace.gpu_ops.with_row_index("op").filter(pl.col("correlation").is_not_null())
    joined = ops.select("op", *CALL_KEY).join(calls.select("slice", *CALL_KEY), on=CALL_KEY).sort("op")
    return joined.select(flow=pl.col("op").cast(pl.Int64) + 1, slice="slice", op="op").match_to_schema(
        LAUNCH_ARROWS, integer_cast="upcast"
    )


def nested_layers(slices: pl.DataFrame) -> list[Layer]:
    """Return the layers of `slices`, which are sorted by `ts_ns`, longest first.

    Viewers draw slices as nested boxes: in each layer every slice lies wholly inside the one that is open
    when it begins, or begins after its end, so times never go back. A slice that would cross an open one's
    end goes to the next layer: one layer where the recording is sound.
    """
    begins = slices["ts_ns"].to_numpy()
    ends = (slices["ts_ns"] + slices["dur_ns"]).to_numpy()
    if (ends[:-1] <= begins[1:]).all():  # one after the other
        rows = np.arange(len(begins))
        return [(rows.repeat(2), np.tile([False, True], len(rows)))] if len(rows) else []
    layers: list[Layer] = []
    waiting = np.arange(len(begins))
    while len(waiting):
        rows, closing, waiting = _layer(waiting, begins, ends)
        layers.append((rows, closing))
    return layers


def _layer(
    candidates: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Return one layer's rows and whether each closes, and the candidates that did not fit it."""
    rows: list[int] = []
    closing: list[bool] = []
    crossing: list[int] = []
    open_rows: list[int] = []
    stops = ends.tolist()
    for row, begin in zip(candidates.tolist(), begins[candidates].tolist(), strict=True):
        while open_rows and stops[open_rows[-1]] <= begin:
            rows.append(open_rows.pop())
            closing.append(True)
        if open_rows and stops[row] > stops[open_rows[-1]]:
            crossing.append(row)
            continue
        rows.append(row)
        closing.append(False)
        open_rows.append(row)
    rows += open_rows[::-1]
    closing += [True] * len(open_rows)
    return np.array(rows, np.int64), np.array(closing, np.bool_), np.array(crossing, np.int64)
