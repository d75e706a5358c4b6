"""Whatever is killed, whenever: no tracing is left on, and the folder still loads (or there is none)."""

import contextlib
import http.server
import os
import random
import select
import signal
import threading
import time
from pathlib import Path

import pytest

import tracelib
from tests.conftest import thorough
from tests.record import recording
from tracelib.record import profiler
from tracelib.record.folder import Counters
from tracelib.record.keeper import Keeper
from tracelib.record.plan import Plan

SLEEP = "sleep 30"


@pytest.fixture(autouse=True)
def _traceable():
    recording.skip_unless_traceable()


def wait_until(true, patience_s=90):
    limit = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < limit, true
        time.sleep(0.1)


def kill(pid, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def keeper_of(process):
    found = []
    wait_until(
        lambda: (
            process.poll() is not None or found.extend(filter(None, [recording.child_of(process)])) or found
        )
    )
    return found[0]


def nothing_is_left(folder, keeper):
    wait_until(lambda: not recording.processes_of(folder))
    assert not any(recording.instances(keeper).values())


def loads_or_is_not_there(folder):
    if folder.exists():
        trace = tracelib.load(folder)
        assert trace.samples.height + trace.sched.height > 0


def no_half_file_is_left(folder):
    assert not [path.name for path in folder.rglob(".*")]


# A moment is counted from the keeper's start: while it sets up, while it records, while it saves. More:
# TRACELIB_KILLS=20.
MOMENTS = [random.Random(seed).uniform(0, 4) for seed in range(int(os.environ.get("TRACELIB_KILLS", "2")))]


@pytest.mark.parametrize("after_s", thorough(MOMENTS, but=MOMENTS[:-1]))
def test_the_command_killed(tmp_path, after_s):
    """The keeper notices, ends the recording and saves it as if it had been stopped."""
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 2.5)
    keeper = keeper_of(process)
    time.sleep(after_s)
    kill(process.pid)
    process.wait()
    wait_until(lambda: not Path(f"/proc/{keeper}").exists())
    nothing_is_left(tmp_path / "out", keeper)
    assert recording.instances(keeper) == {}
    no_half_file_is_left(tmp_path)
    loads_or_is_not_there(tmp_path / "out")
    assert (tmp_path / "out").exists()
    assert recording.log_of(tmp_path / "out")["state"].startswith(("complete", "stopped early"))


@pytest.mark.parametrize("after_s", thorough(MOMENTS, but=MOMENTS[:-1]))
def test_the_keeper_killed(tmp_path, after_s):
    """The kernel switches everything off, the command has the rest saved and cleared away."""
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 2.5)
    keeper = keeper_of(process)
    time.sleep(after_s)
    kill(keeper)
    said, _ = process.communicate(timeout=120)
    nothing_is_left(tmp_path / "out", keeper)
    assert recording.instances(keeper) == {}, said
    no_half_file_is_left(tmp_path)
    loads_or_is_not_there(tmp_path / "out")


@pytest.mark.parametrize("after_s", thorough(MOMENTS, but=MOMENTS[:-1]))
def test_both_killed(tmp_path, after_s):
    """Nobody is left to clear away; the kernel switches tracing off. `--finish` saves what is there."""
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 2.5)
    keeper = keeper_of(process)
    time.sleep(after_s)
    kill(process.pid)
    kill(keeper)
    process.wait()
    wait_until(lambda: not Path(f"/proc/{keeper}").exists())
    nothing_is_left(tmp_path / "out", keeper)
    if (tmp_path / "out" / "recording.toml").exists():
        recording.recorded(tmp_path / "out", "--finish")
        no_half_file_is_left(tmp_path)
        loads_or_is_not_there(tmp_path / "out")
    else:  # nothing had begun
        assert not list((tmp_path / "out").glob("*.gz"))
    # An instance whose owner died before it was written down goes with the next recording.
    recording.recorded(tmp_path / "next", "--command", "true", "--without", "perf")
    assert recording.instances(keeper) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", thorough([moment + 1 for moment in MOMENTS], but=[]))
def test_signals_at_any_moment(tmp_path, after_s, number):
    """Counted from the command's start: it may not even know of signals yet."""
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 2.5)
    time.sleep(after_s)
    keeper = recording.child_of(process) or -1
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    # Python itself dies of SIGINT where it is stopped in an `exec`, as of a dataclass that is imported.
    assert process.returncode in (0, 3, 128 + number, -number, -signal.SIGINT), said
    assert "Traceback" not in said
    nothing_is_left(tmp_path / "out", keeper)
    assert recording.instances(keeper) == {}
    no_half_file_is_left(tmp_path)
    loads_or_is_not_there(tmp_path / "out")


def test_the_kernel_switches_off_at_the_owners_death(tmp_path):
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 60)
    keeper = keeper_of(process)
    wait_until(lambda: any(recording.instances(keeper).values()))
    os.kill(process.pid, signal.SIGSTOP)  # it must not be the one that helps
    kill(keeper)
    wait_until(lambda: not any(recording.instances(keeper).values()))
    wait_until(lambda: "perf" not in recording.processes_of(tmp_path / "out"))
    os.kill(process.pid, signal.SIGCONT)
    process.communicate(timeout=120)
    assert recording.instances(keeper) == {}
    loads_or_is_not_there(tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_early_and_save_it(tmp_path, number):
    process = recording.started(tmp_path / "out", "--command", SLEEP, "--seconds", 60)
    keeper = keeper_of(process)
    wait_until(lambda: any(recording.instances(keeper).values()))
    time.sleep(1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert recording.log_of(tmp_path / "out")["state"].startswith("stopped early")
    assert recording.instances(keeper) == {}
    assert tracelib.load(tmp_path / "out").sched.height > 0


class Server(http.server.BaseHTTPRequestHandler):
    """A server's profiler switch; its traces are written when it is switched off."""

    asked: list[str]
    folder = None

    def do_POST(self):
        self.asked.append(self.path)
        if self.path == "/start_profile":
            time.sleep(1)  # a moment to be killed in
        if self.path == "/stop_profile":
            (self.folder / "worker.pt.trace.json").write_text(
                '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, '
                '"ts": 1796006342707545.5, "dur": 9}]}'
            )
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "older.json").write_text("{}")
    os.utime(tmp_path / "traces" / "older.json", (1, 1))
    handler = type("Handler", (Server,), {"asked": [], "folder": tmp_path / "traces"})
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_port}", handler.asked, tmp_path / "traces"
    served.shutdown()
    served.server_close()


def test_the_servers_profiler_is_switched_and_its_traces_are_copied(tmp_path, server):
    url, asked, traces = server
    status, said = recording.recorded(
        tmp_path / "out",
        "--recipe",
        "vllm",
        "--server",
        url,
        "--server-traces",
        traces,
        "--seconds",
        1,
        "--without",
        "perf",
    )
    assert status == 0, said
    assert asked == ["/start_profile", "/stop_profile"]
    assert (tmp_path / "out" / "worker.pt.trace.json").exists()
    assert not (tmp_path / "out" / "older.json").exists()
    assert set(tracelib.load(tmp_path / "out").sources["format"]) == {"torch_profiler", "ftrace"}


def test_the_counters_are_taken_when_recording_stops_not_when_the_server_has_exported(tmp_path, monkeypatch):
    order = []
    made = Plan(str(tmp_path / "out"), 0.05, "vllm", 8, start_url="http://localhost/start", stop_url="stop")
    monkeypatch.setattr(profiler, "_post", order.append)
    monkeypatch.setattr(Counters, "take", lambda _, side: order.append(side))
    monkeypatch.setattr(Counters, "write_run", lambda _: None)
    monkeypatch.setattr(select, "select", lambda *_: ([], [], []))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    Keeper(made).record()
    assert order[:4] == ["before", "http://localhost/start", "after", "stop"]


def test_the_servers_profiler_is_switched_off_when_the_keeper_is_killed(tmp_path, server):
    url, asked, traces = server
    process = recording.started(
        tmp_path / "out", "--recipe", "sglang", "--server", url, "--server-traces", traces, "--seconds", 60
    )
    wait_until(lambda: "/start_profile" in asked)
    kill(keeper_of(process))
    process.communicate(timeout=120)
    assert asked == ["/start_profile", "/stop_profile"]
    assert (tmp_path / "out" / "worker.pt.trace.json").exists()


def test_a_server_that_refuses_is_named_and_the_rest_is_recorded(tmp_path):
    refusing = type("Refusing", (http.server.BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), refusing)  # no do_POST: status 501
    threading.Thread(target=served.serve_forever, daemon=True).start()
    status, said = recording.recorded(
        tmp_path / "out",
        "--recipe",
        "vllm",
        "--server",
        f"http://127.0.0.1:{served.server_port}",
        "--seconds",
        1,
        "--without",
        "perf",
    )
    served.shutdown()
    served.server_close()
    assert status == 3
    assert "profiler failed" in said
    assert "501" in said
    assert tracelib.load(tmp_path / "out").sched.height > 0
