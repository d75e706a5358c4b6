"""Ids, names and ends of processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tracelib.record.processes import alive, child, descendants, ended, mark, outside_ids, threads


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


def test_a_child_dies_with_its_parent_however_it_dies(tmp_path):
    code = (
        "import signal, time, sys; from tracelib.record.processes import child;"
        "started = child(['sleep', '1000'], death=signal.SIGTERM);"
        "print(started.pid, flush=True); time.sleep(1000)"
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
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"import signal, time; {ignoring}; print(flush=True); time.sleep(100)"
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
