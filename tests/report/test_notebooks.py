"""The notebooks themselves, and how they are found."""

import ast
import json
import tomllib
from importlib import import_module

import pytest
from papermill import inspect_notebook

from tests.conftest import ROOT
from tracelib.errors import BadParameter
from tracelib.options import OPTIONS, Options
from tracelib.report.notebook_cells import opened
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


def test_files_of_several_runs_are_refused_and_those_of_one_are_not():
    sweep = ROOT / "sample_traces" / "sweep"
    with pytest.raises(BadParameter, match=r"2 stretches of time.*tracelib batch.*compare"):
        opened(Options(traces=[str(sweep / "cpus_2"), str(sweep / "cpus_4")]))
    opened(Options(traces=[str(sweep / "cpus_2")]))


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


COMMON = {name for name, each in OPTIONS.items() if each.common}
#: What differs between the runs that are compared.
OF_A_RUN = {"traces", "window_of", "offsets", "pid_map"}


@pytest.mark.parametrize("name", NAMES)
def test_the_first_cell_writes_the_options_as_they_stand_in_options(name):
    """Each line is `name: type = default  # help`: an option's, or a parameter of this notebook alone."""
    first = cells(name)[0]
    assert first["metadata"]["tags"] == ["parameters"]
    lines = {line.split(":")[0]: line for line in "".join(first["source"]).splitlines()}
    own = {"requests"} if name == "compare" else set()
    assert {n: line for n, line in lines.items() if n in OPTIONS.keys() - own} == {
        n: OPTIONS[n].cell_line() for n in lines if n in OPTIONS.keys() - own
    }
    assert (COMMON - OF_A_RUN if name == "compare" else COMMON) <= lines.keys()
    assert name != "root_cause" or lines.keys() == OPTIONS.keys()
    assert max(map(len, lines.values())) <= 110


@pytest.mark.parametrize("name", NAMES)
def test_papermill_s_help_shows_each_parameter_with_its_type_default_and_help(name):
    rows = inspect_notebook(str(notebook(name)))
    shown = [
        f"{n}: {row['inferred_type_name']} = {row['default']}  # {row['help']}" for n, row in rows.items()
    ]
    assert shown == "".join(cells(name)[0]["source"]).splitlines()
    assert all(row["help"] and row["inferred_type_name"] for row in rows.values())
    assert list(rows) == parameter_names(notebook(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_parameter_says_reaches_what_opens_the_run(name):
    """Options are taken from the notebook's globals; a parameter that it alone has is used by its name."""
    calls = "\n".join("".join(cell["source"]) for cell in cells(name)[1:])
    used = {node.id for node in ast.walk(ast.parse(calls)) if isinstance(node, ast.Name)}
    assert calls.count("globals()") == 1
    assert ("report.asked(globals())" if name != "compare" else "compared(globals())") in calls
    by_label = {"runs", "requests_offsets"} if name == "compare" else set()
    assert set(parameter_names(notebook(name))) - OPTIONS.keys() - by_label <= used


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
