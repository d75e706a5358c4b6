"""Remarks on the state of a PyTorch Profiler trace: what was lost, what is odd, what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import HEALTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelib.sources.torch_profiler.reader import Content

__all__ = ["health"]

Row = tuple[str, str, str]  # level, message, fix

#: Phases that become no frame: flows (correlation ids are exact where flows are not), samples, objects, clock syncs.
UNUSED_PHASES = "stfPpNODvVcT()"
FINISH = "Wait until the profiler has finished writing, then copy the file."


def health(
    found: Content, made: dict[str, pl.DataFrame], base: int, rank_from: str, *, wall: bool
) -> pl.DataFrame:
    """Return one row per remark (:data:`tracelib.schema.HEALTH`)."""
    rows = [*_losses(found), *_oddities(found, made), *_assumptions(found, made, base, rank_from, wall=wall)]
    return pl.DataFrame([(0, *row) for row in rows], schema=HEALTH, orient="row")


def _losses(found: Content) -> Iterator[Row]:
    if found.damage:
        yield "error", f"{found.damage}; {found.lost_bytes} bytes of the file were not read", FINISH
    if found.batch.skipped_bytes:
        yield "error", f"{found.batch.skipped_bytes} bytes of events could not be read", FINISH
    for remark, count in sorted(found.batch.remarks.items()):
        level = "error" if remark.startswith(("lost", "cut short")) else "warning"
        yield level, remark if remark.startswith("cut short") else f"{count} events: {remark}", ""
    if found.document.damaged:
        yield (
            "warning",
            "the fields outside the list of events are not valid JSON; only the main ones were read",
            "",
        )


def _oddities(found: Content, made: dict[str, pl.DataFrame]) -> Iterator[Row]:
    ops, slices = made["gpu_ops"], made["slices"]
    twice = ops.filter(pl.col("dur_ns") > 0)
    repeated = (
        twice.height - twice.n_unique(["gpu", "stream", "ts_ns", "dur_ns", "name", "correlation"])
        if twice.height
        else 0
    )
    if repeated:
        yield (
            "warning",
            f"{repeated} GPU ops are repetitions of another, equal in time, stream and name; all were kept",
            "",
        )
    if slices.height:
        nameless = (slices["name"] == "unknown").sum()
        if nameless:
            yield (
                "info",
                f'{nameless} slices are called "unknown": the profiler replaces names it cannot print',
                "",
            )
    adrift = slices.filter(pl.col("thread").is_null() & (pl.col("category") == "sync")).height
    if adrift:
        yield (
            "info",
            f"{adrift} waits lie on no host thread: the calls that made them are not in the file",
            "",
        )
    launched = ops["correlation"].is_not_null().sum()
    if launched:
        callers = (
            slices.filter(pl.col("category").is_in(["runtime", "driver"]))["correlation"]
            .drop_nulls()
            .unique()
        )
        orphans = ops.filter(
            pl.col("correlation").is_not_null() & ~pl.col("correlation").is_in(callers.implode())
        ).height
        if orphans:
            yield (
                "info",
                f"{orphans} of {ops.height} GPU ops were launched by a call that is not in the file",
                "",
            )
    unused = {
        ph: n
        for (ph, _), n in sorted(found.batch.tally.items())
        if ph and ph in UNUSED_PHASES and ph not in "stf"
    }
    if unused:
        yield (
            "info",
            f"events of kinds that are not used: {', '.join(f'{n} of {ph!r}' for ph, n in unused.items())}",
            "",
        )


def _assumptions(
    found: Content, made: dict[str, pl.DataFrame], base: int, rank_from: str, *, wall: bool
) -> Iterator[Row]:
    if found.batch.recorded:
        start, end = (
            min(s for s, _ in found.batch.recorded) + base,
            max(e for _, e in found.batch.recorded) + base,
        )
        yield "info", f"the profiler says that it recorded from {start} to {end} ns", ""
    if made["gpu_ops"].height or made["sources"]["rank"][0] is not None:
        yield "info", f"rank by {rank_from}", ""
    if not wall:
        fix = "Record with PyTorch 2.4 or later, or tie it to another source by a common event."
        yield "warning", "the times have no base and do not count from the epoch: the clock is unknown", fix
