"""The recorder's parts by themselves: ids in containers, GPU samples, buffer sizes, what a machine's rights leave."""

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.record import recording
from tracelib.errors import MissingEvents
from tracelib.record import ftrace, perf
from tracelib.record.children import alive, child, ended, mark
from tracelib.record.clocks import read_clocks
from tracelib.record.machine import Machine
from tracelib.record.plan import lines, plan
from tracelib.record.proc import descendants, outside_ids, threads
from tracelib.record.steps import Gpu

NOTHING = Machine(
    kernel="6.1",
    host="h",
    root=False,
    cpus_online=8,
    cpus_allowed=8,
    paranoid=4,
    tracefs=None,
    tracefs_writable=False,
    tools={"perf": None, "trace-cmd": None, "nsys": None, "nvidia-smi": None},
    group=None,
    clock_source="tsc",
    pressure=True,
    available_kb=1 << 24,
    mounts_tracefs=False,
)


def test_all_clocks_are_read_at_one_moment():
    reading = read_clocks()
    before, after = time.time_ns(), time.monotonic_ns()
    offset = before - after  # wall time less monotonic, here and now
    assert abs(reading.at["realtime"] - reading.at["monotonic"] - offset) < 5_000_000
    assert 0 < reading.error_ns < 1_000_000
    assert reading.at["tai"] - reading.at["realtime"] in range(
        -1_000_000, 60 * 10**9
    )  # 0 or the leap seconds


def test_ids_inside_of_a_container_are_mapped_to_those_outside():
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0 or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets us make no namespace of process ids")
    inside = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen([*prefix, sys.executable, "-c", inside], stdout=subprocess.PIPE, text=True)
    try:
        own = int(process.stdout.readline())
        family = descendants([process.pid])
        outside = next(pid for pid in family if pid != process.pid)
        assert outside_ids(family) == {own: outside} == {1: outside}
        assert outside_ids([process.pid]) == {}  # it is in our own namespace
    finally:
        process.kill()
        process.communicate()


def test_ids_that_two_containers_use_are_left_out(tmp_path):
    for pid, inside in ((100, 7), (200, 7), (300, 9)):
        folder = tmp_path / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{inside}\n")
    assert outside_ids([100, 200, 300], tmp_path) == {9: 300}


def test_thread_names_may_hold_anything(tmp_path):
    folder = tmp_path / "5" / "task" / "5"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("5 (a) b (c) R 1 5 5 0 -1 0 0 0 0 0 3 4 0 0 20 0 1 0 777 0\n")
    (folder / "schedstat").write_text("1200 340 5\n")
    (folder / "status").write_text(
        "Name:\ta) b (c\nvoluntary_ctxt_switches:\t31\nnonvoluntary_ctxt_switches:\t8\n"
    )
    (thread,) = threads([5], tmp_path).values()
    assert (thread.name, thread.start, thread.run_ns, thread.wait_ns) == ("a) b (c", 777, 1200, 340)
    assert thread.yields == 31


def test_gpus_are_sampled_until_they_are_stopped(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text('#!/bin/sh\necho "$*"\nwhile sleep 0.05; do echo "12:00:00, 0, 7 %"; done\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    step = Gpu(tmp_path)
    step.start()
    limit = time.monotonic() + 20
    while (tmp_path / "gpu.csv").read_text().count("7 %") < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    assert alive(step.handle)
    step.stop()
    assert not alive(step.handle)
    text = (tmp_path / "gpu.csv").read_text()
    assert text.startswith("--query-gpu=timestamp,index,utilization.gpu")
    assert text.count("7 %") >= 2


def test_a_child_dies_with_its_parent_however_it_dies(tmp_path):
    code = (
        "import signal, time, sys; from tracelib.record.children import child;"
        "started = child(['sleep', '1000'], death=signal.SIGTERM); print(started.pid, flush=True); time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    marked = mark(int(parent.stdout.readline()))
    assert alive(marked)
    parent.kill()
    parent.communicate()
    limit = time.monotonic() + 20
    while alive(marked) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not alive(marked)


def test_a_process_that_ignores_signals_is_killed_and_a_later_one_of_its_id_is_not():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
    stubborn = child([sys.executable, "-c", code], death=signal.SIGKILL, stdout=subprocess.PIPE)
    stubborn.stdout.readline()
    marked = mark(stubborn.pid)
    assert ended(
        {**marked, "start": marked["start"] - 1}, signal.SIGKILL
    )  # another one, which has ended already
    assert stubborn.poll() is None
    assert ended(marked, signal.SIGTERM, signal.SIGKILL, patience_s=0.3)
    stubborn.communicate()
    assert stubborn.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("cpus", "available_gb", "mb_each"), [(2, 64, 64), (192, 2048, 5.33), (16, 16, 51.2), (8, 0.1, 1)]
)
def test_ftrace_buffers_stay_within_the_memory(cpus, available_gb, mb_each):
    assert ftrace.buffer_kb(cpus, int(available_gb * (1 << 20))) / 1024 == pytest.approx(mb_each, abs=0.01)


@pytest.mark.parametrize(("cpus", "expected"), [(1, 4096), (32, 4096), (33, 2048), (192, 512), (100_000, 1)])
def test_perf_buffers_are_a_power_of_two_within_512_mb(cpus, expected):
    assert perf.pages(cpus) == expected


def test_a_machine_that_permits_nothing_is_told_why(tmp_path):
    with pytest.raises(MissingEvents) as told:
        plan(NOTHING, folder=tmp_path / "out", seconds=1, recipe_name="generic")
    assert "perf is not installed" in str(told.value)
    assert "no tracefs is mounted" in str(told.value)


def test_a_servers_profiler_alone_is_worth_recording(tmp_path):
    made = plan(
        NOTHING, folder=tmp_path / "out", seconds=1, recipe_name="vllm", server="http://localhost:8000/"
    )
    assert (made.start_url, made.stop_url) == (
        "http://localhost:8000/start_profile",
        "http://localhost:8000/stop_profile",
    )
    said = "\n".join(lines(made))
    assert "curl -X POST http://localhost:8000/start_profile" in said
    assert "--profiler-config" in said
    assert "without perf: perf is not installed" in said


def test_tracefs_that_is_not_writable_is_left_out_and_named(tmp_path):
    found = dataclasses.replace(NOTHING, tracefs=Path("/sys/kernel/tracing"))
    made = plan(found, folder=tmp_path / "out", seconds=1, recipe_name="vllm", server="http://localhost:8000")
    assert not made.tracefs
    assert "needs root" in made.left_out["ftrace"]


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
