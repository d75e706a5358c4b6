"""The columns of every frame in a :class:`tracelib.Trace`, with dtypes and units.

Times are ``Int64`` nanoseconds: ``ts_ns`` is a moment, ``dur_ns`` a length, both on the trace's one timeline
(after :func:`tracelib.align`, wall time where a source is tied to it). Shares are 0..1. A ``null`` means "not
recorded", never 0.

Rows of host frames point to a thread by ``thread`` (a row of `threads`), rows of GPU frames to a device by
``gpu`` (a row of `gpus`), every row to its file by ``source`` (a row of `sources`). One integer key keeps
joins short and exact: a process id is unique neither across hosts nor across files.
"""

from __future__ import annotations

import polars as pl

#: In `sched.prev` / `sched.next`: the CPU's idle task, which is not a thread.
IDLE = -1

#: What kind of interval a slice is. `op`: a framework operator; `runtime`: a CUDA/HIP/XPU/MTIA runtime call;
#: `driver`: a driver call; `annotation`: a named range put there by people (record_function, NVTX,
#: trace_marker); `python`: a Python frame; `os`: a libc or system call; `sync`: a host wait as the profiler
#: names it; `overhead`: the recorder's own cost; `gpu_annotation`: a host range projected onto a stream (it
#: lies on no host thread); `other`: anything else.
SLICE_CATEGORY = pl.Enum(
    ["op", "runtime", "driver", "annotation", "python", "os", "sync", "overhead", "gpu_annotation", "other"]
)
GPU_OP_KIND = pl.Enum(["kernel", "memcpy", "memset", "graph"])
SCHED_EVENT = pl.Enum(["switch", "wakeup", "waking", "wakeup_new"])
#: The state in which a thread left its CPU, by the kernel's letter; `R` covers `R+` (preempted).
THREAD_STATE = pl.Enum(["R", "S", "D", "T", "t", "X", "Z", "P", "I", "other"])
HEALTH_LEVEL = pl.Enum(["info", "warning", "error"])

#: One row per interval on a host thread (nested slices overlap properly; damaged input may not).
SLICES = pl.Schema(
    {
        "source": pl.Int32(),
        "thread": pl.Int32(),  # null only for gpu_annotation and for overhead that names no thread
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),  # >= 0; 0 = an instant, or no duration recorded
        "name": pl.Categorical(),
        "category": SLICE_CATEGORY,
        "correlation": pl.Int64(),  # joins to gpu_ops.correlation within (source, pid); null = none
    }
)

#: One row per operation on a GPU stream. A collective is a kernel with `collective` set.
GPU_OPS = pl.Schema(
    {
        "source": pl.Int32(),
        "gpu": pl.Int32(),
        "stream": pl.Int64(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "name": pl.Categorical(),
        "kind": GPU_OP_KIND,
        "correlation": pl.Int64(),  # null = none recorded
        "pid": pl.Int64(),  # of the process that launched it; null = unknown
        "graph": pl.Int64(),  # the CUDA/HIP graph's id; 0 = a graph without recorded id; null = none
        "bytes": pl.Int64(),  # memcpy, memset; the message of a collective where the trace has it in bytes
        "collective": pl.Categorical(),  # all_reduce, all_gather, broadcast, send, …; null = none
        "group": pl.Categorical(),  # process group's name; null = not recorded
        "group_size": pl.Int32(),
        "sequence": pl.Int64(),  # of the collective in its group, where the trace has one
        "elements": pl.Int64(),  # message size of a collective in elements
    }
)

#: One row per CPU sample.
SAMPLES = pl.Schema(
    {
        "source": pl.Int32(),
        "thread": pl.Int32(),
        "ts_ns": pl.Int64(),
        "cpu": pl.Int32(),
        "event": pl.Categorical(),  # cpu-clock, cycles:u, …
        "period": pl.Int64(),  # ns for cpu-clock and task-clock, else counts; null = not recorded
        "stack": pl.Int32(),  # a stack of `stacks`; null = no call chain recorded
    }
)

#: One row per frame of a distinct call chain.
STACKS = pl.Schema(
    {
        "stack": pl.Int32(),
        "depth": pl.Int16(),  # 0 = innermost
        "symbol": pl.Categorical(),  # without "+0xoffset"; "[unknown]" where it could not be resolved
        "library": pl.Categorical(),  # path of the binary as recorded; null = not recorded
    }
)

#: One row per scheduler event, in the order of the file for equal times.
SCHED = pl.Schema(
    {
        "source": pl.Int32(),
        "ts_ns": pl.Int64(),
        "cpu": pl.Int32(),  # where it happened; for wake-ups, the target CPU where recorded
        "event": SCHED_EVENT,
        "prev": pl.Int32(),  # switch: the thread that left (or IDLE; null = not recorded); wake-up: the waker
        "prev_state": THREAD_STATE,  # switch: the state in which prev left; null = not recorded
        "next": pl.Int32(),  # switch: the thread that came (or IDLE; null = not recorded); wake-up: the woken
    }
)

#: One row per reading of a counter.
COUNTERS = pl.Schema(
    {
        "source": pl.Int32(),
        "ts_ns": pl.Int64(),
        "name": pl.Categorical(),
        "track": pl.Categorical(),  # what it was read of: a GPU, a process, a CPU; null = the host
        "value": pl.Float64(),
    }
)

#: One row per thread, (host, pid, tid).
THREADS = pl.Schema(
    {
        "thread": pl.Int32(),
        "host": pl.String(),  # null = not recorded
        "pid": pl.Int64(),  # null = not recorded (ftrace without tgid)
        "tid": pl.Int64(),
        "name": pl.String(),  # the thread's own name (comm), else the profiler's; null = unknown
        "process": pl.String(),  # the process's name; null = unknown
        "role": pl.String(),  # api_server, engine, worker, …; null until tracelib.align, or unknown
        "rank": pl.Int32(),  # of a worker; null = none or unknown
    }
)

#: One row per GPU as one process sees it.
GPUS = pl.Schema(
    {
        "gpu": pl.Int32(),
        "host": pl.String(),
        "device": pl.Int32(),  # index as recorded
        "rank": pl.Int32(),  # of the process that drives it; null = unknown
        "name": pl.String(),  # product name; null = not recorded
    }
)

#: One row per input file.
SOURCES = pl.Schema(
    {
        "source": pl.Int32(),
        "file": pl.String(),  # base name
        "sha256": pl.String(),
        "bytes": pl.Int64(),  # size on disk
        "format": pl.String(),  # a name in tracelib.sources.FORMATS
        "recorder": pl.String(),  # "torch 2.11 / CUPTI 130001"; null = not recorded
        "host": pl.String(),
        "rank": pl.Int32(),
        "cpus": pl.Int32(),  # CPUs of the host; null = not recorded
        "clock": pl.String(),  # as clocks.py names it, or session (of nsys); unknown
        "wall_offset_ns": pl.Int64(),  # declared: wall time = ts_ns + this; null = not declared
        "tied_by": pl.String(),  # declared, anchors, user, untied; null before tracelib.align
        "offset_ns": pl.Int64(),  # added to the file's own times by tracelib.align; null before
        "error_ns": pl.Int64(),  # what the tie is good for; null = not estimated
        "tied_with": pl.String(),  # the file whose clock it was compared with; null = none
        "anchor_kind": pl.String(),  # what both saw: thread switches, named ranges, …; null = nothing
        "anchors": pl.Int64(),  # how many; null = none
        "residual_p50_ns": pl.Int64(),  # by how much the anchors miss each other; null = not measured
        "residual_p99_ns": pl.Int64(),
        "drift_ppb": pl.Int64(),  # correction of its clock's rate, in ns a second; null before tracelib.align
        "first_ns": pl.Int64(),  # of this file's events, on the trace's timeline
        "last_ns": pl.Int64(),
        "recorded_from_ns": pl.Int64(),  # as the recorder says; null = it does not, or the file was cut since
        "recorded_to_ns": pl.Int64(),
        "lost_declared": pl.Int64(),  # events the recorder says it lost
        "lost_detected": pl.Int64(),  # events that the reader proves to be missing
        "skipped_bytes": pl.Int64(),  # of the input that could not be read
    }
)

#: One row per remark on the state of a source.
HEALTH = pl.Schema(
    {
        "source": pl.Int32(),  # null = the whole run
        "level": HEALTH_LEVEL,
        "message": pl.String(),
        "fix": pl.String(),  # what to do about it; "" = nothing to do
    }
)

FRAMES: dict[str, pl.Schema] = {
    "slices": SLICES,
    "gpu_ops": GPU_OPS,
    "samples": SAMPLES,
    "stacks": STACKS,
    "sched": SCHED,
    "counters": COUNTERS,
    "threads": THREADS,
    "gpus": GPUS,
    "sources": SOURCES,
    "health": HEALTH,
}

#: The order in which each frame's rows stand.
SORT: dict[str, list[str]] = {
    "slices": ["thread", "ts_ns", "dur_ns"],  # dur descending: a parent before its first child
    "gpu_ops": ["gpu", "ts_ns", "stream"],
    "samples": ["ts_ns", "thread"],
    "stacks": ["stack", "depth"],
    "sched": ["ts_ns"],  # stable: the file's order breaks ties
    "counters": ["name", "track", "ts_ns"],
    "threads": ["thread"],
    "gpus": ["gpu"],
    "sources": ["source"],
    "health": ["source"],
}


def empty(frame: str) -> pl.DataFrame:
    """Return the frame called `frame` with its columns and no rows."""
    return pl.DataFrame(schema=FRAMES[frame])
