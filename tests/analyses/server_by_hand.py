"""A server of three ranks, an engine and an API server, written by hand in ns; what its ledgers say."""

import polars as pl

from tracelib import schema
from tracelib.analyses.results import analyse
from tracelib.trace import Trace

WORKER, ENGINE, API, OTHER, THIRD = range(5)
ROLES = {
    WORKER: ("worker", 0, 10),
    ENGINE: ("engine", None, 20),
    API: ("api_server", None, 30),
    OTHER: ("worker", 1, 40),
    THIRD: ("worker", 2, 50),
}


def frame(name, rows):
    made = [{**dict.fromkeys(schema.FRAMES[name]), **row} for row in rows]
    return pl.DataFrame(made, schema=schema.FRAMES[name])


def op(ts, end, correlation=None, gpu=0, **more):
    pid = 10 if gpu == 0 else 40
    return {
        "source": 0,
        "gpu": gpu,
        "stream": 7,
        "ts_ns": ts,
        "dur_ns": end - ts,
        "name": "k",
        "kind": "kernel",
        "correlation": correlation,
        "pid": pid,
        **more,
    }


def piece(thread, ts, end, name, category="annotation", correlation=None):
    return {
        "source": 0,
        "thread": thread,
        "ts_ns": ts,
        "dur_ns": end - ts,
        "name": name,
        "category": category,
        "correlation": correlation,
    }


def call(ts, end, correlation, thread=WORKER):
    return piece(thread, ts, end, "cudaLaunchKernel", "runtime", correlation)


def run(ops, slices=(), sched=()):
    threads = [
        {
            "thread": t,
            "host": "h",
            "pid": pid,
            "tid": pid,
            "name": role,
            "process": role,
            "role": role,
            "rank": rank,
        }
        for t, (role, rank, pid) in ROLES.items()
    ]
    gpus = [{"gpu": g, "host": "h", "device": g, "rank": g} for g in sorted({o["gpu"] for o in ops})]
    source = {
        "source": 0,
        "file": "t.json",
        "bytes": 1,
        "format": "torch_profiler",
        "host": "h",
        "clock": "realtime",
        "tied_by": "declared",
        "offset_ns": 0,
    }
    lost = {"lost_declared": 0, "lost_detected": 0, "skipped_bytes": 0, "first_ns": 0, "last_ns": 1}
    trace = Trace.of(
        {
            "gpu_ops": frame("gpu_ops", ops),
            "slices": frame("slices", list(slices)),
            "sched": frame("sched", list(sched)),
            "threads": frame("threads", threads),
            "gpus": frame("gpus", gpus),
            "sources": frame("sources", [{**source, **lost}]),
        }
    )
    return analyse(trace)


def told(results, gpu=0):
    rows = results.lost.filter(pl.col("gpu") == gpu).sort("ts_ns")
    merged = []
    for ts, dur, cause, sub in rows.select("ts_ns", "dur_ns", "cause", "sub_cause").iter_rows():
        if merged and merged[-1][1] == ts and merged[-1][2:] == (cause, sub):
            merged[-1] = (merged[-1][0], ts + dur, cause, sub)
        else:
            merged.append((ts, ts + dur, cause, sub))
    return merged


COLLECTIVE = {"collective": "all_reduce", "group": "0", "group_size": 2, "elements": 8}
