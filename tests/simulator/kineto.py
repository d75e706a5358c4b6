"""Writes what PyTorch's profiler would have recorded of each process: one Kineto JSON file a process."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from tests.simulator.recording import BASE_NS, BEGIN_NS, shifted
from tests.simulator.server import SEND_RECV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.simulator.machine import Op, Slice, Thread
    from tests.simulator.recording import Recording
    from tests.simulator.server import Server, Worker

    Clock = Callable[[int], int]

ELEMENTS = 2_097_152


def write(server: Server, folder: Path, how: Recording) -> None:
    """Write a file for each process in which a profiler ran."""
    launching = {id(worker.thread): worker for worker in server.workers}
    for name, threads in server.files.items():
        if name in how.without:
            continue
        worker = launching.get(id(threads[0]))
        alone = how.two_hosts and worker is server.workers[-1]
        clock = (lambda ns: shifted(ns, how.rank_off_ns, how.rank_drift_ppm)) if alone else (lambda ns: ns)
        more = [*_gpu_events(worker, server, clock)] if worker else []
        head = _distributed(worker, len(server.workers)) if worker else {}
        if how.two_hosts:
            head["host_name"] = f"node-{1 if alone else 0}"
        _write(folder / name, [*(e for thread in threads for e in _host_events(thread, clock)), *more], head)


def _write(path: Path, events: Sequence[dict[str, Any]], head: dict[str, Any]) -> None:
    document = {
        "schemaVersion": 1,
        "cupti_version": 130001,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        **head,
        "traceEvents": events,
    }
    with gzip.open(path.with_name(path.name + ".pt.trace.json.gz"), "wt", compresslevel=1) as file:
        json.dump(document, file)


def _interval(begin: int, end: int, clock: Clock) -> dict[str, Any]:
    """Return times as Kineto writes them, in microseconds; three decimals of so small a number are exact."""
    first, last = clock(begin), clock(end)
    return {"ph": "X", "ts": (BEGIN_NS + first) / 1000, "dur": (last - first) / 1000}


def _host_events(thread: Thread, clock: Clock) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": thread.pid, "tid": 0, "args": {"name": thread.process}}
    yield {
        "ph": "M",
        "name": "thread_name",
        "pid": thread.pid,
        "tid": thread.tid,
        "args": {"name": f"thread {thread.tid} ({thread.name})"},
    }
    for made in thread.slices:
        yield _interval(made.begin, made.end, clock) | _named(made, thread)


def _named(made: Slice, thread: Thread) -> dict[str, Any]:
    """Return a slice's identity; the recorder's own overhead names no thread."""
    if made.category == "overhead":
        return {"cat": "overhead", "name": made.name, "pid": -1, "tid": 0}
    args = {} if made.correlation is None else {"args": {"correlation": made.correlation}}
    return {"cat": made.category, "name": made.name, "pid": thread.pid, "tid": thread.tid, **args}


def _gpu_events(worker: Worker, server: Server, clock: Clock) -> Iterable[dict[str, Any]]:
    """Yield the GPU's operations; of a collective in a graph the profiler writes only the kernel's name."""
    for op in worker.gpu.ops:
        copy = op.name.startswith("Memcpy")
        args = {"device": worker.rank, "context": 1, "stream": 7, "correlation": op.launch.correlation}
        yield _interval(op.begin, op.end, clock) | {
            "cat": "gpu_memcpy" if copy else "kernel",
            "name": op.name,
            "pid": worker.rank,
            "tid": 7,
            "args": args
            | ({"bytes": 4096} if copy else {})
            | ({} if server.graph else _collective(op, worker.rank, len(server.workers))),
        }


def _collective(op: Op, rank: int, ranks: int) -> dict[str, Any]:
    if op.met is None:
        return {}
    peer = op.name == SEND_RECV
    return {
        "Collective name": ("recv" if rank else "send") if peer else "allreduce",
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
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
