"""How fast an nsys export becomes frames, beside SQLite's own scan and beside what Python offers without us.

    python benchmarks/nsys.py [--rows 10e6] [--rounds 3]

Writes an export of the given size, half kernels and half CUDA calls, with names, several threads and streams,
in the layout of nsys 2025. Each way runs in processes of its own, in turn (`compared.py`); all must find the
same last time.

- *sqlite3, a bare scan* sums the columns that the reader needs; no row leaves SQLite. The limit for anything
  built on it.
- *tracelib* goes from the path to checked and sorted frames.
- *sqlite3, fetchall* puts the same columns into Polars, names joined in SQL: the way without a library. On a
  fifth of the rows, since it holds every value as a Python object; beside it a scan of the same rows, for the
  ratio.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from pathlib import Path

from compared import ROOT, Way, child, compared, table

KERNEL = (
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "demangledName",
    "graphNodeId",
)
RUNTIME = ("start", "end", "globalTid", "correlationId", "nameId")
TABLES = {"CUPTI_ACTIVITY_KIND_KERNEL": KERNEL, "CUPTI_ACTIVITY_KIND_RUNTIME": RUNTIME}
NAMES = {"CUPTI_ACTIVITY_KIND_KERNEL": "demangledName", "CUPTI_ACTIVITY_KIND_RUNTIME": "nameId"}
DEFINITIONS = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
  cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT
  NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT
  NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
  localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
  sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
  start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
"""
STRINGS, BATCH, PROCESS = 6000, 250_000, 1 << 48 | 4242 << 24


def write(path, rows):
    """Write an export with `rows` kernels and calls in all."""
    import numpy as np

    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + DEFINITIONS)
    kernel = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, "
        "std::array<char*, {0}ul> >(int, T{0})"
    )
    names = ((n, kernel.format(n) if n > 100 else f"cudaLaunchKernel_v{n + 1000}") for n in range(STRINGS))
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
    random, now = np.random.default_rng(0), 10**9
    for first in range(0, rows // 2, BATCH):
        count = min(BATCH, rows // 2 - first)
        called = now + np.cumsum(random.integers(500, 4000, count))
        length, correlation = random.integers(800, 90_000, count), np.arange(first, first + count)
        kernels = (
            called + 5000,
            called + 5000 + length,
            random.choice([7, 7, 7, 13, 20], count),
            correlation,
            *random.integers(101, STRINGS, (2, count)),
            random.integers(1, 4000, count),
            correlation,
        )
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL "
            f"VALUES (?, ?, 0, 1, NULL, ?, ?, {PROCESS}, ?, ?, NULL, 0, 0, 32, "
            "?, 1, 1, 256, 1, 1, 0, 1024, 0, 60817408, ?, 32768, NULL, 0)",
            zip(*(column.tolist() for column in kernels), strict=True),
        )
        calls = (
            called,
            called + random.integers(200, 3000, count),
            PROCESS | random.choice([4242, 4300, 4301], count),
            correlation,
            random.integers(0, 100, count),
        )
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
            zip(*(column.tolist() for column in calls), strict=True),
        )
        now = int(called[-1])
    connection.commit()
    connection.close()


def scan(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    last = 0
    for table_name, columns in TABLES.items():
        # ids of processes are near 2^63: their sums would overflow
        sums = ", ".join(f"sum({c} & 65535)" if c.startswith("global") else f"sum({c})" for c in columns)
        last = max(last, connection.execute(f"SELECT max(end), {sums} FROM {table_name}").fetchone()[0])
    return [last]


def tracelib(path: Path) -> list[int]:
    from tracelib.sources.nsys import read

    return [read(path).sources["last_ns"][0]]


def fetchall(path: Path) -> list[int]:
    import polars as pl

    connection = sqlite3.connect(path)
    last = 0
    for table_name, columns in TABLES.items():
        chosen = ", ".join(f"t.{c}" for c in columns)
        rows = connection.execute(
            f"SELECT {chosen}, s.value AS name FROM {table_name} t "
            f"JOIN StringIds s ON s.id = t.{NAMES[table_name]}"
        )
        frame = pl.DataFrame(
            rows.fetchall(), schema=[*columns, "name"], orient="row", infer_schema_length=100
        )
        last = max(last, frame["end"].max())
    return [last]


SCAN = "sqlite3, a bare scan"
WAYS = {
    SCAN: Way(scan),
    "tracelib": Way(tracelib, "tracelib.sources.nsys"),
    "sqlite3, fetchall": Way(fetchall, "polars"),
}


def at_size(rows: int, names: tuple[str, ...], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        write(path, rows)
        size = path.stat().st_size / 1e6
        runs = compared(__file__, {name: WAYS[name] for name in names}, path, rounds)
    print(f"\nnsys export to SQLite of {size:.0f} MB, {rows:,} rows:\n")
    table(runs, size, SCAN)


def main() -> None:
    sys.path.insert(0, str(ROOT))
    if child(WAYS):
        return
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rows", type=float, default=10e6, help="kernels and calls in all (10e6)")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    at_size(int(given.rows), (SCAN, "tracelib"), given.rounds)
    at_size(int(given.rows / 5), (SCAN, "tracelib", "sqlite3, fetchall"), 1)


if __name__ == "__main__":
    main()
