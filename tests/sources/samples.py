"""Small trace files to damage: made here, one of each spelling; and heads of recorded ones, if present.

A new format needs an entry in `MADE`: without one, its tests under `test_fuzz.py` fail.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

from tests.sources.text_samples import ROWS, Sample, ftrace_texts, perf_texts
from tracelib.sources.files import head

HEAD_BYTES = 30_000
LARGEST_DATABASE = 600_000
NSYS_TABLES = {
    "META_DATA_EXPORT": ("name TEXT, value TEXT", [("EXPORT_PRODUCT_VERSION", "2025.3.2.1")]),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER", [(1_700_000_000_000_000_000,)]),
    "TARGET_INFO_GPU": ("vmId INTEGER, id INTEGER, name TEXT", [(0, 0, "H200")]),
    "ThreadNames": ("nameId INTEGER, priority INTEGER, globalTid INTEGER", [(3, 0, 1 << 48 | 7 << 24 | 7)]),
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER, severity INTEGER, text TEXT",
        [(1, 2, "12 events were dropped")],
    ),
}


def _events() -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "VLLM::Worker"}},
        {"ph": "B", "name": "outer", "pid": 7, "tid": 8, "ts": 1},
        {"ph": "E", "pid": 7, "tid": 8, "ts": 900},
        {"ph": "C", "name": "memory", "pid": 7, "ts": 5, "args": {"value": 3}},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 0,
            "dur": 999,
        },
    ]
    for at in range(ROWS):
        span = {"ph": "X", "pid": 7, "tid": 8, "ts": at * 10 + 0.125, "dur": 3.5}
        events.append(
            span
            | {"cat": "cpu_op", "name": f"aten::op{at}", "args": {"External id": at, "Input Dims": [[2]]}}
        )
        events.append(span | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": at}})
        kernel = {"device": 0, "stream": 7, "correlation": at, "graph node id": 3}
        events.append(
            span | {"cat": "kernel", "name": 'k<"T">(int*)', "pid": 0, "tid": "stream 7", "args": kernel}
        )
        events.append({"ph": "s", "id": at, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 8, "ts": at})
    return events


def _steps() -> list[dict[str, object]]:
    """Return steps of a server's own tracer: lists of objects in their arguments, and `{}` as a filler."""
    requests = [{"rid": f"r{at}", "name": "k", "ph": "X", "tokens": [1, 2]} for at in range(12)]
    steps: list[dict[str, object]] = [
        {
            "args": {"requests": requests, "note": "a {brace}, a [bracket"},
            "dur": 5,
            "name": f"step {at}",
            "ph": "X",
            "pid": 7,
            "tid": 8,
            "ts": at * 10,
        }
        for at in range(ROWS // 2)
    ]
    return [*steps[:5], {}, *steps[5:], {}]


def _merged() -> list[dict[str, object]]:
    """Return the events of two ranks in one list, as SGLang merges them."""
    span = {"ph": "X", "ts": 1, "dur": 2}
    return [
        span
        | row
        | {"pid": f"[TP0{rank}] {row['pid']}", "args": {"correlation": at, "device": 0, "stream": 7}}
        for at in range(ROWS // 4)
        for rank in (0, 1)
        for row in (
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100 + rank, "tid": 100},
            {"cat": "kernel", "name": "k", "pid": 0, "tid": 7},
            {"cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 7},
            {"cat": "Trace", "name": "Record Window End", "pid": "Traces", "tid": "Trace"},
        )
    ]


def _torch_profiler(_place: Path) -> dict[str, Sample]:
    around = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 1},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    events = _events()
    one_line = json.dumps(around | {"traceEvents": events})
    tail = json.dumps({"traceEvents": events, **around}, indent=2)
    return {
        "Kineto on one line": {"rank1.json": one_line.encode()},
        "Kineto, base behind": {"rank1.json": tail.encode()},
        "bare list": {"t.json": json.dumps(events, separators=(",", ":")).encode()},
        "steps with requests": {"t.json": json.dumps({"traceEvents": _steps(), **around}).encode()},
        "merged ranks": {"merged.json": json.dumps(around | {"traceEvents": _merged()}).encode()},
    }


def _kernels() -> dict[str, tuple[str, list[tuple[object, ...]]]]:
    process, interval = 1 << 48 | 7 << 24, "start INTEGER, end INTEGER"
    return {
        "StringIds": (
            "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
            [(n, f"kernel_{n}<float>(int)") for n in range(ROWS)],
        ),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            (
                f"{interval}, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, "
                "demangledName INTEGER"
            ),
            [(10 * n, 10 * n + 5, 0, 7, n, process, n % ROWS) for n in range(5 * ROWS)],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            f"{interval}, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
            [(10 * n - 5, 10 * n - 2, process + 7, n, 1) for n in range(5 * ROWS)],
        ),
        "NVTX_EVENTS": (
            f"{interval}, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER",
            [(n, n + 9, 59, f"step {n}", process + 7, None) for n in range(ROWS)],
        ),
        "SCHED_EVENTS": (
            "start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER",
            [(n, 0, n % 2, process + 7) for n in range(ROWS)],
        ),
        "COMPOSITE_EVENTS": (
            "id INTEGER, start INTEGER, cpu INTEGER, globalTid INTEGER",
            [(n, n, 0, process + 7) for n in range(ROWS)],
        ),
        "SAMPLING_CALLCHAINS": (
            "id INTEGER, symbol INTEGER, module INTEGER, unresolved INTEGER, stackDepth INTEGER",
            [(n // 3, n % 5, 3, 0, n % 3) for n in range(3 * ROWS)],
        ),
        **NSYS_TABLES,
    }


def _database(place: Path, page_size: int) -> bytes:
    path = place / f"made-{page_size}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        for table, (columns, rows) in _kernels().items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.commit()
    return path.read_bytes()


def _directory(suffix: str, place: Path) -> Sample:
    """Return an export of one file per table; `StringIds` stands for all."""
    files: Sample = {}
    for table, (columns, rows) in _kernels().items():
        names = [column.split()[0] for column in columns.split(", ")]
        frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
        path = place / f"{table}.{suffix}"
        frame.write_parquet(path) if suffix == "parquet" else frame.write_ipc(path)
        files[path.name] = path.read_bytes()
    return files


def _shortened(path: Path, place: Path) -> bytes:
    """Return the export at `path` with few rows in each table."""
    copy = place / "short.sqlite"
    copy.write_bytes(head(path, 1 << 30))
    with closing(sqlite3.connect(copy)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in tables:
            connection.execute(f'DELETE FROM "{table}" WHERE rowid > 100')
        connection.commit()
        connection.execute("VACUUM")
    return copy.read_bytes()


def _nsys(place: Path) -> dict[str, Sample]:
    made = {f"pages of {size}": {"x.sqlite": _database(place, size)} for size in (512, 4096)}
    return made | {suffix: _directory(suffix, place) for suffix in ("parquet", "arrow")}


def _recorded(reader: str, shared: Path, place: Path) -> dict[str, Sample]:
    """Return the heads of the captures and of other people's files that are present in `shared`."""
    if reader == "nsys":
        starved = shared / "captures" / "nsys_starved" / "nsys_starved.sqlite.gz"
        made = {starved.name: {"x.sqlite": _shortened(starved, place)}} if starved.exists() else {}
        others = (shared / "corpus" / "nsys").rglob("*.sqlite")
        small = (path for path in others if path.stat().st_size <= LARGEST_DATABASE)
        return made | {path.name: {"x.sqlite": path.read_bytes()} for path in small}
    where = {
        "torch_profiler": ("captures/*/*.pt.trace.json.gz", "corpus/kineto/**/*", "corpus/chrome_json/**/*"),
        "perf": ("captures/*/perf.txt.gz", "corpus/perf_script/**/*"),
        "ftrace": ("captures/*/ftrace.txt.gz", "corpus/ftrace/**/*"),
    }.get(reader, ())
    files = sorted(path for pattern in where for path in shared.glob(pattern) if path.is_file())
    starts = {str(path.relative_to(shared)): head(path, HEAD_BYTES) for path in files if path.stat().st_size}
    return {name: {"x": start} for name, start in starts.items() if start}


#: Of each format, what returns its samples by name: files by their names, first the one that is read. It gets
#: a folder to work in.
MADE = {
    "perf": lambda _: perf_texts(),
    "ftrace": lambda _: ftrace_texts(),
    "torch_profiler": _torch_profiler,
    "nsys": _nsys,
}


def samples_of(reader: str, shared: Path, place: Path) -> dict[str, Sample]:
    """Return the samples for `reader` by name; `place` is a folder to work in."""
    assert reader in MADE, f"the fuzzer needs samples of the format {reader}: add them to MADE in {__file__}"
    return MADE[reader](place) | _recorded(reader, shared, place)
