"""Speed and memory of the `perf script` reader beside other ways to read the same text.

    python benchmarks/perf.py [CAPTURE] [--megabytes 300] [--rounds 3]

CAPTURE is any `perf script --ns` text (gzip or not; the committed sample by default); it is repeated, with
times shifted, up to the size asked for. Each way runs in processes of its own, in turn (`compared.py`). All
must count the same samples and scheduler events.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
from pathlib import Path

from compared import ROOT, Way, child, compared, options, table

SAMPLE = ROOT / "sample_traces" / "starved" / "perf.txt.gz"
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


def tracelib(path: Path) -> list[int]:
    from tracelib.sources.perf import read

    trace = read(path)
    return [trace.samples.height, trace.sched.height]


def python_re(path: Path) -> list[int]:
    head, frame = re.compile(HEAD), re.compile(FRAME)
    heads, frames = [], []
    with path.open(errors="replace") as file:
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


def duckdb(path: Path) -> list[int]:
    import duckdb as db

    con = db.connect()
    con.execute(f"set threads={os.cpu_count()}; set enable_progress_bar=false")
    con.execute(
        "create table line as select row_number() over () as place, l from read_csv(?, header=false, "
        "delim='\x02', quote='', escape='', columns={'l': 'VARCHAR'}, ignore_errors=true)",
        [str(path)],
    )
    con.execute(
        f"create table head as select place, regexp_extract(l, '{HEAD}', "
        "['comm','pid','tid','cpu','s','f','period','event','rest']) as g "
        "from line where l <> '' and l[1] not in (chr(9), '#')"
    )
    con.execute(
        f"create table frame as select place, regexp_extract(l, '{FRAME}', ['ip','symbol','library']) as g "
        "from line where l[1] = chr(9)"
    )
    sched, every = con.execute(
        "select count(*) filter (g.event like 'sched:%'), count(*) filter (g.event <> '') from head"
    ).fetchone()
    return [every - sched, sched]


WAYS = {
    "tracelib": Way(tracelib, "tracelib.sources.perf.script"),
    "Python re, line by line": Way(python_re),
    "DuckDB, regexp_extract": Way(duckdb, "duckdb"),
}


def main() -> None:
    sys.path.insert(0, str(ROOT))
    if child(WAYS):
        return
    given = options(__doc__, SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "perf.txt"
        make(given.capture, given.megabytes * 10**6, path)
        size = path.stat().st_size / 1e6
        runs = compared(__file__, WAYS, path, given.rounds)
    samples, sched = runs["tracelib"][0].found
    print(f"`perf script` text of {size:.0f} MB, {samples:,} samples, {sched:,} scheduler events:\n")
    table(runs, size, "tracelib")


if __name__ == "__main__":
    main()
