"""NVIDIA Nsight Systems: SQLite exports, and reports through an installed `nsys export`. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.sources.nsys.database import SQLITE, open_database
from tracelib.sources.nsys.reader import trace_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.trace import Trace

__all__ = ["read", "sniff"]

#: Tables that only nsys's export has; their definitions stand in the file's first pages.
_TABLES = (b"StringIds", b"TARGET_INFO_", b"META_DATA_EXPORT", b"EXPORT_META_DATA", b"CUPTI_ACTIVITY_KIND_")


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the contract of every source)
    """Say whether a file that starts with `head` is an export of Nsight Systems."""
    return head.startswith(SQLITE) and sum(table in head for table in _TABLES) >= 2


def read(path: Path) -> Trace:
    """Read the export at `path`.

    Raises
    ------
    BadTrace
        It cannot be opened as a database.

    """
    with open_database(path) as database:
        return trace_of(database, path)
