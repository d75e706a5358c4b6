"""A run as Perfetto's own format: one file for https://ui.perfetto.dev or trace_processor, everything on one clock.

The protocol buffers are those of the `perfetto` package. How tracks, slices, flows, counters and interned names are
written follows Perfetto's "Writing TrackEvent protos synthetically".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from tracelib.export.nesting import strokes
from tracelib.export.tracks import PLACE, Group, Track, counters, tracks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["SEQUENCE", "write_perfetto"]

#: All packets are of one sequence: interned names hold within one.
SEQUENCE = 1
REALTIME, BOOTTIME = 1, 6  # perfetto/common/builtin_clock.proto
BEGIN, END, COUNTER = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END, TrackEvent.TYPE_COUNTER


def write_perfetto(results: Results, findings: Mapping[str, Any], target: Path) -> None:
    """Write the run to `target`; `findings` is the document of `tracelib.findings.diagnose`.

    Times are those of the aligned timeline, declared as REALTIME. Slices that cross each other on one thread, which no
    sound recording has, stand on a track of their own beside it.

    Raises
    ------
    OSError
        The file cannot be written.

    """
    with target.open("wb") as file:
        writer = _Writer(file, _first(results))
        for track in tracks(results, findings):
            writer.track(track)
        for name, readings in counters(results):
            writer.counter(name, readings)


def _first(results: Results) -> int:
    known = results.trace.sources["first_ns"].drop_nulls().to_list()
    return int(min([*known, results.window.start_ns]))


class _Writer:
    """Writes descriptors when a group or track is first met, then its events in time's order."""

    def __init__(self, file: BinaryIO, first_ns: int) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._tables: dict[str, dict[str, int]] = {}
        self._uuids: dict[object, int] = {}
        start = self._packet()
        start.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        start.first_packet_on_sequence = True
        start.trace_packet_defaults.timestamp_clock_id = REALTIME
        start.clock_snapshot.primary_trace_clock = REALTIME
        for clock in (REALTIME, BOOTTIME):  # one instant: a reader that wants BOOTTIME gets the same times
            start.clock_snapshot.clocks.add(clock_id=clock, timestamp=first_ns)
        self._builder.write_packet(start)

    def _packet(self, ts_ns: int = 0) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if ts_ns:
            packet.timestamp = ts_ns
        return packet

    def _described(self, key: object) -> tuple[int, TrackDescriptor | None]:
        """Return the track's id and, where it is new, the descriptor to fill."""
        if key in self._uuids:
            return self._uuids[key], None
        self._uuids[key] = len(self._uuids) + 1
        return self._uuids[key], TrackDescriptor(uuid=self._uuids[key])

    def _describe(self, descriptor: TrackDescriptor) -> None:
        packet = self._packet()
        packet.track_descriptor.CopyFrom(descriptor)
        self._builder.write_packet(packet)

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
        layers = strokes(track.slices)
        for number, (rows, closing) in enumerate(layers):
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
        begins = slices["ts_ns"].to_list()
        ends = (slices["ts_ns"] + slices["dur_ns"]).to_list()
        names = slices["name"].to_list()
        arrows = slices["flows"].to_list() if "flows" in slices.columns else [None] * len(begins)
        kinds = slices["category"].to_list() if "category" in slices.columns else [None] * len(begins)
        details = slices.select([c for c in slices.columns if c not in (*PLACE, "category")]).to_dicts()
        for row, ends_here in zip(rows.tolist(), closing.tolist(), strict=True):
            packet = self._packet(ends[row] if ends_here else begins[row])
            event = packet.track_event
            event.track_uuid, event.type = uuid, END if ends_here else BEGIN
            if not ends_here:
                event.name_iid = self._interned(packet, "event_names", names[row] or "unnamed")
                if kinds[row]:
                    event.category_iids.append(self._interned(packet, "event_categories", kinds[row]))
                event.flow_ids.extend(arrows[row] or ())
                _annotate(event, details[row] if details else {})
            self._builder.write_packet(packet)

    def _interned(self, packet: Any, table: str, text: str) -> int:
        """Return the number that stands for `text` in `table`; the packet that needs it first carries the text."""
        known = self._tables.setdefault(table, {})
        if text not in known:
            known[text] = len(known) + 1
            getattr(packet.interned_data, table).add(iid=known[text], name=text)
        return known[text]

    def counter(self, name: str, readings: pl.DataFrame) -> None:
        """Write a counter's track and its readings."""
        parent = self._group(Group("Counters"))
        uuid, new = self._described(("counter", name))
        if new is not None:
            new.parent_uuid, new.name = parent, name
            new.counter.SetInParent()
            self._describe(new)
        for ts_ns, value in readings.select("ts_ns", "value").iter_rows():
            packet = self._packet(ts_ns)
            event = packet.track_event
            event.track_uuid, event.type, event.double_counter_value = uuid, COUNTER, value
            self._builder.write_packet(packet)


def _annotate(event: Any, details: Mapping[str, Any]) -> None:
    for name, value in _known(details):
        if isinstance(value, int):
            event.debug_annotations.add(name=name, int_value=value)
        else:
            event.debug_annotations.add(name=name, string_value=str(value))


def _known(details: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in details.items() if value is not None)
