"""A run for other viewers: Perfetto, speedscope, Chrome's. Names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelib.export.archive import write_archive
    from tracelib.export.chrome import write_chrome
    from tracelib.export.perfetto import write_perfetto
    from tracelib.export.serve import open_in_perfetto
    from tracelib.export.speedscope import write_speedscope
    from tracelib.export.tracks import in_window

__all__ = [
    "FORMATS",
    "in_window",
    "open_in_perfetto",
    "write_archive",
    "write_chrome",
    "write_perfetto",
    "write_speedscope",
]

#: format -> what its files are called after the run's name
FORMATS = {
    "perfetto": ".pftrace",
    "archive": ".perfetto.tar",
    "speedscope": ".speedscope.json",
    "chrome": ".chrome.json",
}
_HOME = {
    "in_window": "tracks",
    "open_in_perfetto": "serve",
    "write_archive": "archive",
    "write_chrome": "chrome",
    "write_perfetto": "perfetto",
    "write_speedscope": "speedscope",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracelib.export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tracelib.export.{_HOME[name]}"), name)
