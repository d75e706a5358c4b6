"""Speed and memory of the PyTorch Profiler reader beside other ways to read the same file.

    python benchmarks/torch_profiler.py [CAPTURE] [--megabytes 100 500] [--rounds 3]

CAPTURE is a Kineto trace (gzip or not; the committed sample by default). Its events are repeated up to each
size, with times and ids shifted so that neither collides. All ways must find the same number of GPU kernels.
HTA (HolisticTraceAnalysis), TraceLens (github.com/AMD-AGI/TraceLens, not on the index) and orjson take part
where the interpreter that HTA_PYTHON names, else this one, has them. At the smallest size the same is read
from gzip, too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compared import ROOT, Way, child, compared, table

SAMPLE = ROOT / "sample_traces" / "starved" / "worker_TP0.pt.trace.json.gz"
LIST = re.compile(r'"traceEvents"\s*:\s*\[')
END = re.compile(r"\}\s*\](?=\s*,\s*\"traceName\")")
NUMBER = re.compile(r'("(?:ts|id|correlation|External id|Python id|Python parent id|Ev Idx)": )(\d+)')


def make(capture: Path, size: int, out: Path) -> None:
    """Write the events of `capture`, repeated up to `size` bytes, each time later and with ids of its own."""
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


def _kernels(trace: dict[str, Any]) -> list[int]:
    return [sum(event.get("cat") == "kernel" for event in trace["traceEvents"])]


def _kernel_ops(trace: Any) -> list[int]:
    return [int((trace.gpu_ops["kind"] == "kernel").sum())]


def tracelib(path: Path) -> list[int]:
    from tracelib.sources.torch_profiler import read

    return _kernel_ops(read(path))


def second_load(path: Path) -> list[int]:
    """Read what a first load has left in the cache."""
    from tracelib.sources.cache import Cache
    from tracelib.sources.discovery import recognised

    return _kernel_ops(Cache(path.with_suffix(".cache")).read(recognised(path)))


def hta(path: Path) -> list[int]:
    from hta.common.trace import parse_trace_file
    from hta.configs.parser_config import ParserConfig

    _, frame, symbols = parse_trace_file(str(path), ParserConfig.get_default_cfg())
    return [int((frame["cat"] == symbols.get_sym_id_map()["kernel"]).sum())]


def tracelens(path: Path) -> list[int]:
    from TraceLens.util import DataLoader

    return _kernels(DataLoader.load_data(str(path)))


def orjson(path: Path) -> list[int]:
    import orjson as library

    return _kernels(library.loads(path.read_bytes()))


def json_loads(path: Path) -> list[int]:
    return _kernels(json.loads(path.read_bytes()))


def _drained(stream: Any) -> list[int]:
    buffer, count = bytearray(1 << 20), 0
    while got := stream.readinto(buffer):
        count += got
    return [count]


def our_stream(path: Path) -> list[int]:
    from tracelib.sources.files import open_stream

    return _drained(open_stream(path))


def isal_stream(path: Path) -> list[int]:
    from isal import igzip

    return _drained(igzip.open(path, "rb"))


def zlib_ng_stream(path: Path) -> list[int]:
    from zlib_ng import gzip_ng

    return _drained(gzip_ng.open(path, "rb"))


def gzip_stream(path: Path) -> list[int]:
    return _drained(gzip.open(path, "rb"))


READERS = {
    "tracelib": Way(tracelib, "tracelib.sources.torch_profiler"),
    "tracelib, second load": Way(second_load, "tracelib.sources.torch_profiler"),
    "HTA, parse_trace_file": Way(hta, "hta.common.trace", peer=True),
    "TraceLens, DataLoader": Way(tracelens, "TraceLens.util", peer=True),
    "orjson.loads": Way(orjson, "orjson", peer=True),
    "json.loads": Way(json_loads),
}
#: At the larger sizes it adds minutes and no knowledge.
SMALL_ONLY = ("json.loads",)
STREAMS = {
    "tracelib": Way(our_stream, "tracelib.sources.files"),
    "isal": Way(isal_stream, "isal", peer=True),
    "zlib-ng": Way(zlib_ng_stream, "zlib_ng", peer=True),
    "gzip": Way(gzip_stream),
}
WAYS = READERS | {f"{name}: decompression": way for name, way in STREAMS.items()}


def plain(path: Path, rounds: int, *, smallest: bool) -> None:
    """Compare the readers of the JSON at `path`."""
    time.sleep(3)  # the cache does not remember files that were written just now
    second_load(path)  # fills the cache
    ways = {name: way for name, way in READERS.items() if smallest or name not in SMALL_ONLY}
    runs = compared(__file__, ways, path, rounds)
    size = path.stat().st_size / 1e6
    print(f"JSON, {size:.0f} MB, {runs['tracelib'][0].found[0]:,} kernels, up to {rounds} rounds:\n")
    table(runs, size, "tracelib")
    shutil.rmtree(path.with_suffix(".cache"))


def packed(path: Path, rounds: int) -> None:
    """Compare reading the JSON at `path` with reading it from gzip, and that with decompression alone."""
    smaller = path.with_name(path.name + ".gz")
    with path.open("rb") as file, gzip.open(smaller, "wb", compresslevel=6) as out:
        shutil.copyfileobj(file, out, 1 << 20)
    ours = {"tracelib": READERS["tracelib"]}
    runs = {
        "JSON": compared(__file__, ours, path, rounds)["tracelib"],
        "gzip": compared(__file__, ours, smaller, rounds)["tracelib"],
    }
    runs |= compared(
        __file__, {name: way for name, way in WAYS.items() if name not in READERS}, smaller, rounds
    )
    size = path.stat().st_size / 1e6
    print(f"\nThe same from gzip, {smaller.stat().st_size / 1e6:.1f} MB, and its decompression alone:\n")
    table(runs, size, "JSON")


def main() -> None:
    if child(WAYS):
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 500])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in sorted(given.megabytes):
            path = Path(folder) / f"{megabytes}MB.pt.trace.json"
            make(given.capture, megabytes * 10**6, path)
            smallest = megabytes == min(given.megabytes)
            plain(path, given.rounds, smallest=smallest)
            if smallest:
                packed(path, given.rounds)
            print(flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
