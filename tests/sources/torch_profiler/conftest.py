"""A table at the end of the tests' output: what became of other people's files, per format."""

from collections import Counter

import pytest

OUTCOMES: Counter[tuple[str, str]] = Counter()


@pytest.fixture(scope="session")
def outcomes():
    """Counter of (folder, outcome) that the corpus tests fill."""
    return OUTCOMES


def pytest_terminal_summary(terminalreporter):
    if not OUTCOMES:
        return
    terminalreporter.section("Chrome JSON traces of other people")
    folders = sorted({folder for folder, _ in OUTCOMES})
    kinds = ("equal to the truth", "salvaged", "refused as expected")
    terminalreporter.write_line("".join([f"{'':14}", *(f"{kind:>22}" for kind in kinds)]))
    for folder in folders:
        row = (f"{OUTCOMES[folder, kind]:>22}" for kind in kinds)
        terminalreporter.write_line("".join([f"{folder:14}", *row]))
