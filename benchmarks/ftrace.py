"""Reads a big ftrace text with tracelib, with Python's re line by line, and with DuckDB; prints one Markdown table.

    python benchmarks/ftrace.py CAPTURE [--mb 300] [--rounds 3]

CAPTURE is any ftrace text with a TGID column (gzip or not); it is repeated, with times shifted so that they go on, until
it has the size. Each contender runs in its own process, in turn, so that the peak of resident memory is its own and a
noisy machine slows all alike; the best of the rounds counts. Every contender must find the same number of events and the
same last time to the microsecond. DuckDB takes part where it is installed.
"""

import argparse
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIME = re.compile(rb"(\[\d{3}\] \S+ +)(\d+)\.(\d{6}): ")
HEAD = r"^\s*(.*)-(\d+)\s+(?:\(\s*([\d-]+)\)\s+)?\[(\d+)\]\s+(?:\S{4,6}\s+)?(\d+)\.(\d+):\s+(\w+)(.*)$"
SWITCH = r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) next_prio=\d+"
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


def with_tracelib(path: Path) -> tuple[int, int]:
    from tracelib.sources.ftrace import read

    trace = read(path)
    message = trace.health["message"][0]
    return int(message.split()[0].replace(",", "")), trace.sources["last_ns"][0] // 1000


def with_re(path: Path) -> tuple[int, int]:
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
    return len(events), last


def with_duckdb(path: Path) -> tuple[int, int]:
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
    return db.execute("select count(*), max(ts) from events").fetchone()


CONTENDERS = {
    "tracelib": with_tracelib,
    "Python re, line by line": with_re,
    "DuckDB regexp_extract": with_duckdb,
}


def alone(name: str, path: Path) -> None:
    """Run one contender in this process and print what it took."""
    __import__("polars" if name == "tracelib" else "duckdb" if name.startswith("Duck") else "re")
    before = time.perf_counter()
    events, last = CONTENDERS[name](path)
    wall = time.perf_counter() - before
    print(wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, events, last)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("capture", type=Path)
    arguments.add_argument("--mb", type=int, default=300)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--alone", choices=CONTENDERS, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.alone:
        alone(given.alone, given.capture)
        return
    names = [name for name in CONTENDERS if not name.startswith("Duck") or importlib.util.find_spec("duckdb")]
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder) / "big.txt"
        generate(given.capture, big, given.mb * 1_000_000)
        size = big.stat().st_size
        best: dict[str, list[float]] = {}
        for _ in range(given.rounds):
            for name in names:
                command = [sys.executable, __file__, str(big), "--alone", name]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                result = [float(value) for value in done.stdout.split()]
                best[name] = min(best.get(name, result), result)
    answers = {tuple(result[2:]) for result in best.values()}
    assert len(answers) == 1, f"contenders disagree: {best}"
    print(
        f"ftrace text, {size / 1e6:.0f} MB, {int(best['tracelib'][2]):,} events, {os.cpu_count()} cores, best of {given.rounds}\n"
    )
    print("| reader | s | MB/s | peak memory / file | times tracelib's time |\n|---|---|---|---|---|")
    for name, (wall, peak, *_) in best.items():
        print(
            f"| {name} | {wall:.2f} | {size / 1e6 / wall:.0f} | {peak / size:.2f} | {wall / best['tracelib'][0]:.1f} |"
        )


if __name__ == "__main__":
    main()
