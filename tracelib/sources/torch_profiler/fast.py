"""The fast decoder: rows of a chunk's ordinary events, from the values that :mod:`native` finds in one pass.

An event is ordinary if it is an interval, an instant or a flow with plain numbers. The others (metadata,
counters, begins and ends, ids as texts, collectives without arguments, odd numbers) are slow: the plain
decoder reads them, and only that one knows their rules. A chunk is refused as a whole if more than small
faults keep it from being valid JSON, or few of its events are ordinary. Both decoders give the same rows.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY
from tracelib.sources.collective_names import KEYS, canonical
from tracelib.sources.torch_profiler import plain
from tracelib.sources.torch_profiler.chunks import Chunk
from tracelib.sources.torch_profiler.events import (
    CALLS,
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
from tracelib.sources.torch_profiler.native import ODD, OLDER, PLAIN, Column, Refused, scanned
from tracelib.sources.torch_profiler.repairs import UNDECODABLE, repaired
from tracelib.sources.torch_profiler.salvage import REPAIRED, salvage

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Values = Integers | tuple[Integers, Flags] | tuple[pl.Series, Integers]


#: Phases of ordinary events: complete, instant; flows are only counted.
INTERVAL = ord("X")
IS_SPAN, IS_FLOW = (np.isin(np.arange(256), tuple(phases)) for phases in (b"XiI", b"stf"))
#: Above this share of slow events the plain decoder alone is quicker.
MOSTLY = 0.4
#: What is larger is not taken for a number of ranks.
LARGEST_GROUP = 2**31
#: Of some events, all.
ALL = np.True_
#: Texts that have to be read as JSON: with escapes, or with characters that must be escaped.
ESCAPED = re.compile(r"[\x00-\x1f\\]")


@functools.lru_cache(1 << 14)
def meaning(text: str) -> str:
    """Return what a string of a JSON text means, repaired first if it must be."""
    if not ESCAPED.search(text):
        return text
    quoted = f'"{text}"'
    for candidate in (quoted, *repaired(quoted.encode())):
        try:
            return msgspec.json.decode(candidate, type=str)
        except UNDECODABLE:
            continue
    raise Refused("a string that cannot be repaired")


class Scan:
    """One chunk on its way to columns; `slow` marks the events that are left to the plain decoder.

    `host` and `device` are the numbers of the host's and of the GPUs' ordinary events;
    reading their values marks those as slow whose values are not plain.
    """

    def __init__(self, chunk: Chunk) -> None:
        self.scanned = scanned(chunk)
        every = np.arange(self.scanned.begins.size)
        self.slow = self.scanned.odd | (self.event("args").states == ODD)
        if self.scanned.mended.any() and (self.scanned.odd | (self.event("ph").states != PLAIN)).any():
            raise Refused("faults, and parts that may not be events")
        self.phase = self._phases(every)
        spans = IS_SPAN[self.phase]
        self.slow |= ~(spans | IS_FLOW[self.phase])
        if self.slow.mean() > MOSTLY:
            raise Refused("most events are the plain decoder's business")
        self.categories, self.category = self._categories(every)
        gpu = (self.phase == INTERVAL) & self.of_categories(lambda name: gpu_kind(name) is not None)
        self.slow |= self.of_categories(lambda name: name == "Trace")
        self._nameless_collectives(np.flatnonzero(gpu))
        self.host, self.device = (np.flatnonzero(spans & ~self.slow & those) for those in (~gpu, gpu))

    def event(self, name: str) -> Column:
        return self.scanned.column("event", name)

    def args(self, name: str) -> Column:
        return self.scanned.column("args", name)

    def _phases(self, rows: Integers) -> NDArray[np.uint8]:
        phases, code = self.texts(self.event("ph"), rows)
        characters = [ord(phase) if len(phase) == 1 and phase.isascii() else 0 for phase in phases]
        return np.array([*characters, 0], np.uint8)[code]

    def _categories(self, rows: Integers) -> tuple[list[str | None], Integers]:
        """Return the categories that occur, None first for "has none", and which of them each event has."""
        categories, code = self.texts(self.event("cat"), rows)
        return [None, *categories], code + 1

    def texts(
        self, column: Column, rows: Integers, among: Flags | np.bool_ = ALL
    ) -> tuple[list[str], Integers]:
        """Return the distinct texts in the events `rows`, and which each has (-1 = none)."""
        states = column.states[rows]
        self.slow[rows[(states == ODD) & among]] = True
        some = (states == PLAIN) & among
        numbers = np.where(some, column.values[rows], -1)
        occurs = np.bincount(numbers + 1)[1:] > 0
        code = np.append(np.cumsum(occurs) - 1, -1)[numbers]
        return [meaning(text) for text in self.scanned.strings(np.flatnonzero(occurs))], code

    def _nameless_collectives(self, rows: Integers) -> None:
        """Mark events with arguments of a collective that do not name it: the plain decoder reads them."""
        self.slow[rows[self.has_any(rows, KEYS) & ~self.has_any(rows, ["Collective name"])]] = True

    def of_categories(self, chosen: Callable[[str | None], bool]) -> Flags:
        """Return which events have one of the `chosen` categories."""
        return np.array([chosen(name) for name in self.categories])[self.category]

    def needed(self, column: Column, rows: Integers) -> Integers:
        """Return the values of the events `rows` in `column`; those without a plain one become slow."""
        self.slow[rows[column.states[rows] != PLAIN]] = True
        return column.values[rows]

    def durations(self, rows: Integers) -> Integers:
        """Return how long the events `rows` take, in ns; 0 for instants."""
        value = np.zeros(rows.size, np.int64)
        long = np.flatnonzero(self.phase[rows] == INTERVAL)
        value[long] = self.needed(self.event("dur"), rows[long])
        return value

    def optional(self, name: str, rows: Integers, among: Flags | np.bool_ = ALL) -> tuple[Integers, Flags]:
        """Return the integers `name` in the args of the events `rows`, and which have one, `among` them."""
        column = self.args(name)
        states = column.states[rows]
        self.slow[rows[(states == ODD) & among]] = True
        has: Flags = (states == PLAIN) & among
        return np.where(has, column.values[rows], 0), has

    def has_any(self, rows: Integers, names: Iterable[str]) -> Flags:
        """Return which of the events `rows` have at least one of `names` in their args."""
        has: Flags = np.any([self.args(name).states[rows] != 0 for name in names], axis=0)
        return has

    def correlations(self, rows: Integers, among: Flags | np.bool_ = ALL) -> tuple[Integers, Flags]:
        """Return the correlation ids that the events `rows` may have, and which have; 0 means "none"."""
        value, has = self.optional("correlation", rows, among)
        return value, has & (value != 0)

    def names(self, rows: Integers) -> tuple[list[str], Integers]:
        """Return the distinct names of the events `rows`, and which each has; those without become slow."""
        names, which = self.texts(self.event("name"), rows)
        self.slow[rows[which < 0]] = True
        return names, which


def _series(column: Values, kept: Integers | slice) -> pl.Series:
    if not isinstance(column, tuple):
        return pl.Series(column[kept])
    first, second = column
    return first.gather(second[kept]) if isinstance(first, pl.Series) else pl.Series(first[kept])


def _frame(none: pl.DataFrame, columns: dict[str, Values], kept: Flags) -> pl.DataFrame:
    """Return the rows of `columns` that are `kept`, in a frame like `none`; its other columns are null."""
    if not kept.any():
        return none
    rows = slice(None) if kept.all() else np.flatnonzero(kept)
    made = pl.DataFrame({name: _series(column, rows) for name, column in columns.items()})
    present = {
        name: pl.Series(column[1][rows])
        for name, column in columns.items()
        if isinstance(column, tuple) and not isinstance(column[0], pl.Series)
    }
    return made.select(
        pl.when(present[name]).then(name)
        if name in present
        else name
        if name in columns
        else pl.lit(None, dtype).alias(name)
        for name, dtype in none.schema.items()
    )


def _spans(scan: Scan, name: tuple[pl.Series, Integers]) -> pl.DataFrame:
    rows = scan.host
    meant = [slice_category(category) for category in scan.categories]
    calls = np.array([category in CALLS for category in meant])[scan.category[rows]]
    pid, apart = scan.needed(scan.event("pid"), rows), scan.of_categories(on_device)[rows]
    columns: dict[str, Values] = {
        "category": (pl.Series(meant, dtype=SLICE_CATEGORY), scan.category[rows]),
        "name": name,
        "pid": np.where(apart, NOWHERE, pid) if apart.any() else pid,
        "tid": scan.needed(scan.event("tid"), rows),
        "ts": scan.needed(scan.event("ts"), rows),
        "dur": scan.durations(rows),
        "correlation": scan.correlations(rows, calls),
    }
    return _frame(NO_SPANS, columns, ~scan.slow[rows])


def _collectives(scan: Scan) -> dict[str, Values]:
    """Return the columns of :func:`collectives.of_args`, none if no event has such arguments."""
    rows = scan.device
    among = scan.has_any(rows, ["Collective name"])
    if not among.any():
        return {}
    called, collective = scan.texts(scan.args("Collective name"), rows, among)
    groups, group = scan.texts(scan.args("Process Group Name"), rows, among)
    size, sized = scan.optional("Group size", rows, among)
    scan.slow[rows[(size >= LARGEST_GROUP) | (scan.has_any(rows, OLDER) & among)]] = True
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
    columns: dict[str, Values] = {
        "kind": (pl.Series(meant, dtype=GPU_OP_KIND), scan.category[rows]),
        "name": name,
        "pid": scan.needed(scan.event("pid"), rows),
        "device": scan.needed(scan.args("device"), rows),
        "stream": scan.needed(scan.args("stream"), rows),
        "ts": scan.needed(scan.event("ts"), rows),
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
    mended = int((scan.scanned.mended & ~scan.slow).sum())
    remarks = Counter({REPAIRED: mended} if mended else {})
    return Batch(spans, gpu, NO_MARKS, NO_COUNTERS, tally=_tally(scan), remarks=remarks)


def _slow(text: bytes) -> Batch:
    """Return all the slow events, by the plain decoder, repaired if need be."""
    try:
        return plain.batch(plain.decode(b"[" + text + b"]"))
    except UNDECODABLE:
        salvaged = salvage(text, last=False)
    if salvaged.skipped_bytes or salvaged.tail is not None or salvaged.remarks.keys() - {REPAIRED}:
        raise Refused("some of its events cannot be read")
    batch = plain.batch(salvaged.events)
    batch.remarks.update(salvaged.remarks)
    return batch


def fast_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the events of `chunk`, and the text after the list's end if it ends in there.

    Raises Refused if the chunk is not a list of whole events, has more than small faults, has few ordinary
    events, or there is no compiled pass.
    """
    scan = Scan(chunk)
    batch = _ordinary(scan)
    slow = np.flatnonzero(scan.slow)
    if not slow.size:
        return batch, scan.scanned.tail
    view = memoryview(chunk.data)
    starts, ends = scan.scanned.begins[slow].tolist(), scan.scanned.ends[slow].tolist()
    texts = [bytes(view[start : end + 1]) for start, end in zip(starts, ends, strict=True)]
    return joined([batch, _slow(b",".join(texts))]), scan.scanned.tail
