"""Our own instance: its buffer, its commands by hand, and its end."""

import os
import sys
from pathlib import Path

import pytest

from tests.record import recording
from tracelib.record import ftrace
from tracelib.record.processes import start_time


@pytest.mark.parametrize(
    ("cpus", "available_gb", "mb_each"), [(2, 64, 64), (192, 2048, 5.33), (16, 16, 51.2), (8, 0.1, 1)]
)
def test_ftrace_buffers_stay_within_the_memory(cpus, available_gb, mb_each):
    assert ftrace.buffer_kb(cpus, int(available_gb * (1 << 20))) / 1024 == pytest.approx(mb_each, abs=0.01)


def test_lines_by_hand_are_those_of_the_recorder():
    shown = "\n".join(ftrace.shell_lines(Path("/t"), 4096, 3, "out.txt"))
    for part in (
        "echo mono > trace_clock",
        "echo 4096 > buffer_size_kb",
        *ftrace.EVENTS,
        "sleep 3",
        "rmdir /t/instances/tracelib",
    ):
        assert part in shown


def test_an_instance_whose_owner_died_is_left_over_and_another_containers_is_not(tmp_path):
    namespace, me = Path("/proc/self/ns/pid").stat().st_ino, os.getpid()
    owners = (namespace, 4194304, 1), (namespace + 1, 4194304, 1), (namespace, me, start_time(me))
    dead, *_ = folders = [tmp_path / "instances" / "tracelib-{}-{}-{}".format(*owner) for owner in owners]
    for folder in (*folders, tmp_path / "instances/somebodys"):
        folder.mkdir(parents=True)
    assert list(ftrace.instances_left(tmp_path)) == [dead]


# The name says another container: no other recorder on this machine removes it.
BUSY = """
import os, threading
from tracelib.record import ftrace, keeper
left = ftrace.tracefs() / "instances" / f"tracelib-1-{os.getpid()}-2"
left.mkdir()
try:
    reader = (left / "trace").open("rb")
    keeper._tidy(left)
    assert left.is_dir()
    threading.Timer(0.3, reader.close).start()
finally:
    ftrace.remove(left, patience=10)
assert not left.exists()
"""


def test_an_instance_that_is_read_goes_when_the_reader_ends_and_keeps_nobody_from_recording(capfd):
    recording.skip_unless_traceable()
    recording.in_tracefs([sys.executable, "-c", BUSY])
    assert "stays (it traces nothing): Device or resource busy; rmdir" in capfd.readouterr().err
