"""Small exports, written row by row: the tables and columns are those of nsys, the rows are the test's."""

import sqlite3

import polars as pl
import pytest

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT, cuDevice INTEGER",
    "TARGET_INFO_CUDA_GPU": "deviceId INTEGER, name TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "ProcessStreams": "globalPid INTEGER, filenameId INTEGER, contentId INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER, priority INTEGER, globalTid INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "contextId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, "
    "shortName INTEGER, graphNodeId INTEGER, graphId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, "
    "globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER, end INTEGER, "
    "globalPid INTEGER, correlationId INTEGER, syncType INTEGER",
    "OSRT_API": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "MPI_P2P_EVENTS": "start INTEGER, end INTEGER, globalTid INTEGER, "
    "textId INTEGER, commHandle INTEGER, tag INTEGER",
    "PROFILER_OVERHEAD": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "MPI_RANKS": "globalTid INTEGER, rank INTEGER",
    "CUDNN_EVENTS": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER",
    "VULKAN_API": "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
    "VULKAN_WORKLOAD": "start INTEGER, end INTEGER, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER, gpu INTEGER",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, "
    "globalTid INTEGER, textId INTEGER, domainId INTEGER, "
    "binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMAS": "domainId INTEGER, schemaId INTEGER, payloadSize INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, "
    "type INTEGER, name TEXT, offset INTEGER",
    "GENERIC_EVENTS": "timestamp INTEGER, typeId INTEGER, data TEXT",
    "SCHED_EVENTS": "start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER, threadState INTEGER",
    "ENUM_SAMPLING_THREAD_STATE": "id INTEGER, name TEXT, label TEXT",
    "COMPOSITE_EVENTS": "id INTEGER, start INTEGER, cpu INTEGER, "
    "threadState INTEGER, globalTid INTEGER, cpuCycles INTEGER",
    "SAMPLING_CALLCHAINS": "id INTEGER, symbol INTEGER, "
    "module INTEGER, unresolved INTEGER, stackDepth INTEGER",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, metricId INTEGER, metricName TEXT",
}
STRINGS = {
    0: "[Unknown]",
    1: "cudaLaunchKernel_v7000",
    2: "cuLaunchKernelEx",
    3: "cudaGraphLaunch_v10000",
    4: "my_kernel(int)",
    5: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
    6: "worker",
    7: "futex",
    8: "from an id",
    9: "libc.so.6",
    10: "cudaStreamSynchronize_v3020",
    11: "cudaEventQuery_v3020",
    12: "0x7f00",
    13: "main",
    14: "MPI_Send",
}


@pytest.fixture
def process():
    """The process 100 on machine 1, as nsys numbers it; a thread is this plus its id."""
    return 1 << 48 | 100 << 24


@pytest.fixture
def export(tmp_path):
    """Write an export with the given rows per table and return its path."""

    def write(rows=None, name="export.sqlite", strings=STRINGS, statements=()):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        connection = sqlite3.connect(path)
        for table, values in {"StringIds": list(strings.items()), **(rows or {})}.items():
            connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            for row in values:
                names = [column.split()[0] for column in TABLES[table].split(", ")][: len(row)]
                places = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})", row)
        if not rows or "META_DATA_EXPORT" not in rows:
            connection.execute(f"CREATE TABLE META_DATA_EXPORT ({TABLES['META_DATA_EXPORT']})")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()
        return path

    return write


@pytest.fixture
def one_kernel(export, process):
    """Return an export of one kernel and its launch call."""
    kernel, call = (20, 30, 0, 1, 7, 1, process, 4, 4), (10, 15, 0, process + 100, 1, 1)
    rows = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel], "CUPTI_ACTIVITY_KIND_RUNTIME": [call]}
    return export(rows, name="run.sqlite")


@pytest.fixture
def kernels(process):
    return [(10, 20, 0, 1, 7, 1, process, 4, 4, None, None), (30, 40, 0, 1, 7, 2, process, 4, 4, None, None)]


def messages(trace, level=None):
    health = trace.health if level is None else trace.health.filter(pl.col("level") == level)
    return " | ".join(health["message"])
