"""The fast decoder: rows of a chunk's ordinary events, from the values that one compiled pass finds (:mod:`native`).

The text of the events that :mod:`scan` calls slow goes to the plain decoder, so that only that one knows their rules; a
chunk that is no valid JSON but for small faults, or hardly has ordinary events, is refused as a whole. Both decoders
give the same rows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY
from tracelib.sources.torch_profiler import plain
from tracelib.sources.torch_profiler.collectives import canonical
from tracelib.sources.torch_profiler.events import (
    NO_COUNTERS,
    NO_GPU,
    NO_MARKS,
    NO_SPANS,
    NOWHERE,
    Batch,
    gpu_kind,
    joined,
    on_device,
    slice_category,
)
from tracelib.sources.torch_profiler.native import Refused
from tracelib.sources.torch_profiler.salvage import REPAIRED, UNDECODABLE, salvage
from tracelib.sources.torch_profiler.scan import Scan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]
    #: Integers; integers and which of them are known; words and which of them each row has.
    Column = Integers | tuple[Integers, Flags] | tuple[pl.Series, Integers]

#: What is larger is not taken for a number of ranks.
LARGEST_GROUP = 2**31
#: Categories whose correlation joins them to GPU ops.
CALLS = ("runtime", "driver", "sync")


def _series(column: Column, kept: Integers | slice) -> pl.Series:
    if not isinstance(column, tuple):
        return pl.Series(column[kept])
    first, second = column
    return first.gather(second[kept]) if isinstance(first, pl.Series) else pl.Series(first[kept])


def _frame(none: pl.DataFrame, columns: dict[str, Column], kept: Flags) -> pl.DataFrame:
    """Return the rows of `columns` that are `kept`, in a frame like `none`; its other columns are null."""
    if not kept.any():
        return none
    rows = slice(None) if kept.all() else np.flatnonzero(kept)
    made = pl.DataFrame({name: _series(column, rows) for name, column in columns.items()})
    known = {
        name: pl.Series(column[1][rows])
        for name, column in columns.items()
        if isinstance(column, tuple) and not isinstance(column[0], pl.Series)
    }
    return made.select(
        pl.when(known[name]).then(name)
        if name in known
        else name
        if name in columns
        else pl.lit(None, dtype).alias(name)
        for name, dtype in none.schema.items()
    )


def _spans(scan: Scan, name: tuple[pl.Series, Integers]) -> pl.DataFrame:
    rows = scan.host
    meant = [slice_category(category) for category in scan.categories]
    calls = np.array([category in CALLS for category in meant])[scan.category[rows]]
    pid, apart = scan.ids("pid", rows), scan.of_categories(on_device)[rows]
    columns: dict[str, Column] = {
        "category": (pl.Series(meant, dtype=SLICE_CATEGORY), scan.category[rows]),
        "name": name,
        "pid": np.where(apart, NOWHERE, pid) if apart.any() else pid,
        "tid": scan.ids("tid", rows),
        "ts": scan.starts(rows),
        "dur": scan.durations(rows),
        "correlation": scan.correlations(rows, calls),
    }
    return _frame(NO_SPANS, columns, ~scan.slow[rows])


def _collectives(scan: Scan) -> dict[str, Column]:
    """Return the columns of :func:`collectives.of_args`, none if no event has such arguments."""
    rows = scan.device
    among = scan.collectives(rows)
    if not among.any():
        return {}
    called, collective = scan.strings("Collective name", rows, among)
    unsaid = np.array([*(canonical(name) == "unknown" for name in called), False])
    scan.slow[rows[unsaid[collective]]] = True  # the kernel's name may tell
    groups, group = scan.strings("Process Group Name", rows, among)
    size, sized = scan.optional("Group size", rows, among)
    scan.slow[rows[(size >= LARGEST_GROUP) | (scan.older(rows) & among)]] = True
    (sent, sends), (received, receives) = (
        scan.optional(f"{way} msg nelems", rows, among) for way in ("In", "Out")
    )
    return {
        "collective": (pl.Series([*map(canonical, called), None], dtype=pl.Categorical()), collective),
        "group": (pl.Series([*(name or None for name in groups), None], dtype=pl.Categorical()), group),
        "group_size": (size, sized),
        "sequence": scan.optional("Seq", rows, among),
        "elements": (np.maximum(sent, received), sends | receives),
    }


def _gpu_ops(scan: Scan, name: tuple[pl.Series, Integers]) -> pl.DataFrame:
    rows = scan.device
    meant = [gpu_kind(category) for category in scan.categories]
    columns: dict[str, Column] = {
        "kind": (pl.Series(meant, dtype=GPU_OP_KIND), scan.category[rows]),
        "name": name,
        "pid": scan.ids("pid", rows),
        "device": scan.arguments("device", rows),
        "stream": scan.arguments("stream", rows),
        "ts": scan.starts(rows),
        "dur": scan.durations(rows),
        "correlation": scan.correlations(rows),
        "graph": scan.optional("graph id", rows),
        "bytes": scan.optional("bytes", rows),
        **_collectives(scan),
    }
    return _frame(NO_GPU, columns, ~scan.slow[rows])


def _tally(scan: Scan) -> Counter[tuple[str, str]]:
    count, rows = len(scan.categories), np.flatnonzero(~scan.slow)
    numbers = np.bincount(scan.phase[rows].astype(np.int64) * count + scan.category[rows])
    tally: Counter[tuple[str, str]] = Counter()
    for n in np.flatnonzero(numbers).tolist():  # an empty category and none at all are one
        tally[chr(n // count), scan.categories[n % count] or "None"] += int(numbers[n])
    return tally


def _ordinary(scan: Scan) -> Batch:
    """Return the rows of the ordinary events; complete `scan.slow` on the way."""
    rows = np.concatenate([scan.host, scan.device])
    names, which = scan.names(rows)
    distinct, split = pl.Series(names, dtype=pl.Categorical()), scan.host.size
    which = np.maximum(which, 0)  # rows without a name are slow, and no longer here in the end
    spans, gpu = NO_SPANS, NO_GPU
    if names:
        spans = _spans(scan, (distinct, which[:split]))
        gpu = _gpu_ops(scan, (distinct, which[split:]))
    mended = int((scan.found.mended & ~scan.slow).sum())
    remarks = Counter({REPAIRED: mended} if mended else {})
    return Batch(spans, gpu, NO_MARKS, NO_COUNTERS, tally=_tally(scan), remarks=remarks)


def _slow(text: bytes) -> Batch:
    """Return the events that are not ordinary, by the plain decoder; all of them, if need be repaired, or none."""
    try:
        return plain.batch(plain.decode(b"[" + text + b"]"))
    except UNDECODABLE:
        found = salvage(text, last=False)
    if found.skipped_bytes or found.tail is not None or found.remarks.keys() - {REPAIRED}:
        raise Refused("some of its events cannot be read")
    batch = plain.batch(found.events)
    batch.remarks.update(found.remarks)
    return batch


def fast_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the events of `chunk`, and the text after the list's end if it ends in there.

    Raises
    ------
    Refused
        The chunk is no list of whole events in JSON that is valid but for small faults, hardly has ordinary events, or there
        is no compiled pass.

    """
    scan = Scan(chunk)
    batch = _ordinary(scan)
    slow = np.flatnonzero(scan.slow)
    if not slow.size:
        return batch, scan.found.tail
    view = memoryview(chunk.data)
    starts, ends = scan.found.begins[slow].tolist(), scan.found.ends[slow].tolist()
    texts = [bytes(view[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
    return joined([batch, _slow(b",".join(texts))]), scan.found.tail
