"""Speed and memory of the PyTorch Profiler reader beside other ways to read the same file.

    python benchmarks/torch_profiler.py CAPTURE [--megabytes 500] [--rounds 1] [--peers VENV/bin/python] [--only NAME…]

CAPTURE is a Kineto trace (gzip or not). Its events are repeated up to the size asked for, with times and ids shifted so
that neither collides. Each way runs in a process of its own, in turn, round by round: wall time and peak memory include
imports. All must find the same number of GPU kernels. orjson, HTA (HolisticTraceAnalysis) and TraceLens take part where
the interpreter given by --peers has them.
"""

from __future__ import annotations

import argparse
import gzip
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
        while written < size:
            pieces[2::3] = [str(n + shift * step) for n, step in zip(numbers, steps, strict=True)]
            written += file.write(("," if shift else "") + "".join(pieces))
            shift += 1
        file.write(text[end:])


def tracelib(path: str) -> int:
    sys.path.insert(0, str(ROOT))
    from tracelib.sources.torch_profiler import read

    return int((read(Path(path)).gpu_ops["kind"] == "kernel").sum())


def _kernels(events: list[dict]) -> int:
    return sum(event.get("cat") == "kernel" for event in events)


def json_load(path: str) -> int:
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as file:
        return _kernels(json.load(file)["traceEvents"])


def orjson(path: str) -> int:
    import orjson as library

    data = Path(path).read_bytes()
    return _kernels(library.loads(gzip.decompress(data) if path.endswith(".gz") else data)["traceEvents"])


def hta(path: str) -> int:
    from hta.common.trace import parse_trace_file
    from hta.configs.parser_config import ParserConfig

    _, frame, symbols = parse_trace_file(path, ParserConfig.get_default_cfg())
    return int((frame["cat"] == symbols.get_sym_id_map()["kernel"]).sum())


def tracelens(path: str) -> int:
    from TraceLens.util import DataLoader

    return _kernels(DataLoader.load_data(path)["traceEvents"])


WAYS = {"tracelib": tracelib, "json.load": json_load, "orjson": orjson, "HTA": hta, "TraceLens": tracelens}
MODULES = {"orjson": "orjson", "HTA": "hta", "TraceLens": "TraceLens"}


def measure(python: str, way: str, path: Path) -> tuple[float, float, float, int]:
    """Return wall seconds, CPU seconds, peak memory in MB and the number of kernels of one run in a new process."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [python, __file__, "--child", way, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{way} failed with {process.returncode}")
    wall, cpu = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    return wall, cpu, usage.ru_maxrss / 1000, int(out.splitlines()[-1])


def available(way: str, python: str) -> bool:
    module = MODULES.get(way)
    return (
        module is None
        or not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode
    )


def compare(path: Path, size: int, rounds: int, peers: str, only: list[str]) -> None:
    python = {way: peers if way in MODULES else sys.executable for way in only}
    ways = [way for way in only if available(way, python[way])]
    results: dict[str, list[tuple[float, float, float, int]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            results[way].append(measure(python[way], way, path))
    kernels = {way: runs[0][3] for way, runs in results.items()}
    assert len(set(kernels.values())) == 1, kernels
    print(
        f"\n{path.name}: {size / 1e6:.0f} MB of JSON, {kernels[ways[0]]} kernels, {os.cpu_count()} cores, {rounds} rounds\n"
    )
    print(
        "| way | wall, s | CPU, s | MB/s | wall: times tracelib | CPU: times tracelib | peak memory, MB | of the JSON |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    middle = {
        way: [statistics.median(run[n] for run in runs) for n in range(2)] for way, runs in results.items()
    }
    own = middle[ways[0]]
    for way, (wall, cpu) in middle.items():
        peak = max(run[2] for run in results[way])
        ratios = f"{size / 1e6 / wall:.0f} | {wall / own[0]:.1f} | {cpu / own[1]:.1f}"
        print(f"| {way} | {wall:.2f} | {cpu:.2f} | {ratios} | {peak:.0f} | {peak * 1e6 / size:.2f} |")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(WAYS[sys.argv[2]](sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", default=sys.executable, help="a Python that has HTA, TraceLens, orjson")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--gzip", action="store_true", help="compare on the same file compressed as well")
    parser.add_argument(
        "--folder", type=Path, help="where to put the input (needs its size); default: a temporary one"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "big.pt.trace.json"
        make(given.capture, given.megabytes * 10**6, path)
        size = path.stat().st_size
        compare(path, size, given.rounds, given.peers, given.only)
        if given.gzip:
            packed = path.with_name(path.name + ".gz")
            with gzip.open(packed, "wb", compresslevel=6) as file:
                file.write(path.read_bytes())
            compare(packed, size, given.rounds, given.peers, given.only)


if __name__ == "__main__":
    main()
