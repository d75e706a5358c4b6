"""Cuts a run's Kineto, perf and ftrace files to a time: `python -m tests.cut FROM TO FROM_S TO_S`.

Made the shorter samples in `sample_traces/`, and makes the small ones that tests run notebooks on. It reads
with the standard library alone, not with tracelib's readers.
"""

import gzip
import json
import re
import sys
from pathlib import Path

#: What stays whatever its time: names of processes and threads, and the profiler's own marks.
TIMELESS = {"M"}
CALLS, ON_GPU = ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")
PERF_TIME = re.compile(r"\s(\d+\.\d+):\s")


def _correlation(event):
    return event.get("args", {}).get("correlation")


def kineto(text, start_ns, end_ns):
    """Return the trace with the events that overlap ``[start_ns, end_ns)`` of wall time.

    What the GPU still did of launches made before is left out: it would look as if nobody had launched it.
    """
    document = json.loads(text)
    low, high = ((t - document["baseTimeNanoseconds"]) / 1000 for t in (start_ns, end_ns))
    kept = [
        event
        for event in document["traceEvents"]
        if event["ph"] in TIMELESS or (event["ts"] < high and event["ts"] + event.get("dur", 0) >= low)
    ]
    called = {_correlation(event) for event in kept if event.get("cat") in CALLS}
    document["traceEvents"] = [
        event for event in kept if event.get("cat") not in ON_GPU or _correlation(event) in called
    ]
    return json.dumps(document, separators=(",", ":"))


def perf(text, start_s, end_s):
    """Return the header and the blocks of `perf script` whose own clock lies in ``[start_s, end_s)``."""
    header, _, body = text.partition("# ========\n#\n")
    kept = [
        block
        for block in body.split("\n\n")
        if (at := PERF_TIME.search(block)) and start_s <= float(at[1]) < end_s
    ]
    return header + "# ========\n#\n" + "\n\n".join(kept) + "\n\n"


def ftrace(text, start_s, end_s):
    """Return the comments and the events whose own clock lies in ``[start_s, end_s)``."""
    lines = [
        line
        for line in text.splitlines(keepends=True)
        if line.startswith("#") or ((at := PERF_TIME.search(line)) and start_s <= float(at[1]) < end_s)
    ]
    return "".join(lines)


def reference(text):
    """Return wall time less monotonic time in ns, from the header of `perf script`."""
    wall, mono = re.search(
        r"reference time: .* = (\d+\.\d+) \(TOD\) = (\d+\.\d+) \(monotonic\)", text
    ).groups()
    return round((float(wall) - float(mono)) * 1e6) * 1000


def cut(source, target, start_s, end_s):
    """Write the files of folder `source`, cut to ``[start_s, end_s)`` of CLOCK_MONOTONIC, to `target`."""
    target.mkdir(parents=True, exist_ok=True)
    texts = {path: gzip.decompress(path.read_bytes()).decode() for path in sorted(source.glob("*.gz"))}
    offset = reference(next(text for path, text in texts.items() if path.name.startswith("perf")))
    start_ns, end_ns = (round(s * 1e9) + offset for s in (start_s, end_s))
    for path, text in texts.items():
        kind = path.name.split(".")[0]
        made = (
            kineto(text, start_ns, end_ns)
            if kind not in ("perf", "ftrace")
            else {"perf": perf, "ftrace": ftrace}[kind](text, start_s, end_s)
        )
        (target / path.name).write_bytes(gzip.compress(made.encode(), 9, mtime=0))


if __name__ == "__main__":
    cut(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
