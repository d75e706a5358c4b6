"""How fast an nsys export becomes frames, beside SQLite's own scan and beside what Python offers without us.

Writes an export of the given size, half kernels and half CUDA calls, with names, several threads and streams, in the
layout of nsys 2025; runs each way in a process of its own, in turn, and prints medians as a Markdown table:

    python benchmarks/nsys.py --rows 10e6

- *scan*: `sqlite3` sums the columns that the reader needs; no row leaves SQLite. The limit for anything built on SQLite.
- *tracelib*: `tracelib.sources.nsys.read`, from path to checked and sorted frames, the import included.
- *fetchall*: `sqlite3.fetchall` of the same columns, into Polars, names joined in SQL: the way without a library.
"""

import argparse
import os
import platform
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
  registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
  blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
  dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
  gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
"""
STRINGS, BATCH, PROCESS = 6000, 250_000, 1 << 48 | 4242 << 24


def write(path, rows):
    """Write an export with `rows` kernels and calls in all."""
    import numpy as np

    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + DEFINITIONS)
    kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, {0}ul> >(int, T{0})"
    names = ((n, kernel.format(n) if n > 100 else f"cudaLaunchKernel_v{n + 1000}") for n in range(STRINGS))
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
    random, now = np.random.default_rng(0), 10**9
    for first in range(0, rows // 2, BATCH):
        count = min(BATCH, rows // 2 - first)
        called = now + np.cumsum(random.integers(500, 4000, count))
        length, correlation = random.integers(800, 90_000, count), np.arange(first, first + count)
        kernels = (called + 5000, called + 5000 + length, random.choice([7, 7, 7, 13, 20], count), correlation,
                   *random.integers(101, STRINGS, (2, count)), random.integers(1, 4000, count), correlation)  # fmt: skip
        connection.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, NULL, ?, ?, {PROCESS}, ?, ?, NULL, 0, 0, 32, ?, 1, 1, "
            "256, 1, 1, 0, 1024, 0, 60817408, ?, 32768, NULL, 0)",
            zip(*(column.tolist() for column in kernels), strict=True),
        )
        calls = (called, called + random.integers(200, 3000, count), PROCESS | random.choice([4242, 4300, 4301], count),
                 correlation, random.integers(0, 100, count))  # fmt: skip
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
            zip(*(column.tolist() for column in calls), strict=True),
        )
        now = int(called[-1])
    connection.commit()
    connection.close()


def scan(path):
    connection = sqlite3.connect(path)
    for table, columns in TABLES.items():
        # ids of processes are near 2^63: their sums would overflow
        sums = ", ".join(f"sum({c} & 65535)" if c.startswith("global") else f"sum({c})" for c in columns)
        connection.execute(f"SELECT {sums} FROM {table}").fetchall()


def tracelib(path):
    from tracelib.sources.nsys import read

    read(Path(path))


def fetchall(path):
    import polars as pl

    connection = sqlite3.connect(path)
    for table, columns in TABLES.items():
        chosen = ", ".join(f"t.{c}" for c in columns)
        rows = connection.execute(
            f"SELECT {chosen}, s.value AS name FROM {table} t JOIN StringIds s ON s.id = t.{NAMES[table]}"
        )
        pl.DataFrame(rows.fetchall(), schema=[*columns, "name"], orient="row", infer_schema_length=100)


WAYS = {"scan": scan, "tracelib": tracelib, "fetchall": fetchall}


def measured(way, path):
    """Return seconds and peak MB of one run in a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, __file__, "--way", way, "--export", str(path)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{way} failed with status {status}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e6, help="kernels and calls in all (1e6)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=[], choices=WAYS, help="ways to leave out")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--export", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        return WAYS[given.way](given.export)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        write(path, int(given.rows))
        ways = [way for way in WAYS if way not in given.skip]
        runs = {way: [] for way in ways}
        for _ in range(given.rounds):  # in turn, so that whatever else the machine does meets all of them
            for way in ways:
                runs[way].append(measured(way, path))
        size = path.stat().st_size / 1e6
    median = {way: statistics.median(seconds for seconds, _ in runs[way]) for way in ways}
    memory = resource.getpagesize() * os.sysconf("SC_PHYS_PAGES") / 1e9
    print(
        f"{given.rows:,.0f} rows, {size:.0f} MB, median of {given.rounds}; {os.cpu_count()} cores, {memory:.0f} GB, Python {platform.python_version()}\n"
    )
    print("| way | s | times the scan | peak MB |\n|---|---|---|---|")
    for way in ways:
        print(
            f"| {way} | {median[way]:.2f} | {median[way] / median['scan']:.2f} | {max(mb for _, mb in runs[way]):.0f} |"
        )
    return None


if __name__ == "__main__":
    main()
