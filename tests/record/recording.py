"""Runs `tracelib record` as a user does, and looks at what it has left on the machine."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tracelib.record.ftrace import PLACE, tracefs
from tracelib.record.machine import MOUNT, OWN_MOUNTS, machine
from tracelib.record.processes import alive

#: Works for about 0.6 s of CPU time, then tells what it knows of itself.
WORK = """
import json, os, sys, time
began = time.monotonic_ns()
while time.process_time() < 0.6:
    sum(range(10000))
row = {"tid": os.getpid(), "began": began, "ended": time.monotonic_ns(), "cpu_s": time.process_time()}
open(sys.argv[1], "w").write(json.dumps(row))
"""


def command(folder, *flags, go=True):
    return [
        sys.executable,
        "-m",
        "tracelib",
        "record",
        "--out",
        str(folder),
        *map(str, flags),
        *(["--go"] if go else []),
    ]


def started(folder, *flags, **popen):
    return subprocess.Popen(
        command(folder, *flags),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **popen,
    )


def recorded(folder, *flags):
    """Record and return the exit status and what was said."""
    process = started(folder, *flags)
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


def skip_unless_traceable(*, root=True):
    """Skip where this machine lets nobody trace; the reason is what the recorder itself would say."""
    found = machine()
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    if root and not (found.root and (found.mounts_tracefs or found.tracefs_writable)):
        pytest.skip("tracefs is not for this user here: tracing that could be left on cannot be switched on")


def in_tracefs(arguments):
    """Run a command where tracefs is mounted, for it alone if nobody else has; return what it said."""
    prefix = [] if tracefs() else [*OWN_MOUNTS, "sh", "-c", f'{" ".join(MOUNT)} && exec "$@"', "sh"]
    return subprocess.run(
        [*prefix, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def instances(keeper):
    """Return the ftrace instances of one keeper (other tests record meanwhile): name -> whether it is on."""
    loop = f"for i in tracelib-*-{keeper}-*; do [ -d $i ] && echo $i $(cat $i/tracing_on); done; true"
    script = f"cd {tracefs() or PLACE}/instances && {loop}"
    return {name: on == "1" for name, on in map(str.split, in_tracefs(["sh", "-c", script]).splitlines())}


def log_of(folder):
    path = folder / "recording.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def processes_of(folder):
    """Return what still runs of what the recording started: perf, nvidia-smi, the command, the keeper."""
    log = log_of(folder)
    handles = {step["name"]: step["handle"] for step in log.get("steps", [])} | {
        "keeper": log.get("keeper", {})
    }
    return {name: handle for name, handle in handles.items() if "pid" in handle and alive(handle)}


def child_of(process):
    """Return the id of the keeper of a running recorder, None as long as there is none."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        found = [int(pid) for pid in children.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    for pid in found:
        try:
            if b"tracelib.record.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None


def without_rights():
    """Return a prefix that runs a command as nobody, or as root without capabilities."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can give up rights, by setpriv")
    again = "import subprocess, sys, tracelib, tomli_w; subprocess.run([sys.executable, '-c', 'pass'])"
    for flags in (
        ["--reuid=65534", "--regid=65534", "--clear-groups"],
        ["--bounding-set=-all", "--inh-caps=-all"],
    ):
        prefix = ["setpriv", *flags]
        if not subprocess.run(
            [*prefix, sys.executable, "-c", again], cwd=ROOT, capture_output=True, check=False
        ).returncode:
            return prefix
    pytest.skip("this Python environment cannot be read without rights")
    return None
