"""A small server, made by hand: two ranks, an engine, a tokenizer; a window of 1000 ms."""

import polars as pl

from tracelib.analyses.lost import host_time
from tracelib.analyses.requests import FIRST_TOKENS, REQUESTS
from tracelib.analyses.results import Results
from tracelib.analyses.steps import STEP_TOKENS
from tracelib.analyses.window import Window
from tracelib.schema import FRAMES, SAMPLES, STACKS, THREADS, empty
from tracelib.slice_rules import load_rules
from tracelib.trace import Trace

MS = 1_000_000
START = 1_700_000_000_000_000_000  # a wall time: far beyond what a float holds exactly

API, ENGINE, W0, W1 = 0, 1, 2, 3
HOSTILE = '<a href="javascript:alert(1)">$x$</a>\u202e\x1b[31m<script>' + "z" * 300
GPU_STATE = pl.Enum(["compute", "copy", "collective", "collective_transfer", "collective_wait", "idle"])
CPU_STATE = pl.Enum(["running", "runnable", "throttled", "blocked", "unknown"])


def rows(columns, *values, start=True):
    """Build a frame from tuples; columns named *_ns are given in ms, `ts_ns` from the window's start."""
    names = list(columns)
    made = pl.DataFrame(
        [dict(zip(names, v, strict=True)) for v in values], schema=columns, infer_schema_length=None
    )
    scale = [(pl.col(n) * MS).alias(n) for n in names if n.endswith("_ns") or n == "ns"]
    made = made.with_columns(scale)
    shift = [
        n for n in ("ts_ns", "last_start_ns", "call_ts_ns", "arrived_ns", "first_token_ns") if n in names
    ]
    return made.with_columns(pl.col(n) + START for n in shift) if start else made


I32, I64 = pl.Int32, pl.Int64
STATES = {"gpu": I32, "ts_ns": I64, "dur_ns": I64, "state": GPU_STATE}
LOST = {
    "gpu": I32,
    "ts_ns": I64,
    "dur_ns": I64,
    "lost": pl.String,
    "thread": I32,
    "cause": pl.String,
    "sub_cause": pl.String,
    "cpu_state": CPU_STATE,
    "what": pl.String,
}
ACTIVITY = {
    "thread": I32,
    "ts_ns": I64,
    "dur_ns": I64,
    "name": pl.String,
    "cause": pl.String,
    "sub_cause": pl.String,
}
THREAD_STATES = {
    "thread": I32,
    "ts_ns": I64,
    "dur_ns": I64,
    "state": CPU_STATE,
    "cpu": I32,
    "by": I32,
    "inferred": pl.Boolean,
}
IPC = {"role": pl.String, "thread": I32, "kind": pl.String, "ts_ns": I64, "dur_ns": I64, "name": pl.String}
LAUNCHES = {
    "gpu": I32,
    "stream": I64,
    "ts_ns": I64,
    "dur_ns": I64,
    "name": pl.String,
    "call_thread": I32,
    "call_ts_ns": I64,
    "call_dur_ns": I64,
    "api_ns": I64,
    "launch_to_start_ns": I64,
    "return_to_start_ns": I64,
    "late": pl.Boolean,
}
COLLECTIVES = {
    "event": I64,
    "gpu": I32,
    "ts_ns": I64,
    "dur_ns": I64,
    "last_start_ns": I64,
    "straggler": I32,
    "skew_ns": I64,
    "wait_ns": I64,
    "matched": pl.Boolean,
    "order_known": pl.Boolean,
}
CPU_TIME = {
    "role": pl.String,
    "cause": pl.String,
    "sub_cause": pl.String,
    "samples": pl.UInt32,
    "cpu_ns": I64,
    "share": pl.Float64,
    "ci_low": pl.Float64,
    "ci_high": pl.Float64,
}
DEMAND = {"ts_ns": I64, "dur_ns": I64, "running": I32, "runnable": I32}
SCHEDULING = {
    "thread": I32,
    "role": pl.String,
    "running_ns": I64,
    "runnable_ns": I64,
    "throttled_ns": I64,
    "blocked_ns": I64,
    "unknown_ns": I64,
    "migrations": I64,
    "inferred_ns": I64,
}


def requests(*lines):
    """Return requests of (id, arrival, the parts but the API server's in order, in ms)."""
    made = []
    for name, arrived, *parts in lines:
        ns = [None if part is None else part * MS for part in parts]
        start, ttft = START + arrived * MS, sum(filter(None, ns))
        why = "nobody saw the engine" if ns[-1] else None
        made.append(
            (name, start, start + ns[0] + ns[1], start + ttft, ttft, *ns[:2], None, *ns[2:], why, *[None] * 6)
        )
    return pl.DataFrame(made, schema=REQUESTS, orient="row")


def frames():
    """Rank 0 computes 0-300, waits for rank 1 300-500, transfers 500-600, idles 600-1000; rank 1 is late."""
    states = rows(
        STATES,
        (0, 0, 300, "compute"),
        (0, 300, 200, "collective_wait"),
        (0, 500, 100, "collective_transfer"),
        (0, 600, 400, "idle"),
        (1, 0, 300, "idle"),
        (1, 300, 200, "compute"),
        (1, 500, 100, "collective_transfer"),
        (1, 600, 400, "idle"),
    )
    lost = rows(
        LOST,
        (0, 300, 200, "collective_wait", W1, "imbalance", None, "running", None),
        (0, 600, 300, "idle", API, "tokenization", "encode", "runnable", "tokenize"),
        (0, 900, 100, "idle", W0, "kernel_launch", "dispatch", "running", "aten::mm"),
        (1, 0, 300, "idle", W1, "kernel_launch", "dispatch", "runnable", "aten::mm"),
        (1, 600, 400, "idle", API, "tokenization", "encode", "runnable", "tokenize"),
    )
    return {
        "gpu_states": states,
        "gpu_time": states.group_by("gpu", "state").agg(ns=pl.col("dur_ns").sum()).sort("gpu", "state"),
        "lost": lost,
        "causes": lost.group_by("gpu", "cause", "sub_cause", "cpu_state").agg(ns=pl.col("dur_ns").sum()),
        "host_activity": rows(
            ACTIVITY,
            (API, 600, 400, "tokenize", "tokenization", "encode"),
            (ENGINE, 0, 600, "schedule", "scheduling", None),
            (ENGINE, 600, 400, "wait", "ipc", "wait"),
            (W0, 0, 50, "aten::mm", "kernel_launch", "dispatch"),
        ),
        "ipc": rows(
            IPC,
            ("engine", ENGINE, "enqueue", 100, 10, "enqueue"),
            ("engine", ENGINE, "enqueue", 590, 10, "enqueue"),
            ("worker", W0, "dequeue", 100, 100, "dequeue"),
            ("worker", W0, "dequeue", 600, 300, "dequeue"),
            ("worker", W1, "dequeue", 600, 400, "dequeue"),
        ),
        "thread_states": rows(
            THREAD_STATES,
            (W0, 0, 600, "running", 0, None, False),
            (W0, 600, 400, "blocked", None, None, False),
            (W1, 0, 300, "runnable", None, API, False),
            (W1, 300, 700, "running", 1, None, False),
        ),
        "launches": rows(
            LAUNCHES,
            (0, 7, 0, 300, "gemm", W0, -20, 5, 5, 20, 15, True),
            (0, 7, 300, 300, "ncclAllReduce", W0, 200, 5, 5, 100, 95, False),
            (1, 7, 300, 200, "gemm", W1, 300, 5, 5, 1, -4, True),
            (1, 7, 500, 100, "ncclAllReduce", W1, 495, 5, 5, 5, 0, False),
        ),
        "collectives": rows(
            COLLECTIVES,
            (1, 0, 300, 300, 500, 1, 200, 200, True, True),
            (1, 1, 500, 100, 500, 1, 200, 0, True, True),
            (2, 0, 700, 10, 700, 0, 10, 0, True, True),
            (2, 1, 690, 20, 700, 0, 10, 10, True, True),
            (3, 0, 800, 10, 800, 0, 0, 0, False, False),
            (4, 0, 900, 40, 930, 1, 30, 30, True, True),
            (4, 1, 930, 10, 930, 1, 30, 0, True, True),
        ),
        "cpu_time": pl.DataFrame(
            [
                ("worker", "spin", "yield", 60, 600 * MS, 0.6, 0.5, 0.7),
                ("api_server", "tokenization", "encode", 40, 400 * MS, 0.4, 0.3, 0.5),
            ],
            schema=CPU_TIME,
            orient="row",
        ),
        "demand": rows(DEMAND, (0, 300, 2, 1), (300, 300, 2, 0), (600, 360, 2, 2), (960, 40, 1, 5)),
        "scheduling": rows(
            SCHEDULING, (W0, "worker", 600, 0, 0, 400, 0, 3, 0), (W1, "worker", 700, 300, 0, 0, 0, 5, 0)
        ),
        "requests": requests(
            ("a", 0, 10, 100, 10, 0, 40, 10, 20, 0, 10, 0),
            ("b", 10, 20, 240, None, None, 20, 10, 50, 0, 5, 55),
        ),
    }


def trace(names=("tokenizer", "engine_core", "worker_TP0", "worker_TP1"), **frames):
    """Return a trace that names the threads and GPUs, and holds `frames`."""
    threads = pl.DataFrame(
        [
            (0, "h", 1, 1, names[0], "api", "api_server", None),
            (1, "h", 2, 2, names[1], "engine", "engine", None),
            (2, "h", 3, 3, names[2], "w", "worker", 0),
            (3, "h", 4, 4, names[3], "w", "worker", 1),
        ],
        schema=THREADS,
        orient="row",
    )
    gpus = pl.DataFrame(
        [(0, "h", 0, 0, "H200"), (1, "h", 1, 1, "H200")], schema=empty("gpus").schema, orient="row"
    )
    sources = empty("sources")
    row = pl.DataFrame(
        [{"source": 0, "file": "a", "cpus": 2}], schema_overrides={"source": pl.Int32, "cpus": pl.Int32}
    )
    row = row.match_to_schema(sources.schema, missing_columns="insert")
    return Trace.of({"threads": threads, "gpus": gpus, "sources": row, **frames})


def make(**changed):
    """Return results with some frames replaced."""
    window = Window(START, START + 1000 * MS, "by hand")
    made = {"trace": trace(), "window": window, "rules": load_rules(), **frames(), **changed}
    came = made["requests"].select(list(FIRST_TOKENS))
    return Results(**{"first_tokens": came, **made})


def full_server():
    """Return the server with host time and GPU operations: 600 ms of gemm in two runs, a collective."""
    base = make()
    columns = ["source", "gpu", "stream", "kind", "ts_ns", "dur_ns", "name", "collective"]
    ops = pl.DataFrame(
        [
            (0, 0, 7, "kernel", START, 300 * MS, "gemm", None),
            (0, 1, 7, "kernel", START + 300 * MS, 300 * MS, "gemm", None),
            (0, 0, 7, "kernel", START + 950 * MS, 150 * MS, "ncclAllReduce", "all_reduce"),
        ],
        schema={name: FRAMES["gpu_ops"][name] for name in columns},
        orient="row",
    ).match_to_schema(FRAMES["gpu_ops"], missing_columns="insert")
    activity = base.host_activity.with_columns(waits_for=pl.lit(None, pl.String))
    steps = [
        (W0, 0, START, 100 * MS, 1, 20, 0),
        (W0, 0, START + 500 * MS, 100 * MS, 0, 0, 3),
        (W1, 1, START, 600 * MS, 1, 20, 3),
    ]
    return make(
        trace=trace(gpu_ops=ops),
        host_activity=activity,
        step_tokens=pl.DataFrame(steps, schema=STEP_TOKENS, orient="row"),
        host_time=host_time(activity, base.lost.with_columns(pl.col("cause", "sub_cause").cast(pl.String))),
    )


def sampled_server():
    """Return it with six samples of rank 0: main > launch (4), main > a library without symbols (2)."""
    stacks = pl.DataFrame(
        [
            (0, 1, "main", "/bin/server"),
            (0, 0, HOSTILE, "/lib/x.so"),
            (1, 2, "main", "/bin/server"),
            (1, 1, "[unknown]", "/lib/libcuda.so.1"),
            (1, 0, "[unknown]", "/lib/libcuda.so.1"),
        ],
        schema=STACKS,
        orient="row",
    )
    samples = pl.DataFrame(
        [(0, W0, START + i * MS, 0, "cpu-clock", None, 0 if i < 4 else 1) for i in range(6)]
        + [
            (0, API, START, 0, "cpu-clock", None, 0),
            (0, W0, START - 1, 0, "cpu-clock", None, 0),
        ],  # another role; before the window
        schema=SAMPLES,
        orient="row",
    )
    return make(trace=trace(stacks=stacks, samples=samples))


def without_wakeups(frame, column="state"):
    """Return the frame as a recorder without wake-ups leaves it: off the CPU means unknown."""
    state = pl.col(column).cast(pl.String)
    seen = pl.when(state == "running").then(state).otherwise(pl.lit("unknown")).cast(frame.schema[column])
    return frame.with_columns(seen.alias(column))


def named(figure):
    """Return a figure's traces by name."""
    return {trace.name: trace for trace in figure.data if trace.name}
