"""What a piece of a trace holds, before it becomes frames: the one interface between the two decoders and the rest.

Times are ns relative to the file's base, ids are 64-bit integers. The categories are those of Kineto's
`libkineto/include/ActivityType.h` and of its versions of 2020 and 2021, in any case.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY

#: One row per interval or instant that is no work of a GPU.
SPANS = pl.Schema(
    {
        "category": SLICE_CATEGORY,
        "name": pl.Categorical(),
        "pid": pl.Int64(),
        "tid": pl.Int64(),
        "ts": pl.Int64(),
        "dur": pl.Int64(),
        "correlation": pl.Int64(),
    }
)

#: One row per piece of work of a GPU; `pid` is what the event says, a device's number as a rule.
GPU = pl.Schema(
    {
        "kind": GPU_OP_KIND,
        "name": pl.Categorical(),
        "pid": pl.Int64(),
        "device": pl.Int64(),
        "stream": pl.Int64(),
        "ts": pl.Int64(),
        "dur": pl.Int64(),
        "correlation": pl.Int64(),
        "graph": pl.Int64(),
        "bytes": pl.Int64(),
        "collective": pl.Categorical(),
        "group": pl.Categorical(),
        "group_size": pl.Int64(),
        "sequence": pl.Int64(),
        "elements": pl.Int64(),
    }
)

#: One row per begin or end of an interval; `key` tells which ends belong to which begins.
MARKS = pl.Schema(
    {
        "ph": pl.String(),
        "category": pl.String(),
        "name": pl.String(),
        "pid": pl.Int64(),
        "tid": pl.Int64(),
        "ts": pl.Int64(),
        "key": pl.String(),
    }
)

#: One row per reading of a counter.
COUNTERS = pl.Schema({"name": pl.String(), "pid": pl.Int64(), "ts": pl.Int64(), "value": pl.Float64()})

#: Frames without rows: made once, because making them takes longer than many a piece of text takes to read.
NO_SPANS, NO_GPU, NO_MARKS, NO_COUNTERS = (
    pl.DataFrame(schema=schema) for schema in (SPANS, GPU, MARKS, COUNTERS)
)

_CATEGORIES = {
    "cpu_op": "op",
    "operator": "op",
    "user_annotation": "annotation",
    "python_function": "python",
    "overhead": "overhead",
    "gpu_user_annotation": "gpu_annotation",
    "hpu_op": "runtime",
    "runtime": "runtime",
    "driver": "driver",
    "sync": "sync",
}
_GPU_KINDS = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}

#: Categories of what Kineto draws on a device though it is no work of one: the pid is the device's number.
_ON_DEVICE = ("cuda_event", "cuda_profiler_range", "mtia_insight")
#: Phases that become no frame: flows (correlation ids are exact where flows are not), samples, objects, clock syncs, links.
UNUSED_PHASES = frozenset("stfPpNODvVcT()=")
#: The pid of what lies on no host thread, as Kineto writes it for its own overhead.
NOWHERE = -1


@functools.cache
def on_device(category: str | None) -> bool:
    """Say whether events of Kineto's `category` are drawn on a device, and lie on no host thread."""
    return category is not None and category.lower() in _ON_DEVICE


@functools.cache
def gpu_kind(category: str | None) -> str | None:
    """Return the kind of GPU work that Kineto's `category` means, None if it is none."""
    return _GPU_KINDS.get(category.lower()) if category else None


@functools.cache
def slice_category(category: str | None) -> str:
    """Return the :data:`tracelib.schema.SLICE_CATEGORY` of Kineto's `category`."""
    if not category:
        return "other"
    text = category.lower()
    return _CATEGORIES.get(text) or _CATEGORIES.get(text.rpartition("_")[2], "other")


def wrapped(number: int) -> int:
    """Return an id of up to 64 bits as a signed one: writers print them unsigned, and only equality matters."""
    return (number + 2**63) % 2**64 - 2**63


def stable_id(text: str) -> int:
    """Return a negative id for a process or thread that the file names by a text ("CPU functions", "stream 7")."""
    return -2 - zlib.crc32(text.encode("utf-8", "replace"))


@dataclass
class Batch:
    """The events of one piece of text, by kind; nothing is dropped without a trace in `tally` or `remarks`."""

    spans: pl.DataFrame
    gpu: pl.DataFrame
    marks: pl.DataFrame
    counters: pl.DataFrame
    #: (pid, tid, "thread_name" | "process_name" | "process_labels") -> the label
    labels: dict[tuple[int | None, int | None, str], str] = field(default_factory=dict)
    #: id made by `stable_id` -> the text it stands for
    texts: dict[int, str] = field(default_factory=dict)
    #: (ph, category) -> number of events in the text
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: what is odd -> number of events
    remarks: Counter[str] = field(default_factory=Counter)
    #: (start, end) of the recording, as the profiler's own spans say
    recorded: list[tuple[int, int]] = field(default_factory=list)
    skipped_bytes: int = 0


def joined(batches: list[Batch]) -> Batch:
    """Return one batch of all events of `batches`, in their order."""
    whole = Batch(NO_SPANS, NO_GPU, NO_MARKS, NO_COUNTERS)
    for name in ("spans", "gpu", "marks", "counters"):
        parts = [getattr(batch, name) for batch in batches if getattr(batch, name).height]
        if parts:
            setattr(whole, name, pl.concat(parts, rechunk=False))
    for batch in batches:
        whole.labels.update(batch.labels)  # the last name of a thread is the one that viewers show
        whole.texts.update(batch.texts)
        whole.tally.update(batch.tally)
        whole.remarks.update(batch.remarks)
        whole.recorded += batch.recorded
        whole.skipped_bytes += batch.skipped_bytes
    return whole
