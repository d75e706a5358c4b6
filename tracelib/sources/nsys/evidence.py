"""What an nsys export lacks, and the flags of `nsys profile` that would have recorded it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracelib.sources.nsys.gpu_ops import GPU_TABLES
from tracelib.sources.nsys.names import UNKNOWN, shown_name
from tracelib.sources.nsys.samples import TABLE as SAMPLES
from tracelib.sources.nsys.sched import TABLE as SCHED
from tracelib.sources.nsys.session import exported, option
from tracelib.sources.nsys.slices import NVTX, SYNCHRONIZATION, is_calls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelib.sources.nsys.tables import Tables
    from tracelib.sources.remarks import Remarks

__all__ = ["add_missing"]

#: Real exports have some dozens of tables; one of thousands is not looked through.
_TABLES_COUNTED, _TABLES_SHOWN = 200, 12
_MOMENTS = ("start", "timestamp")
#: Tables of events that have a frame or a remark of their own.
_READ = {
    *GPU_TABLES.values(),
    SYNCHRONIZATION,
    NVTX,
    SCHED,
    SAMPLES,
    "GPU_METRICS",
    "DIAGNOSTIC_EVENT",
    "GENERIC_EVENTS",
}
_AGAIN = "Record with: nsys profile"
_LAUNCH = r"(?i)launch"
#: What the exporter notes of the limits it was given, and its option for each.
_LIMITS = {"EXPORT_PARAM_TABLES_TO_EXPORT": "tables", "EXPORT_PARAM_TIMES_TO_EXPORT": "times"}


def add_missing(database: Tables, read: Mapping[str, pl.DataFrame], notes: Remarks) -> None:
    """Add a remark for each kind of evidence that the frames in `read` lack."""
    again = (
        _AGAIN
        if not (limits := _limits(database, notes))
        else f"Export again without {limits}; else record with: nsys profile"
    )
    _add_gpu(dict(read["gpu_ops"]["kind"].value_counts().iter_rows()), read["slices"], again, notes)
    _add_host(set(read["slices"]["category"].unique().cast(pl.String)), again, notes)
    if read["sched"].height:
        _add_switches(database, notes)
    else:
        without = "no context switches: when threads ran and waited for a CPU is unknown"
        notes.add("info", without, f"{again} --cpuctxsw=system-wide (needs root)")
    if generic := database.read("GENERIC_EVENTS", {"timestamp": pl.Int64}).height:
        notes.add(
            "info",
            f"{generic} generic events (ftrace and the like, as --ftrace collects them) are counted, not read",
            "For scheduler events give a recording of perf or trace-cmd beside this file.",
        )
    _add_unread(database, notes)
    unknown = sum(int((read[frame]["name"] == UNKNOWN).sum()) for frame in ("slices", "gpu_ops"))
    notes.count(unknown, f"calls and kernels are called {UNKNOWN}: their names are not in the file")
    _add_samples(database, read["samples"].height, again, notes)


def _limits(database: Tables, notes: Remarks) -> str:
    """Say what the export was limited to, and return the options that did so, "" if none: a report may hold more."""
    noted = exported(database)
    limits = {option_: noted[name] for name, option_ in _LIMITS.items() if noted.get(name)}
    for option_, value in limits.items():
        notes.add(
            "warning",
            f"this export was limited to the {option_} {shown_name(value)}: what else was recorded is not in it",
            f"Export the .nsys-rep again without --{option_}.",
        )
    return " and ".join(f"--{option_}" for option_ in limits)


def _add_host(categories: set[str], again: str, notes: Remarks) -> None:
    if "annotation" not in categories:
        flag = "-t nvtx (and a program that emits ranges: PyTorch's emit_nvtx, a serving engine's own)"
        notes.add("info", "no NVTX ranges in this file", f"{again} {flag}")
    if "os" not in categories:
        notes.add("info", "no libc calls (OSRT) in this file", f"{again} -t osrt")


def _add_samples(database: Tables, samples: int, again: str, notes: Remarks) -> None:
    if not samples:
        without = "no CPU samples: what threads did between traced calls is unknown"
        notes.add("info", without, f"{again} --sample=system-wide")
        return
    every = option(database, "backtraces") or ""
    if re.fullmatch(r"[1-9]\d{0,8}", every) and every != "1":
        notes.add(
            "info",
            f"nsys walked the stack of one CPU sample in {every}: the others have an address, but no call chain",
            f"{_AGAIN} --samples-per-backtrace=1",
        )


def _add_unread(database: Tables, notes: Remarks) -> None:
    """Name the tables of events that have no frame, and their rows."""
    others = sorted(table for table in database.tables.keys() - _READ if not is_calls(database, table))
    counted = [(_rows(database, table), table) for table in others[:_TABLES_COUNTED]]
    found = sorted(((rows, table) for rows, table in counted if rows), reverse=True)
    shown = ", ".join(f"{shown_name(table)} ({rows})" for rows, table in found[:_TABLES_SHOWN])
    if found:
        more = len(found) - _TABLES_SHOWN
        notes.add(
            "info",
            f"events that are counted, not read: {shown}{f' and {more} tables more' if more > 0 else ''}",
        )


def _rows(database: Tables, table: str) -> int:
    """Return how many rows `table` has, 0 if they are no events."""
    moment = next((column for column in _MOMENTS if database.has(table, column)), None)
    return database.read(table, {moment: pl.Int64}).height if moment else 0


def _add_gpu(count: dict[str, int], slices: pl.DataFrame, again: str, notes: Remarks) -> None:
    if graphs := count.get("graph"):
        beside = (
            f" (the {count['kernel']} kernels in this file ran beside them)" if count.get("kernel") else ""
        )
        notes.add(
            "warning",
            f"{graphs} CUDA graphs were recorded as a whole: no kernel inside them is known{beside}",
            f"{_AGAIN} --cuda-graph-trace=node",
        )
    elif count and not count.get("kernel"):
        notes.add("info", f"{sum(count.values())} copies and memsets, but no kernel in this file")
    elif not count:
        _add_no_gpu(slices, again, notes)


def _add_no_gpu(slices: pl.DataFrame, again: str, notes: Remarks) -> None:
    names = slices.filter(pl.col("category").is_in(["runtime", "driver"]))["name"].value_counts()
    if not (calls := int(names["count"].sum())):
        notes.add("warning", "no CUDA calls and no GPU activity in this file", f"{again} -t cuda,nvtx,osrt")
        return
    launches = int(names.filter(pl.col("name").cast(pl.String).str.contains(_LAUNCH))["count"].sum())
    found = f"{calls} CUDA calls ({launches} launches), but no kernel"
    if again != _AGAIN:
        notes.add("warning", f"{found}: GPU activity was not exported, or not recorded", f"{again} -t cuda")
        return
    notes.add(
        "warning",
        f"{found}: GPU activity was not recorded (no permission for CUPTI, a virtual machine or WSL without support, "
        "or the program ended before the buffers were flushed)",
        "Let the program end by itself, or record with: nsys profile --cuda-flush-interval=100",
    )


def _add_switches(database: Tables, notes: Remarks) -> None:
    notes.add(
        "info",
        "nsys records no wake-ups: a thread's wait for a CPU cannot be told from its sleep by this file alone",
    )
    if (mode := option(database, "switches")) and "system" not in mode.lower():
        notes.add(
            "info",
            "context switches of the profiled processes only: what ran on a CPU instead of them is unknown",
            f"{_AGAIN} --cpuctxsw=system-wide (needs root)",
        )
