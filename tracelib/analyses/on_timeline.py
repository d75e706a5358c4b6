"""The part of a trace that lies on one timeline: no figure mixes it with what an untied clock says (ATTRIBUTION.md, "Alignment")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import FRAMES

if TYPE_CHECKING:
    from tracelib.trace import Trace

__all__ = ["on_timeline"]

#: Frames whose rows have a time.
TIMED = ("slices", "gpu_ops", "samples", "sched", "counters")
FIX = "give its clock (--ftrace-clock mono, run.toml) or its offset to wall time (--offset FILE=NS)"


def on_timeline(trace: Trace) -> Trace:
    """Return `trace` without the events of sources whose clock is not tied to the others'.

    Where no tied source holds GPU operations but an untied one does, that one is kept alone instead: the ledgers of GPU
    time are what the run was recorded for. `sources` and `threads` keep all rows; `health` says what was left out.
    """
    untied = trace.sources.filter(pl.col("tied_by") == "untied")["source"].to_list()
    if not untied:
        return trace
    kept = _kept(trace, untied)
    frames = {
        name: getattr(trace, name).filter(pl.col("source").is_in(kept))
        for name in TIMED
        if getattr(trace, name).height
    }
    ops = frames.get("gpu_ops", trace.gpu_ops)
    gpus = trace.gpus.filter(pl.col("gpu").is_in(ops["gpu"].unique().implode()))
    return trace.replace(**frames, gpus=gpus, health=_with_remarks(trace, kept))


def _kept(trace: Trace, untied: list[int]) -> list[int]:
    """Return the sources that the figures are about."""
    tied = [source for source in trace.sources["source"].to_list() if source not in untied]
    ops = dict(trace.gpu_ops.group_by("source").len().iter_rows())
    if ops and not any(source in ops for source in tied):
        return [max(ops, key=lambda source: (ops[source], -source))]
    return tied


def _with_remarks(trace: Trace, kept: list[int]) -> pl.DataFrame:
    rows = [
        {
            "source": source,
            "level": "warning",
            "message": f"left out of every figure, because no clock ties it to the others: {held}",
            "fix": FIX,
        }
        for source in trace.sources["source"].to_list()
        if source not in kept and (held := _held(trace, source))
    ]
    return pl.concat([trace.health, pl.DataFrame(rows, schema=FRAMES["health"])]).sort(
        "source", maintain_order=True
    )


def _held(trace: Trace, source: int) -> str:
    counts = {name: int((getattr(trace, name)["source"] == source).sum()) for name in TIMED}
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n)
