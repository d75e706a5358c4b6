"""The fast decoder: columns of a chunk's ordinary events, straight from the positions that :mod:`lex` finds.

An event is ordinary if it is an interval, an instant or a flow with plain numbers. The text of all others (metadata,
counters, begins and ends, ids as texts, collectives, odd numbers) goes to the plain decoder, so that only that one
knows their rules; a chunk whose structure does not fit is refused as a whole. Both give the same rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from tracelib.schema import GPU_OP_KIND, SLICE_CATEGORY
from tracelib.sources.torch_profiler import numbers, plain
from tracelib.sources.torch_profiler.events import (
    COUNTERS,
    GPU,
    MARKS,
    Batch,
    gpu_kind,
    joined,
    slice_category,
)
from tracelib.sources.torch_profiler.lex import QUOTE, Lexed, Refused, lexed, skip_blanks
from tracelib.sources.torch_profiler.salvage import UNDECODABLE, repaired

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracelib.sources.torch_profiler.chunks import Chunk

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

__all__ = ["fast_batch"]

#: Phases of ordinary events: complete, instant; flows are only counted.
INTERVAL, INSTANTS, FLOWS = ord("X"), tuple(b"iI"), tuple(b"stf")
#: Categories whose correlation joins them to GPU ops.
CALLS = ("runtime", "driver", "sync")
#: Above this share of slow events the plain decoder alone is quicker.
MOSTLY = 0.4
#: Names that have to be read as JSON: with escapes, or damaged.
ODD_NAME = r"[\x00-\x1f\\]"
XCCL = tuple(int.from_bytes(start, "little") for start in (b"nccl", b"rccl"))


@dataclass
class _Values:
    """Where the values of one key stand: per event a position, the number of the string there, and if it has the key."""

    at: Integers
    string: Integers
    has: Flags


def _last_word(lex: Lexed, close: Integers, length: Integers) -> NDArray[np.uint64]:
    """Return the last 8 characters before each closing quote as one number; a shorter text is padded with zeros."""
    return lex.words[close - 8] >> (np.maximum(8 - length, 0).astype(np.uint64) << np.uint64(3))


class _Keys:
    """The keys of all events at one depth."""

    def __init__(self, lex: Lexed, depth: int) -> None:
        here = np.flatnonzero(lex.key_depth == depth)
        self.lex, self.strings, self.event = lex, lex.keys[here], lex.key_event[here]
        self.first, self.close = lex.opening[self.strings] + 1, lex.closing[self.strings]
        self.length = self.close - self.first
        self.word = _last_word(lex, self.close, self.length)

    def find(self, name: bytes) -> _Values:
        """Return the last value of the key `name`, of up to 16 characters, in each event."""
        found = np.flatnonzero(self.word == np.uint64(int.from_bytes(name[-8:], "little")))
        if len(name) >= 8:  # two words, which overlap, are the whole name
            first = self.lex.words[self.first[found]] == np.uint64(int.from_bytes(name[:8], "little"))
            found = found[first & (self.length[found] == len(name))]
        values = _Values(*(np.zeros(self.lex.starts.size, dtype) for dtype in (np.int64, np.int64, bool)))
        event = self.event[found]
        values.at[event] = skip_blanks(self.lex.text, self.close[found] + 2)
        values.string[event] = (
            self.strings[found] + 1
        )  # the next string after a key is its value, if that is a string
        values.has[event] = True
        return values


class _Scan:
    """One chunk on its way to columns; `slow` marks the events that are left to the plain decoder."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk, self.lex = chunk, lexed(chunk)
        self.outer, self.inner = _Keys(self.lex, 1), _Keys(self.lex, 2)
        self.name = self.outer.find(b"name")
        self.repaired = 0
        self.slow = self.odd_args()
        self.phase = self.phases()
        self.spans = (self.phase == INTERVAL) | np.isin(self.phase, INSTANTS)
        self.slow |= ~self.spans & ~np.isin(self.phase, FLOWS)
        if self.slow.mean() > MOSTLY:
            raise Refused("most events are the plain decoder's business")
        self.categories, self.code = self.coded_categories()

    def odd_args(self) -> Flags:
        """Events in which an object inside may be something else than the value of args."""
        args = self.outer.find(b"args")
        objects = args.has & (self.lex.text[args.at] == ord("{"))
        odd: Flags = (self.lex.objects != objects) | (args.has & ~objects)
        return odd

    def phases(self) -> NDArray[np.uint8]:
        ph, text = self.outer.find(b"ph"), self.lex.text
        single = ph.has & (text[ph.at] == QUOTE) & (text[ph.at + 2] == QUOTE)
        return np.where(single, text[ph.at + 1], np.uint8(0))

    def integers(self, values: _Values, needed: Flags) -> Integers:
        """Return integers; events among the `needed` that have something else become slow."""
        value, sound = numbers.integers(self.lex.text, self.lex.words, values.at)
        sound &= values.has
        self.slow |= needed & ~sound
        return np.where(sound, value, 0)

    def times(self, values: _Values, needed: Flags) -> Integers:
        """Return times in ns; events among the `needed` that have something else become slow."""
        value, sound = numbers.nanoseconds(self.lex.text, self.lex.words, values.at, plain.LARGEST)
        sound &= values.has
        self.slow |= needed & ~sound
        return np.where(sound & needed, value, 0)

    def strings(self, values: _Values, rows: Integers) -> tuple[Integers, Integers, Flags]:
        """Return the opening and closing quotes of the values in the events `rows`, and which of them are strings."""
        string = np.minimum(values.string[rows], self.lex.opening.size - 1)
        start, end = self.lex.opening[string], self.lex.closing[string]
        after = self.lex.text[skip_blanks(self.lex.text, end + 1)]
        return (
            start,
            end,
            values.has[rows] & (start == values.at[rows]) & ((after == ord(",")) | (after == ord("}"))),
        )

    def coded_categories(self) -> tuple[list[str | None], Integers]:
        """Return the categories that occur, None first for "has none", and which of them each event has.

        Three words of 8 characters, of the start, of the end and from the eighth on, are the whole of a text of up to
        24 characters; longer ones are slow, as are those that are no strings or hold a backslash.
        """
        values = self.outer.find(b"cat")
        rows = np.flatnonzero(values.has)
        start, end, sound = self.strings(values, rows)
        length = end - start - 1
        middle = np.where(length > 16, self.lex.words[start + 9], np.uint64(0))
        first = self.lex.words[start + 1] << (np.maximum(8 - length, 0).astype(np.uint64) << np.uint64(3))
        words = (length, first, middle, _last_word(self.lex, end, length))
        names: list[str | None] = [None]
        code = np.zeros(self.lex.starts.size, np.int64)
        left = np.flatnonzero(sound & (length <= 24))
        self.slow[rows] |= ~sound | (length > 24)
        while left.size:
            one = left[0]
            same = np.logical_and.reduce([word[left] == word[one] for word in words])
            name = self.lex.text[start[one] + 1 : end[one]].tobytes().decode()
            if "\\" in name:
                self.slow[rows[left[same]]] = True
            code[rows[left[same]]] = len(names)
            names.append(name)
            left = left[~same]
        return names, code

    def of_categories(self, chosen: list[bool]) -> Flags:
        return np.array(chosen)[self.code]

    def names(self, rows: Integers) -> pl.Series:
        """Return the names of the events `rows`; those that are no strings are null, and their events become slow."""
        start, end, sound = self.strings(self.name, rows)
        size = np.where(sound, end - start - 1, 0)
        chunk = pl.Series([bytes(self.chunk.data)], dtype=pl.Binary).new_from_index(
            0, rows.size
        )  # views, no copies
        text = (
            chunk.bin.slice(pl.Series(start + 1), pl.Series(size))  # type: ignore[arg-type]
            .cast(pl.String)
            .set(pl.Series(~sound), None)
        )
        names = text.cast(pl.Categorical())
        self.slow[rows[names.is_null().to_numpy()]] = True
        distinct = names.unique().drop_nulls().cast(pl.String)
        odd = distinct.filter(distinct.str.contains(ODD_NAME)).to_list()
        if not odd:
            return names
        meant = {name: _unescaped(name) for name in odd}
        damaged = [name for name, (_, was_damaged) in meant.items() if was_damaged]
        self.repaired = int((text.is_in(damaged) & ~pl.Series(self.slow[rows])).sum())
        return text.replace({name: right for name, (right, _) in meant.items()}).cast(pl.Categorical())

    def collectives(self) -> Flags:
        """Events that may be collectives: their group and sizes are the plain decoder's business."""
        start = self.lex.words[self.name.at + 1] & np.uint64(0xFFFFFFFF)
        return self.inner.find(b"Collective name").has | np.isin(start, np.array(XCCL, np.uint64))


def _unescaped(text: str) -> tuple[str, bool]:
    """Return what a string of a JSON text means, and whether it had to be repaired first."""
    quoted = f'"{text}"'
    for candidate in (quoted, *repaired(quoted.encode())):
        try:
            return msgspec.json.decode(candidate, type=str), candidate is not quoted
        except UNDECODABLE:
            continue
    return text, True


def _optional(name: str, value: Integers, known: Flags) -> pl.Series:
    return pl.Series(name, value).set(pl.Series(~known), None)


def _span_frame(scan: _Scan, rows: Integers, columns: dict[str, Integers], names: pl.Series) -> pl.DataFrame:
    categories = pl.Series(
        "category", [slice_category(name) for name in scan.categories], dtype=SLICE_CATEGORY
    )
    called = scan.of_categories([slice_category(name) in CALLS for name in scan.categories])[rows]
    correlation = columns["correlation"][rows]
    return pl.DataFrame([
        categories.gather(scan.code[rows]), names.alias("name"),
        *(pl.Series(key, columns[key][rows]) for key in ("pid", "tid", "ts", "dur")),
        _optional("correlation", correlation, called & (correlation != 0)),
    ])  # fmt: skip


def _gpu_frame(
    scan: _Scan, rows: Integers, columns: dict[str, Integers], names: pl.Series, has: dict[str, Flags]
) -> pl.DataFrame:
    kinds = pl.Series("kind", [gpu_kind(name) for name in scan.categories], dtype=GPU_OP_KIND)
    correlation = columns["correlation"][rows]
    no_collective = ("collective", "group", "group_size", "sequence", "elements")
    return pl.DataFrame([
        kinds.gather(scan.code[rows]), names.alias("name"),
        *(pl.Series(key, columns[key][rows]) for key in ("device", "stream", "ts", "dur")),
        _optional("correlation", correlation, correlation != 0),
        *(_optional(key, columns[key][rows], has[key][rows]) for key in ("graph", "bytes")),
        *(pl.Series(key, [None], GPU[key]).new_from_index(0, rows.size) for key in no_collective),
    ])  # fmt: skip


def _tally(scan: _Scan, rows: Integers) -> Counter[tuple[str, str]]:
    count = len(scan.categories)
    numbers_of = np.bincount(scan.phase[rows].astype(np.int64) * count + scan.code[rows])
    return Counter({
        (chr(n // count), scan.categories[n % count] or "None"): int(numbers_of[n]) for n in np.flatnonzero(numbers_of).tolist()
    })  # fmt: skip


def _ordinary(scan: _Scan) -> Batch:
    """Return the rows of the ordinary events; complete `scan.slow` on the way."""
    gpu = scan.of_categories([gpu_kind(name) is not None for name in scan.categories]) & (
        scan.phase == INTERVAL
    )
    scan.slow |= scan.of_categories([name == "Trace" for name in scan.categories]) | (
        gpu & scan.collectives()
    )
    calls = scan.of_categories([slice_category(name) in CALLS for name in scan.categories])
    interval = scan.phase == INTERVAL
    columns = {key: scan.integers(scan.outer.find(key.encode()), scan.spans & ~gpu) for key in ("pid", "tid")}
    columns["ts"] = scan.times(scan.outer.find(b"ts"), scan.spans)
    columns["dur"] = scan.times(scan.outer.find(b"dur"), interval)
    has: dict[str, Flags] = {}
    for key, name in (
        ("correlation", b"correlation"),
        ("device", b"device"),
        ("stream", b"stream"),
        ("graph", b"graph id"),
        ("bytes", b"bytes"),
    ):
        values = scan.inner.find(name)
        needed = (
            (gpu | calls) & values.has
            if key == "correlation"
            else gpu
            if key in ("device", "stream")
            else gpu & values.has
        )
        columns[key], has[key] = scan.integers(values, needed), values.has
    rows = np.flatnonzero(scan.spans & ~scan.slow)
    names = scan.names(rows)
    ordinary = ~scan.slow[rows]
    of_gpu = gpu[rows] & ordinary
    host, device = np.flatnonzero(~gpu[rows] & ordinary), np.flatnonzero(of_gpu)
    return Batch(
        _span_frame(scan, rows[host], columns, names.gather(host)),
        _gpu_frame(scan, rows[device], columns, names.gather(device), has),
        pl.DataFrame(schema=MARKS), pl.DataFrame(schema=COUNTERS), tally=_tally(scan, np.flatnonzero(~scan.slow)),
        remarks=+Counter({"repaired: invalid JSON": scan.repaired}),
    )  # fmt: skip


def fast_batch(chunk: Chunk) -> tuple[Batch, bytes | None]:
    """Return the events of `chunk`, and the text after the list's end if it ends in there.

    Raises
    ------
    Refused
        The structure of the chunk does not fit, or events in it are no valid JSON.

    """
    scan = _Scan(chunk)
    batch = _ordinary(scan)
    lex = scan.lex
    slow = np.flatnonzero(scan.slow)
    if not slow.size:
        return batch, lex.tail
    view = memoryview(chunk.data)
    texts = [
        bytes(view[start : end + 1])
        for start, end in zip(lex.starts[slow].tolist(), lex.ends[slow].tolist(), strict=True)
    ]
    try:
        events = plain.decode(b"[" + b",".join(texts) + b"]")
    except UNDECODABLE as error:
        raise Refused(str(error)) from error
    return joined([batch, plain.batch(events)]), lex.tail
