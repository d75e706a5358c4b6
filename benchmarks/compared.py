"""Ways to read one file, each in processes of its own, in turn; what the comparisons of the readers share.

A script that uses this calls itself with ``--child WAY PATH``. The seconds are those of the reading alone: a
way's library is imported before the clock starts. CPU time and peak memory are those of the whole process.
Peers run in the interpreter that HTA_PYTHON names, if it does: some cannot share an environment with
tracelib.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Run", "Way", "child", "compared", "options", "table"]

ROOT = Path(__file__).resolve().parent.parent
#: A way that takes longer runs once; one that takes this much longer is stopped.
PATIENCE_S, LIMIT_S = 20, 150


@dataclass(frozen=True)
class Way:
    """A way to read: `call` returns what it found, the same for all ways; `module` is what it needs."""

    call: Callable[[Path], list[int]]
    module: str | None = None
    peer: bool = False  # it runs in the peers' interpreter

    @property
    def python(self) -> str:
        return os.environ.get("HTA_PYTHON", sys.executable) if self.peer else sys.executable

    def missing(self) -> str | None:
        """Say what the way lacks."""
        top = (self.module or "").partition(".")[0]
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({top!r}) is None)"
        absent = (
            top and subprocess.run([self.python, "-c", code], capture_output=True, check=False).returncode
        )
        return f"{top} is not installed" + " where HTA_PYTHON points" * self.peer if absent else None


@dataclass(frozen=True)
class Run:
    """One run of a way."""

    seconds: float
    cpu: float
    megabytes: float  # peak resident memory
    found: list[int]


def options(about: str | None, sample: Path) -> argparse.Namespace:
    """Return the options of a script that repeats one sample up to one size."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path, nargs="?", default=sample)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def child(ways: dict[str, Way]) -> bool:
    """Run the way that the command line names and print what it took; return False if it names none."""
    if sys.argv[1:2] != ["--child"]:
        return False
    way = ways[sys.argv[2]]
    sys.path.insert(0, str(ROOT))
    if way.module:
        importlib.import_module(way.module)
    began = time.perf_counter()
    found = way.call(Path(sys.argv[3]))
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    # not ru_maxrss: a new process inherits that of the one that started it
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(json.dumps([seconds, used.ru_utime + used.ru_stime, peak * 1024 / 1e6, found]))
    return True


def _measured(python: str, script: str, name: str, path: Path) -> Run:
    command = [python, str(Path(script).resolve()), "--child", name, str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=path.parent
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {LIMIT_S} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"status {done.returncode}").splitlines()[-1])
    return Run(
        *json.loads(done.stdout.splitlines()[-1].rpartition("\r")[2])
    )  # DuckDB shows its progress there


def compared(script: str, ways: dict[str, Way], path: Path, rounds: int) -> dict[str, list[Run]]:
    """Return the runs of each way without those that cannot run, which it names; exit if ways disagree."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    left_out = {name: reason for name, way in ways.items() if (reason := way.missing())}
    for number in range(rounds):
        for name, way in ways.items():
            slow = number and runs[name] and runs[name][0].seconds > PATIENCE_S
            if slow or name in left_out:
                continue
            try:
                runs[name].append(_measured(way.python, script, name, path))
            except RuntimeError as error:
                left_out[name] = str(error)
    for name, reason in left_out.items():
        print(f"Left out: {name} ({reason}).\n")
    found = {name: some[0].found for name, some in runs.items() if some}
    if len({tuple(counts) for counts in found.values()}) != 1:
        raise SystemExit(f"the ways disagree: {found}")
    return {name: some for name, some in runs.items() if some}


def table(runs: dict[str, list[Run]], size: float, first: str) -> None:
    """Print medians, and how many times those of the way `first` they are; `size` is the file's, in MB."""
    print(
        f"| way | runs | s | MB/s | times {first} | CPU, s | times {first} | peak memory, MB | of the file |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    own = {key: statistics.median(getattr(run, key) for run in runs[first]) for key in ("seconds", "cpu")}
    for name, some in runs.items():
        seconds, cpu = (statistics.median(getattr(run, key) for run in some) for key in ("seconds", "cpu"))
        peak = max(run.megabytes for run in some)
        print(
            f"| {name} | {len(some)} | {seconds:.2f} | {size / seconds:.0f} | {seconds / own['seconds']:.2f} "
            f"| {cpu:.2f} | {cpu / own['cpu']:.2f} | {peak:.0f} | {peak / size:.2f} |"
        )
