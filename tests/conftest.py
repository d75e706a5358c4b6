"""Where tests find what does not belong to the project: recorded captures and other people's files."""

import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import tracelib
from tracelib.analyses.results import Results, analyse
from tracelib.findings import Document, diagnose
from tracelib.trace import Trace

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


@dataclass(frozen=True)
class Run:
    """One capture: what tracelib makes of it, and what the server itself wrote down."""

    folder: Path

    @cached_property
    def trace(self) -> Trace:
        """What was recorded."""
        return tracelib.load(self.folder)

    @cached_property
    def results(self) -> Results:
        """What tracelib makes of it."""
        return analyse(self.trace)

    @cached_property
    def document(self) -> Document:
        """What it says of it."""
        return diagnose(self.results)

    @cached_property
    def wall_ns(self) -> int:
        """Wall time less the clock of the server's logs."""
        path = self.folder / "meta.json"
        meta = json.loads(path.read_text()) if path.exists() else {"realtime_ns": 0, "monotonic_ns": 0}
        return int(meta["realtime_ns"] - meta["monotonic_ns"])

    def log(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a log of the server's own."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    @property
    def started_ns(self) -> int:
        """When the load began, in wall time; the profilers' warm-up steps lie before it."""
        return int((self.folder / "started").read_text()) + self.wall_ns


@pytest.fixture(scope="session")
def run_of(captures):
    """Return a function that gives the capture of a name, read and analysed once for all tests."""

    @cache
    def get(name: str) -> Run:
        return Run(captures / name)

    return get
