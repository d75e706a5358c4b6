"""Small servers made at random: two workers, an engine, an API server with two threads, everything that
ledgers look at.

Nothing about them is realistic but what the ledgers rely on: a collective ends on no rank before the last has
arrived, and two slices of a thread do not begin and end at the same times (the order of rows would tell which
is inside).
"""

from __future__ import annotations

import random
from typing import Any

import polars as pl

from tracelib import schema
from tracelib.trace import Trace

Row = dict[str, Any]

#: Thread, role, rank, process id; a process's first thread has its id.
THREADS = (
    (0, "worker", 0, 10),
    (1, "worker", 1, 11),
    (2, "engine", None, 20),
    (3, "api_server", None, 30),
    (4, "api_server", None, 30),
    (5, None, None, 40),
)
#: Names with each kind of meaning, and one that no rule knows.
NAMES = (
    ("shm_broadcast.dequeue", "annotation"),
    ("execute_model", "annotation"),
    ("aten::mm", "op"),
    ("tokenize", "annotation"),
    ("x", "annotation"),
    ("wait_for_requests", "annotation"),
    ("engine.schedule", "annotation"),
    ("engine.wait_output", "annotation"),
    ("model.py(7): forward", "python"),
    ("shm_broadcast.enqueue", "annotation"),
    ("ipc_send_request", "annotation"),
    ("cudaMalloc", "runtime"),
    ("cudaStreamSynchronize", "runtime"),
    ("read", "os"),
)
LENGTH = 2_000
#: Call chains, innermost first, with each kind of meaning; of the last one no rule knows anything.
CHAINS = (
    ("tokenizers::encode", "/x/tokenizers.abi3.so"),
    ("gc_collect_main", "/x/python3"),
    ("nvrtcCompileProgram", "/x/libnvrtc.so.13"),
    ("sched_yield", "/x/libc.so.6"),
    ("cuStreamSynchronize", "/x/libcuda.so.1"),
    ("do_epoll_wait", "[kernel.kallsyms]"),
    ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),
    ("solve", "/x/libsolver.so"),
    ("at::mm", "/x/libtorch_cpu.so"),
    ("f", "/x/libomp.so"),
    ("f", "/x/other"),
)
PERIOD = 40


def random_server(seed: int, slices: int = 60, ops: int = 20, switches: int = 40, samples: int = 0) -> Trace:
    """Return a server of about so many rows of each kind over [0, 2000) ns."""
    rng = random.Random(seed)
    gpu_ops, calls = _gpu_work(rng, ops)
    spans = {(row["thread"], row["ts_ns"], row["dur_ns"]): row for row in [*calls, *_host_work(rng, slices)]}
    threads = [
        {
            "thread": t,
            "host": "h",
            "pid": pid,
            "tid": pid + (t == 4),
            "name": f"t{t}",
            "role": role,
            "rank": rank,
        }
        for t, role, rank, pid in THREADS
    ]
    return Trace.of(
        {
            "slices": frame("slices", list(spans.values())),
            "gpu_ops": frame("gpu_ops", gpu_ops),
            "sched": frame("sched", _switches(rng, switches)),
            "samples": frame("samples", _samples(rng, samples)),
            "stacks": frame(
                "stacks",
                [{"stack": n, "depth": 0, "symbol": s, "library": lib} for n, (s, lib) in enumerate(CHAINS)]
                if samples
                else [],
            ),
            "threads": frame("threads", threads),
            "gpus": frame("gpus", [{"gpu": g, "host": "h", "device": g, "rank": g} for g in (0, 1)]),
            "sources": frame(
                "sources",
                [
                    {
                        "source": 0,
                        "file": "t",
                        "format": "torch_profiler",
                        "tied_by": "declared",
                        "lost_detected": 0,
                    }
                ],
            ),
        }
    )


def frame(name: str, rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        [{**dict.fromkeys(schema.FRAMES[name]), **row} for row in rows], schema=schema.FRAMES[name]
    )


def _host_work(rng: random.Random, count: int) -> list[Row]:
    rows = []
    for _ in range(count):
        name, category = rng.choice(NAMES)
        begin, length = rng.randrange(-50, LENGTH), rng.choice([3, 20, 60, 200, 500])
        thread = rng.choice([0, 0, 1, 1, 2, 2, 3, 4])
        rows.append(
            {
                "source": 0,
                "thread": thread,
                "ts_ns": begin,
                "dur_ns": length + rng.randrange(9),
                "name": name,
                "category": category,
            }
        )
    loads = {"source": 0, "thread": None, "name": "Lazy Function Loading", "category": "overhead"}
    return rows + [
        {**loads, "ts_ns": rng.randrange(LENGTH), "dur_ns": rng.randrange(1, 30)} for _ in range(count // 20)
    ]


def _samples(rng: random.Random, count: int) -> list[Row]:
    """Return samples of a clock, each thread at most once at a moment."""
    moments = {(rng.choice([0, 0, 1, 1, 2, 3, 4]), rng.randrange(LENGTH)) for _ in range(count)}
    return [
        {
            "source": 0,
            "thread": thread,
            "ts_ns": at,
            "cpu": 0,
            "event": "cpu-clock",
            "period": PERIOD,
            "stack": rng.randrange(len(CHAINS)),
        }
        for thread, at in sorted(moments, key=lambda moment: moment[::-1])
    ]


def _gpu_work(rng: random.Random, count: int) -> tuple[list[Row], list[Row]]:
    """Return operations of both GPUs, every few an all-reduce, and the calls that launched most of them.

    Now and then two operations are nodes of one graph launch.
    """
    free = [rng.randrange(100), rng.randrange(100)]
    ops: list[Row] = []
    for n in range(count):
        meets = n % 3 == 2
        if n % 3 == 0:
            nodes = rng.random() < 0.4
        graph = {"graph": 3, "correlation": n + 1 - n % 3} if nodes and not meets else {}
        starts = [at + rng.choice([0, 0, 5, 40, 150]) for at in free]
        last = max(starts) if meets else 0
        for gpu in (0, 1):
            end = (last if meets else starts[gpu]) + rng.randrange(1, 60)
            kind = rng.choice(["kernel", "kernel", "kernel", "memcpy", "memset"])
            told = (
                {"collective": "all_reduce", "group": "tp", "group_size": 2, "elements": 8, "kind": "kernel"}
                if meets
                else {"kind": kind}
            )
            ops.append(
                {
                    "source": 0,
                    "gpu": gpu,
                    "stream": 7,
                    "ts_ns": starts[gpu],
                    "dur_ns": end - starts[gpu],
                    "name": "k",
                    "correlation": n + 1,
                    "pid": 10 + gpu,
                    **told,
                    **graph,
                }
            )
            free[gpu] = end if meets or rng.random() < 0.8 else starts[gpu] + 1  # the next may run beside it
    again = [op["correlation"] == before["correlation"] for before, op in zip(ops, ops[2:], strict=False)]
    first = [op for op, known in zip(ops, [False, False, *again], strict=False) if not known]
    calls = [_call(rng, op) for op in first if rng.random() < 0.9]
    return ops, calls


def _call(rng: random.Random, op: Row) -> Row:
    begin = op["ts_ns"] - rng.choice([1, 10, 50, 200])
    length = rng.randrange(1, 40)
    return {
        "source": 0,
        "thread": op["gpu"],
        "ts_ns": begin,
        "dur_ns": length,
        "name": "cudaLaunchKernel",
        "category": "runtime",
        "correlation": op["correlation"],
    }


def _switches(rng: random.Random, count: int) -> list[Row]:
    """Return switches of two CPUs, now and then a wrong one, and wake-ups."""
    on = [schema.IDLE, schema.IDLE]
    rows: list[Row] = []
    for ts in sorted(rng.sample(range(LENGTH), count)):
        cpu = rng.randrange(2)
        if rng.random() < 0.3:
            woken = rng.randrange(6)
            rows.append(
                {"source": 0, "ts_ns": ts, "cpu": cpu, "event": "wakeup", "prev": None, "next": woken}
            )
            continue
        free = [t for t in range(6) if t not in on]
        came = rng.choice([*free, schema.IDLE])
        rows.append(
            {
                "source": 0,
                "ts_ns": ts,
                "cpu": cpu,
                "event": "switch",
                "prev": on[cpu],
                "prev_state": rng.choice("RSS"),
                "next": came,
            }
        )
        on[cpu] = came
    return rows
