"""The frames of one file, made part by part of its events, its source and its health.

What rows need to know of the whole file (base of time, threads, devices, launches) is found first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.sources.files import sha256
from tracelib.sources.health import UNREAD, Remarks, source_frame
from tracelib.sources.torch_profiler import frames
from tracelib.sources.torch_profiler.document import (
    RANKED,
    UNRANKED,
    Document,
    merge_notes,
    prefixed_ranks,
    prefixes,
    rank_of,
    repeated_calls,
    shared_correlations,
)
from tracelib.sources.torch_profiler.events import TIMED_PHASES, UNUSED_PHASES, Batch
from tracelib.words import plain

if TYPE_CHECKING:
    from tracelib.sources.torch_profiler.reader import Contents

#: 2001 in ns since the epoch: a time beyond is wall time, one before counts from a boot or its own start.
EPOCH_LIKE_NS = 10**18
NOT_ADDED = "the times count from the epoch although a baseTimeNanoseconds is given: it was not added"
#: So many of the first times tell whether a base is to be added to them.
SAMPLED = 1000
FINISH = "Wait until the profiler has finished writing, then copy the file."
NO_BASE = "the times have no base and do not count from the epoch: the clock is unknown"
#: GPU ops that agree in these are one op that the file holds twice.
EQUAL = ("gpu", "stream", "ts_ns", "dur_ns", "name", "correlation")
#: Processes under which other profilers put the work of a device, and their categories of it.
DEVICE = re.compile(
    r"/device:(?:GPU|TPU|XLA|CUSTOM)|^Ascend Hardware|^(?:TPU|NPU|HPU|XPU)\b|^TensorFlow.*GPU"
)
DEVICE_CATEGORY = re.compile(r"async_npu|npu_\w+|.*_?(?:tpu|hpu)_op")
#: What :func:`oddities` counts, in the order of the remarks.
ODDITIES = ("repeated", "nameless", "adrift", "orphans")


class Assembly:
    """Makes the frames of one file from parts of its events (:data:`events.SPANS` and :data:`events.GPU`).

    `slices` and `gpu_ops` take one part each, every part once; `others` comes after the last of them.
    Raises BadTrace if not one event of the file can be read.
    """

    def __init__(
        self, path: Path, contents: Contents, spans: Iterable[pl.DataFrame], gpu: Iterable[pl.DataFrame]
    ) -> None:
        _check(path, contents)
        self.path, self.contents = path, contents
        self.document, self.batch = contents.document, contents.batch
        counters = [self.batch.counters]
        declared = _declared_base(self.document)
        self.base = _base(self.document, declared, spans, gpu)
        self.counters_base = _base(self.document, declared, counters)
        rows = any(part.height for parts in (spans, gpu) for part in parts)
        kinds = (spans, gpu) if rows else (counters,)
        self.wall = self.base > 0 or any(_epoch_like(parts) for parts in kinds)
        self.rank, self.rank_from = rank_of(self.document, path.name)
        ranks = self._launches(pl.concat(frames.calls(part) for part in spans))
        active = pl.concat(frames.hosts(self._placed(part)) for part in spans)
        self.threads = frames.threads(active, self.batch, self.document.host)
        self.devices = frames.devices((self._timed(part) for part in gpu), self.rank, ranks)
        self.group_size = None if ranks is not None else self.document.group_size
        self.odd: Counter[str] = Counter()
        self.span: list[int] = []  # first and last moments of the parts

    def _launches(self, calls: pl.DataFrame) -> dict[int, int] | None:
        """Keep who called what; return the ranks of the process ids if the file was merged from several."""
        ids = shared_correlations(calls)
        self.called = frames.launches(calls, ids)
        self.callers = calls.select(pid="caller", tid="caller_tid").drop_nulls("pid").unique()
        labels = prefixes(self.batch.texts)
        several = self.callers["pid"].n_unique() > 1 or len(set(labels.values())) > 1
        self.document.notes += merge_notes(several=several, shared=ids.len(), repeated=repeated_calls(calls))
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
        return self._spanned(frames.slices(spans, self._placed(spans), self.threads, self.base))

    def gpu_ops(self, gpu: pl.DataFrame) -> pl.DataFrame:
        """Return the GPU ops of a part (:data:`tracelib.schema.GPU_OPS`), in the order of the file."""
        timed = self._timed(gpu)
        if lost := gpu.height - timed.height:
            self.batch.remarks["GPU work at time 0: left out"] += lost
        return self._spanned(frames.gpu_ops(timed, self.devices, self.called, self.base, self.group_size))

    def _spanned(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return `rows`, whose first and last moments are noted."""
        if rows.height:
            ends = rows["ts_ns"] + rows["dur_ns"] if "dur_ns" in rows.columns else rows["ts_ns"]
            self.span += [rows["ts_ns"].min(), ends.max()]  # type: ignore[list-item]
        return rows

    def look(self, slices: pl.DataFrame, gpu_ops: pl.DataFrame) -> None:
        """Count what is odd in parts of finished frames; rows of one moment must be in one part."""
        self.odd.update(oddities(slices, gpu_ops, self.called))

    def others(self) -> dict[str, pl.DataFrame]:
        """Return all other frames."""
        gpus = frames.gpus(self.devices, self.document.host, self.document.device_names)
        ranked = gpus.height > 0 or self.rank is not None
        return {
            "counters": self._spanned(frames.counters(self.batch, self.counters_base)),
            "threads": self.threads,
            "gpus": gpus,
            "sources": self._source(),
            "health": self._health(self.rank_from if ranked else ""),
        }

    def _source(self) -> pl.DataFrame:
        losses = (
            count
            for remark, count in self.batch.remarks.items()
            if remark.endswith("left out") or remark.startswith("lost")
        )
        start, end = self._recorded()
        whole = end is not None and max(self.batch.closed, default=0) + self.base >= end
        return source_frame(
            self.path,
            "torch_profiler",
            source=0,
            sha256=sha256(self.path),
            recorder=self.document.recorder,
            host=self.document.host,
            rank=self.rank,
            clock="realtime" if self.wall else "unknown",
            wall_offset_ns=0 if self.wall else None,
            first_ns=min(self.span, default=None),
            last_ns=max(self.span, default=None),
            recorded_from_ns=start if whole else None,
            recorded_to_ns=end if whole else None,
            lost_declared=0,
            lost_detected=sum(losses),
            skipped_bytes=self.contents.lost_bytes + self.batch.skipped_bytes,
        )

    def _recorded(self) -> tuple[int, int] | tuple[None, None]:
        spans = self.batch.recorded
        if not spans:
            return None, None
        return min(s for s, _ in spans) + self.base, max(e for _, e in spans) + self.base

    def _health(self, rank_from: str) -> pl.DataFrame:
        """Return what was lost, what is odd and what was assumed (:data:`tracelib.schema.HEALTH`)."""
        remarks = Remarks()
        _add_losses(remarks, self.contents)
        for oddity in ODDITIES:
            if number := self.odd[oddity]:
                remarks.say(oddity, number=number, ops=self.odd["ops"])
        _add_unused(remarks, self.batch.tally)
        if not self.odd["ops"] and (device := _unread_device(self.batch)):
            missing = (
                f"the work of a device is here {UNREAD} ({device}): it is missing among the GPU operations"
            )
            remarks.add("warning", missing, "Record with torch.profiler on a GPU, or with nsys.")
        if frames.xla_gpus(self.batch):
            message = (
                "the streams of XLA's profiler (JAX) are read as GPU work, without the calls that launched it"
            )
            remarks.add("info", message)
        start, end = self._recorded()
        if start is not None:
            remarks.add("info", f"the profiler says that it recorded from {start} to {end} ns")
        if rank_from:
            remarks.add("info", f"rank by {rank_from}")
        if not self.wall:
            fix = "Record with PyTorch 2.4 or later, or tie it to another source by a common event."
            remarks.add("warning", NO_BASE, fix)
        return remarks.frame()


def _unread_device(batch: Batch) -> str:
    """Return by what the file shows work of a device (TensorFlow, Ascend), "" if by nothing."""
    labels = (label for (_, _, kind), label in batch.labels.items() if kind == "process_name")
    found = next((label for label in [*labels, *batch.texts.values()] if DEVICE.search(label)), "")
    category = next((name for _, name in batch.tally if DEVICE_CATEGORY.fullmatch(name)), "")
    return f"process {plain(found, 40)}" if found else f"category {category}" if category else ""


def _check(path: Path, contents: Contents) -> None:
    if sum(contents.batch.tally.values()) - contents.batch.tally["", "None"] > 0:
        return
    lost = contents.batch.skipped_bytes
    reason = f"none of its events can be read ({lost} bytes)" if lost else "its list of events is empty"
    raise BadTrace(
        path,
        "torch_profiler",
        "the list of traceEvents",
        contents.damage or reason,
        advice="Record again, and wait for the profiler to finish writing.",
    )


def _declared_base(doc: Document) -> int:
    """Return the time base that the file declares, 0 if it declares none that is a number."""
    base = doc.integer("baseTimeNanoseconds")
    if base is None and doc.fields.get("baseTimeNanoseconds") is not None:
        doc.notes.append("baseTimeNanoseconds is not a number of nanoseconds: it was not used")
    return base or 0


def _base(doc: Document, declared: int, *kinds: Iterable[pl.DataFrame]) -> int:
    """Return what to add to the times of these `kinds` of rows: 0 if they count from the epoch."""
    first = (part["ts"].head(SAMPLED) for parts in kinds for part in parts if part.height)
    if declared and _epoch_like([pl.DataFrame({"ts": next(first, [])}, schema={"ts": pl.Int64})]):
        if NOT_ADDED not in doc.notes:
            doc.notes.append(NOT_ADDED)
        return 0
    return declared


def _epoch_like(parts: Iterable[pl.DataFrame]) -> bool:
    middle = pl.concat(part["ts"] for part in parts).median()
    return isinstance(middle, (int, float)) and middle > EPOCH_LIKE_NS


def _add_losses(remarks: Remarks, contents: Contents) -> None:
    batch = contents.batch
    if contents.damage:
        unread = f"{contents.lost_bytes} bytes of the file were not read"
        rest = unread if contents.lost_bytes else "how much is missing cannot be told"
        remarks.add("error", f"{contents.damage}; {rest}", FINISH)
    if batch.skipped_bytes:
        remarks.add("error", f"{batch.skipped_bytes} bytes of events could not be read", FINISH)
    for remark, count in sorted(batch.remarks.items()):
        level = "error" if remark.startswith(("lost", "cut short")) else "warning"
        remarks.add(level, remark if remark.startswith("cut short") else f"{count} events: {remark}")
    if not any(ph in TIMED_PHASES for ph, _ in batch.tally if ph):
        message = "none of its events is an interval, an instant or a counter: only flows, names and the like"
        remarks.add("warning", message)
    for note in contents.document.notes:
        remarks.add("warning", note)
    if contents.document.damaged:
        message = "the fields outside the list of events are not valid JSON; only the main ones were read"
        remarks.add("warning", message)


def _add_unused(remarks: Remarks, tally: Counter[tuple[str, str]]) -> None:
    unused: Counter[str] = Counter()
    for (ph, _), number in sorted(tally.items()):
        if ph in UNUSED_PHASES and ph not in "stf":
            unused[ph] += number
    if unused:
        kinds = ", ".join(f"{number} of {ph!r}" for ph, number in unused.items())
        remarks.add("info", f"events of kinds that are not used: {kinds}")


def oddities(slices: pl.DataFrame, ops: pl.DataFrame, called: pl.DataFrame) -> Counter[str]:
    """Return how many rows of finished frames are odd, and how; the counts of all parts add up."""
    lasting = ops.filter(pl.col("dur_ns") > 0)
    launched = pl.col("correlation").is_in(called["correlation"].implode())
    orphan = pl.col("correlation").is_not_null() & ~launched
    return Counter(
        ops=ops.height,
        repeated=lasting.height - lasting.n_unique(EQUAL) if lasting.height else 0,
        orphans=ops.filter(orphan).height,
        nameless=int((slices["name"] == "unknown").sum()),
        adrift=slices.filter(pl.col("thread").is_null() & (pl.col("category") == "sync")).height,
    )
