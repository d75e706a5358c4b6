"""Tables, columns and kinds that few exports have, after NVIDIA's schema reference; rows written by hand."""

import shutil
import sqlite3

import polars as pl
import pytest

from tracelib.sources.nsys import read, sniff
from tracelib.sources.nsys.database import SQLITE

KERNELS, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def messages(trace):
    return " | ".join(trace.health["message"])


@pytest.fixture
def kernels(process):
    return [(10, 20, 0, 1, 7, 1, process, 4, 4, None, None), (30, 40, 0, 1, 7, 2, process, 4, 4, None, None)]


def _with_column(path, definition, at):
    """Rewrite the kernels' table with one more column before its column `at`."""
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNELS})")]
        place = columns.index(at)
        wanted = [
            *(f"{name} INTEGER" for name in columns[:place]),
            definition,
            *(f"{name} INTEGER" for name in columns[place:]),
        ]
        connection.execute(f"ALTER TABLE {KERNELS} RENAME TO old")
        connection.execute(f"CREATE TABLE {KERNELS} ({', '.join(wanted)})")
        names = ", ".join(columns)
        connection.execute(f"INSERT INTO {KERNELS} ({names}) SELECT {names} FROM old")
        connection.execute("DROP TABLE old")
    connection.close()
    return path


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_a_generated_column_shifts_no_other(export, kernels, kind):
    path = _with_column(export({KERNELS: kernels}), f"length INTEGER AS (end - start) {kind}", "end")
    ops = read(path).gpu_ops
    assert ops.select("ts_ns", "dur_ns", "stream", "correlation").rows() == [(10, 10, 7, 1), (30, 10, 7, 2)]


@pytest.mark.parametrize("kind", ["REAL", "TEXT", "BIGINT", ""])
def test_columns_of_other_types(export, kernels, kind):
    """As programs leave them that write a database anew."""
    path = export({KERNELS: kernels})
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNELS})")]
        connection.execute(f"ALTER TABLE {KERNELS} RENAME TO old")
        connection.execute(f"CREATE TABLE {KERNELS} ({', '.join(f'{name} {kind}' for name in columns)})")
        connection.execute(f"INSERT INTO {KERNELS} SELECT * FROM old")
    connection.close()
    ops = read(path).gpu_ops
    assert ops.select("ts_ns", "dur_ns", "stream", "correlation", "pid", "name").rows() == [
        (10, 10, 7, 1, 100, "my_kernel(int)"),
        (30, 10, 7, 2, 100, "my_kernel(int)"),
    ]


def test_a_view_is_not_read_but_told(export, kernels):
    path = export(
        {KERNELS: kernels},
        statements=[f"CREATE VIEW OSRT_API AS SELECT * FROM {KERNELS}", 'CREATE VIEW "a\nb" AS SELECT 1'],
    )
    trace = read(path)
    assert trace.slices.is_empty()
    assert "OSRT_API is a view, which is never read" in messages(trace)
    assert "\n" not in messages(trace)


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_changes_that_are_not_merged_are_told(export, kernels, tmp_path, ending):
    path = export({KERNELS: []})
    mode = "WAL" if ending == "-wal" else "DELETE"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA cache_size = 5")  # so that a long transaction reaches the file
    connection.execute("BEGIN")
    connection.executemany(f"INSERT INTO {KERNELS} VALUES ({', '.join('?' * 11)})", kernels * 2000)
    if ending == "-wal":
        connection.commit()
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    connection.close()
    (copy.parent / f"{path.name}{ending}").chmod(0o444)
    assert f"{path.name}{ending} beside it holds changes that are not read" in messages(read(copy))
    assert sorted(file.name for file in copy.parent.iterdir()) == [path.name, f"{path.name}{ending}"]


@pytest.mark.parametrize("content", [b"", bytes(5000), b"\x37\x7f\x06\x82"])
def test_a_log_that_is_done_with_is_no_damage(export, kernels, content):
    path = export({KERNELS: kernels})
    path.with_name(path.name + "-wal").write_bytes(content)
    assert "beside it" not in messages(read(path))


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


def test_tables_of_events_without_a_frame_are_counted(export, kernels):
    rows = {KERNELS: kernels, "CUDA_UM_GPU_PAGE_FAULT_EVENTS": [(1, 2, 3, 0), (4, 5, 6, 0)]}
    assert "counted, not read: CUDA_UM_GPU_PAGE_FAULT_EVENTS (2)" in messages(read(export(rows)))


def test_of_many_such_tables_those_with_most_rows_are_named(export, kernels):
    made = [f'CREATE TABLE "T{at:03}\n" (start INTEGER, x TEXT)' for at in range(150)]
    filled = [f'INSERT INTO "T{at:03}\n" VALUES (1, 2)' for at in range(20)] + [
        'INSERT INTO "T005\n" VALUES (1, 2)'
    ]
    trace = read(export({KERNELS: kernels}, statements=made + filled))
    said = next(message for message in trace.health["message"] if "counted, not read" in message)
    assert said.startswith(r"events that are counted, not read: T005\n (2), T019\n (1), ")
    assert said.endswith(" and 8 tables more")


def test_kernels_fall_back_to_their_short_name_one_by_one(export, process):
    ids = [(4, 13), (999, 13), (999, 998)]
    rows = [(at, at + 1, 0, 1, 7, at, process, *pair, None, None) for at, pair in enumerate(ids, 1)]
    trace = read(export({KERNELS: rows}))
    assert trace.gpu_ops["name"].to_list() == ["my_kernel(int)", "main", "[unknown]"]
    assert "1 calls and kernels are called [unknown]" in messages(trace)


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
    assert "3 NVTX records are not read: they are of another kind (35, 200)" in messages(trace)


def test_an_export_without_the_column_of_kinds_has_its_ranges(export, process):
    path = export(
        {"NVTX_EVENTS": [(1, 9, 59, "a range", process + 3)]},
        statements=["ALTER TABLE NVTX_EVENTS DROP COLUMN eventType"],
    )
    assert read(path).slices.filter(pl.col("category") == "annotation")["name"].to_list() == ["a range"]


def test_ranks_of_mpi(export, process):
    """Of GPUs: the rank of the only process that drives each; of the file: the only one in it."""
    first, second, third = (process + (at << 24) for at in range(3))
    rows = {
        KERNELS: [
            (10, 20, device, 1, 7, 1, owner, 4, 4, None, None)
            for device, owner in [(0, first), (1, second), (2, first), (2, second), (3, third)]
        ],
        "MPI_RANKS": [(first + 100, 4), (second + 101, 5)],
    }
    trace = read(export(rows))
    assert trace.gpus.select("device", "rank").rows() == [(0, 4), (1, 5), (2, None), (3, None)]
    assert trace.sources["rank"].item() is None
    assert read(export({"MPI_RANKS": [(first + 100, 4), (first + 107, 4)]})).sources["rank"].item() == 4


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("1,200 CUPTI records were dropped", 1200),
        ("CUDA profiling might have dropped some events. 1,234,567 events were dropped.", 1_234_567),
        ("Number of OSRT events dropped: 17", 17),
        ("5 processes were found; lost 12 samples", 12),
        ("12 events were lost in 5 buffers", 12),
        ("Process 4711: 3 NVTX events have been discarded", 3),
        ("Buffer overflow at 0x7f001234", 0),
        ("Some events were lost.", 0),
    ],
)
def test_how_many_events_a_diagnostic_says_were_lost(export, text, lost):
    trace = read(export({"DIAGNOSTIC_EVENT": [(1, 2, text)]}))
    assert trace.sources["lost_declared"].item() == lost
    assert text in messages(trace)


def test_calls_without_a_thread_are_told_but_not_the_profiler_s_own(export, process):
    rows = {
        RUNTIME: [(10, 15, 0, None, 1, 1), (20, 25, 0, process + 1, 2, 1)],
        "PROFILER_OVERHEAD": [(30, 35, None, 13)],
    }
    trace = read(export(rows))
    assert trace.slices.filter(pl.col("thread").is_null())["ts_ns"].to_list() == [10, 30]
    assert "1 host calls and ranges name no thread" in messages(trace)


def test_an_export_is_recognised_by_its_enumerations_too():
    """The first pages of a large export need not hold the definitions of its other tables."""
    head = (
        SQLITE.ljust(100)
        + b"\x05"
        + b"CREATE TABLE ENUM_NSYS_EVENT_TYPE (id); CREATE TABLE ENUM_CUDA_MEM_KIND (id)"
    )
    assert sniff(head, "any")
    assert not sniff(head.replace(b"ENUM_NSYS", b"ENUM_X"), "any")
