"""What each row of an export becomes, on rows written by hand."""

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.sources.nsys import read
from tracelib.sources.nsys.database import Database
from tracelib.sources.nsys.threads import trigger

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def messages(trace, level=None):
    health = trace.health if level is None else trace.health.filter(pl.col("level") == level)
    return " | ".join(health["message"])


def test_calls_lose_their_release_and_are_told_apart(export, process):
    calls = [(10, 15, 0, process + 7, 1, 1), (20, 22, 1, process + 7, 2, 2)]
    slices = read(export({RUNTIME: calls})).slices
    assert slices.select("ts_ns", "dur_ns", "name", "category", "correlation").rows() == [
        (10, 5, "cudaLaunchKernel", "runtime", 1),
        (20, 2, "cuLaunchKernelEx", "driver", 2),
    ]


def test_a_thread_is_its_process_and_its_id(export, process):
    rows = {
        RUNTIME: [(10, 15, 0, process + 107, 1, 1)],
        "ThreadNames": [(6, 20, process + 107), (13, 20, process + 100), (6, 20, 5 << 24 | 1)],
        "PROCESSES": [(process, 100, "python3"), (5 << 24, 5, "other")],
    }
    threads = read(export(rows)).threads
    assert threads.select("pid", "tid", "name", "process").rows() == [
        (100, 100, "main", "python3"),
        (100, 107, "worker", "python3"),
    ]


def test_a_process_without_a_name_has_that_of_its_main_thread(export, process):
    rows = {RUNTIME: [(10, 15, 0, process + 107, 1, 1)], "ThreadNames": [(13, 20, process + 100)]}
    assert read(export(rows)).threads["process"].to_list() == ["main", "main"]


def test_thread_names_may_come_from_nvtx(export, process):
    rows = {
        "NVTX_EVENTS": [(1, None, 39, "loader", process + 3, None, 0), (2, 4, 59, "a", process + 3, None, 0)]
    }
    assert read(export(rows)).threads["name"].to_list() == ["loader"]


def test_ids_with_the_sign_bit_set(export):
    """Hardware id 0xFE makes a globalTid negative as SQLite stores it."""
    process = (0xFE << 56 | 1 << 48 | 100 << 24) - (1 << 64)
    rows = {
        RUNTIME: [(10, 15, 0, process + 107, 9, 1)],
        KERNELS: [(20, 30, 0, 1, 7, 9, process, 4, 4, None, None)],
    }
    trace = read(export(rows))
    assert trace.threads.select("pid", "tid").rows() == [(100, 107)]
    assert trace.gpu_ops["pid"].to_list() == [100]


def test_processes_count_their_devices_from_0(export, process):
    other = process + (1 << 24)
    rows = {
        KERNELS: [
            (10, 20, 0, 1, 7, 1, process, 4, 4, None, None),
            (10, 20, 0, 1, 7, 1, other, 4, 4, None, None),
        ],
        "TARGET_INFO_CUDA_DEVICE": [(2, 0, 100), (3, 0, 101)],
        "TARGET_INFO_GPU": [(0, 2, "H200"), (0, 3, "H100")],
    }
    trace = read(export(rows))
    seen = trace.gpu_ops.join(trace.gpus, on="gpu", suffix="_gpu")
    assert sorted(seen.select("pid", "device", "name_gpu").rows()) == [(100, 2, "H200"), (101, 3, "H100")]


def test_kernels_of_graphs(export, process):
    """By number where the row has it, 0 where it names only its node or was launched by cudaGraphLaunch."""
    rows = {
        RUNTIME: [(1, 2, 0, process + 100, 50, 3), (3, 4, 0, process + 100, 51, 1)],
        KERNELS: [
            (10, 11, 0, 1, 7, 50, process, 4, 4, None, None),
            (12, 13, 0, 1, 7, 51, process, 4, 4, None, None),
            (14, 15, 0, 1, 7, 52, process, 4, 4, 1 << 40, None),
            (16, 17, 0, 1, 7, 53, process, 4, 4, 1 << 40, 6),
            (18, 19, 0, 1, 7, 54, process, 4, 4, 0, 0),
        ],
    }
    assert read(export(rows)).gpu_ops["graph"].to_list() == [0, None, 0, 6, None]


def test_graphs_recorded_as_a_whole(export, process):
    rows = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(10, 30, 0, 7, 5, process, 3, 4)]}
    trace = read(export(rows))
    assert trace.gpu_ops.select("kind", "name", "graph", "dur_ns").rows() == [
        ("graph", "CUDA graph 3", 3, 20)
    ]
    assert "--cuda-graph-trace=node" in " ".join(trace.health["fix"])


def test_collectives_and_copies(export, process):
    rows = {
        KERNELS: [(10, 20, 0, 1, 7, 1, process, 5, 5, None, None)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(30, 40, 0, 7, 0, process, 4096, 1, 0, 2)],
    }
    ops = read(export(rows)).gpu_ops
    assert ops["collective"].to_list() == ["all_reduce", None]
    assert ops.row(1, named=True)["name"] == "Memcpy HtoD (Pageable -> Device)"
    assert ops.select("bytes", "correlation").row(1) == (4096, None)


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


def test_context_switches(export, process):
    """Joined only at the same nanosecond on the same CPU; thread 0 of process 0 is idle."""
    one, two = process + 1, process + 2
    rows = {
        "SCHED_EVENTS": [
            (10, 0, 0, one, 2),
            (10, 0, 1, two, 0),
            (20, 0, 0, two, 0),
            (21, 0, 1, one, 0),
            (30, 1, 0, two, 5),
            (30, 2, 1, one, 0),
            (40, 1, 1, 0, 0),
        ],
        "ENUM_SAMPLING_THREAD_STATE": [(0, "Unknown", ""), (2, "Interruptible", ""), (5, "Terminated", "")],
    }
    trace = read(export(rows))
    tid = dict(trace.threads.select("thread", "tid").iter_rows())
    found = [
        (ts, cpu, tid.get(prev, prev), state, tid.get(next_, next_))
        for ts, cpu, prev, state, next_ in trace.sched.select(
            "ts_ns", "cpu", "prev", "prev_state", "next"
        ).iter_rows()
    ]
    assert found == [
        (10, 0, 1, "S", 2),
        (20, 0, 2, None, None),
        (21, 0, None, None, 1),
        (30, 1, 2, "X", None),
        (30, 2, None, None, 1),
        (40, 1, None, None, -1),
    ]


def test_samples_share_their_call_chains(export, process):
    rows = {
        "COMPOSITE_EVENTS": [
            (1, 10, 0, 1, process + 1, 1),
            (2, 20, 1, 1, process + 1, 1),
            (3, 30, 0, 1, process + 1, 1),
        ],
        "SAMPLING_CALLCHAINS": [(1, 13, 9, 0, 1), (1, 12, 9, 1, 0), (2, 12, 9, 1, 0), (2, 13, 9, 0, 1)],
        "DIAGNOSTIC_EVENT": [
            (0, 1, "Event 'CPU Cycles', with sampling period 1000, used to trigger sample collection.")
        ],
    }
    trace = read(export(rows))
    assert trace.samples.select("ts_ns", "cpu", "event", "period", "stack").rows() == [
        (10, 0, "cycles", 1000, 0),
        (20, 1, "cycles", 1000, 0),
        (30, 0, "cycles", 1000, None),
    ]
    assert trace.stacks.rows() == [(0, 0, "[unknown]", "libc.so.6"), (0, 1, "main", "libc.so.6")]


@pytest.mark.parametrize(
    ("said", "event"),
    [
        ("CPU Cycles", "cycles"),
        ("CPU Clock", "cpu-clock"),
        ("CPU Clock (sw)", "cpu-clock"),
        ("Instructions Retired (hw) ", "instructions-retired"),
        ("(sw) Clock", "(sw)-clock"),
    ],
)
def test_what_triggered_the_samples(said, event):
    text = f"Event '{said}', with sampling period 1000000, used to trigger CPU IP sample collection."
    assert trigger(["Profiling has started.", text]) == (event, 1_000_000)


def test_gpu_counters(export):
    rows = {
        "GPU_METRICS": [(10, 256 + 3, 1, 42)],
        "TARGET_INFO_GPU_METRICS": [(256 + 3, 1, "SMs Active [%]")],
    }
    assert read(export(rows)).counters.rows() == [(0, 10, "SMs Active [%]", "GPU 3", 42.0)]


def test_tables_of_millions_of_rows_take_the_fast_path_and_texts_are_read_once(export, process, monkeypatch):
    queried, query = [], Database._by_query
    monkeypatch.setattr(Database, "_by_query", lambda *given: queried.append(given[1]) or query(*given))
    rows = {
        "GPU_METRICS": [(10, 256 + 3, 1, 42)],
        "NVTX_EVENTS": [(1, None, 39, "loader", process + 3, None, 0), (2, 4, 59, "a", process + 3, None, 0)],
    }
    trace = read(export(rows))
    assert (trace.counters["value"].to_list(), trace.threads["name"].to_list()) == ([42.0], ["loader"])
    assert [queried.count(table) for table in rows] == [0, 1]


@pytest.mark.parametrize(
    ("noted", "clock", "offset"),
    [
        ({}, "session", 1_700_000_000_000_000_000),
        (
            {"EXPORT_PARAM_TIME_NORMALIZE": "false", "EXPORT_PARAM_TIME_SHIFT": "500"},
            "session",
            1_699_999_999_999_999_500,
        ),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, "realtime", 0),
    ],
)
def test_clock(export, noted, clock, offset):
    rows = {
        "META_DATA_EXPORT": list(noted.items()),
        "TARGET_INFO_SESSION_START_TIME": [(1_700_000_000_000_000_000, "", "")],
    }
    assert read(export(rows)).sources.select("clock", "wall_offset_ns").row(0) == (clock, offset)


def test_an_export_that_does_not_tell_its_start(export):
    assert read(export()).sources.select("clock", "wall_offset_ns").row(0) == ("session", None)


def test_what_nsys_reported_is_passed_on(export):
    rows = {
        "DIAGNOSTIC_EVENT": [
            (1, 2, "Not all CUDA events\n might have been collected."),
            (2, 2, "Not all CUDA events might have been collected."),
            (3, 3, "1,200 CUPTI records were dropped"),
            (4, 1, "Profiling has started."),
        ]
    }
    trace = read(export(rows))
    assert trace.sources["lost_declared"].item() == 1200
    assert "(2 times): Not all CUDA events might have been collected." in messages(trace, "warning")
    assert "1,200 CUPTI records were dropped" in messages(trace, "error")
    assert "started" not in messages(trace)


def test_calls_without_kernels_are_pointed_out(export, process):
    trace = read(export({RUNTIME: [(10, 15, 0, process + 7, 1, 1)]}))
    assert "1 CUDA calls (1 launches), but no kernel" in messages(trace, "warning")


def test_copies_alone_are_no_sign_of_missing_kernels(export, process):
    rows = {"CUPTI_ACTIVITY_KIND_MEMCPY": [(30, 40, 0, 7, 0, process, 4096, 1, 0, 2)]}
    assert "1 copies and memsets, but no kernel" in messages(read(export(rows)), "info")


def test_secrets_stay_in_the_file(export, process):
    secret = "hunter2-s3cr3t"
    strings = {0: "[Unknown]", 1: "cudaLaunchKernel_v7000", 4: "k", 99: secret}
    rows = {
        "META_DATA_CAPTURE": [
            ("PROCESS_0:ENVIRONMENT_VARIABLE", secret),
            ("PROCESS_0:ARGUMENT_0", secret),
            ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
        ],
        "TARGET_INFO_SYSTEM_ENV": [(0, "", "CpuCores", 0, "32"), (0, "", "TargetInstallDir", 0, secret)],
        "ProcessStreams": [(process, 99, 99)],
        RUNTIME: [(10, 15, 0, process + 7, 1, 1)],
        KERNELS: [(20, 30, 0, 1, 7, 1, process, 4, 4, None, None)],
        "SCHED_EVENTS": [(1, 0, 1, process + 7, 0)],
    }
    trace = read(export(rows, strings=strings))
    assert trace.sources["cpus"].item() == 32
    for frame in trace.frames().values():
        assert secret not in frame.write_json()


def test_an_sqlite_file_of_others_is_refused(tmp_path):
    import sqlite3

    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE events (id)")
    with pytest.raises(BadTrace, match="it holds 1 table, none of Nsight Systems: 'events'"):
        read(path)


def test_the_machine_that_was_recorded_is_named(export, process):
    rows = {
        "TARGET_INFO_SYSTEM_ENV": [(0, "", "Hostname", 0, "gpu-7"), (0, "", "CpuCores", 0, "32")],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [(20, 25, 0, process + 7, 1, 1)],
        "CUPTI_ACTIVITY_KIND_KERNEL": [(100, 150, 0, 1, 7, 1, process, 4, 4, None, None)],
    }
    trace = read(export(rows))
    assert [trace.sources["host"][0], trace.threads["host"][0], trace.gpus["host"][0]] == ["gpu-7"] * 3
    rows["TARGET_INFO_SYSTEM_ENV"] += [(1, "", "Hostname", 0, "gpu-8")]  # which of them is whose is not known
    assert read(export(rows)).sources["host"][0] is None


def test_generic_events_are_counted(export):
    trace = read(export({"GENERIC_EVENTS": [(10, 1, "{}"), (20, 1, "{}")]}))
    assert trace.health["message"].str.contains("^2 generic events .* are counted, not read").sum() == 1
