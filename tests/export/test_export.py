"""What viewers are given, decoded again: with Perfetto's own protocol buffers, as JSON with exact decimals, out of the TAR."""

import gzip
import json
import tarfile
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from dataclasses import replace
from decimal import Decimal

import polars as pl
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import tracelib
from tests.conftest import ROOT
from tests.cut import ON_GPU, cut, reference
from tracelib import export
from tracelib.cli import main
from tracelib.errors import TraceError
from tracelib.export import serve
from tracelib.export.archive import MANIFEST
from tracelib.export.nesting import strokes
from tracelib.findings import diagnose


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("traces") / "server"
    cut(ROOT / "sample_traces" / "starved", target, 46.4, 46.5)
    return target


@pytest.fixture(scope="module")
def results(folder):
    return tracelib.analyse(tracelib.load(folder))


@pytest.fixture(scope="module")
def findings(results):
    return diagnose(results, title="a run")


@pytest.fixture(scope="module")
def decoded(results, findings, tmp_path_factory):
    """Return the descriptors by uuid, and per track its events (time, type, packet), names looked up."""
    target = tmp_path_factory.mktemp("out") / "run.pftrace"
    export.write_perfetto(results, findings, target)
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
        "api server: api_server",
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
    for finding in findings["findings"]:
        (uuid,) = [u for u in named(described, finding["id"]) if described[u].name == finding["id"]]
        assert {b for b, _, _ in spans(events[uuid])} == {e["ts_ns"] for e in finding["evidence"]}
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
    """A GPU operation's kind is its category, what else is known of it an annotation: by the frames, one by one."""
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


def test_slices_that_cross_go_to_another_layer():
    slices = pl.DataFrame({"ts_ns": [0, 2, 5, 5, 10], "dur_ns": [10, 2, 10, 0, 1]})
    layers = [list(zip(rows.tolist(), closing.tolist(), strict=True)) for rows, closing in strokes(slices)]
    assert layers == [
        [(0, False), (1, False), (1, True), (3, False), (3, True), (0, True), (4, False), (4, True)],
        [(2, False), (2, True)],
    ]


def test_a_time_before_its_clock_s_zero_is_refused(results, findings, tmp_path):
    early = results.lost.with_columns(ts_ns=pl.col("ts_ns") - 2 * results.window.start_ns)
    with pytest.raises(TraceError, match="Use --to chrome"):
        export.write_perfetto(replace(results, lost=early), findings, tmp_path / "run.pftrace")


def test_chrome_keeps_every_nanosecond(results, findings, tmp_path):
    export.write_chrome(results, findings, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text(), parse_float=Decimal)
    base = document["baseTimeNanoseconds"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    drawn = Counter(
        (base + int(e["ts"] * 1000), int(e["dur"] * 1000), e["name"])
        for e in document["traceEvents"]
        if e["ph"] == "X" and names[e["pid"], e["tid"]].startswith("stream ")
    )
    ops = results.trace.gpu_ops.select("ts_ns", "dur_ns", pl.col("name").cast(pl.String))
    assert drawn == Counter(ops.iter_rows())
    arrows = Counter(e["ph"] for e in document["traceEvents"] if e["ph"] in "sf")
    assert arrows["s"] == arrows["f"] == ops.height
    ids = [{e["id"] for e in document["traceEvents"] if e["ph"] == end} for end in "sf"]
    assert ids[0] == ids[1]


def test_speedscope_s_profiles_balance_and_weigh_what_was_sampled(results, findings, tmp_path):
    export.write_speedscope(results, findings, tmp_path / "run.json")
    document = json.loads((tmp_path / "run.json").read_text())
    frames = document["shared"]["frames"]
    for profile in document["profiles"]:
        if profile["type"] == "sampled":
            role = profile["name"].removeprefix("CPU samples: ").replace(" ", "_")
            own = results.trace.samples.join(
                results.trace.threads.filter(pl.col("role") == role), on="thread"
            )
            assert (
                sum(profile["weights"])
                == own.filter(pl.col("stack").is_not_null())["period"].sum()
                == profile["endValue"]
            )
            assert all(0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)
            continue
        pending = []
        at = profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= at
            at = event["at"]
            pending.append(event["frame"]) if event["type"] == "O" else (
                pending.pop() == event["frame"] or pytest.fail("crossed")
            )
        assert pending == []
        assert at == profile["endValue"]
    assert {p["type"] for p in document["profiles"]} == {"sampled", "evented"}


def test_a_window_leaves_only_what_overlaps_it(folder, results, tmp_path):
    """Nothing is cut at an edge: by times worked out from the frames of the whole."""
    start, end = (results.window.start_ns + round(s * 1e9) for s in (0.02, 0.05))
    assert (
        main(
            [
                "export",
                str(folder),
                "--to",
                "chrome",
                "--window",
                "0.02:0.05",
                "--no-redact",
                "-o",
                str(tmp_path / "run.json"),
            ]
        )
        == 0
    )
    document = json.loads((tmp_path / "run.json").read_text(), parse_float=Decimal)
    streams = {
        (e["pid"], e["tid"])
        for e in document["traceEvents"]
        if e["name"] == "thread_name" and e["args"]["name"].startswith("stream ")
    }
    drawn = Counter(
        document["baseTimeNanoseconds"] + int(e["ts"] * 1000)
        for e in document["traceEvents"]
        if e["ph"] == "X" and (e["pid"], e["tid"]) in streams
    )
    ops = results.trace.gpu_ops.filter(
        (pl.col("ts_ns") < end) & (pl.col("ts_ns") + pl.col("dur_ns") >= start)
    )
    assert 0 < ops.height < results.trace.gpu_ops.height - 20
    assert drawn == Counter(ops["ts_ns"])


def test_the_archive_is_not_cut(folder, capsys):
    assert main(["export", str(folder), "--to", "archive", "--window", "0:1"]) == 2
    assert "it holds the files as they are" in capsys.readouterr().err


def test_the_archive_holds_the_files_and_says_how_their_clocks_stand(results, folder, tmp_path):
    files = sorted(folder.iterdir())
    assert export.write_archive(results.trace, files, tmp_path / "run.tar") == []
    with tarfile.open(tmp_path / "run.tar") as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
        assert all(m.uname == m.gname == "" and m.uid == m.gid == 0 for m in archive.getmembers())
    text = members.pop(MANIFEST)
    assert members == {path.name: path.read_bytes() for path in files}
    assert text.startswith(b'{"perfetto_manifest"')
    made = json.loads(text)["perfetto_manifest"]
    assert made["version"] == 1
    entries = {entry["path"]: entry for entry in made["files"]}
    assert set(entries) == set(members)
    assert "clocks" not in entries["perf.txt.gz"]
    clocks = entries["worker_TP0.pt.trace.json.gz"]["clocks"]
    assert clocks["sync_to"] == {"file": "perf.txt.gz", "clock": "MONOTONIC"}
    assert "clock" not in clocks  # pinned: Perfetto takes Kineto's times as they stand
    # By hand: wall = base + ts, and perf's header says what wall time less monotonic time is.
    base = json.loads(gzip.decompress(members["worker_TP0.pt.trace.json.gz"]))["baseTimeNanoseconds"]
    apart = reference(gzip.decompress(members["perf.txt.gz"]).decode())
    assert abs(clocks["offset_ns"] - (base - apart)) <= 1000  # the header gives microseconds


def test_files_that_perfetto_does_not_open_are_named(results, tmp_path):
    foreign = results.trace.replace(sources=results.trace.sources.with_columns(format=pl.lit("nsys")))
    with pytest.raises(TraceError, match=r"Perfetto does not read nsys.*Use --to perfetto"):
        export.write_archive(foreign, [], tmp_path / "run.tar")
    assert not (tmp_path / "run.tar").exists()


def test_the_page_can_fetch_a_run_once(results, monkeypatch, unused_port):
    monkeypatch.setattr(serve, "ADDRESS", ("127.0.0.1", unused_port))
    link = tracelib.open_in_perfetto(results.trace)
    address = f"http://127.0.0.1:{unused_port}/run.pftrace"
    assert link.url == f"https://ui.perfetto.dev/#!/?url={address}"
    with pytest.raises(TraceError, match="Open the link that is waiting there"):
        tracelib.open_in_perfetto(results.trace)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/etc/passwd")
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        trace = Trace()
        trace.ParseFromString(answer.read())
    assert len(trace.packet) > 1000
    link.waiting.join(timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def test_the_command_writes_what_it_is_asked_for_and_never_over_a_trace(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "--to", "speedscope"]) == 0
    assert capsys.readouterr().out.strip() == "server.speedscope.json"
    assert json.loads((tmp_path / "server.speedscope.json").read_text())["exporter"] == "tracelib"
    trace = folder / "perf.txt.gz"
    assert main(["export", str(folder), "--to", "chrome", "-o", str(trace)]) == 2
    assert "none of the traces" in capsys.readouterr().err
    assert trace.read_bytes()[:2] == b"\x1f\x8b"
