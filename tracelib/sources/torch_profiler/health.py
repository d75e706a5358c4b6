"""Remarks on the state of a PyTorch Profiler trace: what was lost, what is odd, what was assumed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from tracelib.schema import HEALTH
from tracelib.sources.torch_profiler.events import UNUSED_PHASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelib.sources.torch_profiler.reader import Content

Row = tuple[str, str, str]  # level, message, fix

#: Phases of intervals, instants and counters: a list with none of them gives no row.
USED_PHASES = (*"XiInRBEbeSFC",)
FINISH = "Wait until the profiler has finished writing, then copy the file."


def health(found: Content, odd: Counter[str], base: int, rank_from: str, *, wall: bool) -> pl.DataFrame:
    """Return one row per remark (:data:`tracelib.schema.HEALTH`); `odd` is what :func:`oddities` counted in all parts."""
    rows = [*_losses(found), *_oddities(found, odd), *_assumptions(found, base, rank_from, wall=wall)]
    return pl.DataFrame([(0, *row) for row in rows], schema=HEALTH, orient="row")


def _losses(found: Content) -> Iterator[Row]:
    if found.damage:
        rest = (
            f"{found.lost_bytes} bytes of the file were not read"
            if found.lost_bytes
            else "how much is missing cannot be told"
        )
        yield "error", f"{found.damage}; {rest}", FINISH
    if found.batch.skipped_bytes:
        yield "error", f"{found.batch.skipped_bytes} bytes of events could not be read", FINISH
    for remark, count in sorted(found.batch.remarks.items()):
        level = "error" if remark.startswith(("lost", "cut short")) else "warning"
        yield level, remark if remark.startswith("cut short") else f"{count} events: {remark}", ""
    if not any(ph in USED_PHASES for ph, _ in found.batch.tally if ph):
        yield (
            "warning",
            "none of its events is an interval, an instant or a counter: only flows, names and the like",
            "",
        )
    for note in found.document.notes:
        yield "warning", note, ""
    if found.document.damaged:
        yield (
            "warning",
            "the fields outside the list of events are not valid JSON; only the main ones were read",
            "",
        )


def oddities(slices: pl.DataFrame, ops: pl.DataFrame, called: pl.DataFrame) -> Counter[str]:
    """Return how many rows of a part of finished frames are odd, and how; the counts of all parts add up."""
    lasting = ops.filter(pl.col("dur_ns") > 0)
    orphan = pl.col("correlation").is_not_null() & ~pl.col("correlation").is_in(
        called["correlation"].implode()
    )
    return Counter(
        ops=ops.height,
        repeated=lasting.height
        - lasting.n_unique(["gpu", "stream", "ts_ns", "dur_ns", "name", "correlation"])
        if lasting.height
        else 0,
        orphans=ops.filter(orphan).height,
        nameless=int((slices["name"] == "unknown").sum()),
        adrift=slices.filter(pl.col("thread").is_null() & (pl.col("category") == "sync")).height,
    )


def _oddities(found: Content, odd: Counter[str]) -> Iterator[Row]:
    if odd["repeated"]:
        repeated = "GPU ops are repetitions of another, equal in time, stream and name; all were kept"
        yield "warning", f"{odd['repeated']} {repeated}", ""
    if odd["nameless"]:
        unknown = 'slices are called "unknown": the profiler replaces names it cannot print'
        yield "info", f"{odd['nameless']} {unknown}", ""
    if odd["adrift"]:
        adrift = "waits lie on no host thread: the calls that made them are not in the file"
        yield "info", f"{odd['adrift']} {adrift}", ""
    if odd["orphans"]:
        orphans = "GPU ops were launched by a call that is not in the file"
        yield "info", f"{odd['orphans']} of {odd['ops']} {orphans}", ""
    unused: Counter[str] = Counter()
    for (ph, _), n in sorted(found.batch.tally.items()):
        if ph in UNUSED_PHASES and ph not in "stf":
            unused[ph] += n
    if unused:
        yield (
            "info",
            f"events of kinds that are not used: {', '.join(f'{n} of {ph!r}' for ph, n in unused.items())}",
            "",
        )


def _assumptions(found: Content, base: int, rank_from: str, *, wall: bool) -> Iterator[Row]:
    if found.batch.recorded:
        start, end = (
            min(s for s, _ in found.batch.recorded) + base,
            max(e for _, e in found.batch.recorded) + base,
        )
        yield "info", f"the profiler says that it recorded from {start} to {end} ns", ""
    if rank_from:
        yield "info", f"rank by {rank_from}", ""
    if not wall:
        fix = "Record with PyTorch 2.4 or later, or tie it to another source by a common event."
        yield "warning", "the times have no base and do not count from the epoch: the clock is unknown", fix
