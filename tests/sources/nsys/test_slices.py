"""NCCL's payloads: blobs packed here with `struct`, as nsys's export lays them out."""

import struct

import polars as pl
import pytest

from tracelib.sources.nsys import read

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
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
