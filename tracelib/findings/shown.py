"""Findings as Jupyter shows them: plain dicts, as `findings.json` holds them, that look like the report alone in a cell."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Shown"]


class Shown(dict[str, Any]):
    """The document of `diagnose`, its verdict or one of its findings; `start_ns` is the window's start."""

    def __init__(self, content: dict[str, Any], start_ns: int) -> None:
        super().__init__(content)
        self.start_ns = start_ns

    def _repr_html_(self) -> str:
        # By name: what draws stands to the right of what holds the data.
        return str(importlib.import_module("tracelib.report.sections").shown(self, self.start_ns).html)
