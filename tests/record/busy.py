"""Processes that want the CPU all the time, and a cgroup with a quota for them."""

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tracelib.record.cgroups import cpu_group


@contextlib.contextmanager
def processes(code, count=1, *, cpus=None):
    """Run `count` processes with Python code; begin when all of them have come as far as that code.

    They are of the lowest priority: other people work on this machine.
    """

    def prepare():
        os.nice(19)
        if cpus:
            os.sched_setaffinity(0, cpus)

    started = [
        subprocess.Popen(
            [sys.executable, "-c", f"print(flush=True)\n{code}"],
            preexec_fn=prepare,  # noqa: PLW1509  (tests run no threads)
            stdout=subprocess.PIPE,
        )
        for _ in range(count)
    ]
    try:
        for process in started:
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def quota(cpus, pids):
    """Move the processes to a cgroup with a limit; skip the test where we may not make one."""
    own = cpu_group(os.getpid())
    if own is None:
        pytest.skip("no cgroup of the CPU controller is mounted here")
    folder = own.folder / f"tracelib-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        _limit(folder, own.version, cpus)
        for pid in pids:
            (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"this machine does not let us set a CPU quota: {error}")
    try:
        yield folder
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (own.folder / "cgroup.procs").write_text(str(pid))
        folder.rmdir()


def _limit(folder: Path, version: int, cpus: float) -> None:
    micros = str(int(cpus * 100_000))
    if version == 2:
        (folder / "cpu.max").write_text(f"{micros} 100000")
    else:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(micros)
