"""What Perfetto is given, decoded again with its own protocol buffers, holds the frames one by one."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace

import polars as pl
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from tests.cut import ON_GPU
from tracelib.errors import TraceError
from tracelib.export.perfetto import write_perfetto


@pytest.fixture(scope="module")
def decoded(results, findings, tmp_path_factory):
    """Return the descriptors by uuid, and per track its events (time, type, packet), names looked up."""
    target = tmp_path_factory.mktemp("out") / "run.pftrace"
    write_perfetto(results, findings, target)
    trace = Trace()
    trace.ParseFromString(target.read_bytes())
    described, events, names, kinds = {}, defaultdict(list), {}, {}
    for packet in trace.packet:
        names |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        kinds |= {entry.iid: entry.name for entry in packet.interned_data.event_categories}
        if packet.HasField("track_descriptor"):
            described[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in described, "a track is described before its first event"
            event = (packet.timestamp, packet.track_event, names.get(packet.track_event.name_iid))
            events[packet.track_event.track_uuid].append(event)
    return trace, described, events


def named(described, prefix):
    return [uuid for uuid, d in described.items() if (d.name or d.thread.thread_name).startswith(prefix)]


def test_every_track_opens_and_closes_its_slices_in_order(decoded):
    _, _, events = decoded
    for rows in events.values():
        if rows[0][1].type == TrackEvent.TYPE_COUNTER:
            continue
        depth, last = 0, 0
        for ts, event, _ in rows:
            assert ts >= last
            last = ts
            depth += 1 if event.type == TrackEvent.TYPE_SLICE_BEGIN else -1
            assert depth >= 0
        assert depth == 0


def spans(rows):
    """Return (begin, length, name) of a track's slices, by a stack."""
    found, pending = [], []
    for ts, event, name in rows:
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            pending.append((ts, name))
        else:
            begin, opened = pending.pop()
            found.append((begin, ts - begin, opened))
    return found


def test_streams_hold_every_gpu_operation_at_its_time(decoded, results):
    _, described, events = decoded
    drawn = [span for uuid in named(described, "stream ") for span in spans(events[uuid])]
    ops = results.trace.gpu_ops.select("ts_ns", "dur_ns", pl.col("name").cast(pl.String))
    assert Counter(drawn) == Counter(ops.iter_rows())


def test_threads_hold_every_slice_at_its_time(decoded, results):
    _, described, events = decoded
    threads = [uuid for uuid, d in described.items() if d.HasField("thread")]
    crossing = named(described, "")  # all; those beside a thread are named after it
    beside = [uuid for uuid in crossing if described[uuid].name.endswith("(crossing)")]
    drawn = [span for uuid in (*threads, *beside) for span in spans(events[uuid])]
    host = results.trace.slices.filter(pl.col("thread").is_not_null())
    assert Counter(drawn) == Counter(
        host.select("ts_ns", "dur_ns", pl.col("name").cast(pl.String)).iter_rows()
    )


def test_processes_are_called_by_their_roles(decoded):
    _, described, _ = decoded
    names = {d.process.process_name for d in described.values() if d.HasField("process")}
    assert {
        "worker rank 0: worker_TP0",
        "worker rank 1: worker_TP1",
        "engine: engine_core",
        "API server: api_server",
    } <= names


def test_causes_states_and_findings_are_tracks_of_their_own(decoded, results, findings):
    _, described, events = decoded
    lost = sum(length for uuid in named(described, "lost to") for _, length, _ in spans(events[uuid]))
    assert lost == results.lost["dur_ns"].sum()
    state = Counter()
    for uuid in named(described, "state"):
        for _, length, name in spans(events[uuid]):
            state[name] += length
    ledger = results.gpu_time.group_by(pl.col("state").cast(pl.String)).agg(pl.col("ns").sum())
    assert state == Counter({name: ns for name, ns in ledger.iter_rows() if ns})
    for finding in findings.findings:
        (uuid,) = [u for u in named(described, finding.id) if described[u].name == finding.id]
        assert {b for b, _, _ in spans(events[uuid])} == {row.ts_ns for row in finding.evidence}
    told = results.thread_states.filter(pl.col("state").cast(pl.String) != "unknown")
    cpu = sum(length for uuid in named(described, "CPU state of") for _, length, _ in spans(events[uuid]))
    assert cpu == told["dur_ns"].sum()


def test_an_arrow_leads_from_each_launch_to_its_operation(decoded, folder):
    """As many as there are GPU events in the files: the cut keeps only those whose call it keeps."""
    _, described, events = decoded
    ends = defaultdict(list)
    for uuid, rows in events.items():
        for ts, event, _ in rows:
            for flow in event.flow_ids:
                ends[flow].append((described[uuid].HasField("thread"), ts))
    recorded = [
        event
        for path in folder.glob("worker*.json.gz")
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("cat") in ON_GPU
    ]
    assert len(ends) == len(recorded) > 100
    for call, operation in (sorted(pair, reverse=True) for pair in ends.values()):
        assert (call[0], operation[0]) == (True, False)
        assert call[1] <= operation[1]


def test_details_stand_beside_the_slice(decoded, results):
    """A GPU operation's kind is its category, its other details are annotations, as in the frames."""
    _, described, events = decoded
    drawn = Counter(
        (
            ts,
            name,
            tuple(sorted((a.name, getattr(a, a.WhichOneof("value"))) for a in event.debug_annotations)),
        )
        for uuid in named(described, "stream ")
        for ts, event, name in events[uuid]
        if event.type == TrackEvent.TYPE_SLICE_BEGIN
    )
    columns = ["collective", "group", "bytes", "graph"]
    ops = results.trace.gpu_ops.select("ts_ns", "name", *columns).with_columns(
        pl.col("name", "collective", "group").cast(pl.String)
    )
    assert ops["collective"].drop_nulls().len() > 10
    assert drawn == Counter(
        (row["ts_ns"], row["name"], tuple(sorted((c, row[c]) for c in columns if row[c] is not None)))
        for row in ops.iter_rows(named=True)
    )


def test_everything_is_on_one_clock(decoded, results):
    trace, _, events = decoded
    first = trace.packet[0]
    assert {c.clock_id: c.timestamp for c in first.clock_snapshot.clocks} == dict.fromkeys(
        (1, 6), results.trace.sources["first_ns"].min()
    )
    assert first.trace_packet_defaults.timestamp_clock_id == first.clock_snapshot.primary_trace_clock == 1
    assert {p.trusted_packet_sequence_id for p in trace.packet} == {1}
    assert all(p.timestamp_clock_id == 0 for p in trace.packet)  # 0 = the default above
    times = [ts for rows in events.values() for ts, _, _ in rows]
    assert min(times) >= results.trace.sources["first_ns"].min()


def test_counters_hold_the_demand(decoded, results):
    _, described, events = decoded
    (uuid,) = named(described, "server threads runnable")
    readings = [(ts, event.double_counter_value) for ts, event, _ in events[uuid]]
    assert readings == list(results.demand.select("ts_ns", pl.col("runnable").cast(pl.Float64)).iter_rows())


def test_a_time_before_its_clock_s_zero_is_refused(results, findings, tmp_path):
    early = results.lost.with_columns(ts_ns=pl.col("ts_ns") - 2 * results.window.start_ns)
    with pytest.raises(TraceError, match="Use --to chrome"):
        write_perfetto(replace(results, lost=early), findings, tmp_path / "run.pftrace")
