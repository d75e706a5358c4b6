"""The command line: exit codes, one line per error, help that teaches."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.report import trivial
from tests.report.example import findings, plain
from tracelib import cli
from tracelib import loading as progress
from tracelib.cli.flags import BROKEN_PIPE, PART_FAILED, USAGE_ERROR, options_of
from tracelib.cli.report import default_folder
from tracelib.options import OPTIONS, Options
from tracelib.report import notebook_cells, pipeline
from tracelib.report.notebooks import notebook
from tracelib.report.run import parameter_names
from tracelib.sources.torch_profiler import native

SAMPLE = str(ROOT / "sample_traces" / "starved")


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "tracelib", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "no/such/path"),
        ("report", "benchmarks"),
        ("inspect", "README.md"),
        ("report", SAMPLE, "--window", "2:1"),
        ("report", SAMPLE, "--window=-1:2"),
        ("report", SAMPLE, "--offset", "x"),
        ("report", SAMPLE, "--cpu-bound", "15"),
        ("report", SAMPLE, "--timeout", "-5"),
        ("report", "https://example.com/trace.json"),
        ("check", "--shortage", "3"),
        ("report", SAMPLE, "--fail-on", "cpu-bound"),
        ("notebooks", "copy", "rot_cause"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    extra = ("-o", str(tmp_path / "r")) if arguments[0] == "report" else ()
    assert cli.main([*arguments, *extra]) == USAGE_ERROR
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("tracelib: ")
    assert not (tmp_path / "r").exists()


def test_a_process_ends_with_the_status_and_says_nothing_else():
    done = run("inspect", "README.md")
    assert (done.returncode, done.stdout) == (USAGE_ERROR, "")
    assert done.stderr.startswith("tracelib: ")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback():
    assert "Traceback" in run("--debug", "inspect", "no/such/path").stderr


def test_help_teaches_with_examples(capsys):
    for command in (
        "report",
        "inspect",
        "notebooks",
        "check",
        "record",
        "export",
        "batch",
        "redact",
        "attach",
    ):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert f"tracelib {command}" in capsys.readouterr().out


def test_inspect_tells_formats_clocks_roles_and_health(capsys):
    assert cli.main(["inspect", SAMPLE]) == 0
    shown = capsys.readouterr().out
    for word in ("torch_profiler", "perf", "ftrace", "anchors", "worker", "missing"):
        assert word in shown, word


def test_notebooks_are_listed_and_copied_but_never_over_a_file(capsys, tmp_path):
    assert cli.main(["notebooks", "list"]) == 0
    assert "root_cause" in capsys.readouterr().out
    target = tmp_path / "mine.ipynb"
    assert cli.main(["notebooks", "copy", "root_cause", str(target)]) == 0
    assert json.loads(target.read_text())["nbformat"] == 4
    assert cli.main(["notebooks", "copy", "root_cause", str(target)]) == USAGE_ERROR


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("tracelib 0.")
    assert second.endswith("by the compiled pass") == native.available()


def test_who_reads_only_the_first_lines_is_told_nothing_else():
    command = f"{sys.executable} -m tracelib inspect {SAMPLE} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout.splitlines()[-1]) in (0, BROKEN_PIPE)


def notebook_that(tmp_path, monkeypatch, *cells):
    """Let `tracelib report` run a notebook with the same parameters and other cells."""
    parameters = "\n".join(f"{name} = None" for name in parameter_names(notebook("root_cause")))
    made = trivial.notebook(tmp_path / "in" / "root_cause.ipynb", *cells, parameters=parameters)
    monkeypatch.setattr(pipeline, "notebook", lambda _: made)
    return tmp_path / "out"


def carrying(**replaced):
    document = json.dumps(plain(**replaced))
    return f"from tracelib import findings, report; report.record(findings.read({document!r}))"


def test_a_part_that_fails_is_status_3_and_keeps_the_findings(tmp_path, monkeypatch, capsys):
    out = notebook_that(
        tmp_path, monkeypatch, carrying(), "raise RuntimeError('/home/' + 'al' + 'ice/x <b>')"
    )
    assert cli.main(["report", SAMPLE, "-o", str(out)]) == PART_FAILED
    assert "a part failed: cell 4: RuntimeError" in capsys.readouterr().err
    assert json.loads((out / "findings.json").read_text()) == plain()
    page = (out / "report.html").read_text()
    assert page.index("Exception was encountered") < page.index("RuntimeError")
    assert "<b>'" not in page
    assert "a part of the report failed" in (out / "summary.md").read_text().lower()
    for path in out.iterdir():
        assert "alice" not in path.read_text(errors="replace"), path.name


def test_a_run_that_fails_before_any_finding_is_status_3_and_says_so(tmp_path, monkeypatch):
    out = notebook_that(tmp_path, monkeypatch, "1 / 0")
    assert cli.main(["report", SAMPLE, "-o", str(out)]) == PART_FAILED
    written = {path.name for path in out.iterdir()}
    assert written == {".tracelib-report.json", "report.html", "root_cause.ipynb", "summary.md"}
    assert "ZeroDivisionError" in (out / "summary.md").read_text()


def test_an_error_in_the_traces_names_the_file_as_it_was_typed_and_writes_nothing(
    tmp_path, monkeypatch, capsys
):
    raising = (
        "from pathlib import Path; from tracelib.errors import BadTrace; "
        "raise BadTrace(Path(traces[0]), 'perf', 'line 3', 'cut')"
    )
    out = notebook_that(tmp_path, monkeypatch, raising)
    assert cli.main(["report", SAMPLE, "-o", str(out)]) == USAGE_ERROR
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == f"tracelib: {SAMPLE}: not readable as perf at line 3: cut."
    )
    assert not out.exists()


def test_findings_that_contradict_themselves_are_not_written(tmp_path, monkeypatch, capsys):
    document = plain()
    document["devices"][0]["lost_ns"] += 1
    out = notebook_that(tmp_path, monkeypatch, carrying(devices=document["devices"]))
    assert cli.main(["report", SAMPLE, "-o", str(out)]) == USAGE_ERROR
    assert "contradict themselves" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("failing", "status"), [("", 0), ("cpu_bound", 1), ("mixed,cpu_bound", 1), ("no_load", 0)]
)
def test_fail_on_turns_a_verdict_into_a_status(tmp_path, monkeypatch, failing, status):
    out = notebook_that(tmp_path, monkeypatch, carrying())
    assert cli.main(["report", SAMPLE, "-o", str(out), "--fail-on", failing]) == status


def test_a_picture_that_is_not_drawn_and_a_slow_reader_are_told_of(tmp_path, monkeypatch, capsys):
    written = pipeline.Report(tmp_path, findings())
    monkeypatch.setattr(pipeline, "write_report", lambda *_, **__: written)
    assert cli.main(["report", SAMPLE, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "overview.png" not in said
    assert ("several times slower" in said) != native.available()
    monkeypatch.setattr(native, "_scan", lambda: None)
    monkeypatch.setattr(notebook_cells, "can_draw", lambda: False)
    assert cli.main(["report", SAMPLE, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "no overview.png: it takes the extra image" in said
    assert "without the compiled pass, several times slower" in said


def test_terminal_escapes_in_names_are_neutralised(tmp_path, monkeypatch, capsys):
    attack = "\x1b]0;owned\x07\x9b31m\u202eevil"
    verdict = {"state": "cpu_bound", "sentence": attack, "confidence": "high", "why": []}
    out = notebook_that(tmp_path, monkeypatch, carrying(verdict=verdict))
    assert cli.main(["report", SAMPLE, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
    assert "evil" in shown


def test_ctrl_c_stops_it_clean(tmp_path):
    started = subprocess.Popen(
        [sys.executable, "-m", "tracelib", "report", SAMPLE, "-o", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    while not list(tmp_path.glob(".tracelib-*")):
        assert started.poll() is None, started.communicate()
        time.sleep(0.05)
    time.sleep(3)
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert said.splitlines()[-1] == "tracelib: stopped; nothing was written"
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_inspect_shows_a_person_how_far_a_file_has_been_read(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    monkeypatch.setattr(progress, "EVERY_S", -1)
    monkeypatch.setenv("TRACELIB_CACHE", "off")
    perf = f"{SAMPLE}/perf.txt.gz"
    assert cli.main(["inspect", perf]) == 0
    assert "%" not in capsys.readouterr().err  # not into a log
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert cli.main(["inspect", perf]) == 0
    assert "100% read: perf.txt.gz" in capsys.readouterr().err


def test_flags_are_read_as_the_options_that_they_set():
    flags = [
        "--offset",
        "a=b=5",
        "--offset",
        "c=-1",
        "--role",
        "x=y=engine",
        "--cpu-stat",
        "f",
        "--redact",
        "off",
    ]
    read = options_of(cli.parser().parse_args(["report", "run", "--requests-offset", "7", *flags]))
    assert read == Options(
        traces=["run"],
        offsets={"a=b": 5, "c": -1},
        roles={"x=y": "engine"},
        cpu_stat=["f"],
        redact="off",
        requests_offset=7,
    )


@pytest.mark.parametrize("command", ["report", "inspect", "export", "batch", "record"])
def test_each_option_of_a_command_is_a_flag_with_its_help(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for each in OPTIONS.values():
        if command in each.commands:
            assert each.help in shown, each.name
            assert each.name == "traces" or each.flag in shown, each.name


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("INC-42", "INC-42"),
        ("../../etc", "etc"),
        ("a b/c;$(x)", "a-b-c-x"),
        ("..", "report"),
        ("\u202e", "report"),
    ],
)
def test_the_default_folder_stays_below_reports(name, folder):
    assert default_folder(name) == Path("reports") / folder


def test_install_advice_names_only_what_is_ours():
    """A free name on the index is anybody's to register."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ours = re.compile(rf"\.|'(\.|/src)\[({'|'.join(extras)}|,)+\]'")
    texts = [
        ROOT / "README.md",
        ROOT / "Containerfile",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tracelib/**/*.py"),
        *ROOT.glob("tracelib/**/*.toml"),
    ]
    said = "\n".join(path.read_text() for path in texts)
    advice = set(re.findall(r"pip install (?:--[\w-]+ )*([^\s`)\"]+)", said)) - {"'.[{name}]'"}  # with_extra
    assert len(advice) == 2
    assert [each for each in advice if not ours.fullmatch(each)] == []
    named = re.findall(r"with_extra\(['\"](\w+)", said)
    assert {"image", "tickets", "completion"} <= set(named) <= set(extras)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "not enough memory. Give it more, or a shorter recording."),
        (OSError(errno.ENOSPC, "", "/out"), "/out: its disk is full. Make room, or choose another place."),
        (OSError(errno.ENOSPC, ""), "a disk is full. Make room, or choose another place."),
    ],
)
def test_a_machine_that_is_too_small_is_said_in_one_line(monkeypatch, capsys, error, line):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(progress, "load", load)
    assert cli.main(["inspect", SAMPLE]) == USAGE_ERROR
    assert capsys.readouterr().err == f"tracelib: {line}\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_modules_load_says_nothing_and_an_ignored_one_stays_ignored(tmp_path, ignored):
    (tmp_path / "polars.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT); print('on')")
    wanted = signal.SIG_IGN if ignored else signal.default_int_handler
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, WANTED); from tracelib.__main__ import main; main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            start.replace("WANTED", f"signal.{wanted.name if ignored else wanted.__name__}"),
        ],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("on" in done.stdout) == ignored
    assert ignored or (done.returncode, done.stderr) == (-signal.SIGINT, "")
