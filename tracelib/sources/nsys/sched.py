"""Context switches in an nsys export.

`SCHED_EVENTS` has two rows per switch where both threads are known, "out" and "in", each with a time of its own, and
nothing for a thread that was not traced: between an "out" and the next "in" on a CPU it may have idled or run others.
So an "out" gives a switch whose `next` is not recorded, an "in" one whose `prev` is not; only where both happen at the
same nanosecond are they one switch. nsys records no wake-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import IDLE, SCHED_EVENT, THREAD_STATE
from tracelib.sources.nsys.names import enumeration
from tracelib.sources.nsys.threads import pid, tid

if TYPE_CHECKING:
    from tracelib.sources.nsys.tables import Tables

__all__ = ["TABLE", "switches"]

TABLE = "SCHED_EVENTS"
#: ENUM_SAMPLING_THREAD_STATE, and the kernel's letter for each.
_STATES = {
    0: "Unknown",
    1: "Running",
    2: "Interruptible",
    3: "Uninterruptible",
    4: "Stopped",
    5: "Terminated",
}
_LETTERS = {
    "Running": "R",
    "Interruptible": "S",
    "Uninterruptible": "D",
    "Stopped": "T",
    "Terminated": "X",
    "Unknown": None,
}


def switches(database: Tables) -> pl.DataFrame:
    """Return the context switches, before the threads got their numbers.

    One row per switch: `ts_ns` Int64, `cpu` Int32, `event`, `prev` and `next` (globalTid, IDLE for the idle task, null =
    not recorded), `prev_state`.
    """
    columns = ("start", "cpu", "isSchedIn", "globalTid", "threadState")
    rows = database.read(TABLE, dict.fromkeys(columns, pl.Int64)).drop_nulls(
        ["start", "isSchedIn", "globalTid"]
    )
    thread = pl.when((pid("globalTid") == 0) & (tid("globalTid") == 0)).then(IDLE).otherwise("globalTid")
    comes = pl.col("isSchedIn") != 0
    rows = rows.with_columns(thread=thread).sort("start", "cpu", maintain_order=True)
    rows = rows.with_columns(joined=_joined(comes))
    return (
        rows.select(
            "joined",
            ts_ns="start",
            cpu=pl.col("cpu").cast(pl.Int32, strict=False),
            event=pl.lit("switch", SCHED_EVENT),
            prev=pl.when(~comes).then("thread"),
            prev_state=pl.when(~comes).then(_state(database)),
            next=pl.when(comes).then("thread").when("joined").then(pl.col("thread").shift(-1)),
        )
        .filter(~pl.col("joined").shift(1, fill_value=False))
        .drop("joined")
    )


def _joined(comes: pl.Expr) -> pl.Expr:
    """Say of each row whether it is an "out" whose "in" follows at the same time on the same CPU."""
    same = (pl.col("start") == pl.col("start").shift(-1)) & (pl.col("cpu") == pl.col("cpu").shift(-1))
    return (~comes & comes.shift(-1) & same).fill_null(value=False)


def _state(database: Tables) -> pl.Expr:
    states = enumeration(database, "ENUM_SAMPLING_THREAD_STATE", _STATES, column="name")
    letters = {number: _LETTERS.get(name, "other") for number, name in states.items()}
    return (
        pl.col("threadState").replace_strict(letters, default=None, return_dtype=pl.String).cast(THREAD_STATE)
    )
