"""`tracelib report` and `batch`, end to end: what they take now, and what they took at an earlier revision.

    python benchmarks/report.py [--before REVISION] [--rounds N] [FOLDER...]

Each command runs in turn from a checkout of the earlier revision and from this one, without a cache of
frames, as for traces never seen before. Seconds and memory are those of all processes of a command: kernel,
reading, analyses, charts, page. Prints Markdown: medians, and what they are times those of before. Of a batch
it tells what one run more takes: many runs in one process at a time, less one run, divided by the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The last revision before reports were made faster.
BEFORE = "b57a267"
#: What is measured by default, as far as it is there: the last, of a real server, is not part of the project.
FOLDERS = ("sample_traces/starved", "sample_traces/healthy", "../shared/captures/vllm_2cpus")
#: A batch of so many runs, each a copy of the smallest sample.
BATCH, SMALLEST = 5, ROOT / "sample_traces" / "idle"


@dataclass(frozen=True)
class Run:
    """What a command took."""

    wall: float
    cpu: float
    gigabytes: float  # the largest resident set of any of its processes


def main() -> None:
    flags = _flags()
    folders = [Path(name).resolve() for name in flags.folders or FOLDERS]
    with tempfile.TemporaryDirectory() as scratch, _checkouts(flags.before, Path(scratch)) as checkouts:
        heads = "".join(_head(what, checkouts) for what in ("wall", "CPU"))
        print(f"| command | MB | runs |{heads} peak, GB | findings |")
        print("|---|---:|---:|" + "---:|" * (4 * len(checkouts) - 2) + "---:|---|")
        for folder in filter(Path.is_dir, folders):
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
            runs, same = _reports(checkouts, folder, Path(scratch), flags.rounds)
            print(_row(f"report {folder.name}", f"{size:.1f}", runs, same), flush=True)
        runs = _batches(checkouts, Path(scratch), flags.rounds)
        print(_row("batch, a further run", "0.2", runs, ""))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--before", default=BEFORE, help="a git revision; '' for this checkout alone")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


@contextlib.contextmanager
def _checkouts(before: str, scratch: Path) -> Iterator[list[Path]]:
    """Give this checkout, and before it one of the revision, which goes again."""
    if not before:
        yield [ROOT]
        return
    old = scratch / "before"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--detach", str(old), before], check=True, capture_output=True)
    try:
        subprocess.run([sys.executable, "hatch_build.py"], cwd=old, check=True, capture_output=True)
        yield [old, ROOT]
    finally:
        subprocess.run([*git, "remove", "--force", str(old)], check=True, capture_output=True)


def _took(checkout: Path, *arguments: str | Path) -> Run:
    """Run the command line of `checkout` and return what it took; exit with what it said if it fails."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "TRACELIB_CACHE": "off"}
    command = [sys.executable, "-m", "tracelib", *map(str, arguments)]
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, cwd=checkout, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: {said.read().decode(errors='replace')}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6)


def _reports(checkouts: list[Path], folder: Path, scratch: Path, rounds: int) -> tuple[list[list[Run]], str]:
    """Return the runs of each checkout, in turn, and whether they found the same."""
    runs: list[list[Run]] = [[] for _ in checkouts]
    found = []
    for _ in range(rounds):
        for checkout, own in zip(checkouts, runs, strict=True):
            target = scratch / "report"
            own.append(_took(checkout, "report", folder, "-o", target))
            findings = json.loads((target / "findings.json").read_text(encoding="utf-8"))
            found.append({key: value for key, value in findings.items() if key != "generated_utc"})
            shutil.rmtree(target)
    return runs, "equal" if all(each == found[0] for each in found) else "not equal"


def _batches(checkouts: list[Path], scratch: Path, rounds: int) -> list[list[Run]]:
    """Return what a further run of a batch took, by checkout."""
    copies = [scratch / f"run{number}" for number in range(BATCH)]
    for copy in copies:
        shutil.copytree(SMALLEST, copy)
    runs: list[list[Run]] = [[] for _ in checkouts]
    for _ in range(rounds):
        for checkout, own in zip(checkouts, runs, strict=True):
            one, many = (_batch(checkout, some, scratch / "batch") for some in (copies[:1], copies))
            others = BATCH - 1
            own.append(Run((many.wall - one.wall) / others, (many.cpu - one.cpu) / others, many.gigabytes))
    return runs


def _batch(checkout: Path, runs: list[Path], target: Path) -> Run:
    took = _took(checkout, "batch", *runs, "-o", target)
    shutil.rmtree(target)
    return took


def _head(what: str, checkouts: list[Path]) -> str:
    return f" {what} before, s | {what} now, s | times |" if len(checkouts) > 1 else f" {what}, s |"


def _row(name: str, size: str, runs: list[list[Run]], same: str) -> str:
    """Return a row of the table: medians of wall and CPU seconds, the largest peak of now."""
    cells = [name, size, str(len(runs[0]))]
    for of in ("wall", "cpu"):
        medians = [statistics.median(getattr(run, of) for run in own) for own in runs]
        cells += [f"{median:.1f}" for median in medians]
        cells += [f"{medians[-1] / medians[0]:.2f}"] if len(medians) > 1 else []
    cells += [f"{max(run.gigabytes for run in runs[-1]):.2f}", same]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
