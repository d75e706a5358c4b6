"""What an nsys export lacks, and the flags of `nsys profile` that would have recorded it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.sources.nsys.session import option

if TYPE_CHECKING:
    from tracelib.sources.nsys.database import Database
    from tracelib.sources.nsys.notes import Notes

__all__ = ["add_missing"]

_AGAIN = "Record with: nsys profile"
_LAUNCH = r"(?i)launch"


def add_missing(
    database: Database, slices: pl.DataFrame, operations: pl.DataFrame, found: dict[str, int], notes: Notes
) -> None:
    """Add a remark for each kind of evidence that the file lacks; `found` counts samples and switches."""
    kinds = operations["kind"].cast(pl.String).value_counts()
    _add_gpu(dict(kinds.iter_rows()), slices, notes)
    categories = set(slices["category"].unique().cast(pl.String))
    for category, what, flag in (
        (
            "annotation",
            "NVTX ranges",
            "-t nvtx (and a program that emits them: PyTorch's emit_nvtx, vLLM's ranges)",
        ),
        ("os", "libc calls (OSRT)", "-t osrt"),
    ):
        if category not in categories:
            notes.add("info", f"no {what} in this file", f"{_AGAIN} {flag}")
    if not found["switches"]:
        notes.add(
            "info",
            "no context switches: when threads ran and waited for a CPU is unknown",
            f"{_AGAIN} --cpuctxsw=system-wide (needs root)",
        )
    else:
        _add_switches(database, notes)
    if not found["samples"]:
        notes.add(
            "info",
            "no CPU samples: what threads did between traced calls is unknown",
            f"{_AGAIN} --sample=system-wide",
        )


def _add_gpu(count: dict[str, int], slices: pl.DataFrame, notes: Notes) -> None:
    if count.get("kernel"):
        return
    if count.get("graph"):
        notes.add(
            "warning",
            f"{count['graph']} CUDA graphs were recorded as a whole: no kernel inside them is known",
            f"{_AGAIN} --cuda-graph-trace=node",
        )
        return
    names = slices.filter(pl.col("category").is_in(["runtime", "driver"]))["name"].value_counts()
    calls = int(names["count"].sum())
    launches = int(names.filter(pl.col("name").cast(pl.String).str.contains(_LAUNCH))["count"].sum())
    if calls:
        notes.add(
            "warning",
            f"{calls} CUDA calls ({launches} launches), but no kernel: GPU activity was not recorded (no permission "
            "for CUPTI, a virtual machine or WSL without support, or the program ended before the buffers were flushed)",
            "Let the program end by itself, or record with: nsys profile --cuda-flush-interval=100",
        )
    else:
        notes.add("warning", "no CUDA calls and no GPU activity in this file", f"{_AGAIN} -t cuda,nvtx,osrt")


def _add_switches(database: Database, notes: Notes) -> None:
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
