"""What is streamed to Parquet in parts is what is read at once, to the row and its place."""

import json
import random
from dataclasses import replace

import polars as pl
import pytest

from tests.conftest import ROOT, SHARED
from tracelib.errors import BadTrace
from tracelib.schema import SORT
from tracelib.sources import cache
from tracelib.sources.discovery import recognised
from tracelib.sources.torch_profiler import read, reader, stream
from tracelib.trace import Trace

SAMPLES = [
    *sorted((ROOT / "sample_traces").glob("*/*.pt.trace.json.gz")),
    *sorted((SHARED / "corpus" / "kineto" / "handmade").glob("*alexnet*")),
    *sorted((SHARED / "corpus" / "chrome_json").glob("*"))[:3],
]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(reader, "ROWS", 600)
    monkeypatch.setattr(reader, "STRETCH", dict.fromkeys(reader.STRETCH, 700))
    monkeypatch.setattr(reader, "SAMPLED", 7)


def streamed(path, folder) -> Trace:
    folder.mkdir()
    stream(path, folder)
    return Trace.from_parquet(folder)


def total_order(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that are equal by the frame's order may stand either way: order them by all columns."""
    return rows.sort([*SORT[name], *(c for c in rows.columns if c not in SORT[name])])


def assert_same(one: Trace, other: Trace):
    for name, rows in one.frames().items():
        assert other.frames()[name].schema == rows.schema
        assert total_order(name, other.frames()[name]).equals(total_order(name, rows)), name
        keys = [key for key in SORT[name] if key != "dur_ns"]
        assert other.frames()[name].select(keys).equals(rows.select(keys)), name


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name[-40:]}")
def test_streamed_is_read(path, tmp_path):
    if not path.is_file():
        pytest.skip("no file")
    trace = read(path)
    assert_same(trace, streamed(path, tmp_path / "made"))
    parts = len(list((tmp_path / "made").glob("slices-*.parquet")))
    assert parts > 3 or trace.slices.height < 5000


def test_marks_syncs_counters_and_annotations_in_parts(tmp_path):
    draw = random.Random(7)
    events = []
    for n in range(4000):
        ts = draw.randrange(10**6) + 0.125
        events += [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": f"op{n % 9}",
                "pid": 7,
                "tid": 8 + n % 3,
                "ts": ts,
                "dur": n % 5,
            },
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 7,
                "tid": 8,
                "ts": ts,
                "dur": 1,
                "args": {"correlation": n + 1},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "pid": 0,
                "tid": 7,
                "ts": ts + 9,
                "dur": 2,
                "args": {"device": n % 2, "stream": 7, "correlation": n + 1},
            },
            {
                "ph": "X",
                "cat": "cuda_sync",
                "name": "Stream Sync",
                "pid": 0,
                "tid": 7,
                "ts": ts + 9,
                "dur": 2,
                "args": {"stream": 7, "correlation": n + 1 if n % 4 else 10**9},
            },
            {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": "step",
                "pid": 0,
                "tid": 7,
                "ts": ts,
                "dur": 20,
                "args": {},
            },
            {"ph": "C", "name": "memory", "pid": 7, "ts": ts, "args": {"bytes": n}},
        ]
    events += [
        {"ph": "B", "name": "phase", "pid": 7, "tid": 8, "ts": 5},
        {"ph": "E", "pid": 7, "tid": 8, "ts": 50},
    ]
    events += [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "timeless",
            "pid": 0,
            "tid": 7,
            "ts": 0,
            "dur": 2,
            "args": {"device": 0, "stream": 7},
        }
    ]
    events += [events[2], events[2]]
    path = tmp_path / "rank2.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 1_700_000_000_000_000_000}))
    trace = read(path)
    assert_same(trace, streamed(path, tmp_path / "made"))
    assert len(list((tmp_path / "made").glob("*-1.parquet"))) == 2
    assert trace.counters.height == 4000
    assert trace.slices.filter(pl.col("thread").is_null()).height > 4000
    said = " ".join(trace.health["message"])
    assert "2 GPU ops are repetitions" in said
    assert "1 events: GPU work at time 0" in said
    assert "1000 waits lie on no host thread" in said


def test_large_files_are_streamed_to_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LARGE", 0)
    monkeypatch.setattr(cache, "SMALLEST", 0)
    unread = replace(recognised(SAMPLES[0]).format, read=None)  # it must not be used
    path = SAMPLES[0]
    found = cache.Cache(tmp_path / "cache").read(replace(recognised(path), format=unread))
    monkeypatch.undo()
    assert_same(read(path), found)
    again = cache.Cache(tmp_path / "cache").read(recognised(path))
    assert_same(found, again)


def test_what_cannot_be_read_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LARGE", 0)
    monkeypatch.setattr(cache, "SMALLEST", 0)
    path = tmp_path / "broken.json"
    path.write_text('{"traceEvents": [@@@@@@@')
    with pytest.raises(BadTrace, match="none of its events"):
        cache.Cache(tmp_path / "cache").read(recognised(path))
    assert list((tmp_path / "cache").glob("frames/*")) == []
