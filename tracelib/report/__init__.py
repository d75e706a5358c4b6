"""Findings to files: the notebook run, the page, the ticket. What the notebooks' cells call is gathered here.

Names are loaded when first used: papermill imports `tracelib.report.notebooks` while it is itself being
imported.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
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


class _Grammars(ModuleType):
    """Stands for `rfc3987_syntax` until somebody uses it.

    nbformat imports jsonschema, which imports that package where it is installed (as it is with JupyterLab),
    and that builds dozens of grammars of web addresses: a second of each process, for a check that no
    notebook asks for.
    """

    def is_valid_syntax(self, term: str, value: str) -> bool:
        """Do what the function of this name does there."""
        return bool(self.__getattr__("is_valid_syntax")(term, value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what the import system asks of each module
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _lazily(name: str) -> None:
    if name not in sys.modules and importlib.util.find_spec(name):
        sys.modules[name] = _Grammars(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)


_lazily("rfc3987_syntax")
