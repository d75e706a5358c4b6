"""The gallery shows every notebook, by pictures that are there and commands that the notebooks understand."""

import ast
import re
import shlex

import pytest
import yaml

from tests.conftest import ROOT
from tracelib.report.notebooks import notebook, notebooks
from tracelib.report.run import parameter_names

FOLDER = ROOT / "docs" / "gallery"
NAMES = sorted(notebooks())


@pytest.fixture(scope="module")
def sections():
    """Return the page's sections by notebook."""
    parts = re.split(r"^## (\w+): ", (FOLDER / "README.md").read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_notebook_and_no_other(sections):
    assert sorted(sections) == NAMES
    assert "docs/gallery" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_small_enough_for_a_page_and_a_sentence_for_each_chart(sections, name):
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", sections[name])
    content = (FOLDER / picture).read_bytes()
    assert content[8:12] == b"WEBP"
    assert len(content) < 150_000
    cells = ast.unparse(ast.parse(code(name)))
    assert len(re.findall(r"^- .*\.$", sections[name], flags=re.MULTILINE)) == cells.count("charts.draw(")


@pytest.mark.parametrize("name", NAMES)
def test_its_command_names_the_notebook_its_parameters_and_files_that_are_here(sections, name):
    (line,) = re.findall(r"^papermill .*$", sections[name], flags=re.MULTILINE)
    words = shlex.split(line)
    assert words[1] == f"tracelib://{name}.ipynb"
    given = {words[4]: words[5]} if words[3] == "-p" else yaml.safe_load(words[4])
    assert set(given) <= set(parameter_names(notebook(name)))
    for value in given.values():
        for path in [value] if isinstance(value, str) else value.values():
            assert (ROOT / path / "truth.json").exists()


def test_nothing_else_lies_there():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(
        ["README.md", "make.py", *(f"{name}.webp" for name in NAMES)]
    )


def code(name):
    import nbformat

    node = nbformat.read(notebook(name), as_version=4)
    return "\n".join(cell.source for cell in node.cells if cell.cell_type == "code")
