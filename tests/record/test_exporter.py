"""`tracelib check` for Prometheus: its text by hand, by promtool, and scraped by a real Prometheus."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from argparse import Namespace
from dataclasses import replace

import pytest
import yaml

from tests.conftest import ROOT
from tests.record import busy
from tracelib import cli
from tracelib.cli.flags import PART_FAILED, USAGE_ERROR, whole
from tracelib.cli.record import _measure, _role_of
from tracelib.errors import BadParameter
from tracelib.record.check import STATES, Measured, Snapshot, Verdict, measured
from tracelib.record.exporter import METRICS, OPEN_METRICS, TEXT, Page, _server, address, allowed, exposition
from tracelib.record.processes import Thread

SECOND = 1_000_000_000
SPIN = "open('/proc/self/comm', 'w').write('VLLM::APIServer')\nwhile True: pass"


def program(name):
    path = shutil.which(name)
    if path is None:
        assert "TRACELIB_CI" not in os.environ, f"{name} is not installed (Debian: prometheus)"
        pytest.skip(f"{name} is not installed (Debian: prometheus)")
    return path


def snapshot(at_s, *threads):
    return Snapshot(int(at_s * SECOND), {thread.tid: thread for thread in threads}, None, None, {})


def thread(pid, tid, run_s, wait_s):
    return Thread(pid, tid, "name", 7, int(run_s * SECOND), int(wait_s * SECOND))


#: Two seconds. API server 10: its first thread ran 1.9 s, its second ran 0.5 and waited 1.0. Worker 20: ran
#: 1.0, waited 0.6. Process 30 has no role: ran 0.6.
WATCHED = measured(
    snapshot(0, thread(10, 10, 5, 1), thread(10, 11, 0, 0), thread(20, 20, 1, 1), thread(30, 30, 0, 0)),
    snapshot(
        2, thread(10, 10, 6.9, 1), thread(10, 11, 0.5, 1), thread(20, 20, 2, 1.6), thread(30, 30, 0.6, 0)
    ),
    cpus=2,
    quota_cpus=1.5,
    whole=False,
    gpu_busy={0: 0.25, 1: 1.0},
    roles={10: "api_server", 20: "worker"},
)


def test_roles_by_hand():
    roles = {role: (use.running, use.waiting, use.busiest) for role, use in WATCHED.roles.items()}
    assert roles == {
        "api_server": (pytest.approx(1.2), pytest.approx(0.5), pytest.approx(0.95)),
        "worker": (pytest.approx(0.5), pytest.approx(0.3), pytest.approx(0.5)),
    }


def test_the_text_by_hand():
    """Ran 4.0 s of 2, waited 1.6: 2.0 and 0.8 threads; waited 1.6 of 5.6 s."""
    text = exposition(Verdict("cpu_shortage", "", WATCHED))
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values == {
        "tracelib_check_window_seconds": "2",
        **{f'tracelib_check_state{{state="{state}"}}': str(int(state == "cpu_shortage")) for state in STATES},
        "tracelib_check_cpus": "2",
        "tracelib_check_quota_cpus": "1.5",
        "tracelib_check_running_threads": "2",
        "tracelib_check_waiting_threads": "0.8",
        "tracelib_check_run_queue_wait_ratio": "0.285714286",
        'tracelib_check_cpu_pressure_ratio{source="threads"}': "0.285714286",
        'tracelib_check_gpu_busy_ratio{gpu="0"}': "0.25",
        'tracelib_check_gpu_busy_ratio{gpu="1"}': "1",
        'tracelib_check_role_running_threads{role="api_server"}': "1.2",
        'tracelib_check_role_running_threads{role="worker"}': "0.5",
        'tracelib_check_role_waiting_threads{role="api_server"}': "0.5",
        'tracelib_check_role_waiting_threads{role="worker"}': "0.3",
        'tracelib_check_role_busiest_thread_ratio{role="api_server"}': "0.95",
        'tracelib_check_role_busiest_thread_ratio{role="worker"}': "0.5",
    }
    lines = text.splitlines()
    first = lines.index("# TYPE tracelib_check_cpus gauge")
    assert lines[first - 1] == "# HELP tracelib_check_cpus CPUs that the watched threads may use."


def test_promtool_has_nothing_to_say():
    whole = replace(WATCHED, throttled_periods=0.2, throttled_seconds=1.5)
    text = exposition(Verdict("throttled", "", whole))
    assert set(METRICS) == {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_not_counted_is_not_there():
    nothing = Measured(1.0, 0, None, None, None, None, None, None, None, None)
    names = {
        line.split()[2]
        for line in exposition(Verdict("not_measured", "", nothing)).splitlines()
        if "TYPE" in line
    }
    assert names == {"tracelib_check_window_seconds", "tracelib_check_state"}


def test_processes_have_the_roles_that_reports_give_them():
    names = ("VLLM::EngineCor", "VLLM::Worker_TP", "sglang::detoken", "bash")
    assert [_role_of(0, name) for name in names] == ["engine", "worker", "api_server", None]
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"]
    started = subprocess.Popen([*command, "-m", "vllm.entrypoints.openai.api_server"], stdout=subprocess.PIPE)
    try:
        started.stdout.readline()  # until then /proc may not have its command line
        assert _role_of(started.pid, "python") == "api_server"
    finally:
        started.kill()
        started.communicate()


# -------------------- the file
def test_the_file_is_replaced_as_a_whole(tmp_path, capsys):
    target = tmp_path / "tracelib.prom"
    target.write_text("old 1\n")
    with target.open() as reader, busy.processes("import time; time.sleep(60)") as pids:
        flags = ["check", "--seconds", "0.3", "--pid", str(pids[0]), "--prometheus", str(target)]
        assert cli.main(flags) in (0, 1)
        assert reader.read() == "old 1\n"  # whoever was reading reads on
    assert target.read_text().startswith("# HELP tracelib_check_window_seconds")
    assert target.stat().st_mode & 0o444 == 0o444  # node_exporter is another user
    assert [path.name for path in tmp_path.iterdir()] == ["tracelib.prom"]
    assert capsys.readouterr().out


def test_of_a_server_that_has_ended_it_says_so_and_goes_on(tmp_path, capsys):
    with busy.processes("import time; time.sleep(60)") as pids:
        flags = Namespace(seconds=0.1, shortage=0.1, pid=pids, recipe="", serve="0", prometheus=None)
        measure = _measure(flags)
        assert measure().measured.running is not None
    verdict = measure()
    assert verdict.state == "not_measured"
    assert "tracelib_check_cpus" not in exposition(verdict)


@pytest.mark.parametrize(
    "flags",
    [
        ("--serve", "nowhere"),
        ("--serve", "70000"),
        ("--serve", "::1:80"),
        ("--serve", "0", "--json"),
        ("--recipe", "torch"),
        ("--recipe", "vllm", "--pid", "1"),
    ],
)
def test_bad_flags_are_one_line_and_status_2(flags, capsys):
    assert cli.main(["check", *flags]) == USAGE_ERROR
    assert capsys.readouterr().err.startswith("tracelib: ")


def test_a_recipe_without_its_server_is_not_measured(monkeypatch, capsys):
    monkeypatch.setattr("tracelib.record.plan.processes_of", lambda *_: [])
    assert cli.main(["check", "--recipe", "vllm", "--seconds", "0.1"]) == PART_FAILED
    assert capsys.readouterr().out.startswith("not_measured")


# -------------------- the port
@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("9787", ("127.0.0.1", 9787)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
        (":80", ("127.0.0.1", 80)),
    ],
)
def test_addresses(text, at):
    assert address(text) == at


def test_a_link_in_the_file_s_place_is_replaced_not_followed(tmp_path):
    """In a folder others can write to, it would mean any file."""
    other = tmp_path / "other"
    other.write_text("mine")
    target = tmp_path / "tracelib.prom"
    target.symlink_to(other)
    with whole(target, follow=False) as made:
        made.write_text("a 1\n")
    assert not target.is_symlink()
    assert (target.read_text(), other.read_text()) == ("a 1\n", "mine")
    target.unlink()
    target.symlink_to(tmp_path)  # a folder
    with whole(target, follow=False) as made:
        made.write_text("a 1\n")
    assert target.read_text() == "a 1\n"


@pytest.mark.parametrize("text", ["", "x", "host:", "-1", "::1:80"])
def test_what_is_no_address(text):
    with pytest.raises(BadParameter):
        address(text)


def asked(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", ""


def test_what_the_port_answers():
    page = Page()
    with _server(("127.0.0.1", 0), page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        assert asked(url)[0] == 503  # nothing was measured yet
        page.text = "a 1\n"
        assert asked(url) == (200, TEXT, "a 1\n")
        assert asked(url, Accept="application/openmetrics-text;version=1.0.0") == (
            200,
            OPEN_METRICS,
            "a 1\n# EOF\n",
        )
        assert asked(f"{url}/x")[0] == 404
        assert asked(url, Host="evil.example")[0] == 421
        server.shutdown()


@pytest.mark.parametrize(
    ("host", "listening", "answered"),
    [
        ("localhost:9", "127.0.0.1", True),
        ("127.0.0.1", "node7", True),
        ("[::1]:9", "::1", True),
        ("10.1.2.3:9", "10.1.2.3", True),
        ("Node7:9", "node7", True),
        ("evil.example:9", "127.0.0.1", False),
        ("10.1.2.3:9", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("evil.example", "0.0.0.0", False),
        ("10.1.2.3:9", "0.0.0.0", True),
        ("[fd00::1]:9", "::", True),
        ("gpu-host", "0.0.0.0", True),
        ("gpu-host.corp.example:9", "::", True),
        ("", "0.0.0.0", False),
        (None, "127.0.0.1", False),
    ],
)
def test_who_asks_under_another_s_name_gets_nothing(host, listening, answered, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-host.corp.example")
    assert allowed(host, listening) == answered


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it(tmp_path):
    prometheus = program("prometheus")
    with busy.processes(SPIN) as pids:
        command = [
            sys.executable,
            "-m",
            "tracelib",
            "check",
            "--pid",
            str(pids[0]),
            "--seconds",
            "0.5",
            "--serve",
            "0",
        ]
        exporter = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            target = exporter.stderr.readline().split("//")[1].split("/")[0]
            told = _scraped(prometheus, tmp_path, target)
        finally:
            exporter.send_signal(signal.SIGTERM)
            rest = exporter.communicate(timeout=20)[1]
    assert (exporter.returncode, rest) == (0, "")  # a stop is not a failure
    by_name = {row["metric"]["__name__"]: row for row in told}
    assert by_name["tracelib_check_role_busiest_thread_ratio"]["metric"]["role"] == "api_server"
    wanted = sum(
        float(by_name[f"tracelib_check_{name}_threads"]["value"][1]) for name in ("running", "waiting")
    )
    assert wanted == pytest.approx(1, abs=0.3)  # one thread that never sleeps
    states = [row["metric"]["state"] for row in told if row["metric"]["__name__"] == "tracelib_check_state"]
    assert sorted(states) == sorted(STATES)


def _scraped(prometheus, folder, target):
    """Return what Prometheus knows of the target once it has scraped it."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "tracelib", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    server = subprocess.Popen(
        [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
         "--web.listen-address=127.0.0.1:0", "--log.level=info"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        listening = next(line for line in server.stderr if "Listening on" in line)
        threading.Thread(target=server.stderr.read, daemon=True).start()
        base = "http://" + listening.split("address=")[1].split()[0]
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            ready = asked(f"{base}/-/ready")[0] == 200
            rows = ready and _query(base, '{__name__=~"tracelib_check_.*"}')
            if rows:
                (target_up,) = _query(base, "up")
                assert target_up["value"][1] == "1"
                return rows
            time.sleep(0.2)
        raise AssertionError(f"{target} was not scraped: {_query(base, 'up')}")
    finally:
        server.terminate()
        server.wait(20)


def _query(base, expression):
    query = urllib.parse.urlencode({"query": expression})
    return json.loads(asked(f"{base}/api/v1/query?{query}")[2])["data"]["result"]


# -------------------- what runs it
UNITS = ROOT / "docs/monitoring"


def test_systemd_has_nothing_to_say_on_the_units(tmp_path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    units = sorted([*UNITS.glob("*.service"), *UNITS.glob("*.timer")])
    assert len(units) == 3
    for unit in units:
        text = unit.read_text()
        assert unit.suffix == ".timer" or "/opt/tracelib/bin/tracelib check" in text
        (tmp_path / unit.name).write_text(text.replace("/opt/tracelib/bin/tracelib", sys.executable))
    files = [str(tmp_path / unit.name) for unit in units]
    done = subprocess.run([verify, "verify", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def _commands():
    for unit in UNITS.glob("*.service"):
        line = next(line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
        yield line.split()[1:]
    (box,) = yaml.safe_load((UNITS / "daemonset.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    yield box["args"][1:]


@pytest.mark.parametrize("command", list(_commands()), ids=" ".join)
def test_their_commands_are_ours(command, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("tracelib.record.exporter.serve", lambda at, *_: seen.append(at))
    monkeypatch.setattr("tracelib.record.check.check", lambda **_: Verdict("idle", "", WATCHED))
    made = contextlib.nullcontext(tmp_path / "made")
    monkeypatch.setattr("tracelib.cli.record.whole", lambda _, **__: made)
    assert cli.main(command) == 0
    assert all(port == 9787 for _, port in seen)


def test_the_daemon_set_is_whole():
    document = yaml.safe_load((UNITS / "daemonset.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("apps/v1", "DaemonSet")
    spec, labels = document["spec"], document["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    pod = spec["template"]["spec"]
    assert pod["hostPID"] is True
    (box,) = pod["containers"]
    (port,) = box["ports"]
    assert box["readinessProbe"]["httpGet"]["port"] == port["name"]
    assert spec["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    assert "privileged" not in box["securityContext"]
