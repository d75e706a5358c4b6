"""A person who waits is shown how far reading has come; nobody else is shown anything."""

from types import SimpleNamespace

import IPython
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib import loading as progress

PERF = ROOT / "sample_traces" / "tokenization" / "perf.txt.gz"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    monkeypatch.setattr(progress, "EVERY_S", -1)


@pytest.mark.usefixtures("impatient")
def test_a_terminal_is_told_and_left_clean(capsys, monkeypatch):
    tracelib.load(PERF)
    assert capsys.readouterr().err == ""  # a log
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tracelib.load(PERF)
    said = capsys.readouterr().err
    assert "  0% read: perf.txt.gz" in said
    assert "100% read: perf.txt.gz" in said
    assert said.endswith("\x1b[K\r")


@pytest.mark.usefixtures("impatient")
def test_a_notebook_shows_a_bar_that_goes_away(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda bar, raw: shown.append((bar, raw)))
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=True))
    monkeypatch.setattr(
        "IPython.display.display", lambda bar, raw, display_id: shown.append((bar, raw)) or handle
    )
    tracelib.load(PERF)
    bars = [bar["text/html"] for bar, raw in shown if raw]
    assert bars[0].startswith('<progress value="0.000">')
    assert bars[-2].startswith('<progress value="1.000">')
    assert bars[-1] == ""


def test_what_is_quick_shows_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress, "PATIENCE_S", 3600)
    tracelib.load(PERF)
    assert capsys.readouterr().err == ""
