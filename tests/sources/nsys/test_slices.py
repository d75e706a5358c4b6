"""What host threads did: calls, waits, NVTX ranges and NCCL's payloads, on rows written by hand."""

import struct

import polars as pl
import pytest

from tests.sources.nsys.conftest import KERNELS, RUNTIME, messages
from tracelib.sources.nsys import read

ALL_REDUCE, INIT = 16777221, 16777218
COMMUNICATOR = 10159970886766084423  # beyond 2^63
SCHEMAS = {
    "NVTX_PAYLOAD_SCHEMAS": [(1, ALL_REDUCE, 24), (1, INIT, 24), (1, ALL_REDUCE, 24)],
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": [
        (1, INIT, 0, 18, "NCCL communicator ID", None),
        (1, INIT, 1, 5, "No. of ranks", 8),
        (1, INIT, 2, 5, "Rank", 12),
        (1, ALL_REDUCE, 0, 18, "NCCL communicator ID", None),
        (1, ALL_REDUCE, 1, 22, "Message size [bytes]", 8),
        (1, ALL_REDUCE, 2, 16777236, "Reduction operation", 16),
        (1, ALL_REDUCE, 1, 22, "Message size [bytes]", 8),
    ],
}


def blob(schema, payload):
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(payload), 32 + len(payload)) + payload


@pytest.fixture
def rows(process):
    """An all-reduce in its range, one launched outside of any, a plain kernel in a range of NCCL's."""
    thread = process + 100
    ranges = [
        (
            1,
            5,
            59,
            "ncclCommInitRank",
            thread,
            None,
            1,
            blob(INIT, struct.pack("<QIII4x", COMMUNICATOR, 8, 3, 0)),
        ),
        (
            10,
            40,
            59,
            "ncclAllReduce",
            thread,
            None,
            1,
            blob(ALL_REDUCE, struct.pack("<QQI4x", COMMUNICATOR, 4096, 0)),
        ),
        (50, 60, 59, "step", thread, None, 0, None),
    ]
    calls = [(20, 25, 0, thread, 7, 1), (55, 57, 0, thread, 8, 1), (30, 32, 0, thread, 9, 1)]
    kernels = [
        (100, 150, 0, 1, 7, 7, process, 5, 5, None, None),
        (200, 250, 0, 1, 7, 8, process, 5, 5, None, None),
        (300, 350, 0, 1, 7, 9, process, 4, 4, None, None),
    ]
    return SCHEMAS | {"NVTX_EVENTS": ranges, RUNTIME: calls, KERNELS: kernels}


def told(trace):
    return trace.gpu_ops.select("correlation", pl.col("group").cast(pl.String), "group_size", "bytes").rows()


def test_calls_of_mpi_are_named_by_a_registered_text(export, process):
    rows = {"MPI_P2P_EVENTS": [(5, 9, process + 1, 14, 1, 2)], "CUDNN_EVENTS": [(1, 3, 0, process + 1, 13)]}
    slices = read(export(rows)).slices.select("ts_ns", "dur_ns", "name", "category")
    assert slices.rows() == [(1, 2, "main", "op"), (5, 4, "MPI_Send", "other")]


def test_only_cupti_s_numbers_correlate_and_a_workload_is_no_call(export, process):
    rows = {
        RUNTIME: [(10, 15, 0, process + 1, 1, 1)],
        "VULKAN_API": [(20, 25, process + 2, 1, 13)],
        "VULKAN_WORKLOAD": [(30, 35, process + 2, 1, 13, 0)],
    }
    trace = read(export(rows))
    assert trace.slices.select("ts_ns", "correlation").rows() == [(10, 1), (20, None)]
    assert "counted, not read: VULKAN_WORKLOAD (1)" in messages(trace)


def test_nvtx_of_text_files_of_unknown_kinds_and_without_a_kind(export, process):
    thread = process + 3
    rows = [
        (1, 9, 70, "nvtxt range", thread),
        (2, 8, 71, "nvtxt start-end", thread),
        (3, None, 65, "nvtxt mark", thread),
        (4, 7, None, "no kind", thread),
        (5, None, None, "neither kind nor end", thread),
        (6, 7, 200, "a kind of the future", thread),
        (6, 7, 35, "half a range", thread),
        (0, None, 97, "a device", thread),
    ]
    trace = read(export({"NVTX_EVENTS": rows}))
    assert trace.slices.select("ts_ns", "dur_ns", "name").rows() == [
        (1, 8, "nvtxt range"),
        (2, 6, "nvtxt start-end"),
        (3, 0, "nvtxt mark"),
        (4, 3, "no kind"),
    ]
    assert "3 NVTX records of other kinds are not read (35, 200)" in messages(trace)


def test_an_export_without_the_column_of_kinds_has_its_ranges(export, process):
    path = export(
        {"NVTX_EVENTS": [(1, 9, 59, "a range", process + 3)]},
        statements=["ALTER TABLE NVTX_EVENTS DROP COLUMN eventType"],
    )
    assert read(path).slices.filter(pl.col("category") == "annotation")["name"].to_list() == ["a range"]


def test_calls_without_a_thread_are_told_but_not_the_profiler_s_own(export, process):
    rows = {
        RUNTIME: [(10, 15, 0, None, 1, 1), (20, 25, 0, process + 1, 2, 1)],
        "PROFILER_OVERHEAD": [(30, 35, None, 13)],
    }
    trace = read(export(rows))
    assert trace.slices.filter(pl.col("thread").is_null())["ts_ns"].to_list() == [10, 30]
    assert "1 host calls and ranges name no thread" in messages(trace)


def test_calls_lose_their_release_and_are_told_apart(export, process):
    calls = [(10, 15, 0, process + 7, 1, 1), (20, 22, 1, process + 7, 2, 2)]
    slices = read(export({RUNTIME: calls})).slices
    assert slices.select("ts_ns", "dur_ns", "name", "category", "correlation").rows() == [
        (10, 5, "cudaLaunchKernel", "runtime", 1),
        (20, 2, "cuLaunchKernelEx", "driver", 2),
    ]


def test_nvtx(export, process):
    """Text in either column; marks have no length; an open range lasts to the last event; no domains."""
    thread = process + 3
    rows = {
        "NVTX_EVENTS": [
            (10, 20, 59, "in the row", thread, None, 0),
            (11, 12, 60, None, thread, 8, 0),
            (13, None, 34, "mark", thread, None, 0),
            (14, None, 60, "open", thread, None, 0),
            (15, 0, 59, "open in old exports", thread, None, 0),
            (5, None, 75, "a domain", thread, None, 0),
        ],
        RUNTIME: [(90, 100, 0, thread, 1, 1)],
    }
    trace = read(export(rows))
    found = trace.slices.filter(pl.col("category") == "annotation").select("ts_ns", "dur_ns", "name").rows()
    assert found == [
        (10, 10, "in the row"),
        (11, 1, "from an id"),
        (13, 0, "mark"),
        (14, 86, "open"),
        (15, 85, "open in old exports"),
    ]
    assert "2 host calls and ranges were still open" in messages(trace, "warning")


def test_waits_get_the_thread_of_their_call(export, process):
    thread = process + 3
    rows = {
        RUNTIME: [(10, 20, 0, thread, 1, 10), (30, 31, 0, thread, 2, 11), (40, 41, 0, thread, 3, 10)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            (11, 19, process, 1, 3),
            (30, 31, process, 2, 1),  # a query
            (40, 41, process, 3, 2),  # one stream waits for another
            (50, 60, process, 99, 3),  # its call is not there
        ],
    }
    trace = read(export(rows))
    waits = trace.slices.filter(pl.col("category") == "sync")
    assert waits.select("ts_ns", "dur_ns", "name", "correlation").rows() == [(11, 8, "Stream sync", 1)]
    assert "1 synchronization records left out: their CUDA call is not in the file" in messages(trace)


def test_waits_that_name_no_process_are_of_the_only_one_that_called(export, process):
    rows = {
        RUNTIME: [(10, 20, 0, process + 3, 1, 10), (30, 40, 0, process + 4, 2, 10)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(11, 19, None, 1, 3), (31, 39, None, 2, 4)],
    }
    trace = read(export(rows))
    waits = trace.slices.filter(pl.col("category") == "sync").join(trace.threads, on="thread")
    assert waits.sort("ts_ns").select("ts_ns", "name", "pid", "tid").rows() == [
        (11, "Stream sync", 100, 3),
        (31, "Context sync", 100, 4),
    ]
    assert "left out" not in messages(trace)
    assert "2 waits name no process: taken to be of the only one" in messages(trace, "info")
    rows[RUNTIME].append((50, 60, 0, process + (1 << 24), 3, 10))  # whose they are is not known
    trace = read(export(rows))
    assert trace.slices.filter(pl.col("category") == "sync").is_empty()
    assert "2 synchronization records left out: they name no process" in messages(trace)
    assert "their CUDA call is not in the file" not in messages(trace)


def test_a_wait_that_names_no_process_beside_others_that_do(export, process):
    rows = {
        RUNTIME: [(10, 20, 0, process + 3, 1, 10), (30, 40, 0, process + 3, 2, 10)],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [(11, 19, process, 1, 3), (31, 39, None, 2, 3)],
    }
    trace = read(export(rows))
    assert trace.slices.filter(pl.col("category") == "sync")["ts_ns"].to_list() == [11]
    assert "1 synchronization records left out: they name no process" in messages(trace)


def test_calls_of_other_libraries(export, process):
    slices = read(export({"MPI_P2P_EVENTS": [(1, 2, process + 1, 14)]})).slices
    assert slices.select("name", "category").rows() == [("MPI_Send", "other")]


def test_a_collective_gets_what_its_range_says(export, rows):
    trace = read(export(rows)).check()
    assert told(trace) == [(7, str(COMMUNICATOR), 8, 4096), (8, None, None, None), (9, None, None, None)]
    assert trace.slices.filter(pl.col("category") == "annotation").height == 3


def test_an_export_without_blobs_says_how_to_get_them(export, rows):
    rows["NVTX_EVENTS"] = [row[:-1] for row in rows["NVTX_EVENTS"]]
    trace = read(export(rows))
    assert told(trace) == [(n, None, None, None) for n in (7, 8, 9)]
    (fix,) = trace.health.filter(pl.col("message").str.contains("NCCL's message sizes"))["fix"]
    assert "--include-blobs=true" in fix


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\0" * 31,
        blob(ALL_REDUCE, b"\0" * 12),
        blob(99, b"\0" * 24),
        "a text",
        7,
        blob(ALL_REDUCE, struct.pack("<QQI4x", COMMUNICATOR, 2**64 - 1, 0)),
    ],
)
def test_a_payload_that_is_none_is_not_recorded(export, rows, damaged):
    first, second, third = rows["NVTX_EVENTS"]
    rows["NVTX_EVENTS"] = [first, (*second[:-1], damaged), third]
    (collective, *_) = told(read(export(rows)).check())
    assert collective[3] is None


def test_of_two_processes_each_has_its_own(export, rows, process):
    other = process + (1 << 24)
    rows["NVTX_EVENTS"] += [
        (10, 40, 59, "ncclAllReduce", other + 1, None, 1, blob(ALL_REDUCE, struct.pack("<QQI4x", 5, 64, 0)))
    ]
    rows[RUNTIME] += [(20, 25, 0, other + 1, 7, 1)]
    rows[KERNELS] += [(101, 150, 1, 1, 7, 7, other, 5, 5, None, None)]
    assert told(read(export(rows)))[:2] == [(7, str(COMMUNICATOR), 8, 4096), (8, None, None, None)]
    assert told(read(export(rows)))[-1] == (7, "5", None, 64)


def test_the_captures_say_that_their_payloads_were_not_exported(captures):
    trace = read(captures / "nsys_starved" / "nsys_starved.sqlite.gz")
    assert trace.health["message"].str.contains("NCCL's message sizes").sum() == 1
    assert trace.gpu_ops.filter(pl.col("collective") == "all_reduce")["group"].null_count() > 1000
