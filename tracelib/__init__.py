"""Why is a multi-GPU LLM server slow while its GPUs are not busy.

``load`` reads trace files into one :class:`Trace` of Polars frames; ``analyse`` computes what the report
shows. Importing this package imports nothing heavy: each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelib.analyses.results import Results, analyse
    from tracelib.errors import BadParameter, BadTrace, MissingEvents, TraceError, UnknownFormat
    from tracelib.export.serve import open_in_perfetto
    from tracelib.loading import load
    from tracelib.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "BadParameter",
    "BadTrace",
    "MissingEvents",
    "Results",
    "Trace",
    "TraceError",
    "UnknownFormat",
    "__version__",
    "analyse",
    "load",
    "open_in_perfetto",
]

_HOME = {
    "BadParameter": "tracelib.errors",
    "BadTrace": "tracelib.errors",
    "MissingEvents": "tracelib.errors",
    "Results": "tracelib.analyses.results",
    "Trace": "tracelib.trace",
    "TraceError": "tracelib.errors",
    "UnknownFormat": "tracelib.errors",
    "analyse": "tracelib.analyses.results",
    "load": "tracelib.loading",
    "open_in_perfetto": "tracelib.export.serve",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tracelib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
