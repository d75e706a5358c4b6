"""Writes what PyTorch's profiler would have recorded of each process: one Kineto JSON file a process."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.simulator.machine import Op, Slice, Thread
    from tests.simulator.server import Server, Worker

#: Wall time = base + the file's `ts`; the simulation begins `BEGIN_NS` after the base.
BASE_NS = 1_790_857_026_000_000_000
BEGIN_NS = 5_000_000_000
ALL_REDUCE_ELEMENTS = 2_097_152


def write(server: Server, folder: Path) -> None:
    """Write a file for each worker, the engine and the API server."""
    for worker in server.workers:
        _write(
            folder / f"worker_TP{worker.rank}",
            [worker.thread],
            _gpu_events(worker, len(server.workers), graph=server.graph),
            _distributed(worker, len(server.workers)),
        )
    _write(folder / "engine_core", [server.engine])
    _write(folder / "api_server", server.api_threads)


def _write(
    path: Path,
    threads: Sequence[Thread],
    more: Iterable[dict[str, Any]] = (),
    head: dict[str, Any] | None = None,
) -> None:
    events = [event for thread in threads for event in _host_events(thread)]
    document = {
        "schemaVersion": 1,
        "cupti_version": 130001,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        **(head or {}),
        "traceEvents": [*events, *more],
    }
    with gzip.open(path.with_name(path.name + ".pt.trace.json.gz"), "wt", compresslevel=1) as file:
        json.dump(document, file)


def _microseconds(ns: int) -> float:
    """Return a duration as Kineto writes it; three decimals of so small a number are exact."""
    return ns / 1000


def _interval(begin: int, end: int) -> dict[str, Any]:
    return {"ph": "X", "ts": _microseconds(BEGIN_NS + begin), "dur": _microseconds(end - begin)}


def _host_events(thread: Thread) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": thread.pid, "tid": 0, "args": {"name": "python3"}}
    yield {
        "ph": "M",
        "name": "thread_name",
        "pid": thread.pid,
        "tid": thread.tid,
        "args": {"name": f"thread {thread.tid} ({thread.name})"},
    }
    for made in thread.slices:
        yield _interval(made.begin, made.end) | _named(made, thread)


def _named(made: Slice, thread: Thread) -> dict[str, Any]:
    """Return a slice's identity; the recorder's own overhead names no thread."""
    if made.category == "overhead":
        return {"cat": "overhead", "name": made.name, "pid": -1, "tid": 0}
    args = {} if made.correlation is None else {"args": {"correlation": made.correlation}}
    return {"cat": made.category, "name": made.name, "pid": thread.pid, "tid": thread.tid, **args}


def _gpu_events(worker: Worker, ranks: int, *, graph: bool) -> Iterable[dict[str, Any]]:
    """Yield the GPU's operations; the profiler writes only a kernel's name for a collective in a graph."""
    for op in worker.gpu.ops:
        args = {"device": worker.rank, "context": 1, "stream": 7, "correlation": op.launch.correlation}
        yield _interval(op.begin, op.end) | {
            "cat": "gpu_memcpy" if op.kind == "memcpy" else "kernel",
            "name": op.name,
            "pid": worker.rank,
            "tid": 7,
            "args": args
            | ({"bytes": 4096} if op.kind == "memcpy" else {})
            | ({} if graph else _collective(op, ranks)),
        }


def _collective(op: Op, ranks: int) -> dict[str, Any]:
    if op.met is None:
        return {}
    return {
        "Collective name": "allreduce",
        "In msg nelems": ALL_REDUCE_ELEMENTS,
        "Out msg nelems": ALL_REDUCE_ELEMENTS,
        "Group size": ranks,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
    }


def _distributed(worker: Worker, ranks: int) -> dict[str, Any]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": list(range(ranks))}
    device = [{"id": n, "name": "NVIDIA H200"} for n in range(ranks)]
    return {
        "deviceProperties": device,
        "distributedInfo": {
            "backend": "nccl",
            "rank": worker.rank,
            "world_size": ranks,
            "pg_count": 1,
            "pg_config": [group],
        },
    }
