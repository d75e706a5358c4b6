"""Real runs, read and analysed once for all tests that look at them."""

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tracelib
from tracelib.analyses.results import Results, analyse
from tracelib.trace import Trace


@dataclass(frozen=True)
class Run:
    """One capture: what tracelib makes of it, and what the server itself wrote down."""

    folder: Path
    trace: Trace
    results: Results
    wall_ns: int = field(default=0)  # wall time - the logs' clock

    def log(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a log of the server's own."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    @property
    def started_ns(self) -> int:
        """When the load began, in wall time; the profilers' warm-up steps lie before it."""
        return int((self.folder / "started").read_text()) + self.wall_ns


@pytest.fixture(scope="session")
def run_of(captures):
    """Return a function that gives the capture of a name."""

    @cache
    def get(name: str) -> Run:
        folder = captures / name
        trace = tracelib.load(folder)
        wall = 0
        if (folder / "meta.json").exists():
            meta = json.loads((folder / "meta.json").read_text())
            wall = meta["realtime_ns"] - meta["monotonic_ns"]
        return Run(folder, trace, analyse(trace), wall)

    return get
