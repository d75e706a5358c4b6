"""Our own instance: its buffer, its commands by hand, and its end."""

import sys
from pathlib import Path

import pytest

from tests.record import recording
from tracelib.record import ftrace


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


SWEEP = """
from pathlib import Path
from tracelib.record import ftrace
place = ftrace.tracefs()
namespace = Path("/proc/self/ns/pid").stat().st_ino
dead, foreign = (place / "instances" / f"tracelib-{of}-4194304-1" for of in (namespace, namespace + 1))
dead.mkdir()
foreign.mkdir()
try:
    assert list(ftrace.instances_left(place)) == [dead]
finally:
    ftrace.remove(dead)
    ftrace.remove(foreign)
assert not dead.exists()
"""


def test_an_instance_whose_owner_died_goes_and_another_containers_stays():
    recording.skip_unless_traceable()
    recording.in_tracefs([sys.executable, "-c", SWEEP])
