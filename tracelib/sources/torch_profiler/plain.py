"""The plain decoder: msgspec reads the events, Python sorts them by kind. Exact and tolerant, not fast.

Times are taken from the text, never through a float: half a microsecond of 2**53 is 125 ns.
"""

import math
import re
from collections import Counter
from decimal import Decimal
from typing import Any

import msgspec
import polars as pl

from tracelib.sources.collective_names import of_args
from tracelib.sources.torch_profiler.document import unprefixed
from tracelib.sources.torch_profiler.events import (
    CALLS,
    INSTANTS,
    MARKERS,
    NO_COUNTERS,
    NO_GPU,
    NO_MARKS,
    NO_SPANS,
    NOWHERE,
    TIMED_PHASES,
    UNUSED_PHASES,
    Batch,
    gpu_kind,
    on_device,
    pairing,
    slice_category,
    stable_id,
    wrapped,
)

_Raw = msgspec.Raw
LARGEST = 2**61 - 1  # ns, the year 2043: a time beyond is damage; base + ts + dur stays below 2**63
#: What describes the recording itself: instants' pids, beginnings of their names, intervals' pids.
END_MARK = "Record Window End"
RECORDER_PIDS, RECORDER_NAMES = ("Spans", "Traces", ""), ("Iteration Start", END_MARK)
RECORDER_SPANS = ("Spans", "Traces")
#: Texts that are ids of up to 64 bits; longer ones are names, and Python refuses to convert very long ones.
_ID = re.compile(r"-?[0-9]{1,20}")


class Event(msgspec.Struct, gc=False):
    """One event as written; texts of numbers and of args stay as they are until someone needs them."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: _Raw = _Raw(b"")
    dur: _Raw = _Raw(b"")
    id: Any = None
    id2: Any = None
    scope: Any = None
    args: _Raw = _Raw(b"")


#: What some writers end a list with, because a comma stands behind each of their events: `{}`.
NOTHING = Event()
#: Raises msgspec.DecodeError or RecursionError if the text is not a list of objects.
decode = msgspec.json.Decoder(list[Event]).decode
_args = msgspec.json.Decoder(dict[str, Any]).decode


def nanoseconds(text: bytes) -> int | None:
    """Return microseconds, a JSON number or a string of one, in ns; None if it is not a finite number.

    >>> nanoseconds(b"5149334098181.217"), nanoseconds(b"12"), nanoseconds(b'"1.5"'), nanoseconds(b"null")
    (5149334098181217, 12000, 1500, None)
    """
    whole, dot, decimals = text.strip(b'"').partition(b".")
    try:
        if len(decimals) == 3 and decimals.isdigit():
            return int(whole + decimals)
        if not dot and whole.lstrip(b"-").isdigit():
            return int(whole) * 1000
        exact = Decimal(text.strip(b'"').decode()) * 1000
        return int(exact.to_integral_value()) if exact.is_finite() and abs(exact) < 2**63 else None
    except (ValueError, ArithmeticError):  # of Decimal: no number, or one beyond its exponents (1e999999)
        return None


def _integer(value: object) -> int | None:
    if type(value) is int:
        return wrapped(value)
    if type(value) is float and value.is_integer():
        return wrapped(int(value))
    if type(value) is str and _ID.fullmatch(value):
        return wrapped(int(value))
    return None


def _reading(value: object) -> float | None:
    """Return a counter's value, None if it is not a finite number or the text of one."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class _Rows:
    def __init__(self) -> None:
        self.spans: list[tuple[Any, ...]] = []
        self.gpu: list[tuple[Any, ...]] = []
        self.marks: list[tuple[Any, ...]] = []
        self.counters: list[tuple[Any, ...]] = []
        self.labels: dict[tuple[int | None, int | None, str], str] = {}
        self.texts: dict[int, str] = {}
        self.tally: Counter[tuple[str, str]] = Counter()
        self.remarks: Counter[str] = Counter()
        self.recorded: list[tuple[int, int]] = []
        self.closed: list[int] = []

    def ident(self, value: object) -> int | None:
        """Return the id that stands for a pid or tid as written."""
        number = _integer(value)
        if number is None and value is not None:
            text = str(value)
            number = stable_id(text)
            self.texts[number] = text
        return number

    def args(self, event: Event) -> dict[str, Any]:
        try:
            return _args(event.args) if memoryview(event.args) else {}
        except (msgspec.DecodeError, RecursionError):
            self.remarks["args are not an object"] += 1
            return {}

    def time(self, event: Event) -> int | None:
        ts = nanoseconds(bytes(event.ts))
        if ts is None or abs(ts) > LARGEST:
            self.remarks["no usable time: left out"] += 1
            return None
        return ts

    def duration(self, event: Event) -> int:
        dur = nanoseconds(bytes(event.dur))
        if dur is None:
            self.remarks["no duration: taken as 0"] += 1
            return 0
        if not 0 <= dur <= LARGEST:
            kind = "negative" if dur < 0 else "impossible"
            self.remarks[f"{kind} duration: taken as 0"] += 1
            return 0
        return dur

    def add(self, event: Event) -> None:
        """Sort one event into its kind."""
        ph = event.ph if isinstance(event.ph, str) else ""
        category = event.cat if isinstance(event.cat, str) else None
        self.tally[ph, category or "None"] += 1
        if ph in TIMED_PHASES:
            ts = self.time(event)
            if ts is not None:
                self.timed(event, ph, category, ts)
        elif ph == "M":
            self.metadata(event)
        elif not ph and event != NOTHING:
            self.remarks["no phase (ph): left out"] += 1
        elif ph and ph not in UNUSED_PHASES:
            self.remarks["an unknown phase (ph): left out"] += 1

    def timed(self, event: Event, ph: str, category: str | None, ts: int) -> None:
        if ph == "X":
            self.interval(event, category, ts, self.duration(event))
        elif ph in INSTANTS:
            own = unprefixed(event.pid) in RECORDER_PIDS and str(event.name).startswith(RECORDER_NAMES)
            if not own:
                self.span(event, category, ts, 0)
            elif event.name == END_MARK:
                self.closed.append(ts)
        elif ph in MARKERS:
            key = "" if ph in "BE" else pairing(event, ph, category)
            pid, tid = self.ident(event.pid), self.ident(event.tid)
            self.marks.append((ph, slice_category(category), _text(event.name), pid, tid, ts, key))
        else:
            self.counter(event, ts)

    def interval(self, event: Event, category: str | None, ts: int, dur: int) -> None:
        if kind := gpu_kind(category):
            self.gpu.append(self.gpu_row(event, kind, ts, dur))
        elif category == "Trace" and _of_recorder(event):
            self.recorded.append((ts, ts + dur))
        else:
            self.span(event, category, ts, dur)

    def span(self, event: Event, category: str | None, ts: int, dur: int) -> None:
        meant = slice_category(category)
        called = meant in CALLS
        correlation = _integer(self.args(event).get("correlation")) or None if called else None
        nowhere = on_device(category) or unprefixed(event.pid) == "-1"
        pid, tid = NOWHERE if nowhere else self.ident(event.pid), self.ident(event.tid)
        self.spans.append((meant, _text(event.name), pid, tid, ts, dur, correlation))

    def gpu_row(self, event: Event, kind: str, ts: int, dur: int) -> tuple[Any, ...]:
        args, pid = self.args(event), self.ident(event.pid)
        device = _integer(args.get("device"))
        stream = _integer(args.get("stream"))
        if stream is None:
            stream = _integer(event.tid.rpartition(" ")[2] if isinstance(event.tid, str) else event.tid)
        return (
            kind,
            _text(event.name),
            pid,
            pid if device is None else device,
            stream,
            ts,
            dur,
            _integer(args.get("correlation")) or None,
            _integer(args.get("graph id")),
            _integer(args.get("bytes")),
            *of_args(args),
        )

    def metadata(self, event: Event) -> None:
        if event.name in ("thread_name", "process_name", "process_labels"):
            args = self.args(event)
            label = args.get("labels" if event.name == "process_labels" else "name")
            tid = self.ident(event.tid) if event.name == "thread_name" else None
            if isinstance(label, str) and label:
                self.labels[self.ident(event.pid), tid, event.name] = label

    def counter(self, event: Event, ts: int) -> None:
        args, name = self.args(event), _text(event.name) or ""
        if event.id is not None:  # counters of one name have ids
            name = f"{name}[{event.id}]"
        readings = [(key, value) for key, given in args.items() if (value := _reading(given)) is not None]
        for key, value in readings:
            reading = f"{name}: {key}" if key and len(args) > 1 else name
            self.counters.append((reading, self.ident(event.pid), ts, value))
        if not readings:
            self.remarks["a counter without a number: left out"] += 1


def _of_recorder(event: Event) -> bool:
    """Say whether an interval of category "Trace" is the profiler's own: others use that name, too."""
    return unprefixed(event.pid) in RECORDER_SPANS or str(event.name).startswith("PyTorch Profiler")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _frame(rows: list[tuple[Any, ...]], none: pl.DataFrame) -> pl.DataFrame:
    if not rows:
        return none
    columns = zip(none.schema.items(), zip(*rows, strict=True), strict=True)
    return pl.DataFrame([pl.Series(name, values, dtype=dtype) for (name, dtype), values in columns])


def batch(events: list[Event]) -> Batch:
    """Return the events of a decoded list, sorted by kind."""
    rows = _Rows()
    for event in events:
        rows.add(event)
    return Batch(
        _frame(rows.spans, NO_SPANS),
        _frame(rows.gpu, NO_GPU),
        _frame(rows.marks, NO_MARKS),
        _frame(rows.counters, NO_COUNTERS),
        rows.labels,
        rows.texts,
        rows.tally,
        rows.remarks,
        rows.recorded,
        rows.closed,
    )
