"""Findings to files: the notebook run, the page, the ticket. What a report notebook calls is gathered here.

Names are loaded when first used: papermill imports `tracelib.report.notebooks` while it is itself being imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelib.companions import companions
    from tracelib.report.instances import instances
    from tracelib.report.notebooks import located
    from tracelib.report.opening import asked, heading, opened, opened_runs
    from tracelib.report.pipeline import record, record_picture, removed, write_report

__all__ = [
    "asked",
    "companions",
    "heading",
    "instances",
    "located",
    "opened",
    "opened_runs",
    "record",
    "record_picture",
    "removed",
    "write_report",
]

_HOME = {
    "asked": ("tracelib.report.opening", "asked"),
    "companions": ("tracelib.companions", "companions"),
    "instances": ("tracelib.report.instances", "instances"),
    "heading": ("tracelib.report.opening", "heading"),
    "opened": ("tracelib.report.opening", "opened"),
    "opened_runs": ("tracelib.report.opening", "opened_runs"),
    "located": ("tracelib.report.notebooks", "located"),
    "record": ("tracelib.report.pipeline", "record"),
    "record_picture": ("tracelib.report.pipeline", "record_picture"),
    "removed": ("tracelib.report.pipeline", "removed"),
    "write_report": ("tracelib.report.pipeline", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracelib.report' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(module), attribute)
