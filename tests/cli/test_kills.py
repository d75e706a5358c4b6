"""Commands killed at any moment: no process and no temporary file stays; what is there is whole.

What SIGKILL leaves goes with the next run. More moments: `TRACELIB_KILLS=20`, in `make test-all`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tracelib
from tests.conftest import ROOT, thorough
from tracelib.sources.programs import YOUNG_S

KILLS = int(os.environ.get("TRACELIB_KILLS", "2"))
SAMPLE = ROOT / "sample_traces" / "idle"
#: In the environment of all that a command starts, by which it is found when its parent is gone.
MARK = "TRACELIB_KILLED_RUN"
TRACE = "worker_TP0.pt.trace.json.gz"
COMMANDS = {
    "report": ("report", SAMPLE, "-o", "out/report"),
    "batch": ("batch", SAMPLE, SAMPLE / TRACE, "-j", "2", "-o", "out/batch"),
    "redact": ("redact", SAMPLE / TRACE, "-o", "out/redacted.json.gz"),
    "perfetto": ("export", SAMPLE, "--to", "perfetto", "-o", "out/run.pftrace"),
    "archive": ("export", SAMPLE, "--to", "archive", "-o", "out/run.tar"),
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Place:
    """A machine of one's own as far as files go: working directory, home, temporary files, cache."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("out", "tmp", "home", "cache"):
            (folder / name).mkdir()

    def start(self, command):
        (self.folder / "out" / "redacted.json.gz").unlink(missing_ok=True)  # it replaces no file
        folders = {
            "TMPDIR": "tmp",
            "HOME": "home",
            "TRACELIB_CACHE": "cache",
            "PYTHONPATH": ROOT,
            MARK: self.folder,
        }
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "JUPYTER_"))
        }
        environment |= {name: str(self.folder / folder) for name, folder in folders.items()}
        return subprocess.Popen(
            [sys.executable, "-m", "tracelib", *map(str, COMMANDS[command])],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for all of the session, and not for us
            text=True,
        )

    def left_running(self):
        """Return the processes that the command has left, by their ids."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.folder}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ")[:200])
        return [command for command in found if command]  # the others are dead and not waited for yet

    def left_behind(self):
        """Return what lies where only temporary things would: in their folder, hidden, in the cache."""
        rubbish = [*(self.folder / "tmp").iterdir(), *self.folder.rglob("runtime/*")]
        named = ("*.tmp", "*.part", "tmp*", ".*")
        ours = {".tracelib-report.json", ".ipython", ".local", ".cache", ".config", ".jupyter"}
        rubbish += [
            path
            for name in named
            for top in ("out", "cache", "home")
            for path in (self.folder / top).rglob(name)
            if path.name not in ours
        ]
        return sorted({str(path.relative_to(self.folder)) for path in rubbish})


def is_whole(place, command):
    """Assert that the command's output, if there is any, is whole."""
    out = place.folder / "out"
    for report in [path.parent for path in out.rglob("report.html")]:
        assert json.loads((report / "findings.json").read_text())["verdict"]
        assert (report / "report.html").read_text().rstrip().endswith("</html>")
    if (index := out / "batch" / "index.json").exists():
        assert json.loads(index.read_text())["runs"]
        assert (out / "batch" / "index.html").read_text().rstrip().endswith("</html>")
    for path in (out / "redacted.json.gz", out / "run.pftrace", out / "run.tar"):
        if path.exists() and path.suffix == ".pftrace":
            assert path.stat().st_size == place.sizes[path.name]
        elif path.exists():
            assert tracelib.load(path).gpu_ops.height > 0


def wait_until(true, patience_s=60):
    limit = time.monotonic() + patience_s
    while not true() and time.monotonic() < limit:
        time.sleep(0.1)


def to_its_end(place, command):
    began = time.monotonic()
    process = place.start(command)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    place.sizes = {path.name: path.stat().st_size for path in (place.folder / "out").iterdir()}
    return time.monotonic() - began


def killed(place, command, number, after_s):
    process = place.start(command)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    _, said = process.communicate(timeout=120)
    wait_until(lambda: not place.left_running())
    assert not place.left_running()
    # Python itself dies of SIGINT where it is stopped in an `exec`, as of a dataclass that is imported.
    assert process.returncode in (0, 128 + number, -number, -signal.SIGINT), said
    # Until this package is found, Ctrl-C is Python's own affair.
    assert "Traceback" not in said or (number == signal.SIGINT and f"{ROOT}/" not in said)
    is_whole(place, command)
    if number != signal.SIGKILL:
        assert not place.left_behind(), f"{process.returncode} {said}"
    return process.returncode != 0


EVERY = [(command, number) for command in COMMANDS for number in SIGNALS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "number"),
    thorough(EVERY, but=[("archive", signal.SIGKILL)]),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_command_killed_at_any_moment(tmp_path, command, number):
    place = Place(tmp_path)
    seconds = to_its_end(place, command)
    assert not place.left_behind()
    pick = random.Random(f"{command} {number}")
    stopped = []
    while len(stopped) < KILLS or not any(stopped):
        stopped.append(killed(place, command, number, pick.uniform(0, seconds)))
        seconds *= 1 if stopped[-1] else 0.5  # the first run had the machine for itself less, or no cache
    time.sleep(YOUNG_S)
    to_its_end(place, command)
    assert not place.left_behind()
