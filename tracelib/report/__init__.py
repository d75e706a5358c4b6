"""Findings to files: the notebook run, the page, the ticket. What a report notebook calls is gathered here.

Names are loaded when first used: papermill imports `tracelib.report.notebooks` while it is itself being imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelib.report.beside import companions
    from tracelib.report.inputs import given, name_of
    from tracelib.report.instances import instances
    from tracelib.report.notebooks import located
    from tracelib.report.opening import heading, manifest, opened, opened_runs
    from tracelib.report.pipeline import record, record_picture, removed, write_report

__all__ = [
    "companions",
    "given",
    "heading",
    "instances",
    "located",
    "manifest",
    "name_of",
    "opened",
    "opened_runs",
    "record",
    "record_picture",
    "removed",
    "write_report",
]

_HOME = {
    "companions": ("beside", "companions"),
    "given": ("inputs", "given"),
    "instances": ("instances", "instances"),
    "heading": ("opening", "heading"),
    "manifest": ("opening", "manifest"),
    "opened": ("opening", "opened"),
    "opened_runs": ("opening", "opened_runs"),
    "located": ("notebooks", "located"),
    "name_of": ("inputs", "name_of"),
    "record": ("pipeline", "record"),
    "record_picture": ("pipeline", "record_picture"),
    "removed": ("pipeline", "removed"),
    "write_report": ("pipeline", "write_report"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracelib.report' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(f"tracelib.report.{module}"), attribute)
