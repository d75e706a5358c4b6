"""GPU utilisation as nvidia-smi samples it."""

import shutil
import signal
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelib.record.processes import child, ended, mark

FIELDS = "timestamp,index,utilization.gpu,utilization.memory,power.draw,clocks.sm,memory.used"
EVERY_MS = 500
PATIENCE_S = 5.0


def start() -> subprocess.Popen[str] | None:
    """Start printing "INDEX, PERCENT" of every GPU twice a second; None where there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits", f"--loop-ms={EVERY_MS}"]
    return subprocess.Popen(
        [program, *query],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def stopped(sampling: subprocess.Popen[str] | None) -> str:
    """Stop sampling and return what was printed; a hanging driver is given a few seconds."""
    if sampling is None:
        return ""
    sampling.terminate()
    try:
        return sampling.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        sampling.kill()
        return sampling.communicate()[0]


def busy_shares(text: str) -> Mapping[int, float]:
    """Return GPU index -> mean utilisation (0..1) of lines "INDEX, PERCENT"; other lines are left out.

    Utilisation is the share of time in which some kernel ran (nvidia-smi's manual, "Utilization"): a rank
    that spins in a collective for a late peer counts as busy.
    """
    samples: dict[int, list[float]] = {}
    for line in text.splitlines():
        index, _, percent = line.partition(",")
        if index.strip().isdigit() and percent.strip().isdigit():
            samples.setdefault(int(index), []).append(int(percent) / 100)
    return {index: statistics.fmean(values) for index, values in sorted(samples.items())}


@dataclass
class Gpu:
    """Utilisation, power and clocks of every GPU, twice a second."""

    folder: Path
    name: str = "gpu"
    handle: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        with (self.folder / "gpu.csv").open("wb") as table:
            started = child(
                ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv", f"--loop-ms={EVERY_MS}"],
                death=signal.SIGTERM,
                stdin=subprocess.DEVNULL,
                stdout=table,
                stderr=subprocess.DEVNULL,
            )
        self.handle.update(mark(started.pid))

    def stop(self) -> None:
        if self.handle and not ended(self.handle, signal.SIGTERM, signal.SIGKILL):
            raise OSError(f"nvidia-smi (process {self.handle['pid']}) did not end")

    def save(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing outlives the process."""
