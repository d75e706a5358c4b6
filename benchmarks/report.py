"""How long `tracelib report` takes and how much memory its processes need, per folder of traces.

    python benchmarks/report.py sample_traces/starved [MORE...]

Prints a Markdown table: wall seconds of the whole command (kernel start, reading, analyses, charts, page) and
the largest resident set of any of its processes.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main():
    folders = sys.argv[1:] or ["sample_traces/starved"]
    print("| traces | size on disk | wall | peak memory of one process |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as target:
        for folder in folders:
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            begin = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "tracelib", "report", folder, "-o", f"{target}/{Path(folder).name}"],
                check=True,
                capture_output=True,
            )
            wall = time.perf_counter() - begin
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
            print(f"| {Path(folder).name} | {size / 1e6:.1f} MB | {wall:.1f} s | up to {peak:.2f} GB |")


if __name__ == "__main__":
    main()
