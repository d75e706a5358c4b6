"""Speed and memory of the `perf script` reader beside other ways to read the same text.

    python benchmarks/perf.py CAPTURE [--megabytes 300] [--rounds 3]

CAPTURE is any `perf script --ns` text (gzip or not); it is repeated, with times shifted, up to the size asked for. Each
way runs in its own process, in turn, round by round: wall time and peak memory include imports. All must count the same
samples and scheduler events. DuckDB takes part where it is installed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = r"^(\S.*?) +(?:(-?\d+)/)?(-?\d+) +(?:\[(\d+)\] +)?(\d+)\.(\d+): +(?:(\d+) +)?(\S+): ?(.*)$"
FRAME = r"^\s*([0-9a-f]+) (.*?)(?:\+0x[0-9a-f]+)? \((.*)\)$"
TIME = re.compile(rb"(?m)^(\S.*?\] +)(\d+)(\.\d{9}: )")


def make(capture: Path, size: int, out: Path) -> None:
    """Write `capture` repeated up to `size` bytes, each repetition later than the one before."""
    data = capture.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    start = text.index(b"\n\n", text.rindex(b"\n#\n") if b"\n#\n" in text else 0)
    start = text.rindex(b"\n#\n", 0, start) + 3 if b"\n#\n" in text[:start] else 0
    head, body = text[:start], text[start:]
    seconds = [int(m[2]) for m in TIME.finditer(body)]
    span = max(seconds) - min(seconds) + 1
    with out.open("wb") as file:
        written, shift = file.write(head), 0
        while written < size:
            moved = TIME.sub(lambda m, by=shift: m[1] + str(int(m[2]) + by).encode() + m[3], body)
            written += file.write(moved)
            shift += span


def tracelib(path: str) -> list[int]:
    sys.path.insert(0, str(ROOT))
    from tracelib.sources.perf import read

    trace = read(Path(path))
    return [trace.samples.height, trace.sched.height]


def python_re(path: str) -> list[int]:
    head, frame = re.compile(HEAD), re.compile(FRAME)
    heads, frames = [], []
    with Path(path).open(errors="replace") as file:
        for line in file:
            if line[0] == "\t":
                found = frame.match(line)
                if found:
                    frames.append((len(heads), found[2], found[3]))
            elif line[0] not in "#\n" and (found := head.match(line)):
                heads.append(
                    (
                        found[1],
                        found[3],
                        found[4],
                        int(found[5]) * 10**9 + int(found[6]),
                        found[7],
                        found[8],
                        found[9],
                    )
                )
    sched = sum(row[5].startswith("sched:") for row in heads)
    return [len(heads) - sched, sched]


def duckdb(path: str) -> list[int]:
    import duckdb as db

    con = db.connect()
    con.execute(f"set threads={os.cpu_count()}; set enable_progress_bar=false")
    con.execute(
        "create table line as select row_number() over () as place, l from read_csv(?, header=false, delim='\x02', quote='', escape='', "
        "columns={'l': 'VARCHAR'}, ignore_errors=true)",
        [path],
    )
    con.execute(
        f"create table head as select place, regexp_extract(l, '{HEAD}', ['comm','pid','tid','cpu','s','f','period','event','rest']) as g "
        "from line where l <> '' and l[1] not in (chr(9), '#')"
    )
    con.execute(
        f"create table frame as select place, regexp_extract(l, '{FRAME}', ['ip','symbol','library']) as g from line where l[1] = chr(9)"
    )
    sched, every = con.execute(
        "select count(*) filter (g.event like 'sched:%'), count(*) filter (g.event <> '') from head"
    ).fetchone()
    return [every - sched, sched]


WAYS = {"tracelib": tracelib, "Python re, line by line": python_re, "DuckDB, regexp_extract": duckdb}


def measure(way: str, path: Path) -> tuple[float, float, float, list[int]]:
    """Return wall seconds, CPU seconds, peak resident megabytes and counts of one way, run in its own process."""
    code = (
        f"import sys, json, resource; sys.path.insert(0, {str(Path(__file__).parent)!r}); import perf; "
        f"counts = perf.WAYS[{way!r}]({str(path)!r}); "
        "used = resource.getrusage(resource.RUSAGE_SELF); "
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1.024 / 1e3, counts]))"
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    wall = time.perf_counter() - began
    cpu, memory, counts = json.loads(
        done.stdout.splitlines()[-1].rsplit("\r", 1)[-1]
    )  # DuckDB shows its progress there
    return wall, cpu, memory, counts


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("capture", type=Path)
    options.add_argument("--megabytes", type=int, default=300)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    ways = [way for way in WAYS if not way.startswith("DuckDB") or importlib.util.find_spec("duckdb")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "perf.txt"
        make(args.capture, args.megabytes * 10**6, path)
        size = path.stat().st_size / 1e6
        runs = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way in ways:
                runs[way].append(measure(way, path))
    counts = {way: rows[0][3] for way, rows in runs.items()}
    assert len({tuple(c) for c in counts.values()}) == 1, f"the ways disagree: {counts}"
    samples, sched = counts["tracelib"]
    ours = statistics.median(row[0] for row in runs["tracelib"])
    print(f"`perf script` text, {size:.0f} MB, {samples:,} samples, {sched:,} scheduler events; "
          f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; median of {args.rounds} rounds\n")  # fmt: skip
    print("| way | s | MB/s | times ours | CPU s | peak memory, times the file |\n|---|---|---|---|---|---|")
    for way, rows in runs.items():
        wall, cpu, memory = (statistics.median(row[k] for row in rows) for k in (0, 1, 2))
        print(
            f"| {way} | {wall:.2f} | {size / wall:.0f} | {wall / ours:.1f} | {cpu:.2f} | {memory / size:.2f} |"
        )


if __name__ == "__main__":
    main()
