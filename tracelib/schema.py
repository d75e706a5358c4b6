"""The frames of a :class:`tracelib.Trace`: schema.toml has the columns of each, with dtypes and units.

Times are ``Int64`` nanoseconds: ``ts_ns`` is a moment, ``dur_ns`` a length, both on the trace's one timeline
(after :func:`tracelib.align`, wall time where a source is tied to it). Shares are 0..1. A ``null`` means "not
recorded", never 0.

Rows of host frames point to a thread by ``thread`` (a row of `threads`), rows of GPU frames to a device by
``gpu`` (a row of `gpus`), every row to its file by ``source`` (a row of `sources`). One integer key keeps
joins short and exact: a process id is unique neither across hosts nor across files.
"""

import polars as pl

from tracelib.data import data

NS_PER_MS = 1_000_000
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


def _schema(columns: dict[str, str]) -> pl.Schema:
    return pl.Schema({name: globals().get(dtype) or getattr(pl, dtype)() for name, dtype in columns.items()})


_COLUMNS = data(__file__, "schema.toml")
#: The order in which each frame's rows stand.
SORT: dict[str, list[str]] = _COLUMNS.pop("order")
FRAMES = {frame: _schema(columns) for frame, columns in _COLUMNS.items()}
SLICES, GPU_OPS, SAMPLES, STACKS, SCHED, COUNTERS, THREADS, GPUS, SOURCES, HEALTH = FRAMES.values()


def empty(frame: str) -> pl.DataFrame:
    """Return the frame called `frame` with its columns and no rows."""
    return pl.DataFrame(schema=FRAMES[frame])
