"""Recordings on this machine: the folder can be read, tells the truth, and says what is missing."""

import gzip
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tests.record import busy, recording
from tracelib import cli
from tracelib.cli.flags import PART_FAILED, USAGE_ERROR
from tracelib.manifest import manifest
from tracelib.record import perf, plan
from tracelib.record.plan import processes_of, recipe, recipe_names
from tracelib.record.processes import Thread, threads


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return one recording of a command: its folder, what the command knows of itself, status, output."""
    recording.skip_unless_traceable(root=False)
    scratch = tmp_path_factory.mktemp("run")
    script, truth = scratch / "work.py", scratch / "truth.json"
    script.write_text(recording.WORK)
    line = shlex.join([sys.executable, str(script), str(truth)])
    status, said = recording.recorded(
        scratch / "out", "--command", line, "--seconds", 60, "--title", "a test", "--role", "python.*=worker"
    )
    return scratch / "out", json.loads(truth.read_text()), status, said


def test_it_is_complete(run):
    folder, _, status, said = run
    assert status == 0, said
    log = recording.log_of(folder)
    assert log["state"] == "complete"
    states = {step["name"]: step["state"] for step in log["steps"]}
    assert states["command"] == "recorded"
    assert "recorded" in {states.get("perf"), states.get("ftrace")}
    assert not recording.processes_of(folder)
    assert folder.stat().st_mode & 0o77 == 0  # names of everybody's processes are in it


def test_every_file_that_a_report_reads_loads_on_one_timeline(run):
    folder, _, _, _ = run
    trace = tracelib.load(folder)
    assert set(trace.sources["file"]) == {path.name for path in folder.glob("*.gz")}
    assert not set(trace.sources["tied_by"]) & {"untied"}
    assert "error" not in set(trace.health["level"])


def test_the_recorders_saw_what_the_command_knows_of_itself(run):
    """CPU time by samples against the command's own; the whole of its work lies inside of the recording."""
    folder, truth, _, _ = run
    trace = tracelib.load(folder)
    log = manifest(folder / "run.toml")
    wall = log.wall_offsets()["monotonic"]
    began, ended = truth["began"] + wall, truth["ended"] + wall
    threads = (
        trace.threads.with_row_index("thread") if "thread" not in trace.threads.columns else trace.threads
    )
    own = threads.filter(pl.col("tid") == truth["tid"])["thread"]
    samples = trace.samples.filter(
        pl.col("thread").is_in(own.to_list()) & pl.col("ts_ns").is_between(began, ended)
    )
    if trace.samples.height:
        assert samples.height / 199 == pytest.approx(truth["cpu_s"], rel=0.25)
    if trace.sched.height:
        times = trace.sched["ts_ns"]
        assert times.min() < began
        assert times.max() > ended - 50_000_000
    assert trace.samples.height + trace.sched.height > 0


def test_the_manifest_holds_what_the_files_cannot_say(run):
    folder, _, _, _ = run
    said = manifest(folder / "run.toml")
    assert said.title == "a test"
    assert said.roles == {"python.*": "worker"}
    assert said.ftrace_clock == "mono"
    assert said.cpus == os.cpu_count()
    assert said.allowed_cpus == len(os.sched_getaffinity(0))
    assert said.host == os.uname().nodename
    assert set(said.clocks) == {"realtime", "monotonic", "monotonic_raw", "boottime", "tai"}


def test_a_serving_stack_without_a_gpu_is_recorded_and_reported(tmp_path):
    """The sample workload under `record`, then `report`: processes by roles, its log of requests."""
    recording.skip_unless_traceable(root=False)
    pytest.importorskip("tokenizers")
    out = tmp_path / "out"
    options = (
        "--device none --profile none --tp 1 --seconds 0.5 --rps 4 --prompt-tokens 500 --output-tokens 4"
    )
    python, server = shlex.quote(sys.executable), shlex.quote(str(out / "server"))
    line = f"{python} -m sample_traces.capture tokenization {options} --out {server}"
    status, said = recording.recorded(
        out,
        "--command",
        line,
        "--seconds",
        120,
        "--requests",
        "server/requests.jsonl",
        "--requests-clock",
        "monotonic",
    )
    assert status == 0, said
    assert {"api_server", "engine", "worker", "recorder"} <= set(
        tracelib.load(out).threads["role"].drop_nulls()
    )
    assert manifest(out / "run.toml").requests == out / "server" / "requests.jsonl"
    assert cli.main(["report", str(out), "-o", str(tmp_path / "report")]) == 0
    findings = json.loads((tmp_path / "report" / "findings.json").read_text())
    assert findings["verdict"]["state"] == "insufficient"  # of GPUs there was none
    assert {row["format"] for row in findings["sources"]} <= {"perf", "ftrace"}
    assert all(row["tied_by"] == "declared" for row in findings["sources"])


def beginning(path):
    with gzip.open(path, "rt") as text:
        return text.read(20_000)


def test_tracepoints_are_not_thinned_out_and_the_clock_is_named(run):
    folder, _, _, _ = run
    if (folder / "perf.txt.gz").exists():
        head = beginning(folder / "perf.txt.gz")
        assert "clockid: monotonic" in head
        events = [line for line in head.splitlines() if line.startswith("# event") and "sched:" in line]
        assert not any("freq = 1" in line for line in events)
    if (folder / "ftrace.txt.gz").exists():
        assert beginning(folder / "ftrace.txt.gz").startswith("# clock: mono\n")


def test_without_go_nothing_happens(tmp_path, capsys):
    recording.skip_unless_traceable(root=False)
    assert cli.main(["record", "--command", "true", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "perf record -q -N -k mono" in said
    assert "perf_event_paranoid" in said
    assert "Nothing was recorded" in said
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_is_named(tmp_path):
    recording.skip_unless_traceable(root=False)
    status, said = recording.recorded(
        tmp_path / "out", "--command", "sh -c 'sleep 0.2; exit 7'", "--without", "ftrace"
    )
    assert status == PART_FAILED
    assert "command failed: the command ended with status 7" in said
    tracelib.load(tmp_path / "out")


def test_a_perf_that_fails_is_named_and_the_rest_is_recorded(tmp_path, monkeypatch):
    """It works when it is tried, and is refused when it counts."""
    recording.skip_unless_traceable()
    fake = tmp_path / "bin" / "perf"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\ncase "$*" in *perf.data*) echo "Error:\nno such luck" >&2; exit 1;; esac\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    (tmp_path / "cwd").mkdir()
    done = subprocess.run(
        recording.command(tmp_path / "out", "--command", "sleep 0.5"),
        cwd=tmp_path / "cwd",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == PART_FAILED
    assert "perf failed: perf record: no such luck" in done.stderr
    assert [row["format"] for row in tracelib.load(tmp_path / "out").sources.iter_rows(named=True)] == [
        "ftrace"
    ]


def test_a_command_that_goes_on_is_ended_with_its_children(tmp_path):
    recording.skip_unless_traceable(root=False)
    line = "sh -c 'sleep 1000 & echo $! > {}; sleep 1000'".format(tmp_path / "pid")
    status, said = recording.recorded(
        tmp_path / "out", "--command", line, "--seconds", 1, "--without", "ftrace"
    )
    assert status == 0, said
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert (
        not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    )  # ended, not yet fetched


def test_a_quota_is_copied_before_and_after(tmp_path):
    recording.skip_unless_traceable(root=False)
    with busy.processes("while True: pass") as pids, busy.quota(0.1, pids):
        status, said = recording.recorded(
            tmp_path / "out", "--pid", pids[0], "--seconds", 1.5, "--without", "ftrace"
        )
    assert status == 0, said
    found = manifest(tmp_path / "out" / "run.toml")
    assert found.cpu_max == "10000 100000"
    before, after = (
        {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
        for path in found.cpu_stat
    )
    assert after["nr_throttled"] - before["nr_throttled"] >= 5
    assert 10 * found.seconds >= after["nr_periods"] - before["nr_periods"] - 1 >= 5  # one each 100 ms


def test_without_rights_it_takes_what_it_may_and_says_what_lacks():
    recording.skip_unless_traceable(root=False)
    prefix = recording.without_rights()
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o777)
        out = Path(scratch) / "out"
        line = shlex.join([sys.executable, "-c", "sum(range(2 * 10**7))"])
        done = subprocess.run(
            [*prefix, *recording.command(out, "--command", line, "--seconds", 60)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == USAGE_ERROR and "without perf" in done.stderr + done.stdout:
            pytest.skip(f"this kernel lets users without rights sample nothing: {done.stderr}")
        assert done.returncode == 0, done.stderr + done.stdout
        assert "no wake-ups" in done.stdout
        assert "perf: samples and switches of the processes alone" in done.stdout
        trace = tracelib.load(out)
        assert trace.samples.height > 0
        if "without ftrace" in done.stdout:
            assert set(trace.sched["event"].cast(pl.String)) == {"switch"}


@pytest.mark.parametrize(
    "flags",
    [
        ("--recipe", "vlm"),
        ("--seconds", "0"),
        ("--seconds", "inf"),
        ("--server", "localhost:8000"),
        ("--server", "http://[::1"),
        ("--server", "http://localhost:8000/?key=1"),
        ("--without", "pref"),
        ("--pid", "4194305"),
        ("--command", "true", "--pid", "1"),
        ("--command", " "),
        ("--role", "worker"),
        ("--finish",),
    ],
)
def test_bad_flags_are_one_line_and_status_2(flags, tmp_path, capsys):
    assert cli.main(["record", "--out", str(tmp_path / "out"), *flags]) == USAGE_ERROR
    said = capsys.readouterr().err
    assert said.startswith("tracelib: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "nothing is in it yet"),
        ('{"id": 1, "arrived": 1796084957889918525, "ttft_ms": 2}\n', "JSON, clock realtime, 1 request"),
        ("starting up\n", "no request can be read yet"),
    ],
)
def test_a_request_log_that_grows_elsewhere_is_looked_at_at_once(content, said, tmp_path, capsys):
    log = tmp_path / "server.log"
    if content is not None:
        log.write_text(content)
    command = ["record", "--command", "true", "--out", str(tmp_path / "out"), "--requests", str(log)]
    assert cli.main(command) == (0 if content is not None else USAGE_ERROR)
    out, err = capsys.readouterr()
    assert said in (out if content is not None else err)


def test_a_url_loses_its_password_in_messages(tmp_path, capsys):
    url = "http://someone:hunt@/er2@localhost:8000/?token=t0ken"
    assert cli.main(["record", "--out", str(tmp_path / "out"), "--server", url]) == USAGE_ERROR
    said = "".join(capsys.readouterr())
    assert "http://localhost:8000/" in said
    assert not any(secret in said for secret in ("someone", "hunt", "er2", "t0ken"))


def test_nothing_in_the_working_directory_runs(tmp_path):
    recording.skip_unless_traceable(root=False)
    work = tmp_path / "work"
    work.mkdir()
    for name in ("json", "tomllib", "tomli_w"):
        (work / f"{name}.py").write_text(f"open({str(tmp_path / 'hijacked')!r}, 'w')\nraise SystemExit(9)\n")
    start = (
        "import sys; del sys.path[0]; sys.path.insert(0, sys.argv.pop(1)); "
        "from tracelib.cli import main; main()"
    )
    flags = [
        "--command",
        "sleep 1",
        "--seconds",
        "1",
        "--without",
        "ftrace",
        "--out",
        str(tmp_path / "out"),
        "--go",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", start, str(ROOT), "record", *flags], cwd=work, env=environment, check=False
    )
    assert not (tmp_path / "hijacked").exists()
    assert (tmp_path / "out" / "perf.txt.gz").exists()


def test_a_server_is_found_by_its_module_and_a_foreign_one_is_not():
    def thread(pid, name):
        return Thread(pid, pid, name, start=1, run_ns=0, wait_ns=0)

    running = [thread(1, "python3"), thread(2, "python3"), thread(3, "vllm"), thread(4, "vllm-exporter")]
    commands = {
        1: "python3 -m vllm.entrypoints.openai.api_server --model m",
        2: "python3 -m http.server",
        4: "/usr/bin/vllm-exporter",
    }
    assert processes_of(recipe("vllm"), running, lambda pid: commands.get(pid, "")) == [1, 3]


def test_that_there_is_no_server_to_record_is_said_before_the_recording(tmp_path, capsys):
    if plan.processes_of(recipe("trtllm"), threads().values()):
        pytest.skip("a server runs here")
    command = ["record", "--recipe", "trtllm", "--without", "perf", "--out", str(tmp_path / "out")]
    status = cli.main(command)
    said = capsys.readouterr()
    if "no tracefs" in said.err or "not writable" in said.err:
        pytest.skip("nothing can be recorded here")
    assert status == 0
    assert "no process is named ^trtllm|" in said.out
    assert cli.main([*command, "--go"]) == USAGE_ERROR
    assert "no process is named ^trtllm|" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_touched(tmp_path, capsys):
    (tmp_path / "mine").write_text("x")
    assert cli.main(["record", "--command", "true", "--out", str(tmp_path), "--go"]) == USAGE_ERROR
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert "is empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_its_page_with_the_command_that_record_prints(name):
    if name != "generic":
        page = (ROOT / "docs" / "recording" / f"{name}.md").read_text()
        assert recipe(name).server.strip() in page


def test_the_pages_show_the_perf_command_that_is_run():
    page = (ROOT / "docs" / "recording" / "perf.md").read_text()
    shown = shlex.join(perf.record_command(perf.RUNGS[0], cpus=8, pids=[], seconds=10, output="perf.data"))
    assert shown.replace(" -q", "") in page
    assert shlex.join(perf.script_command("perf.data")) in page
