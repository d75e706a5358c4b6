"""What recording costs the server: CPU time per context switch, bare, under perf, under ftrace, under both.

Two processes pass a byte back and forth on one CPU (`perf bench sched pipe`), which does little but switch:
the worst case. CPU time, not wall time, so that other load on the machine matters less; the median of several
rounds, modes in turn. Needs root.

    python benchmarks/recording.py [ROUNDS]
"""

import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tracelib.record import ftrace, perf
from tracelib.record.machine import MOUNT, OWN_MOUNTS

LOOPS = 50_000  # each of them two switches
MODES = {"nothing": (), "perf": ("perf",), "ftrace": ("ftrace",), "perf and ftrace": ("perf", "ftrace")}


def switch_cost_ns(folder: Path, recorders: tuple[str, ...]) -> tuple[float, dict[str, float]]:
    """Return CPU ns per switch, and each recorder's bytes per switch."""
    cpus = os.cpu_count() or 1
    data, sizes = folder / "perf.data", {}
    if "perf" in recorders:
        command = perf.record_command(perf.RUNGS[0], cpus=cpus, pids=[], seconds=60, output=str(data))
        recorder = subprocess.Popen(command, env=perf.environment())
        while not (data.exists() and data.stat().st_size):
            os.sched_yield()
    if "ftrace" in recorders:
        instance, _ = ftrace.begin(ftrace.tracefs(), ftrace.MOST_KB_A_CPU)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    bench = ["taskset", "-c", "0", "perf", "bench", "sched", "pipe", "-l", str(LOOPS)]
    subprocess.run(bench, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "ftrace" in recorders:
        ftrace.halt(instance)
        ftrace.save(instance, folder / "ftrace.txt.gz")
        ftrace.remove(instance)
        sizes["ftrace"] = (folder / "ftrace.txt.gz").stat().st_size / LOOPS / 2
    if "perf" in recorders:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        sizes["perf.data"] = data.stat().st_size / LOOPS / 2
        data.unlink()
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return spent / LOOPS / 2 * 1e9, sizes


def main(rounds: int) -> None:
    """Print a Markdown table."""
    if ftrace.tracefs() is None:
        subprocess.run(MOUNT, check=True)
    costs, sizes = {name: [] for name in MODES}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(rounds):
            for name, recorders in MODES.items():
                cost, found = switch_cost_ns(Path(scratch), recorders)
                costs[name].append(cost)
                sizes |= found
    bare = statistics.median(costs["nothing"])
    print(f"{rounds} rounds of {2 * LOOPS} switches, kernel {os.uname().release}\n")
    print("| recording | CPU time a switch | more than without | from .. to |\n|---|---:|---:|---|")
    for name, values in costs.items():
        middle = statistics.median(values)
        span = f"{min(values):.0f} .. {max(values):.0f} ns"
        print(f"| {name} | {middle:.0f} ns | {middle - bare:.0f} ns | {span} |")
    print(f"\nbytes a switch: {', '.join(f'{name} {size:.0f}' for name, size in sizes.items())}")


if __name__ == "__main__":
    if os.environ.get("TRACELIB_OWN_MOUNTS") is None:  # whatever is mounted for this goes with it
        os.environ["TRACELIB_OWN_MOUNTS"] = "1"
        os.execvp(OWN_MOUNTS[0], [*OWN_MOUNTS, sys.executable, *sys.argv])
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
