"""What the rows of a file need to know of the whole of it, the frames made of them part by part, and its health."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import HEALTH, SOURCES
from tracelib.sources.files import sha256
from tracelib.sources.torch_profiler import frames
from tracelib.sources.torch_profiler.document import (
    RANKED,
    UNRANKED,
    merge_notes,
    prefixed_ranks,
    prefixes,
    rank_of,
    repeated_calls,
    shared_correlations,
)
from tracelib.sources.torch_profiler.events import UNUSED_PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tracelib.sources.torch_profiler.document import Document
    from tracelib.sources.torch_profiler.reader import Content


#: 2001 in ns since the epoch: a time beyond is wall time, one before counts from a boot or a start of its
#: own.
EPOCH_LIKE_NS = 10**18
NOT_ADDED = "the times count from the epoch although a baseTimeNanoseconds is given: it was not added"
#: So many of the first times tell whether a base is to be added to them.
SAMPLED = 1000


class Assembly:
    """Makes the frames of one file from parts of its events (:data:`events.SPANS` and :data:`events.GPU`).

    `slices` and `gpu_ops` take one part each, every part once; `others` comes after the last of them.

    Raises
    ------
    BadTrace
        Not one event of the file can be read.

    """

    def __init__(
        self, path: Path, found: Content, spans: Iterable[pl.DataFrame], gpu: Iterable[pl.DataFrame]
    ) -> None:
        _check(path, found)
        self.path, self.found = path, found
        counters = [found.batch.counters]
        told = _told(found.document)
        self.base, self.counters_base = (
            _base(found.document, told, spans, gpu),
            _base(found.document, told, counters),
        )
        rows = any(part.height for parts in (spans, gpu) for part in parts)
        kinds = (spans, gpu) if rows else (counters,)
        self.wall = self.base > 0 or any(_epoch_like(parts) for parts in kinds)
        self.rank, self.rank_from = rank_of(found.document, path.name)
        ranks = self._calls(pl.concat(frames.calls(part) for part in spans))
        self.threads = frames.threads(
            pl.concat(frames.hosts(self._placed(part)) for part in spans), found.batch, found.document.host
        )
        self.devices = frames.devices((self._timed(part) for part in gpu), self.rank, ranks)
        self.group_size = None if ranks is not None else found.document.group_size
        self.odd: Counter[str] = Counter()
        self.span: list[int] = []  # first and last moments of the parts

    def _calls(self, calls: pl.DataFrame) -> dict[int, int] | None:
        """Keep what is known of the `calls`; return the ranks of the process ids if the file was merged from several."""
        ids = shared_correlations(calls)
        self.called = frames.launches(calls, ids)
        self.callers = calls.select(pid="caller", tid="caller_tid").drop_nulls("pid").unique()
        labels = prefixes(self.found.batch.texts)
        several = self.callers["pid"].n_unique() > 1 or len(set(labels.values())) > 1
        self.found.document.notes += merge_notes(several, ids.len(), repeated_calls(calls))
        if not several:
            return None
        ranks = prefixed_ranks(labels)  # what the file itself says of its rank is true of one of them
        self.rank, self.rank_from = None, RANKED if ranks else UNRANKED
        return ranks

    def _placed(self, spans: pl.DataFrame) -> pl.DataFrame:
        return frames.on_threads(spans, self.called, self.callers)

    def _timed(self, gpu: pl.DataFrame) -> pl.DataFrame:
        """Leave out work of a GPU at time 0, which the profiler writes when it knows no time (kineto#109)."""
        return gpu.filter(pl.col("ts") != 0) if self.wall else gpu

    def slices(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return the slices of a part (:data:`tracelib.schema.SLICES`), in the order of the file."""
        made = frames.slices(spans, self._placed(spans), self.threads, self.base)
        self._note(made)
        return made

    def gpu_ops(self, gpu: pl.DataFrame) -> pl.DataFrame:
        """Return the GPU ops of a part (:data:`tracelib.schema.GPU_OPS`), in the order of the file."""
        timed = self._timed(gpu)
        if lost := gpu.height - timed.height:
            self.found.batch.remarks["GPU work at time 0: left out"] += lost
        made = frames.gpu_ops(timed, self.devices, self.called, self.base, self.group_size)
        self._note(made)
        return made

    def _note(self, made: pl.DataFrame) -> None:
        if made.height:
            self.span += [made["ts_ns"].min(), (made["ts_ns"] + made["dur_ns"]).max()]  # type: ignore[list-item]

    def look(self, slices: pl.DataFrame, gpu_ops: pl.DataFrame) -> None:
        """Count what is odd in parts of finished frames; rows of one moment must be in one part."""
        self.odd.update(oddities(slices, gpu_ops, self.called))

    def others(self) -> dict[str, pl.DataFrame]:
        """Return all other frames."""
        doc, batch = self.found.document, self.found.batch
        counters = frames.counters(batch, self.counters_base)
        if counters.height:
            self.span += [counters["ts_ns"].min(), counters["ts_ns"].max()]  # type: ignore[list-item]
        gpus = frames.gpus(self.devices, doc.host, doc.device_names)
        return {
            "counters": counters,
            "threads": self.threads,
            "gpus": gpus,
            "sources": self._source(),
            "health": health(
                self.found,
                self.odd,
                self.base,
                self.rank_from if gpus.height or self.rank is not None else "",
                wall=self.wall,
            ),
        }

    def _source(self) -> pl.DataFrame:
        batch, doc = self.found.batch, self.found.document
        lost = sum(
            count
            for remark, count in batch.remarks.items()
            if remark.endswith("left out") or remark.startswith("lost")
        )
        row = {
            "source": 0,
            "file": self.path.name,
            "sha256": sha256(self.path),
            "bytes": self.path.stat().st_size,
            "format": "torch_profiler",
            "recorder": doc.recorder,
            "host": doc.host,
            "rank": self.rank,
            "clock": "realtime" if self.wall else "unknown",
            "wall_offset_ns": 0 if self.wall else None,
            "first_ns": min(self.span, default=None),
            "last_ns": max(self.span, default=None),
            "lost_declared": 0,
            "lost_detected": lost,
            "skipped_bytes": self.found.lost_bytes + batch.skipped_bytes,
        }
        return pl.DataFrame([{**dict.fromkeys(SOURCES), **row}], schema=SOURCES)


def _check(path: Path, found: Content) -> None:
    if sum(found.batch.tally.values()) - found.batch.tally["", "None"] > 0:
        return
    lost = found.batch.skipped_bytes
    reason = f"none of its events can be read ({lost} bytes)" if lost else "its list of events is empty"
    raise BadTrace(
        path,
        "torch_profiler",
        "the list of traceEvents",
        found.damage or reason,
        advice="Record again, and wait for the profiler to finish writing.",
    )


def _told(doc: Document) -> int:
    """Return the time base that the file tells, 0 if it tells none that is a number."""
    base = doc.integer("baseTimeNanoseconds")
    if base is None and doc.fields.get("baseTimeNanoseconds") is not None:
        doc.notes.append("baseTimeNanoseconds is no number of nanoseconds: it was not used")
    return base or 0


def _base(doc: Document, told: int, *kinds: Iterable[pl.DataFrame]) -> int:
    """Return from when the times of these `kinds` of rows count in ns since the epoch: as `told`, 0 if they count from it."""
    first = (part["ts"].head(SAMPLED) for parts in kinds for part in parts if part.height)
    if told and _epoch_like([pl.DataFrame({"ts": next(first, [])}, schema={"ts": pl.Int64})]):
        if NOT_ADDED not in doc.notes:
            doc.notes.append(NOT_ADDED)
        return 0
    return told


def _epoch_like(parts: Iterable[pl.DataFrame]) -> bool:
    middle = pl.concat(part["ts"] for part in parts).median()
    return isinstance(middle, (int, float)) and middle > EPOCH_LIKE_NS


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
