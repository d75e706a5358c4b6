"""A table at the end of the tests' output: what became of other people's files, per format."""

import os
from collections import Counter

import pytest

OUTCOMES = ("equal to the truth", "salvaged", "refused as expected", "not taken for a trace")


@pytest.fixture
def became(request):
    """Note what became of a file of the corpus, for the table: `became("nsys", OUTCOME)`."""

    def note(folder, outcome):
        assert outcome in OUTCOMES
        request.node.user_properties.append(("corpus", f"{folder}|{outcome}"))

    return note


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Only programs that the test writes are found: `stand_in("perf", SCRIPT)`, a shell's text or bytes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def install(name, script):
        program = folder / name
        program.write_bytes(script if isinstance(script, bytes) else f"#!/bin/sh\n{script}\n".encode())
        program.chmod(0o755)

    return install


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.stats.get("passed", [])
    noted = [value for report in passed for name, value in report.user_properties if name == "corpus"]
    if not noted:
        return
    count = Counter(tuple(value.split("|")) for value in noted)
    terminalreporter.section("other people's files, by what became of them")
    terminalreporter.write_line(f"{'format':14}" + "".join(f"{outcome:>24}" for outcome in OUTCOMES))
    for folder in sorted({folder for folder, _ in count}):
        row = "".join(f"{count[folder, outcome]:>24}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"{folder:14}{row}")
