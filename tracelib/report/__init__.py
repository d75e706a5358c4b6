"""Findings to files: the notebook run, the page, the ticket. What the notebooks' cells call is gathered here.

Names are loaded when first used: papermill imports `tracelib.report.notebooks` while it is itself being
imported.
"""

import importlib
from typing import Any

_CELLS = ("asked", "heading", "instances", "opened", "opened_runs", "record", "record_picture", "removed")
_HOME = dict.fromkeys(_CELLS, "tracelib.report.notebook_cells") | {
    "companions": "tracelib.companions",
    "located": "tracelib.report.notebooks",
    "write_report": "tracelib.report.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracelib.report' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
