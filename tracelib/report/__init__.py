"""Findings to files: the notebook run, the page, the ticket. What the notebooks' cells call is gathered here.

Names are loaded when first used: papermill imports `tracelib.report.notebooks` while it is itself being
imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelib.companions import companions
    from tracelib.report.instances import instances
    from tracelib.report.notebook_cells import (
        asked,
        heading,
        opened,
        opened_runs,
        record,
        record_picture,
        removed,
    )
    from tracelib.report.notebooks import located
    from tracelib.report.pipeline import write_report

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
    "companions": "tracelib.companions",
    "instances": "tracelib.report.instances",
    "located": "tracelib.report.notebooks",
    "write_report": "tracelib.report.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tracelib.report' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME.get(name, "tracelib.report.notebook_cells")), name)
