"""Where tests find what does not belong to the project: recorded captures and other people's files."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test asserts a time, hypothesis neither. CI draws the same examples each time: what a new one finds is
# found by somebody who can mend it, not by whoever lands next.
settings.register_profile("untimed", deadline=None, derandomize="TRACELIB_CI" in os.environ)
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
#: Tests read the files themselves; those of the cache give it a folder of their own.
os.environ["TRACELIB_CACHE"] = "off"
SHARED = Path(os.environ.get("TRACELIB_SHARED", ROOT.parent / "shared"))


def thorough(values: Iterable[Any], *, but: Collection[Any]) -> list[Any]:
    """Return a test's parameters, all `but` some with the mark `thorough`, for `make test-all` alone."""
    return [
        value
        if value in but
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.thorough)
        for value in values
    ]


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set TRACELIB_SHARED to a folder that holds {name}/")
    return folder


@pytest.fixture(scope="session")
def captures() -> Path:
    """Folder of the reference captures (real runs on two GPUs, with ground truth)."""
    return _folder("captures")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder of other people's trace files, with TRUTH.json."""
    return _folder("corpus")
