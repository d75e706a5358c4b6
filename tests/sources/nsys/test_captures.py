"""The reference captures against SQL on the same file."""

import gzip
import shutil
import sqlite3
import tempfile

import polars as pl
import pytest

from tracelib.sources.nsys import read

pytestmark = pytest.mark.corpus
CAPTURES = ("nsys_starved", "nsys_healthy")


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request, captures, tmp_path_factory):
    """The frames of one capture, and SQL on its export."""
    packed = captures / request.param / f"{request.param}.sqlite.gz"
    plain = tmp_path_factory.mktemp("nsys") / "plain.sqlite"
    with gzip.open(packed) as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    connection = sqlite3.connect(plain)
    yield read(packed), connection
    connection.close()


@pytest.mark.parametrize(
    ("frame", "table", "where", "chosen"),
    [
        ("gpu_ops", "CUPTI_ACTIVITY_KIND_KERNEL", "1", pl.col("kind") == "kernel"),
        ("gpu_ops", "CUPTI_ACTIVITY_KIND_MEMCPY", "1", pl.col("kind") == "memcpy"),
        ("gpu_ops", "CUPTI_ACTIVITY_KIND_MEMSET", "1", pl.col("kind") == "memset"),
        ("slices", "CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass = 0", pl.col("category") == "runtime"),
        ("slices", "CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass = 1", pl.col("category") == "driver"),
        ("slices", "NVTX_EVENTS", "eventType in (34, 59, 60)", pl.col("category") == "annotation"),
        ("slices", "OSRT_API", "1", pl.col("category") == "os"),
        ("slices", "PROFILER_OVERHEAD", "1", pl.col("category") == "overhead"),
    ],
)
def test_rows_and_durations(capture, frame, table, where, chosen):
    trace, connection = capture
    sql = f"select count(*), sum(end - start), min(start), max(end) from {table} where {where}"
    rows = getattr(trace, frame).filter(chosen)
    end = rows["ts_ns"] + rows["dur_ns"]
    assert (rows.height, rows["dur_ns"].sum(), rows["ts_ns"].min(), end.max()) == connection.execute(
        sql
    ).fetchone()


def test_waits_are_the_synchronizing_calls_without_queries_and_stream_waits(capture):
    trace, connection = capture
    sql = """select count(*) from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION s
        join CUPTI_ACTIVITY_KIND_RUNTIME r
          on r.correlationId = s.correlationId and r.globalTid >> 24 = s.globalPid >> 24
        join StringIds n on n.id = r.nameId where s.syncType <> 2 and n.value not like '%Query%'"""
    assert trace.slices.filter(pl.col("category") == "sync").height == connection.execute(sql).fetchone()[0]


def test_kernels_join_their_launches_as_in_sql(capture):
    trace, connection = capture
    sql = """select count(*), sum(k.start - r.start) from CUPTI_ACTIVITY_KIND_KERNEL k
        join CUPTI_ACTIVITY_KIND_RUNTIME r
          on k.correlationId = r.correlationId and k.globalPid >> 24 = r.globalTid >> 24"""
    calls = trace.slices.filter(pl.col("category").is_in(["runtime", "driver"])).join(
        trace.threads, on="thread"
    )
    kernels = trace.gpu_ops.filter(pl.col("kind") == "kernel")
    joined = kernels.join(calls.select("pid", "correlation", called="ts_ns"), on=["pid", "correlation"])
    assert joined.height <= kernels.height  # each kernel once
    assert (joined.height, (joined["ts_ns"] - joined["called"]).sum()) == connection.execute(sql).fetchone()


@pytest.mark.parametrize("column", ["demangledName"])
def test_names_are_those_of_the_string_table(capture, column):
    trace, connection = capture
    sql = f"""select s.value, count(*), sum(end - start)
        from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.{column}
        group by 1 order by 1"""
    kernels = trace.gpu_ops.filter(pl.col("kind") == "kernel").with_columns(pl.col("name").cast(pl.String))
    mine = kernels.group_by("name").agg(pl.len(), pl.col("dur_ns").sum()).sort("name")
    assert mine.rows() == connection.execute(sql).fetchall()


def test_all_reduces_on_both_gpus(capture):
    trace, connection = capture
    sql = """select k.deviceId, count(*)
        from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.shortName
        where s.value like 'ncclDevKernel_AllReduce%' group by 1 order by 1"""
    collectives = trace.gpu_ops.filter(pl.col("collective") == "all_reduce").join(trace.gpus, on="gpu")
    assert collectives.group_by("device").len().sort("device").rows() == connection.execute(sql).fetchall()


def test_context_switches(capture):
    trace, connection = capture
    counts = connection.execute(
        "select sum(not isSchedIn), sum(isSchedIn), sum(start) from SCHED_EVENTS"
    ).fetchone()
    left, came = trace.sched["prev"].is_not_null().sum(), trace.sched["next"].is_not_null().sum()
    assert (left, came, trace.sched["ts_ns"].sum()) == counts


def test_threads_and_gpus(capture):
    trace, _ = capture
    names = dict(trace.threads.filter(pl.col("tid") == pl.col("pid")).select("name", "process").iter_rows())
    assert {"worker_TP0", "worker_TP1", "engine_core", "api_server"} <= set(names)
    assert trace.gpus.select("device", "name").rows() == [(0, "NVIDIA H200"), (1, "NVIDIA H200")]
    assert trace.sources.select("cpus", "recorder", "clock").row(0) == (32, "nsys 2025.3.2", "session")


def test_nothing_is_left_behind(captures, tmp_path, monkeypatch):
    packed = captures / "nsys_healthy" / "nsys_healthy.sqlite.gz"
    beside = sorted(packed.parent.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    read(packed)
    assert sorted(packed.parent.iterdir()) == beside
    assert not list(tmp_path.iterdir())
