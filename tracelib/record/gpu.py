"""GPU utilisation as nvidia-smi samples it."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["busy_shares", "start", "stopped"]

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
    """Stop sampling and return what was printed; a hanging driver is not waited for longer than some seconds."""
    if sampling is None:
        return ""
    sampling.terminate()
    try:
        return sampling.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        sampling.kill()
        return sampling.communicate()[0]


def busy_shares(text: str) -> Mapping[int, float]:
    """Return GPU index -> mean utilisation (0..1) of lines "INDEX, PERCENT"; a GPU that does not report it is left out.

    Utilisation is the share of time in which some kernel ran (nvidia-smi's manual, "Utilization"): a rank that spins in a
    collective for a late peer counts as busy.
    """
    samples: dict[int, list[float]] = {}
    for line in text.splitlines():
        index, _, percent = line.partition(",")
        if index.strip().isdigit() and percent.strip().isdigit():
            samples.setdefault(int(index), []).append(int(percent) / 100)
    return {index: statistics.fmean(values) for index, values in sorted(samples.items())}
