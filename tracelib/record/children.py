"""Programs that must not outlive whoever started them, and processes known by their id alone."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from tracelib.record.proc import start_time

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["alive", "child", "ended", "mark"]

PR_SET_PDEATHSIG = 1  # prctl(2)
POLL_S = 0.05


def child(command: Sequence[str], *, death: signal.Signals, **popen: Any) -> subprocess.Popen[bytes]:
    """Start a program that the kernel sends `death` when this process dies, however it dies.

    The caller must be a process with one thread: the signal comes when the *thread* that started the program ends.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, death)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), signal.SIGKILL)

    return subprocess.Popen(command, preexec_fn=tie, **popen)  # noqa: PLW1509  (one thread, see above)


def mark(pid: int) -> dict[str, int]:
    """Return what tells this process from a later one of the same id: its id and when it began."""
    return {"pid": pid, "start": start_time(pid) or 0}


def alive(marked: dict[str, int]) -> bool:
    """Say whether exactly that process still runs."""
    return bool(marked) and start_time(marked["pid"]) == marked["start"]


def ended(marked: dict[str, int], *signals: signal.Signals, patience_s: float = 10.0) -> bool:
    """Send the signals, one after the other, until the process has ended; say whether it has."""
    for number in signals:
        if not alive(marked):
            return True
        try:
            os.kill(marked["pid"], number)
        except ProcessLookupError:
            return True
        limit = time.monotonic() + patience_s
        while alive(marked) and time.monotonic() < limit:
            time.sleep(POLL_S)
    return not alive(marked)
