"""A run in Perfetto's own format: one file for https://ui.perfetto.dev or trace_processor, on one clock.

The protocol buffers are those of the `perfetto` package. How tracks, slices, flows, counters and interned
names are written follows Perfetto's "Writing TrackEvent protos synthetically".

A message whose parts are written one after the other is the message of all of them ("Protocol Buffers:
Encoding", last one wins, repeated fields add up). So what many events share is serialised once, and only
their times are written one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from tracelib.analyses.results import Results
from tracelib.errors import TraceError
from tracelib.export.tracks import PLACE, Group, Track, counters, first_ns, nested_layers, tracks
from tracelib.findings import Document

#: All packets are of one sequence: interned names hold within one.
SEQUENCE = 1
REALTIME, BOOTTIME = 1, 6  # perfetto/common/builtin_clock.proto
#: What stands before a message of these kinds inside another.
PACKET_IN_TRACE = Trace.DESCRIPTOR.fields_by_name["packet"].number << 3 | 2
EVENT_IN_PACKET = TracePacket.DESCRIPTOR.fields_by_name["track_event"].number << 3 | 2
TIME_TAG = TracePacket.DESCRIPTOR.fields_by_name["timestamp"].number << 3
#: Bytes of a packet's time: nine of seven bits hold every positive Int64.
TIME_BYTES = 9
BEGIN, END, COUNTER = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_COUNTER


def write_perfetto(results: Results, findings: Document, target: Path) -> None:
    """Write the run to `target`; `findings` is the document of `tracelib.findings.diagnose`.

    Times are those of the aligned timeline, declared as REALTIME. Slices that cross each other on one thread,
    which a sound recording does not have, stand on a track of their own beside it.

    Raises TraceError if a time is negative, which the format does not hold; OSError if the file cannot be
    written.
    """
    with target.open("wb") as file:
        writer = _Writer(file, first_ns(results))
        for track in tracks(results, findings):
            writer.track(track)
        for name, readings in counters(results):
            writer.counter(name, readings)


class _Writer:
    """Writes descriptors when a group or track is first met, then its events in time's order."""

    def __init__(self, file: BinaryIO, first_ns: int) -> None:
        self._file = file
        self._tables: dict[str, dict[str, int]] = {}
        self._uuids: dict[object, int] = {}
        self._stamp = _packet().SerializeToString() + bytes([TIME_TAG])
        start = _packet()
        start.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        start.first_packet_on_sequence = True
        start.trace_packet_defaults.timestamp_clock_id = REALTIME
        start.clock_snapshot.primary_trace_clock = REALTIME
        for clock in (REALTIME, BOOTTIME):  # one instant: a reader that wants BOOTTIME gets the same times
            start.clock_snapshot.clocks.add(clock_id=clock, timestamp=first_ns)
        self._write(start.SerializeToString())

    def _write(self, packet: bytes) -> None:
        self._file.write(_before(PACKET_IN_TRACE, len(packet)) + packet)

    def _events(self, kinds: NDArray[np.int64], times: NDArray[np.int64], events: Sequence[bytes]) -> None:
        """Write a packet for each of `times`; `kinds` has the number of its `TrackEvent` in `events`."""
        if len(times) and times.min() < 0:
            raise TraceError(
                f"{times.min()} ns: a time before its clock's zero, which Perfetto's format does not hold. "
                "Use --to chrome."
            )
        bodies = [_before(EVENT_IN_PACKET, len(event)) + event for event in events]
        heads = [
            _before(PACKET_IN_TRACE, len(self._stamp) + TIME_BYTES + len(body)) + self._stamp
            for body in bodies
        ]
        numbers = kinds.tolist()
        parts: list[bytes] = [b""] * (3 * len(numbers))
        parts[0::3] = [heads[number] for number in numbers]
        parts[1::3] = _varints(times)
        parts[2::3] = [bodies[number] for number in numbers]
        self._file.write(b"".join(parts))

    def _described(self, key: object) -> tuple[int, TrackDescriptor | None]:
        """Return the track's id and, where it is new, the descriptor to fill."""
        if key in self._uuids:
            return self._uuids[key], None
        self._uuids[key] = len(self._uuids) + 1
        return self._uuids[key], TrackDescriptor(uuid=self._uuids[key])

    def _describe(self, descriptor: TrackDescriptor) -> None:
        packet = _packet()
        packet.track_descriptor.CopyFrom(descriptor)
        self._write(packet.SerializeToString())

    def _group(self, group: Group) -> int:
        uuid, new = self._described(group)
        if new is not None:
            if group.pid is None:
                new.name = group.name
                new.child_ordering = TrackDescriptor.EXPLICIT
            else:
                new.process.pid, new.process.process_name = group.pid, group.name
            self._describe(new)
        return uuid

    def track(self, track: Track) -> None:
        """Write a track's descriptor and its slices; slices that cross each other on further tracks."""
        for number, (rows, closing) in enumerate(nested_layers(track.slices)):
            uuid = self._track_id(track, number)
            self._slices(uuid, track.slices, rows, closing)

    def _track_id(self, track: Track, number: int) -> int:
        parent = self._group(track.group)
        uuid, new = self._described((track.group, track.name, track.tid, number))
        if new is None:
            return uuid
        new.parent_uuid = parent
        if track.tid is not None and track.group.pid is not None and not (track.state_of_thread or number):
            new.thread.pid, new.thread.tid = track.group.pid, track.tid
            new.thread.thread_name = track.name
        else:
            new.name = track.name + (" (crossing)" if number else "")
            new.sibling_order_rank = uuid
        self._describe(new)
        return uuid

    def _slices(
        self, uuid: int, slices: pl.DataFrame, rows: NDArray[np.int64], closing: NDArray[np.bool_]
    ) -> None:
        begins = slices["ts_ns"].to_numpy()
        times = np.where(closing, (slices["ts_ns"] + slices["dur_ns"]).to_numpy()[rows], begins[rows])
        details = slices.select("name", *(c for c in slices.columns if c not in PLACE))
        distinct = details.unique(maintain_order=True)
        numbered = distinct.with_row_index("kind")
        joined = details.join(
            numbered, on=details.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        kinds = joined["kind"].cast(pl.Int64).to_numpy().copy()
        events = [self._begin(uuid, row) for row in distinct.iter_rows(named=True)]
        for row, flows in _arrows(slices):
            events.append(events[kinds[row]] + TrackEvent(flow_ids=flows).SerializeToString())
            kinds[row] = len(events) - 1
        events.append(TrackEvent(track_uuid=uuid, type=END).SerializeToString())
        self._events(np.where(closing, len(events) - 1, kinds[rows]), times, events)

    def _begin(self, uuid: int, details: Mapping[str, Any]) -> bytes:
        """Return the event that begins a slice of this `name`, `category` and other details."""
        noted = {name: value for name, value in details.items() if value is not None}
        name = self._interned("event_names", noted.pop("name", "") or "unnamed")
        event = TrackEvent(track_uuid=uuid, type=BEGIN, name_iid=name)
        if "category" in noted:
            event.category_iids.append(self._interned("event_categories", noted.pop("category")))
        for detail, value in noted.items():
            kind = {"int_value": value} if isinstance(value, int) else {"string_value": str(value)}
            event.debug_annotations.add(name=detail, **kind)
        written: bytes = event.SerializeToString()
        return written

    def _interned(self, table: str, text: str) -> int:
        """Return the number that stands for `text` in `table`; it is written before it is first needed."""
        numbers = self._tables.setdefault(table, {})
        if text not in numbers:
            numbers[text] = len(numbers) + 1
            packet = _packet()
            getattr(packet.interned_data, table).add(iid=numbers[text], name=text)
            self._write(packet.SerializeToString())
        return numbers[text]

    def counter(self, name: str, readings: pl.DataFrame) -> None:
        """Write a counter's track and its readings."""
        parent = self._group(Group("Counters"))
        uuid, new = self._described(("counter", name))
        if new is not None:
            new.parent_uuid, new.name = parent, name
            new.counter.SetInParent()
            self._describe(new)
        values, number = np.unique(readings["value"].to_numpy(), return_inverse=True)
        events = [
            TrackEvent(track_uuid=uuid, type=COUNTER, double_counter_value=value).SerializeToString()
            for value in values.tolist()
        ]
        self._events(number, readings["ts_ns"].to_numpy(), events)


def _arrows(slices: pl.DataFrame) -> Iterator[tuple[int, list[int]]]:
    """Yield the rows at which arrows begin or end, and these arrows' numbers."""
    if "flows" in slices.columns:
        yield from slices.with_row_index("row").select("row", "flows").drop_nulls().iter_rows()


def _packet() -> Any:
    return TracePacket(
        trusted_packet_sequence_id=SEQUENCE, sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    )


@lru_cache(maxsize=4096)
def _before(tag: int, length: int) -> bytes:
    """Return what precedes a message inside another: its field's tag and its length, each as a varint."""
    made = bytearray()
    for number in (tag, length):
        while number > 0x7F:
            made.append(number & 0x7F | 0x80)
            number >>= 7  # noqa: PLW2901
        made.append(number)
    return bytes(made)


def _varints(times: NDArray[np.int64]) -> list[bytes]:
    """Return each time as a varint of :data:`TIME_BYTES` bytes.

    Seven bits in each, the low ones first, all but the last marked.
    Small times get more bytes than they need, which every reader of varints takes.
    """
    shifts = np.arange(TIME_BYTES, dtype=np.int64) * 7
    groups = (times[:, None] >> shifts & 0x7F).astype(np.uint8)
    groups[:, :-1] |= 0x80
    made: list[bytes] = groups.view(f"V{TIME_BYTES}").ravel().tolist()
    return made
