"""Small trace files to damage: made here, one of each spelling; and heads of recorded ones, where those are present."""

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import polars as pl

from tracelib.sources.files import head

__all__ = ["READERS", "Sample", "samples_of"]

READERS = ("torch_profiler", "nsys", "perf", "ftrace")
#: A file's name to its bytes; the first is the one that a reader is given, the others lie beside it.
Sample = dict[str, bytes]

HEAD_BYTES = 30_000
LARGEST_DATABASE = 600_000
ROWS = 40

PERF_HEADER = """# ========
# captured on    : Mon Nov 30 02:39:47 2026
# hostname : h
# perf version : 6.1
# arch : x86_64
# nrcpus online : 4
# cmdline : perf record -a -k mono -e cpu-clock/freq=499/ -e sched:sched_switch -g
# event : name = sched:sched_switch, , id = { 1 }, type = 2, { sample_period, sample_freq } = 1, sample_type = IP
# clockid: monotonic (1)
# reference time: 2026-11-30 02:39:01.777879 = 1796006341.777879 (TOD) = 27.169973552 (monotonic)
# ========
#
"""
PERF_CHAIN = """\tffffffff813b9d17 __schedule+0x1b7 ([kernel.kallsyms])
\t           ecb7a clock_nanosleep (/usr/lib/libc.so.6)
\t            2a7f std::vector<int (*)(int), a b>::at(int) const+0x2 (/memfd:x y (deleted))
\t              12 inlined_function (inlined)
  file.c:12
\t            7f00 py::Foo.bar:/a/b c.py+0x1 (/tmp/perf-12.map)
\t              99 [unknown] ([unknown])

"""
PERF_SAYS = (
    "2004008 cpu-clock/freq=499/: ",
    "1 cycles:u: ",
    "1 sched:sched_switch: prev_comm=a b prev_pid=11 prev_prio=120 prev_state=R+ ==> next_comm=b:c next_pid=12 next_prio=120",
    "1 sched:sched_switch: b:c:12 [120] S ==> swapper/1:0 [120]",
    "1 sched:sched_wakeup: comm=a b pid=11 prio=120 target_cpu=003",
    "1 syscalls:sys_enter_futex: uaddr: 0x1, op: 0x0",
    "1 syscalls:sys_exit_futex: 0x0",
    "1 raw_syscalls:sys_enter: NR 202 (1, 0, 0)",
    "1 raw_syscalls:sys_exit: NR 202 = 0",
    "1 irq:softirq_entry: vec=1 [action=TIMER]",
    "PERF_RECORD_COMM: named:11/13",
    "PERF_RECORD_LOST lost 17",
    "PERF_RECORD_SWITCH_CPU_WIDE OUT preempt next pid/tid:    12/12",
    "PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:    11/11",
    "PERF_RECORD_SWITCH OUT",
)
PERF_HEADS = (
    "{name:>16} {tid:5d}/{tid:<5d} [{cpu:03d}] {s:5d}.{ns:09d}: ",
    "{name} {tid} [{cpu:03d}] {s}.000001: ",
    "{name}\t{tid} [{cpu:03d}] {s}.12:\t\t",
    "{tid}/{tid} {s}.{ns:09d}: ",
    "{name:<8.8} {tid:7d} {cpu:3d} {s:5d}.{ns:09d}: ",
)
PERF_NAMES = ("a b", "b:c", "my [1]: x", "swapper", "FS Broker 5906")

FTRACE_HEADS = (
    "{name:>16}-{tid:<7} [{cpu:03d}] d..2. {s:5d}.{us:06d}: ",
    "{name:>16}-{tid:<7} ({tid:7d}) [{cpu:03d}] d..2. {s:5d}.{us:06d}: ",
    "{name:>16}-{tid:<7} [{cpu:03d}]   {s:5d}.{us:06d}000: ",
    "{name:>8}-{tid:<5} {cpu}d..2. {s:5d}.{us:06d}: ",
    "{name:>8}-{tid:<5}   {cpu}d..2. {us}us!: ",
    "{name:>16}-{tid:<7} [{cpu:03d}]{s}{us:06d}: ",
)
FTRACE_RESTS = (
    "sched_switch: prev_comm=a b prev_pid=11 prev_prio=120 prev_state=S ==> next_comm=b-c next_pid=12 next_prio=120",
    "sched_switch:         b-c:12 [120] R ==> swapper/1:0 [120]",
    "sched_switch: prev_comm=a prev_pid=11 prev_prio=120 prev_state=0x1 next_comm=b next_pid=12 next_prio=120",
    "sched_waking: comm=a b pid=11 prio=120 target_cpu=003",
    "sched_wakeup: a b:11 [120] success=1 CPU:003",
    "sys_futex(uaddr: 1, op: 0)",
    "sys_futex -> 0x0",
    "sys_enter_read:       fd: 0x1",
    "sys_exit_read:        0x0",
    "sys_enter: NR 202 (1, 0, 0)",
    "sys_exit: NR 202 = 0",
    "tracing_mark_write: B|11|outer|x",
    "tracing_mark_write: E|11",
    "print: tracing_mark_write: C|11|queue|3",
    "tracing_mark_write: S|11|load|77",
    "tracing_mark_write: F|11|load|77",
    "tracing_mark_write: trace_event_clock_sync: realtime_ts=1700000000000",
    "bprint:               some_function: text\nthat goes on",
    "schedule+0x14/0x1ac <-do_nanosleep+0xc0/0x41c",
    "funcgraph_entry:                   |  do_sys_poll() {",
    "funcgraph_entry:        0.123 us   |    kfree();",
    "funcgraph_exit:         8.000 us   |  }",
    "cpu_idle: state=4294967295 cpu_id=2",
)
FTRACE_TOP = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 126/8736572   #P:8\n# clock: mono\n#\n"
FTRACE_DRAWN = """# tracer: function_graph
 9344.121158 |   1)   ping-1922    |  ...1 |               |  do_sys_poll() {
 9344.122358 |   1)   ping-1922    |  ..s. |   1.747 us    |    e1000_clean_rx_irq [e1000]();
 9344.122360 |   1)   ping-1922    |  ...1 |               |  /* sys_sched_setaffinity -> 0x0 */
 9344.122387 |   1)   ping-1922    |  ..s. | + 35.582 us   |  } /* do_sys_poll */
 1)   0.081 us    |  pick_task_fair();
"""

NSYS_TABLES = {
    "META_DATA_EXPORT": ("name TEXT, value TEXT", [("EXPORT_PRODUCT_VERSION", "2025.3.2.1")]),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER", [(1_700_000_000_000_000_000,)]),
    "TARGET_INFO_GPU": ("vmId INTEGER, id INTEGER, name TEXT", [(0, 0, "H200")]),
    "ThreadNames": ("nameId INTEGER, priority INTEGER, globalTid INTEGER", [(3, 0, 1 << 48 | 7 << 24 | 7)]),
    "DIAGNOSTIC_EVENT": ("timestamp INTEGER, severity INTEGER, text TEXT", [(1, 2, "12 events were dropped")]),
}  # fmt: skip


def _perf() -> dict[str, Sample]:
    made = {}
    for place, form in enumerate(PERF_HEADS):
        lines = [PERF_HEADER]
        for at in range(ROWS):
            name = PERF_NAMES[at % len(PERF_NAMES)]
            start = form.format(name=name, tid=11 + at % 3, cpu=at % 2, s=20 + at // 9, ns=at * 1000 + 7)
            lines.append(start + PERF_SAYS[at % len(PERF_SAYS)] + "\n" + (PERF_CHAIN if at % 4 else "\n"))
        made[f"perf text {place}"] = {"perf.txt": "".join(lines).encode()}
    sample = {"timestamp": 5, "pid": 7, "tid": 8, "cpu": 1, "comm": "x", "callchain": [{"ip": "0x1", "symbol": "f", "dso": "/a"}]}  # fmt: skip
    switch = {"prev_comm": "x", "prev_pid": "8", "prev_state": "1", "next_comm": "y", "next_pid": "9"}
    document = {"linux-perf-json-version": 1, "headers": {"hostname": "h", "cmdline": ["perf", "-k", "mono"]},
                "samples": [sample, sample | switch, sample | {"target_cpu": "0", "pid": "12"}] * 5}  # fmt: skip
    made["perf JSON"] = {"perf.json": json.dumps(document, indent="\t").encode()}
    return made


def _ftrace() -> dict[str, Sample]:
    made = {"function graph": {"trace.txt": FTRACE_DRAWN.encode() * 5}}
    for place, form in enumerate(FTRACE_HEADS):
        text = FTRACE_TOP
        for at in range(2 * ROWS):
            name = ("a b", "b-c", "<idle>", "<...>")[at % 4]
            start = form.format(
                name=name, tid=0 if at % 4 == 2 else 11 + at % 2, cpu=at % 2, s=20 + at // 9, us=at
            )
            text += start + FTRACE_RESTS[at % len(FTRACE_RESTS)] + "\n"
            text += "CPU:1 [LOST 14279 EVENTS]\n" if at == ROWS else ""
        made[f"ftrace text {place}"] = {"trace.txt": text.encode()}
    body = made["ftrace text 1"]["trace.txt"]
    made["web page"] = {
        "t.html": b'<!DOCTYPE html>\n<script class="trace-data">\n' + body + b"</script></html>"
    }
    made["atrace -z"] = {"trace": b"capturing trace... done\nTRACE:\n" + zlib.compress(body)}
    return made


def _events() -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "VLLM::Worker"}},
        {"ph": "B", "name": "outer", "pid": 7, "tid": 8, "ts": 1},
        {"ph": "E", "pid": 7, "tid": 8, "ts": 900},
        {"ph": "C", "name": "memory", "pid": 7, "ts": 5, "args": {"value": 3}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0, "dur": 999},
    ]  # fmt: skip
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


def _torch_profiler() -> dict[str, Sample]:
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
    }


def _kernels() -> dict[str, tuple[str, list[tuple[object, ...]]]]:
    process, interval = 1 << 48 | 7 << 24, "start INTEGER, end INTEGER"
    return {
        "StringIds": ("id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
                      [(n, f"kernel_{n}<float>(int)") for n in range(ROWS)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            f"{interval}, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER",
            [(10 * n, 10 * n + 5, 0, 7, n, process, n % ROWS) for n in range(5 * ROWS)]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            f"{interval}, globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
            [(10 * n - 5, 10 * n - 2, process + 7, n, 1) for n in range(5 * ROWS)]),
        "NVTX_EVENTS": (f"{interval}, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER",
                        [(n, n + 9, 59, f"step {n}", process + 7, None) for n in range(ROWS)]),
        "SCHED_EVENTS": ("start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER",
                         [(n, 0, n % 2, process + 7) for n in range(ROWS)]),
        "COMPOSITE_EVENTS": ("id INTEGER, start INTEGER, cpu INTEGER, globalTid INTEGER",
                             [(n, n, 0, process + 7) for n in range(ROWS)]),
        "SAMPLING_CALLCHAINS": ("id INTEGER, symbol INTEGER, module INTEGER, unresolved INTEGER, stackDepth INTEGER",
                                [(n // 3, n % 5, 3, 0, n % 3) for n in range(3 * ROWS)]),
        **NSYS_TABLES,
    }  # fmt: skip


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
    }[reader]
    files = sorted(path for pattern in where for path in shared.glob(pattern) if path.is_file())
    starts = {str(path.relative_to(shared)): head(path, HEAD_BYTES) for path in files if path.stat().st_size}
    return {name: {"x": start} for name, start in starts.items() if start}


def samples_of(reader: str, shared: Path, place: Path) -> dict[str, Sample]:
    """Return the samples for `reader` by name; `place` is a folder to work in."""
    own = {"perf": _perf, "ftrace": _ftrace, "torch_profiler": _torch_profiler, "nsys": lambda: _nsys(place)}
    return own[reader]() | _recorded(reader, shared, place)
