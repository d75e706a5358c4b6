"""The notebooks themselves, and how they are found."""

import ast
import json
import tomllib
from importlib import import_module

import pytest
from papermill import inspect_notebook

from tests.conftest import ROOT
from tracelib.errors import BadParameter
from tracelib.options import OPTIONS, ComparedRuns, cell_of, options
from tracelib.report.notebooks import PAPERMILL, located, notebook, notebooks
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
def test_the_first_cell_is_what_the_options_say(name):
    first = cells(name)[0]
    assert first["metadata"]["tags"] == ["parameters"]
    assert "".join(first["source"]).splitlines() == cell_of(name)
    assert max(map(len, cell_of(name))) <= 110


@pytest.mark.parametrize("name", NAMES)
def test_papermill_s_help_shows_each_parameter_with_its_type_default_and_help(name):
    told = inspect_notebook(str(notebook(name)))
    assert list(told) == parameter_names(notebook(name))
    for parameter, row in told.items():
        line = f"{parameter}: {row['inferred_type_name']} = {row['default']}  # {row['help']}"
        assert line in cell_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_parameter_says_reaches_what_opens_the_run(name):
    """The options are taken from the notebook's globals; a parameter that is not one is used by its name."""
    calls = "\n".join("".join(cell["source"]) for cell in cells(name)[1:])
    used = {node.id for node in ast.walk(ast.parse(calls)) if isinstance(node, ast.Name)}
    assert calls.count("globals()") == 1
    assert ("report.asked(globals())" if name != "compare" else "compared(globals())") in calls
    read = {*OPTIONS, *options(ComparedRuns)} - {"prices", "cores", "cpu_bound"}
    assert set(parameter_names(notebook(name))) - read <= used


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
