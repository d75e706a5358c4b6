"""`python -m sample_traces.capture.tidy RECORDED SAMPLE`: what goes into the repository of a recorded folder.

Paths of the machine are rewritten as told (`--path /its/own=/srv/app`), an nsys export loses the environment
and the command line, perf's text is cut to the loaded window (and 50 ms on both sides), a Kineto trace may be
cut to some milliseconds of the load (`--kineto-ms FROM TO`). Nothing else is changed; the server's logs stay
behind, their figures are in truth.json.
"""

import argparse
import gzip
import json
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path

MARGIN_NS = 50_000_000
SECRET_TABLES = (
    "TARGET_INFO_SYSTEM_ENV",
    "META_DATA_CAPTURE",
    "DIAGNOSTIC_EVENT",
    "PROCESSES",
    "ProcessStreams",
    "ANALYSIS_FILE",
)
TIME = re.compile(rb"\s(\d+)\.(\d{9}):\s")


def tidy(recorded: Path, sample: Path, paths: list[tuple[str, str]], kineto_ms: list[float] | None) -> None:
    """Write the sample of a recorded folder."""
    sample.mkdir(parents=True, exist_ok=True)
    window = [int((recorded / name).read_text()) for name in ("started", "ended")]
    for path in sorted(recorded.glob("*.gz")):
        data = gzip.decompress(path.read_bytes())
        if path.name == "perf.txt.gz":
            data = cut_perf(data, window[0] - MARGIN_NS, window[1] + MARGIN_NS)
        if path.name == "nsys.sqlite.gz":
            data = without_environment(data, paths)
        if path.name.endswith(".json.gz") and kineto_ms is not None:
            data = cut_kineto(data, _wall(recorded, window[0]), kineto_ms)
        if path.name != "nsys.sqlite.gz":
            for path_there, path_here in paths:
                data = data.replace(path_there.encode(), path_here.encode())
        (sample / path.name).write_bytes(gzip.compress(data, 9, mtime=0))
    for name in ("cpu.max", "cpu.stat.before", "cpu.stat.after", "truth.json"):
        if (recorded / name).exists():
            shutil.copy(recorded / name, sample / name)


def _wall(recorded: Path, monotonic: int) -> int:
    meta = json.loads((recorded / "meta.json").read_text())
    return monotonic + meta["realtime_ns"] - meta["monotonic_ns"]


def cut_perf(text: bytes, start: int, end: int) -> bytes:
    """Return the header and the events inside the window (head, call chain, an empty line)."""
    head, _, events = text.partition(b"# ========\n#\n")
    if not events:
        raise ValueError("perf's header does not end as expected")

    def inside(event: bytes) -> bool:
        found = TIME.search(event)
        return found is not None and start <= int(found[1]) * 10**9 + int(found[2]) <= end

    kept = [event for event in re.split(rb"\n(?=\S)|\n\n", events) if inside(event)]
    return head + b"# ========\n#\n" + b"".join(event.rstrip(b"\n") + b"\n\n" for event in kept)


def cut_kineto(text: bytes, wall: int, milliseconds: list[float]) -> bytes:
    """Return what began in some milliseconds after a moment of wall time, and all metadata."""
    trace = json.loads(text)
    begin = (wall - trace["baseTimeNanoseconds"]) / 1000
    start, end = (begin + 1000 * each for each in milliseconds)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ph"] == "M" or start <= e["ts"] <= end]
    return json.dumps(trace).encode()


def without_environment(export: bytes, paths: list[tuple[str, str]]) -> bytes:
    """Return an nsys export without the environment, the command line and other processes' names."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(export)
        base = sqlite3.connect(file.name)
        for table in SECRET_TABLES:
            base.execute(f"delete from {table}")
        used = [
            f"select {column} from {table} where {column} is not null" for table, column in text_columns(base)
        ]
        base.execute(f"delete from StringIds where id not in ({' union '.join(used)})")
        base.executemany("update StringIds set value = replace(value, ?, ?)", paths)
        base.execute("delete from META_DATA_EXPORT where value like '%/%'")
        base.commit()
        base.execute("vacuum")
        base.close()
        return Path(file.name).read_bytes()


def text_columns(base: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the table columns that hold ids of StringIds, by the names that the exporter gives them."""
    tables = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
    named = re.compile(r"(?i)(nameid|textid|shortname|demangledname|mangledname|symbol|module)$")
    return [
        (table, column[1])
        for table in tables
        if table != "StringIds"
        for column in base.execute(f"pragma table_info([{table}])")
        if column[2].upper() == "INTEGER" and named.search(column[1])
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m sample_traces.capture.tidy", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("recorded", type=Path, help="folder that record.sh wrote")
    parser.add_argument("sample", type=Path, help="folder to write")
    parser.add_argument(
        "--kineto-ms", type=float, nargs=2, help="keep only what began in these milliseconds of the load"
    )
    parser.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="THERE=HERE",
        help="write a path of the machine as another one",
    )
    given = parser.parse_args()
    pairs = [(there, here) for there, _, here in (text.partition("=") for text in given.path)]
    tidy(given.recorded, given.sample, pairs, given.kineto_ms)
