"""papermill without its papercuts."""

import subprocess
import sys

import nbformat
import pytest

from tests.conftest import ROOT
from tests.report.trivial import notebook
from tracelib.errors import BadParameter, TraceError
from tracelib.report.run import Failure, parameter_names, run_notebook


def text_outputs(node):
    return [
        output["text"].strip()
        for cell in node.cells
        for output in cell.get("outputs", ())
        if output.output_type == "stream"
    ]


def test_parameters_are_read_by_python_s_own_parser(tmp_path):
    source = notebook(
        tmp_path / "a.ipynb", parameters="a: list[str] | str = 'x # y'  # help\nb = c = 2\nprint(a)"
    )
    assert parameter_names(source) == ["a", "b", "c"]


def test_a_typo_is_an_error_that_says_what_was_meant(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "print(count)")
    with pytest.raises(BadParameter, match="Did you mean 'count'"):
        run_notebook(source, tmp_path / "out.ipynb", {"cuont": 3})
    assert not (tmp_path / "out.ipynb").exists()


def test_a_value_that_json_cannot_hold_is_an_error(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "print(count)")
    for value in ((1, 2), tmp_path, {1: 2}):
        with pytest.raises(BadParameter, match="a list or dict of these"):
            run_notebook(source, tmp_path / "out.ipynb", {"count": value})


def test_braces_percent_signs_and_spaces_in_paths_are_text_and_nothing_is_said(tmp_path, capfd, monkeypatch):
    """Nothing: neither that the kernel listens on TCP without encryption, as a kernel in clear text says.

    Nor is a file in the working directory taken for a library, or asked how the user starts kernels.
    """
    folder = tmp_path / "tr {a}/{0} %s"
    (tmp_path / "polars.py").write_text("print('not Polars')")
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"argv": ["false"], "display_name": "Theirs", "language": "python"}')
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    source = notebook(folder / "in {x}.ipynb", "import os; print(name, count, os.path.basename(os.getcwd()))")
    ran = run_notebook(
        source, folder / "out {y}.ipynb", {"name": "007", "count": 5}, working_directory=folder
    )
    assert ran.failure is None
    assert text_outputs(ran.notebook) == ["007 5 {0} %s"]
    assert text_outputs(nbformat.read(folder / "out {y}.ipynb", as_version=4)) == ["007 5 {0} %s"]
    assert capfd.readouterr() == ("", "")


def test_a_failing_cell_is_told_and_what_ran_is_kept(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "print('before')", "1 / 0", "print('after')")
    ran = run_notebook(source, tmp_path / "out.ipynb", {})
    assert ran.failure == Failure(3, "ZeroDivisionError", "division by zero")
    assert ran.failure.one_line() == "cell 3: ZeroDivisionError: division by zero"
    assert text_outputs(ran.notebook) == ["before"]
    assert "papermill-error-cell-tag" in ran.notebook.cells[0].metadata.tags


def test_an_error_of_ours_in_the_notebook_is_the_user_s_to_mend(tmp_path):
    bad = (
        "from pathlib import Path; from tracelib.errors import BadTrace; "
        "raise BadTrace(Path('x'), 'perf', 'line 3', 'it is no trace')"
    )
    with pytest.raises(TraceError, match="x: not readable as perf at line 3"):
        run_notebook(notebook(tmp_path / "a.ipynb", bad), tmp_path / "out.ipynb", {})


def test_a_cell_that_never_ends_is_stopped(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "print('before')", "import time; time.sleep(60)")
    ran = run_notebook(source, tmp_path / "out.ipynb", {}, timeout_s=3)
    assert ran.failure is not None
    assert ran.failure.error == "CellTimeoutError"
    assert "--timeout" in ran.failure.message
    assert text_outputs(ran.notebook) == ["before"]
    assert "stopped" in ran.notebook.cells[0].source


def test_a_kernel_that_waits_ends_with_who_started_it():
    code = (
        "import os; from tracelib.report.notebooks import Kernel\n"
        "with Kernel(): pass\n"
        "Kernel(); os.kill(os.getpid(), 9)"
    )
    # Its output ends when all that could write there have ended.
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-9, "", "")


def test_a_kernel_that_dies_is_told(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "print('before')", "import os; os.kill(os.getpid(), 9)")
    ran = run_notebook(source, tmp_path / "out.ipynb", {})
    assert ran.failure is not None
    assert ran.failure.error == "DeadKernelError"
    assert text_outputs(ran.notebook) == ["before"]
