"""When a thread that a GPU waited for slept while another thread of its process ran the interpreter: likely its lock.

CPython lets one thread of a process run Python at a time (Python/ceval_gil.c). A thread asleep inside framework or Python
code while a sibling executes bytecode fits a wait for that lock; it may as well have slept for something else. So this is
likely, never certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.intervals import overlay, union

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["GIL_WAITS", "gil_waits"]

GIL_WAITS = pl.Schema(
    {
        "gpu": pl.Int32(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "thread": pl.Int32(),
        "cause": pl.String(),
        "sub_cause": pl.String(),
    }
)

#: The interpreter itself, as the innermost frame's library.
INTERPRETER = r"(^|/)(python[0-9.]*|libpython[0-9.]*\.so[.\d]*)$"


def gil_waits(trace: Trace, lost: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Return the lost GPU time that fits a wait for the interpreter lock.

    Takes the frames `lost` and `clock_stretches`.

    One row per piece: `gpu` (Int32), `ts_ns`, `dur_ns` (Int64), `thread` (Int32: the blamed one),
    `cause`, `sub_cause` (String: of the lost time): those of cause `gil`, whose samples sit in the lock, and those of a
    thread asleep in framework or Python code while a sibling's sample lies in the interpreter. Sorted by `gpu`, `ts_ns`.
    """
    process = trace.threads.select("thread", _process=pl.struct("host", "pid").rank("dense").cast(pl.Int32))
    told = lost.filter(pl.col("cause") == "gil").select(list(GIL_WAITS))
    asleep = lost.filter(
        (pl.col("cpu_state") == "blocked")
        & ((pl.col("sub_cause") == "dispatch") | (pl.col("cause") == "unattributed")).fill_null(value=False)
    ).select(list(GIL_WAITS))
    inside = trace.stacks.filter(
        (pl.col("depth") == 0) & pl.col("library").cast(pl.String).str.contains(INTERPRETER)
    )["stack"]
    runs = stretches.filter(pl.col("stack").is_in(inside.implode()))
    holds = union(runs.join(process, on="thread").select("_process", "ts_ns", "dur_ns"), "_process")
    crossed = overlay(
        asleep.join(process, on="thread", how="left", maintain_order="left"),
        holds.with_columns(_held=pl.lit(value=True)),
        "_process",
    ).filter(pl.col("_held").is_not_null())
    return pl.concat([told, crossed.select(list(GIL_WAITS))]).match_to_schema(GIL_WAITS).sort("gpu", "ts_ns")
