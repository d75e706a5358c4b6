"""System calls as slices: an enter and the exit that follows it on the same thread.

perf prints them as `syscalls:sys_enter_futex: uaddr: …` / `syscalls:sys_exit_futex: 0x0`, or by number as
`raw_syscalls:sys_enter: NR 202 (…)` / `raw_syscalls:sys_exit: NR 202 = 0`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import SLICES
from tracelib.sources import syscall_names
from tracelib.sources.remarks import counted

if TYPE_CHECKING:
    from tracelib.sources.remarks import Remarks

__all__ = ["calls", "slices"]

NAMED = r"^syscalls:sys_(?P<edge>enter|exit)_(?P<name>\w+)$"
BY_NUMBER = r"^raw_syscalls:sys_(enter|exit)$"
#: The header's name of a machine -> ours.
MACHINES = {"x86_64": "x86-64", "aarch64": "arm64"}


def calls(says: pl.DataFrame, architecture: str | None, remarks: Remarks) -> pl.DataFrame:
    """Return one row per row of `says` (`event`, `rest`): `edge` ("enter", "exit", null = no system call), `call` (name)."""
    said = says.select(
        pl.col("event").str.extract_groups(NAMED).struct.unnest(),
        pl.col("event").str.extract(BY_NUMBER).alias("raw"),
        pl.col("rest").str.extract(r"^NR (-?\d+)").cast(pl.Int64, strict=False).alias("number"),
    )
    by_number = pl.col("raw").is_not_null() & pl.col("number").is_not_null()
    numbers = said.filter(by_number)["number"]
    machine = MACHINES.get(architecture, architecture) if architecture else "x86-64"
    if architecture is None and len(numbers):
        machine = syscall_names.judged(numbers, remarks)
    called = syscall_names.by_number(pl.col("number"), machine)
    return said.select(
        pl.coalesce("edge", pl.when(by_number).then("raw")).alias("edge"),
        pl.coalesce("name", pl.when(by_number).then(called)).alias("call"),
    )


def slices(edges: pl.DataFrame, remarks: Remarks) -> pl.DataFrame:
    """Return the slices of paired edges.

    `edges` has `thread`, `ts_ns`, `edge`, `call`, `event` in the order of the file. A call recorded both by name and by
    number gives one slice, that of its name.
    """
    known = edges.filter(
        pl.col("edge").is_not_null() & pl.col("thread").is_not_null() & (pl.col("thread") >= 0)
    ).sort("thread", "ts_ns", maintain_order=True)
    told = _once(known, remarks)
    following = pl.col("edge", "call", "ts_ns").shift(-1).over("thread").name.suffix("_next")
    paired = told.with_columns(following).filter(
        (pl.col("edge") == "enter")
        & (pl.col("edge_next") == "exit")
        & (pl.col("call") == pl.col("call_next"))
    )
    made = paired.select(
        pl.lit(0, pl.Int32).alias("source"),
        "thread",
        "ts_ns",
        (pl.col("ts_ns_next") - pl.col("ts_ns")).alias("dur_ns"),
        pl.col("call").cast(pl.Categorical()).alias("name"),
        pl.lit("os", SLICES["category"]).alias("category"),
        pl.lit(None, pl.Int64).alias("correlation"),
    )
    if unpaired := told.height - 2 * made.height:
        remarks.add(
            "info",
            f"{unpaired:,} system-call events without their other half (cut by the recording's ends, or lost)",
        )
    return made.match_to_schema(SLICES)


def _once(known: pl.DataFrame, remarks: Remarks) -> pl.DataFrame:
    """Return the edges without those by number of calls that stand there by name as well."""
    raw = pl.col("event").str.starts_with("raw_")
    if known.select(raw.all() | ~raw.any()).item():
        return known
    twice = known.select(syscall_names.told_twice(raw, pl.col("edge") == "exit")).to_series()
    if not twice.any():
        return known
    remarks.add(
        "info",
        f"{counted(int(twice.sum()), 'raw_syscalls event')} not used: the same calls stand there by name",
    )
    return known.filter(~twice)
