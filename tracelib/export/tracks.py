"""A run as a viewer shows it: groups of tracks, each with its slices. Every exporter draws these and no others.

From top to bottom: findings, then per GPU to what its time was lost, its state, its streams; then the server's processes
by role, each thread with what it did and whether it had a CPU; then counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.export.flows import flows
from tracelib.intervals import merge_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelib.analyses.results import Results
    from tracelib.trace import Trace

__all__ = ["Group", "Track", "counters", "tracks"]

ROLES = ("worker", "engine", "api_server")
#: Ids of processes in a viewer must differ between hosts; Linux allows no pid beyond 2**22.
HOST_PIDS = 2**22
#: Columns that are not written out beside a slice: they say where it lies.
PLACE = ("ts_ns", "dur_ns", "name", "flows")


@dataclass(frozen=True)
class Group:
    """What tracks stand under: a process (`pid` known) or a heading of ours."""

    name: str
    pid: int | None = None


@dataclass(frozen=True)
class Track:
    """One track; `slices` has `ts_ns`, `dur_ns` (Int64), `name` (String), sorted by time, the longest first.

    Where arrows begin or end it has `flows` (List of Int64); any other column is a detail of the slice, null = none.
    `tid` is a thread's; `state_of_thread` marks the track of its CPU states.
    """

    group: Group
    name: str
    slices: pl.DataFrame
    tid: int | None = None
    state_of_thread: bool = False


def tracks(results: Results, findings: Mapping[str, Any]) -> Iterator[Track]:
    """Yield the tracks of a run, in the order in which they are shown; `findings` is the document of `diagnose`."""
    yield from _findings(findings)
    arrows = flows(results.trace)
    yield from _gpus(results, arrows)
    yield from _threads(results, arrows)


def _sorted(slices: pl.DataFrame) -> pl.DataFrame:
    return slices.sort("ts_ns", "dur_ns", descending=[False, True], maintain_order=True)


def _findings(findings: Mapping[str, Any]) -> Iterator[Track]:
    for finding in findings["findings"]:
        rows = [
            {
                "ts_ns": e["ts_ns"],
                "dur_ns": e["dur_ns"],
                "name": e["what"],
                "who": e["who"],
                "value": _text(e["value"]),
            }
            for e in finding["evidence"]
            if e["ts_ns"] is not None
        ]
        schema = {
            "ts_ns": pl.Int64,
            "dur_ns": pl.Int64,
            "name": pl.String,
            "who": pl.String,
            "value": pl.String,
        }
        made = pl.DataFrame(rows, schema=schema).with_columns(
            pl.col("dur_ns").fill_null(0), claim=pl.lit(finding["claim"])
        )
        yield Track(Group("Findings"), finding["id"], _sorted(made))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


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
    told = results.thread_states.filter(pl.col("state").cast(pl.String) != "unknown")
    states = told.select("thread", "ts_ns", "dur_ns", "cpu", name=pl.col("state").cast(pl.String))
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
    rows = list(trace.threads.iter_rows(named=True))
    order = {role: place for place, role in enumerate(ROLES)}
    rows.sort(
        key=lambda r: (
            order.get(r["role"], len(ROLES)),
            r["rank"] if r["rank"] is not None else -1,
            r["pid"] or 0,
            r["tid"],
        )
    )
    names: dict[int, Group] = {}
    for row in rows:
        pid = (row["pid"] if row["pid"] is not None else row["tid"]) % HOST_PIDS + HOST_PIDS * hosts.index(
            row["host"]
        )
        if pid not in names:
            names[pid] = Group(_process_name(row, several=len(hosts) > 1), pid)
        yield row, names[pid]


def _process_name(row: Mapping[str, Any], *, several: bool) -> str:
    rank = "" if row["rank"] is None else f" rank {row['rank']}"
    role = f"{row['role'].replace('_', ' ')}{rank}: " if row["role"] else ""
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
