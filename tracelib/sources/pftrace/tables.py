"""The trace processor's tables to frames. Tables and columns: Perfetto's documentation, "PerfettoSQL Prelude"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.schema import FRAMES, IDLE, SCHED, SLICE_CATEGORY, THREAD_STATE
from tracelib.sources.pftrace.chains import chains
from tracelib.sources.remarks import Remarks
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.sources.pftrace.processor import Query

__all__ = ["trace_of"]

I64, TEXT = pl.Int64(), pl.String()
#: Kineto's categories, where the trace was made of such a file; all else was put there by people.
CATEGORIES = {
    "cpu_op": "op",
    "cuda_runtime": "runtime",
    "cuda_driver": "driver",
    "python_function": "python",
    "overhead": "overhead",
}
CLOCKS = ("REALTIME", "BOOTTIME", "MONOTONIC")


def trace_of(query: Query, path: Path) -> Trace:
    """Return the frames of the trace that `query` asks; `path` is the file's."""
    notes = Remarks()
    threads, number = _threads(query)
    frames: dict[str, pl.DataFrame] = {"threads": threads}
    frames["slices"] = _slices(query, number, notes)
    frames["sched"] = _sched(query, number)
    frames["samples"], frames["stacks"] = _samples(query, number)
    frames["counters"] = _counters(query)
    frames["sources"] = _source(query, path)
    _left_out(query, notes)
    frames["health"] = notes.frame()
    return Trace.of({name: _framed(name, rows) for name, rows in frames.items()})


def _framed(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    if "source" in FRAMES[name] and "source" not in rows.columns:
        rows = rows.with_columns(source=pl.lit(0, pl.Int32))
    return rows.match_to_schema(FRAMES[name], missing_columns="insert", integer_cast="upcast")


def _threads(query: Query) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frame `threads`, and which number in it each `utid` has (IDLE for the CPUs' idle tasks)."""
    rows = query(
        "SELECT t.utid AS utid, t.tid AS tid, t.name AS name, p.pid AS pid, p.name AS process "
        "FROM thread t LEFT JOIN process p ON t.upid = p.upid ORDER BY t.utid",
        {"utid": I64, "tid": I64, "name": TEXT, "pid": I64, "process": TEXT},
    )
    known = rows.filter(pl.col("tid") != 0).with_columns(thread=pl.int_range(pl.len(), dtype=pl.Int32))
    idle = rows.filter(pl.col("tid") == 0).select("utid", thread=pl.lit(IDLE, pl.Int32))
    return known.drop("utid"), pl.concat([known.select("utid", "thread"), idle])


def _slices(query: Query, number: pl.DataFrame, notes: Remarks) -> pl.DataFrame:
    rows = query(
        "SELECT s.ts AS ts_ns, s.dur AS dur_ns, s.name AS name, s.category AS category, tt.utid AS utid "
        "FROM slice s JOIN thread_track tt ON s.track_id = tt.id",
        {"ts_ns": I64, "dur_ns": I64, "name": TEXT, "category": TEXT, "utid": I64},
    )
    notes.count(
        rows.filter(pl.col("dur_ns") < 0).height, "slices have no end in the trace: their length is 0"
    )
    return _numbered(rows, number).select(
        "thread",
        "ts_ns",
        pl.col("dur_ns").clip(0),
        pl.col("name").cast(pl.Categorical),
        category=pl.col("category").replace_strict(CATEGORIES, default="annotation").cast(SLICE_CATEGORY),
    )


def _numbered(
    rows: pl.DataFrame, number: pl.DataFrame, utid: str = "utid", thread: str = "thread"
) -> pl.DataFrame:
    named = number.select(pl.col("utid").alias(utid), pl.col("thread").alias(thread))
    return rows.join(named, on=utid, how="left", maintain_order="left")


def _sched(query: Query, number: pl.DataFrame) -> pl.DataFrame:
    """Return what ran on each CPU as the switches between it, and the wake-ups whose waker is known.

    Of a stretch on a CPU that the one before it touches, that one's thread was switched out.
    """
    ran = query(
        "SELECT ts AS ts_ns, dur AS dur_ns, cpu AS cpu, utid AS utid, end_state AS state FROM sched ORDER BY cpu, ts",
        {"ts_ns": I64, "dur_ns": I64, "cpu": I64, "utid": I64, "state": TEXT},
    )
    touches = (pl.col("ts_ns") + pl.col("dur_ns")).shift(1).over("cpu") == pl.col("ts_ns")
    before = {"prev": pl.col("next"), "prev_state": _state(pl.col("state"))}
    switches = _numbered(ran, number, thread="next").with_columns(
        pl.when(touches).then(value.shift(1).over("cpu")).alias(name) for name, value in before.items()
    )
    woken = query(
        "SELECT ts AS ts_ns, utid AS utid, waker_utid AS waker FROM thread_state WHERE waker_utid IS NOT NULL AND state = 'R'",
        {"ts_ns": I64, "utid": I64, "waker": I64},
    )
    wakeups = _numbered(_numbered(woken, number, thread="next"), number, "waker", "prev")
    columns = ["ts_ns", "cpu", "event", "prev", "prev_state", "next"]
    switches = switches.with_columns(event=pl.lit("switch")).select(columns)
    wakeups = wakeups.with_columns(
        event=pl.lit("wakeup"), cpu=pl.lit(None, pl.Int64), prev_state=pl.lit(None, THREAD_STATE)
    )
    both = pl.concat([switches, wakeups.select(columns)])
    return both.with_columns(pl.col("event").cast(SCHED["event"]), pl.col("cpu").cast(pl.Int32))


def _state(state: pl.Expr) -> pl.Expr:
    """Return the kernel's letter of a state as Perfetto writes it ("R+", "S", "D|K", …)."""
    letter = state.str.slice(0, 1)
    known = letter.is_in(THREAD_STATE.categories.to_list())
    return (
        pl.when(state.is_null() | (state == ""))
        .then(None)
        .when(known)
        .then(letter)
        .otherwise(pl.lit("other"))
        .cast(THREAD_STATE)
    )


def _samples(query: Query, number: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    rows = query(
        "SELECT ts AS ts_ns, cpu AS cpu, utid AS utid, callsite_id AS callsite FROM perf_sample WHERE utid IS NOT NULL",
        {"ts_ns": I64, "cpu": I64, "utid": I64, "callsite": I64},
    )
    stacks, stack_of = chains(query, rows["callsite"])
    named = _numbered(rows, number).join(stack_of, on="callsite", how="left")
    return named.select("thread", "ts_ns", pl.col("cpu").cast(pl.Int32), "stack"), stacks


def _counters(query: Query) -> pl.DataFrame:
    rows = query(
        "SELECT c.ts AS ts_ns, ct.name AS name, c.value AS value FROM counter c JOIN counter_track ct ON c.track_id = ct.id",
        {"ts_ns": I64, "name": TEXT, "value": pl.Float64()},
    )
    return rows.with_columns(pl.col("name").cast(pl.Categorical))


def _source(query: Query, path: Path) -> pl.DataFrame:
    """Return the file's row: its clock is the one that reads the trace's own time at the first snapshot of all clocks."""
    read = query(
        "SELECT clock_name AS name, ts AS ts, clock_value AS value FROM clock_snapshot ORDER BY ts",
        {"name": TEXT, "ts": I64, "value": I64},
    )
    own = [
        name
        for name in CLOCKS
        if read.filter((pl.col("name") == name) & (pl.col("ts") == pl.col("value"))).height
    ]
    wall = read.filter(pl.col("name") == "REALTIME").head(1)
    row: dict[str, Any] = {
        "source": 0,
        "file": path.name,
        "format": "pftrace",
        "recorder": "Perfetto",
        "clock": own[0].lower() if own else "unknown",
        "wall_offset_ns": int((wall["value"] - wall["ts"]).item()) if wall.height else None,
    }
    return pl.DataFrame([row], schema={name: FRAMES["sources"][name] for name in row})


def _left_out(query: Query, notes: Remarks) -> None:
    """Remark on what these frames do not hold, and on what Perfetto says was lost."""
    elsewhere = query(
        "SELECT COUNT(*) AS number FROM slice WHERE track_id NOT IN (SELECT id FROM thread_track)",
        {"number": I64},
    )["number"].item()
    notes.count(
        elsewhere,
        "slices on tracks of no thread (processes, GPUs) were left out",
        "For the GPUs give the file that the profiler wrote (Kineto, nsys).",
    )
    lost = query(
        "SELECT name AS name, SUM(value) AS value FROM stats WHERE severity = 'data_loss' AND value > 0 GROUP BY name",
        {"name": TEXT, "value": I64},
    )
    for name, value in lost.iter_rows():
        notes.add("warning", f"Perfetto counts {value} of {name}", "Record with larger buffers.")
