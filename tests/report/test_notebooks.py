"""The notebooks themselves, and how they are found."""

import ast
import json
import tomllib
from importlib import import_module
from inspect import signature

import pytest

from tests.conftest import ROOT
from tracelib.errors import BadParameter
from tracelib.report.notebooks import PAPERMILL, located, notebook, notebooks
from tracelib.report.opening import opened
from tracelib.report.run import parameter_names

NAMES = sorted(notebooks())


def cells(name, kind="code"):
    return [cell for cell in json.loads(notebook(name).read_text())["cells"] if cell["cell_type"] == kind]


def test_the_report_s_notebook_is_there_by_every_name():
    for name in ("root_cause", "root_cause.ipynb", "tracelib://root_cause", "tracelib://root_cause.ipynb"):
        assert notebook(name).name == "root_cause.ipynb"
    with pytest.raises(BadParameter, match="Did you mean 'root_cause'"):
        notebook("rootcause")


def test_papermill_s_handler_reads_and_never_writes():
    assert json.loads(PAPERMILL.read("tracelib://root_cause"))["nbformat"] == 4
    assert "tracelib://root_cause.ipynb" in PAPERMILL.listdir("tracelib://")
    with pytest.raises(BadParameter):
        PAPERMILL.write("{}", "tracelib://root_cause")


def test_entry_points_name_what_exists():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, scheme in (("papermill.io", "tracelib://"), ("nbconvert.exporters", "tracereport")):
        module, name = points[group][scheme].split(":")
        assert getattr(import_module(module), name)
    assert not isinstance(PAPERMILL, type)  # papermill calls it as it is


@pytest.mark.parametrize("name", NAMES)
def test_first_comes_a_cell_of_parameters_each_explained(name):
    first = cells(name)[0]
    assert first["metadata"]["tags"] == ["parameters"]
    lines = "".join(first["source"]).splitlines()
    assert all("#" in line and ":" in line.split("=")[0] for line in lines), "name: type = default  # help"
    assert parameter_names(notebook(name)) == [line.split(":")[0] for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_what_a_parameter_says_reaches_what_opens_the_run(name):
    """Each is handed on; what all runs need to be read at all is a parameter of every notebook."""
    calls = "\n".join("".join(cell["source"]) for cell in cells(name)[1:])
    used = {node.id for node in ast.walk(ast.parse(calls)) if isinstance(node, ast.Name)}
    asked = set(parameter_names(notebook(name)))
    assert asked <= used
    common = {"window", "roles", "ftrace_clock", "rules", "redact"}
    assert (common if name == "compare" else common | {"traces", "window_of", "offsets", "pid_map"}) <= asked
    if name == "root_cause":
        assert set(signature(opened).parameters) <= asked


@pytest.mark.parametrize("name", NAMES)
def test_narrative_and_calls_only(name):
    code = "\n".join("".join(cell["source"]) for cell in cells(name))
    defined = [
        type(node).__name__
        for node in ast.walk(ast.parse(code))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda))
    ]
    assert defined == []
    assert cells(name, "markdown")


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_stripped_and_any_python_runs_it(name):
    document = json.loads(notebook(name).read_text())
    assert document["metadata"]["kernelspec"]["name"] == "python3"
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(name))


def test_traces_are_looked_for_here_then_beside_the_notebooks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located("sample_traces/starved") == [ROOT / "sample_traces" / "starved"]
    (tmp_path / "sample_traces" / "starved").mkdir(parents=True)
    assert [path.resolve() for path in located(["sample_traces/starved"])] == [
        tmp_path / "sample_traces" / "starved"
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert located("~/x") == [tmp_path / "x"]
