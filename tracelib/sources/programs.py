"""Programs that readers need (nsys, perf, trace-cmd): none can hold tracelib up or outlive it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

#: Statuses as a shell gives them: stopped by a timeout, could not be started.
STOPPED, NOT_STARTED = 124, 126


def run(
    command: Sequence[str],
    out: IO[bytes],
    errors: IO[bytes],
    seconds: int,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run `command` and return its exit status, and why it did not end by itself ("" if it did).

    What it says goes to the files `out` and `errors`, not into pipes: a program that it left behind would
    keep those open. All that it started is ended with it.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        return NOT_STARTED, f"it cannot be started ({error.strerror})"
    try:
        return process.wait(seconds), ""
    except subprocess.TimeoutExpired:
        return STOPPED, f"stopped after {seconds} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
