"""Reads a big ftrace text with tracelib, with Python's re line by line, and with DuckDB; prints a table.

    python benchmarks/ftrace.py [CAPTURE] [--megabytes 300] [--rounds 3]

CAPTURE is any ftrace text with a TGID column (gzip or not; the committed sample by default); it is repeated,
with times shifted so that they go on, until it has the size. Each way runs in processes of its own, in turn
(`compared.py`). All must find the same number of events and the same last time to the microsecond.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from compared import ROOT, Way, child, compared, options, table

SAMPLE = ROOT / "sample_traces" / "starved" / "ftrace.txt.gz"
TIME = re.compile(rb"(\[\d{3}\] \S+ +)(\d+)\.(\d{6}): ")
HEAD = r"^\s*(.*)-(\d+)\s+(?:\(\s*([\d-]+)\)\s+)?\[(\d+)\]\s+(?:\S{4,6}\s+)?(\d+)\.(\d+):\s+(\w+)(.*)$"
SWITCH = (
    r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) "
    r"==> next_comm=(.*) next_pid=(\d+) next_prio=\d+"
)
WAKE = r"comm=(.*) pid=(\d+) prio=\d+ target_cpu=(\d+)"


def generate(capture: Path, out: Path, size: int) -> None:
    from tracelib.sources.files import open_stream

    with open_stream(capture) as stream:
        text = stream.readall()
    lines = text.splitlines(keepends=True)
    header = b"".join(line for line in lines if line.startswith(b"#"))
    body = b"".join(line for line in lines if not line.startswith(b"#"))
    pieces, times, at = [], [], 0
    for found in TIME.finditer(body):
        pieces.append(body[at : found.start(2)])
        times.append(int(found[2]) * 1_000_000 + int(found[3]))
        at = found.end(3)
    span, written, turn = max(times) - min(times) + 100, 0, 0
    with out.open("wb", buffering=1 << 20) as file:
        file.write(header)
        while written < size:
            moved = [b"%5d.%06d" % divmod(moment + turn * span, 1_000_000) for moment in times]
            block = b"".join(part for pair in zip(pieces, moved, strict=True) for part in pair) + body[at:]
            written += file.write(block)
            turn += 1


def with_tracelib(path: Path) -> list[int]:
    from tracelib.sources.ftrace import read

    trace = read(path)
    message = trace.health["message"][0]
    return [int(message.split()[0].replace(",", "")), trace.sources["last_ns"][0] // 1000]


def with_re(path: Path) -> list[int]:
    head, switch, wake = re.compile(HEAD), re.compile(SWITCH), re.compile(WAKE)
    events, fields, last = [], [], 0
    with path.open(errors="replace") as file:
        for line in file:
            found = head.match(line)
            if found is None:
                continue
            name, pid, _, cpu, seconds, micros, event, rest = found.groups()
            moment = int(seconds) * 1_000_000 + int(micros)
            last = max(last, moment)
            events.append((moment, name, int(pid), int(cpu), event))
            if event.startswith("sched_"):
                inner = (switch if event == "sched_switch" else wake).search(rest)
                if inner:
                    fields.append(inner.groups())
    return [len(events), last]


def with_duckdb(path: Path) -> list[int]:
    import duckdb

    db = duckdb.connect()
    names = "['comm','pid','tgid','cpu','sec','usec','event','rest']"
    rows = f"""create table events as select g.comm, g.pid::int pid, g.cpu::int cpu, g.event,
        g.sec::bigint * 1000000 + g.usec::bigint as ts,
        regexp_extract(g.rest, '{SWITCH}', ['prev_comm','prev','state','next_comm','next']) as switch,
        regexp_extract(g.rest, '{WAKE}', ['comm','pid','cpu']) as wake
        from (select regexp_extract(l, '{HEAD}', {names}) g
        from read_csv('{path}', header=false, delim='\x02', quote='', escape='', columns={{l:'VARCHAR'}})
        where l[1] <> '#') where g.event <> ''"""
    db.execute(rows)
    return list(db.execute("select count(*), max(ts) from events").fetchone())


WAYS = {
    "tracelib": Way(with_tracelib, "tracelib.sources.ftrace"),
    "Python re, line by line": Way(with_re),
    "DuckDB, regexp_extract": Way(with_duckdb, "duckdb"),
}


def main() -> None:
    sys.path.insert(0, str(ROOT))
    if child(WAYS):
        return
    given = options(__doc__, SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.txt"
        generate(given.capture, path, given.megabytes * 10**6)
        size = path.stat().st_size / 1e6
        runs = compared(__file__, WAYS, path, given.rounds)
    print(f"ftrace text of {size:.0f} MB, {runs['tracelib'][0].found[0]:,} events:\n")
    table(runs, size, "tracelib")


if __name__ == "__main__":
    main()
