"""The command line: exit codes, one line per error, help that teaches."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tracelib import cli

SAMPLE = str(ROOT / "sample_traces" / "starved")


def run(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "tracelib", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "no/such/path"), ("report", "benchmarks"), ("inspect", "README.md"), ("report", SAMPLE, "--window", "2:1"),
        ("report", SAMPLE, "--offset", "x"), ("report", SAMPLE, "--fail-on", "cpu-bound"), ("notebooks", "copy", "rot_cause"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_and_status_2(arguments, tmp_path):
    extra = ("-o", str(tmp_path / "r")) if arguments[0] == "report" else ()
    done = run(*arguments, *extra)
    assert done.returncode == cli.USAGE_ERROR
    lines = [
        line for line in done.stderr.splitlines() if not line.startswith(("tracelib: reading", "reading "))
    ]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tracelib: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_debug_shows_the_traceback():
    assert "Traceback" in run("--debug", "inspect", "no/such/path").stderr


def test_help_teaches_with_examples(capsys):
    for command in ("report", "inspect", "notebooks"):
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
    assert cli.main(["notebooks", "copy", "root_cause", str(target)]) == cli.USAGE_ERROR
