"""Perfetto's format: recognised, refused with advice without its program, and, with SQLite in that program's place, its tables read.

SQLite is what the program's SQL is a dialect of: the queries are really run, on tables as Perfetto documents them.
"""

import sqlite3
from types import SimpleNamespace

import polars as pl
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

import tracelib
from tracelib.errors import BadTrace
from tracelib.sources import choose, pftrace

SCHEMA = """
CREATE TABLE thread (utid, tid, name, upid); CREATE TABLE process (upid, pid, name);
CREATE TABLE slice (id, ts, dur, track_id, category, name); CREATE TABLE thread_track (id, utid);
CREATE TABLE sched (ts, dur, cpu, utid, end_state); CREATE TABLE thread_state (ts, dur, utid, state, waker_utid);
CREATE TABLE perf_sample (ts, utid, cpu, callsite_id); CREATE TABLE stack_profile_callsite (id, parent_id, frame_id);
CREATE TABLE stack_profile_frame (id, name, mapping); CREATE TABLE stack_profile_mapping (id, name);
CREATE TABLE counter (ts, track_id, value); CREATE TABLE counter_track (id, name);
CREATE TABLE clock_snapshot (ts, clock_name, clock_value); CREATE TABLE stats (name, severity, value);
INSERT INTO thread VALUES (0, 0, 'swapper', NULL), (1, 11, 'engine', 7), (2, 12, 'worker', 7), (3, 13, NULL, NULL);
INSERT INTO process VALUES (7, 11, 'server');
INSERT INTO thread_track VALUES (50, 1), (51, 2);
INSERT INTO slice VALUES (1, 100, 50, 50, NULL, 'schedule'), (2, 110, -1, 51, 'cpu_op', 'aten::mm'), (3, 120, 5, 99, NULL, 'kernel');
INSERT INTO sched VALUES (100, 40, 0, 1, 'S'), (140, 10, 0, 0, ''), (150, 30, 0, 2, 'R+'), (190, 5, 0, 1, 'D|K'), (100, 95, 1, 3, 'S');
INSERT INTO thread_state VALUES (145, 5, 2, 'R', 1), (180, 9, 2, 'R', NULL), (100, 40, 1, 'Running', NULL);
INSERT INTO perf_sample VALUES (160, 2, 0, 2), (170, 2, 0, NULL);
INSERT INTO stack_profile_mapping VALUES (5, '/lib/libc.so');
INSERT INTO stack_profile_frame VALUES (8, 'main', 5), (9, 'encode', NULL);
INSERT INTO stack_profile_callsite VALUES (1, NULL, 8), (2, 1, 9);
INSERT INTO counter_track VALUES (70, 'mem'); INSERT INTO counter VALUES (100, 70, 2.5);
INSERT INTO clock_snapshot VALUES (90, 'BOOTTIME', 90), (90, 'REALTIME', 1700000000000000090), (90, 'MONOTONIC', 80);
INSERT INTO stats VALUES ('traced_buf_patches_failed', 'data_loss', 3), ('other', 'info', 9);
"""


@pytest.fixture
def file(tmp_path):
    trace = Trace()
    for name in ("a", "b"):
        trace.packet.add(timestamp=5, trusted_packet_sequence_id=1).track_event.name = name
    (tmp_path / "run.bin").write_bytes(trace.SerializeToString())
    return tmp_path / "run.bin"


@pytest.fixture
def processor(file, monkeypatch):
    """Put SQLite in the program's place; give what it was opened with."""
    import perfetto.trace_processor.api as package

    asked = {}

    class Processor:
        def __init__(self, trace, config):
            asked.update(trace=trace, program=config.bin_path)
            self.database = sqlite3.connect(":memory:")
            self.database.executescript(SCHEMA)

        def query(self, sql):
            found = self.database.execute(sql)
            names = [column[0] for column in found.description]
            return (SimpleNamespace(**dict(zip(names, row, strict=True))) for row in found)

        def close(self):
            asked["closed"] = True

    program = file.parent / "trace_processor_shell"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("TRACE_PROCESSOR_BIN", str(program))
    monkeypatch.setattr(package, "TraceProcessor", Processor)
    return asked


def test_it_is_told_by_its_packets_alone(file):
    assert choose(file) is pftrace
    content = file.read_bytes()
    assert not pftrace.sniff(content[1:], "run.pftrace")
    for text in (
        b'\n{"traceEvents": []}' * 99,
        b"\n\n\n\n",
        b"\n",
        b"",
        b"\n# tracer: nop\n#\n",
        b"\n" * 4096,
    ):
        assert not pftrace.sniff(text, "run.pftrace")


def test_without_the_program_it_says_what_to_do(file, monkeypatch):
    monkeypatch.delenv("TRACE_PROCESSOR_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        BadTrace, match=r"no `trace_processor_shell` is installed here.* set TRACE_PROCESSOR_BIN"
    ):
        tracelib.load(file)
    monkeypatch.setenv("TRACE_PROCESSOR_BIN", "/nowhere/shell")
    with pytest.raises(BadTrace, match="TRACE_PROCESSOR_BIN=/nowhere/shell is no program"):
        tracelib.load(file)


def test_tables_become_frames(file, processor):
    run = pftrace.read(file)
    assert processor == {
        "trace": str(file),
        "program": str(file.parent / "trace_processor_shell"),
        "closed": True,
    }
    assert list(run.threads.select("thread", "tid", "pid", "name", "process").iter_rows()) == [
        (0, 11, 11, "engine", "server"),
        (1, 12, 11, "worker", "server"),
        (2, 13, None, None, None),
    ]
    slices = run.slices.with_columns(pl.col("name", "category").cast(pl.String))
    assert list(slices.select("thread", "ts_ns", "dur_ns", "name", "category").iter_rows()) == [
        (0, 100, 50, "schedule", "annotation"),
        (1, 110, 0, "aten::mm", "op"),
    ]
    sched = run.sched.filter(pl.col("cpu").is_null() | (pl.col("cpu") == 0))
    columns = pl.col("event", "prev_state").cast(pl.String)
    assert list(
        sched.with_columns(columns).select("ts_ns", "event", "prev", "prev_state", "next").iter_rows()
    ) == [
        (100, "switch", None, None, 0),  # what ran before was not recorded
        (140, "switch", 0, "S", -1),
        (145, "wakeup", 0, None, 1),
        (150, "switch", -1, None, 1),
        (190, "switch", None, None, 0),  # nor what ran from 180 to 190
    ]
    assert list(run.samples.select("ts_ns", "thread", "stack").iter_rows()) == [(160, 1, 0), (170, 1, None)]
    stacks = run.stacks.with_columns(pl.col("symbol", "library").cast(pl.String))
    assert list(stacks.select("stack", "depth", "symbol", "library").iter_rows()) == [
        (0, 0, "encode", None),
        (0, 1, "main", "/lib/libc.so"),
    ]
    assert list(run.counters.select("ts_ns", pl.col("name").cast(pl.String), "value").iter_rows()) == [
        (100, "mem", 2.5)
    ]
    source = run.sources.row(0, named=True)
    assert (source["clock"], source["wall_offset_ns"]) == ("boottime", 1_700_000_000_000_000_000)
    said = run.health["message"].to_list()
    assert said[0].startswith("1 slices have no end")
    assert said[1].startswith("1 slices on tracks of no thread")
    assert said[2] == "Perfetto counts 3 of traced_buf_patches_failed"


@pytest.mark.usefixtures("processor")
def test_a_run_of_it_is_loaded_like_any_other(file):
    run = tracelib.load(file)
    assert run.sources["tied_by"].to_list() == ["declared"]
    assert run.slices["ts_ns"].min() == 1_700_000_000_000_000_100


def test_what_the_program_refuses_is_a_bad_trace(file, processor, monkeypatch):
    import perfetto.trace_processor.api as package

    def refuse(**_):
        raise package.TraceProcessorException("no\nsuch luck")

    monkeypatch.setattr(package, "TraceProcessor", refuse)
    with pytest.raises(BadTrace, match="does not read it") as caught:
        tracelib.load(file)
    assert "\n" not in str(caught.value)
    assert processor == {}
