"""Temporary folders: gone with their process, however it ends."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from tracelib.sources import programs
from tracelib.sources.programs import Scratch, sweep

HOLDS = """
import sys, time
from pathlib import Path
from tracelib.sources.programs import Scratch, end_on_signals
end_on_signals()
try:
    with Scratch(Path(sys.argv[1])) as folder:
        Path(folder, "big").write_text("x")
        print(folder, flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    pass
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    folder = Path(process.stdout.readline().strip())
    assert (folder / "big").exists()
    yield process, folder
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_it_along(holder, number):
    process, folder = holder
    process.send_signal(number)
    process.wait(timeout=30)
    assert not folder.exists()


ENDS = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), int(sys.argv[1]))
from tracelib.cli import main
from tracelib.sources.programs import Scratch
folder = Scratch()
print(folder.name)
raise SystemExit(main(["completion", "bash"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_command_ends_changes_nothing(number):
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(int(number))], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(done.stdout.splitlines()[0]).exists()


def test_what_a_killed_process_left_goes_with_the_next_and_that_of_a_living_one_stays(
    holder, tmp_path, monkeypatch
):
    monkeypatch.setattr(programs, "YOUNG_S", -1)
    process, folder = holder
    sweep(tmp_path)
    assert folder.exists()
    process.kill()
    process.wait()
    with Scratch(tmp_path) as mine:
        assert [path.name for path in tmp_path.iterdir()] == [Path(mine).name]


def test_nothing_else_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "YOUNG_S", -1)
    names = [
        "tracelib-reports",
        "tracelib-scratch-of-mine",
        ".tracelib-scratch",
        "x-tracelib-scratch-12345678",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "tracelib-scratch-abcdefgh").symlink_to(tmp_path / names[0])
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(names) + 1


def test_a_folder_that_was_renamed_stays(tmp_path):
    with Scratch(tmp_path) as folder:
        Path(folder).rename(tmp_path / "report")
    assert (tmp_path / "report").is_dir()


@pytest.mark.parametrize(("free", "named"), [(0, True), (1 << 30, False)])
def test_a_full_disk_is_named_if_it_is_the_folders(tmp_path, monkeypatch, free, named):
    monkeypatch.setattr(programs.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(OSError, match="No space left") as raised, Scratch(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == (str(tmp_path) if named else None)
    assert not list(tmp_path.iterdir())
