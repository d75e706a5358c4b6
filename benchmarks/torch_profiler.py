"""Speed and memory of the PyTorch Profiler reader beside other ways to read the same file.

    python benchmarks/torch_profiler.py [CAPTURE] [--megabytes 100 500] [--rounds 3] [--budget 210]

CAPTURE is a Kineto trace (gzip or not; the committed sample by default). Its events are repeated up to each size, with
times and ids shifted so that neither collides. Each way runs in a process of its own, in turn, round by round: wall time,
CPU time and peak memory include starting Python and imports, except where a row says otherwise. All must find the same
number of GPU kernels. HTA (HolisticTraceAnalysis), TraceLens (github.com/AMD-AGI/TraceLens, not on the index) and orjson
take part where the interpreter that HTA_PYTHON names, else this one, has them; what is left out is named with the reason.
A way that takes longer than `PATIENCE_S` runs once, and none longer than `LIMIT_S`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "sample_traces" / "starved" / "worker_TP0.pt.trace.json.gz"
PATIENCE_S = 15
LIMIT_S = 120  # of one run
LIST = re.compile(r'"traceEvents"\s*:\s*\[')
END = re.compile(r"\}\s*\](?=\s*,\s*\"traceName\")")
NUMBER = re.compile(r'("(?:ts|id|correlation|External id|Python id|Python parent id|Ev Idx)": )(\d+)')


def make(capture: Path, size: int, out: Path) -> None:
    """Write the events of `capture`, repeated up to `size` bytes, each repetition later and with ids of its own."""
    data = capture.read_bytes()
    text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode()
    start, end = LIST.search(text).end(), END.search(text).start() + 1
    pieces = NUMBER.split(text[start:end])  # text, key, number, text, key, number, …, text
    keys, numbers = pieces[1::3], [int(number) for number in pieces[2::3]]
    times = [number for key, number in zip(keys, numbers, strict=True) if key == '"ts": ']
    span = max(times) - min(times) + 1_000
    steps = [span if key == '"ts": ' else 10_000_000 for key in keys]
    with out.open("w") as file:
        written = file.write(text[:start])
        shift = 0
        while not shift or written + len(text) <= size:
            pieces[2::3] = [str(n + shift * step) for n, step in zip(numbers, steps, strict=True)]
            written += file.write(("," if shift else "") + "".join(pieces))
            shift += 1
        file.write(text[end:])


def _kernels(events: list[dict]) -> int:
    return sum(event.get("cat") == "kernel" for event in events)


def tracelib(path: str) -> int:
    from tracelib.sources.torch_profiler import read

    return int((read(Path(path)).gpu_ops["kind"] == "kernel").sum())


def second_load(path: str) -> int:
    """Read what a first load has left in the cache."""
    from tracelib.sources import torch_profiler
    from tracelib.sources.cache import Cache

    return int(
        (Cache(Path(f"{path}.cache")).read(Path(path), torch_profiler).gpu_ops["kind"] == "kernel").sum()
    )


def orjson(path: str) -> int:
    import orjson as library

    return _kernels(library.loads(_bytes(path))["traceEvents"])


def json_loads(path: str) -> int:
    return _kernels(json.loads(_bytes(path))["traceEvents"])


def _bytes(path: str) -> bytes:
    data = Path(path).read_bytes()
    return gzip.decompress(data) if path.endswith(".gz") else data


def hta(path: str) -> int:
    from hta.common.trace import parse_trace_file
    from hta.configs.parser_config import ParserConfig

    _, frame, symbols = parse_trace_file(path, ParserConfig.get_default_cfg())
    return int((frame["cat"] == symbols.get_sym_id_map()["kernel"]).sum())


def tracelens(path: str) -> int:
    from TraceLens.util import DataLoader

    return _kernels(DataLoader.load_data(path)["traceEvents"])


def _drained(stream: object) -> int:
    buffer, count = bytearray(1 << 20), 0
    while got := stream.readinto(buffer):
        count += got
    return count


def our_stream(path: str) -> int:
    from tracelib.sources.files import open_stream

    return _drained(open_stream(Path(path)))


def isal_stream(path: str) -> int:
    from isal import igzip

    return _drained(igzip.open(path, "rb"))


def zlib_ng_stream(path: str) -> int:
    from zlib_ng import gzip_ng

    return _drained(gzip_ng.open(path, "rb"))


def gzip_stream(path: str) -> int:
    return _drained(gzip.open(path, "rb"))


@dataclass(frozen=True)
class Way:
    """A way to read a file: a row of the table."""

    call: object
    module: str | None = None  # what it needs; imported before the time of the reading alone begins
    peer: bool = False  # whether it runs in the peers' interpreter


READERS = {
    "tracelib, path to frames": Way(tracelib, "tracelib.sources.torch_profiler"),
    "tracelib, second load (cache)": Way(second_load, "tracelib.sources.torch_profiler"),
    "HTA, parse_trace_file": Way(hta, "hta", peer=True),
    "TraceLens, DataLoader": Way(tracelens, "TraceLens", peer=True),
    "orjson.loads": Way(orjson, "orjson", peer=True),
    "json.loads": Way(json_loads),
}
STREAMS = {
    "tracelib, decompression alone": Way(our_stream, "tracelib.sources.files"),
    "isal": Way(isal_stream, "isal", peer=True),
    "zlib-ng": Way(zlib_ng_stream, "zlib_ng", peer=True),
    "gzip": Way(gzip_stream),
}
WAYS = READERS | STREAMS
#: At the smaller size only: what it adds at the larger one is minutes.
SMALL_ONLY = ("json.loads",)


@dataclass(frozen=True)
class Run:
    """One run of a way."""

    wall: float
    cpu: float
    inside: (
        float  # wall time of the reading alone: without Python's start and imports of the way's own module
    )
    megabytes: float  # peak resident memory
    found: int


def measure(python: str, name: str, path: Path, limit_s: float = LIMIT_S) -> Run:
    """Run a way in a new process."""
    started = time.perf_counter()
    command = [python, str(Path(__file__).resolve()), "--child", name, str(path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parent
    )
    try:
        out, error = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RuntimeError(f"not done after {limit_s:.0f} s") from None
    wall = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError((error.strip() or "failed").splitlines()[-1])
    cpu, inside, megabytes, found = json.loads(out.splitlines()[-1])
    return Run(wall, cpu, inside, megabytes, found)


def child(name: str, path: str) -> None:
    sys.path.insert(0, str(ROOT))
    way = WAYS[name]
    if way.module:
        __import__(way.module)
    started = time.perf_counter()
    found = way.call(path)
    inside = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss: a new process inherits that of the one that started it.
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(json.dumps([used.ru_utime + used.ru_stime, inside, int(peak.split()[1]) * 1024 / 1e6, found]))


def missing(way: Way, python: str) -> bool:
    if not way.peer:
        return False
    return subprocess.run([python, "-c", f"import {way.module}"], capture_output=True, check=False).returncode != 0  # fmt: skip


class Budget:
    """What is left of the time that the whole comparison may take."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def spent(self) -> bool:
        return time.monotonic() > self.end


def compared(ways: dict[str, Way], path: Path, rounds: int, budget: Budget) -> dict[str, list[Run]]:
    """Return the runs of each way on the file at `path`; say why others are left out."""
    peers = os.environ.get("HTA_PYTHON", sys.executable)
    pythons = {name: peers if way.peer else sys.executable for name, way in ways.items()}
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            if number and (not runs[name] or runs[name][0].wall > PATIENCE_S):
                continue
            reason = "the time is spent" if budget.spent() else None
            reason = reason or (
                f"{pythons[name]} has no {way.module}" if missing(way, pythons[name]) else None
            )
            try:
                if reason is None:
                    runs[name].append(measure(pythons[name], name, path))
            except RuntimeError as error:
                reason = str(error)
            if reason:
                print(f"left out of {path.name}, round {number + 1}: {name} ({reason})\n")
    found = {name: some[0].found for name, some in runs.items() if some}
    assert len(set(found.values())) == 1, found
    return {name: some for name, some in runs.items() if some}


def table(runs: dict[str, list[Run]], size: int, title: str) -> None:
    """Print medians and their ratios to those of the first way."""
    print(f"\n{title}\n")
    print(
        "| way | runs | wall, s | MB/s | times the first | CPU, s | times the first | peak memory, MB | of the JSON |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    first = next(iter(runs.values()))
    for name, some in runs.items():
        (wall, own), (cpu, own_cpu) = (
            [statistics.median(getattr(run, key) for run in these) for these in (some, first)] for key in ("wall", "cpu")
        )  # fmt: skip
        peak = max(run.megabytes for run in some)
        print(
            f"| {name} | {len(some)} | {wall:.2f} | {size / 1e6 / wall:.0f} | {wall / own:.2f} | {cpu:.2f} | {cpu / own_cpu:.2f} | "
            f"{peak:.0f} | {peak * 1e6 / size:.2f} |"
        )


def inside_table(runs: dict[str, list[Run]], title: str) -> None:
    """Print what the reading alone took, without Python's start and imports."""
    print(f"\n{title}\n\n| way | runs | s | times the first |\n|---|---:|---:|---:|")
    first = statistics.median(run.inside for run in next(iter(runs.values())))
    for name, some in runs.items():
        inside = statistics.median(run.inside for run in some)
        print(f"| {name} | {len(some)} | {inside:.3f} | {inside / first:.2f} |")


def at_size(
    capture: Path, megabytes: int, folder: Path, rounds: int, budget: Budget, *, smallest: bool
) -> None:
    path = folder / f"{megabytes}MB.pt.trace.json"
    make(capture, megabytes * 10**6, path)
    size = path.stat().st_size
    time.sleep(3)  # the cache does not trust the times of a file that was written just now
    measure(sys.executable, "tracelib, second load (cache)", path)  # the first load, which fills the cache
    runs = compared(
        {n: w for n, w in READERS.items() if smallest or n not in SMALL_ONLY}, path, rounds, budget
    )
    kernels = next(iter(runs.values()))[0].found
    table(runs, size, f"JSON of {size / 1e6:.0f} MB, {kernels:,} kernels:")
    ours = {name: some for name, some in runs.items() if name.startswith("tracelib")}
    inside_table(ours, "The reading alone, without Python's start and imports:")
    shutil.rmtree(f"{path}.cache")
    if smallest:
        compressed(path, size, rounds, budget)
    path.unlink()


def compressed(path: Path, size: int, rounds: int, budget: Budget) -> None:
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as file, gzip.open(packed, "wb", compresslevel=6) as out:
        shutil.copyfileobj(file, out, 1 << 20)
    plain = compared({"tracelib, path to frames": READERS["tracelib, path to frames"]}, path, rounds, budget)
    packed_runs = compared(
        {"tracelib, path to frames": READERS["tracelib, path to frames"]}, packed, rounds, budget
    )
    (plainly,), (as_gzip,) = plain.values(), packed_runs.values()
    both = {"tracelib, the JSON": plainly, "tracelib, the same as gzip": as_gzip}
    table(both, size, f"The same JSON compressed by gzip to {packed.stat().st_size / 1e6:.1f} MB:")
    inside_table(compared(STREAMS, packed, rounds, budget), "Its decompression alone, in blocks of 1 MB:")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--budget", type=float, default=210, help="seconds after which what is left is left out"
    )
    parser.add_argument("--folder", type=Path, help="where to put the input; default: a temporary folder")
    given = parser.parse_args()
    budget = Budget(given.budget)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for megabytes in sorted(given.megabytes):
            at_size(given.capture, megabytes, Path(folder), given.rounds, budget, smallest=megabytes == min(given.megabytes))  # fmt: skip


if __name__ == "__main__":
    main()
