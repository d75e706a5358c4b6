"""What a piece of a trace holds before it becomes frames: what both decoders return.

Times are ns relative to the file's base, ids are 64-bit integers; kineto.toml has the words of the events.

Other writers have begin and end events: `B`/`E` nest on their thread; `b`/`e` nest among those of one id,
scope and category; `S`/`F` pair by name as well (the "Trace Event Format" document of Google's catapult
project).
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.data import data
from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY

if TYPE_CHECKING:
    from tracelib.sources.torch_profiler.plain import Event


INTEGER, TEXT, LABEL = pl.Int64(), pl.String(), pl.Categorical()
#: One row per interval or instant of the host.
SPANS = pl.Schema(
    {"category": SLICE_CATEGORY, "name": LABEL}
    | dict.fromkeys(("pid", "tid", "ts", "dur", "correlation"), INTEGER)
)
#: One row per piece of work of a GPU; `pid` is what the event says, a device's number as a rule.
GPU = pl.Schema(
    {"kind": GPU_OP_KIND, "name": LABEL}
    | dict.fromkeys(("pid", "device", "stream", "ts", "dur", "correlation", "graph", "bytes"), INTEGER)
    | dict.fromkeys(("collective", "group"), LABEL)
    | dict.fromkeys(("group_size", "sequence", "elements"), INTEGER)
)
#: One row per begin or end of an interval; `key` tells which ends belong to which begins.
MARKS = pl.Schema(
    dict.fromkeys(("ph", "category", "name"), TEXT)
    | dict.fromkeys(("pid", "tid", "ts"), INTEGER)
    | {"key": TEXT}
)
#: One row per reading of a counter.
COUNTERS = pl.Schema({"name": TEXT, "pid": INTEGER, "ts": INTEGER, "value": pl.Float64()})
#: Frames without rows: made once, because making them takes longer than many a piece of text takes to read.
NO_SPANS, NO_GPU, NO_MARKS, NO_COUNTERS = (
    pl.DataFrame(schema=schema) for schema in (SPANS, GPU, MARKS, COUNTERS)
)

KINETO = data(__file__, "kineto.toml")
_CATEGORIES: dict[str, str] = KINETO["categories"]
_GPU_KINDS: dict[str, str] = KINETO["gpu_kinds"]

#: Categories whose correlation joins them to GPU ops.
CALLS = ("runtime", "driver", "sync")
#: Categories of what Kineto draws on a device though a device does not do it: the pid is the device's number.
_ON_DEVICE = ("cuda_event", "cuda_profiler_range", "mtia_insight")
#: Phases of instants, of begins and ends, and of all events that become rows: those, intervals and counters.
INSTANTS, MARKERS = frozenset("iInR"), frozenset("BEbeSF")
TIMED_PHASES = frozenset("XC") | INSTANTS | MARKERS
#: Phases that are not used: flows (correlation ids are exact where flows are not), samples, objects, links.
UNUSED_PHASES = frozenset("stfPpNODvVcT()=")
#: The pid of what lies on no host thread, as Kineto writes it for its own overhead.
NOWHERE = -1


@functools.cache
def on_device(category: str | None) -> bool:
    """Say whether events of Kineto's `category` are drawn on a device, and lie on no host thread."""
    return category is not None and category.lower() in _ON_DEVICE


@functools.cache
def gpu_kind(category: str | None) -> str | None:
    """Return the kind of GPU work that Kineto's `category` means, None if it means none."""
    return _GPU_KINDS.get(category.lower()) if category else None


@functools.cache
def slice_category(category: str | None) -> str:
    """Return the :data:`tracelib.schema.SLICE_CATEGORY` of Kineto's `category`."""
    if not category:
        return "other"
    text = category.lower()
    return _CATEGORIES.get(text) or _CATEGORIES.get(text.rpartition("_")[2], "other")


def wrapped(number: int) -> int:
    """Return an id of up to 64 bits as a signed one: writers print it unsigned; only equality matters."""
    return (number + 2**63) % 2**64 - 2**63


def stable_id(text: str) -> int:
    """Return a negative id for a process or thread that the file names by a text ("CPU functions")."""
    return -2 - zlib.crc32(text.encode("utf-8", "replace"))


@dataclass
class Batch:
    """The events of one piece of text, by kind; what is dropped counts in `tally` and `remarks`."""

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
    #: when the profiler closed the file: a piece cut out of a recording has no such mark
    closed: list[int] = field(default_factory=list)
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
        whole.closed += batch.closed
        whole.skipped_bytes += batch.skipped_bytes
    return whole


#: Where a row of :data:`SPANS` holds these.
NAME, TIME, DURATION = (SPANS.names().index(name) for name in ("name", "ts", "dur"))


def pairing(event: Event, ph: str, category: str | None) -> str:
    """Return what the begins and ends of one asynchronous interval have in common.

    An `id` and an `id2.global` are valid in the whole file, an `id2.local` in its process; a `scope` tells
    equal ids apart.
    """
    local = event.id2.get("local") if isinstance(event.id2, dict) else event.id2
    if event.id is not None:
        ident = f"{event.id}"
    elif local is not None:
        ident = f"{local}\0{event.pid}"
    else:
        ident = f"{event.id2.get('global')}" if isinstance(event.id2, dict) else ""
    return f"{category}\0{event.scope}\0{ident}" + (f"\0{event.name}" if ph in "SF" else "")


def with_pairs(batch: Batch) -> pl.DataFrame:
    """Return the intervals of `batch` and those that its marks begin and end; odd marks become remarks."""
    extra, odd = _paired(batch.marks)
    batch.remarks.update(odd)
    return pl.concat([batch.spans, extra]) if extra.height else batch.spans


class _Track:
    """The begins of one thread or id, in their order, that may still be open: their durations are None."""

    def __init__(self) -> None:
        self.begun: list[list[Any]] = []
        self.named: defaultdict[Any, list[list[Any]]] = defaultdict(list)

    def begin(self, row: list[Any]) -> None:
        self.begun.append(row)
        self.named[row[NAME]].append(row)

    def ended(self, name: str | None) -> list[Any] | None:
        """Close and return the innermost open begin, one called `name` first; None if none is open."""
        if self.named.get(name):
            return self.named[name].pop()
        while self.begun:
            row = self.begun.pop()
            if row[DURATION] is None:
                return self.named[row[NAME]].pop()
        return None


def _paired(marks: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Return the intervals (:data:`SPANS`) that `marks` (:data:`MARKS`) begin and end, and what is odd.

    A begin that is never ended is a row of duration 0 (how long it took is not recorded), and is counted.
    """
    remarks: Counter[str] = Counter()
    rows: list[list[Any]] = []
    tracks: defaultdict[Any, _Track] = defaultdict(_Track)
    for ph, category, name, pid, tid, ts, key in marks.sort("ts", maintain_order=True).iter_rows():
        track = tracks[key or (pid, tid)]
        if ph in "BbS":
            rows.append([category, name, pid, tid, ts, None, None])
            track.begin(rows[-1])
        elif row := track.ended(name):
            row[DURATION] = ts - row[TIME]
        else:
            remarks["an end without a begin: left out"] += 1
    spans = pl.DataFrame(rows, schema=SPANS, orient="row")
    remarks["a begin without an end: taken as an instant"] += spans["dur"].null_count()
    return spans.with_columns(pl.col("dur").fill_null(0)), +remarks
