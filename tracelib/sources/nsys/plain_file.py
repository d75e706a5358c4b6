"""The database file to open in place of an export: itself, or a whole and unpacked copy; and what lies unmerged beside it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace
from tracelib.sources.files import open_stream

if TYPE_CHECKING:
    import contextlib

__all__ = ["SQLITE", "plain_file", "unmerged"]

SQLITE = b"SQLite format 3\0"
#: A header may promise anything: what is filled up takes no room on disk, but SQLite walks through it.
_LARGEST_GAP = 1 << 36
_LOG_HEADER = 32


def unmerged(path: Path) -> list[str]:
    """Say which files beside `path` hold changes that SQLite has not merged into it (they are not read)."""
    beside = [path.with_name(path.name + ending) for ending in ("-wal", "-journal")]
    found = [file for file in beside if _has_changes(file)]
    return [
        f"{file.name} beside it holds changes that are not read: open the database once with sqlite3, which merges them"
        for file in found
    ]


def _has_changes(file: Path) -> bool:
    """Say whether the log or journal is more than a header; one that is done with may start with zeros."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_LOG_HEADER + 1)
    except OSError:
        return False
    return len(head) > _LOG_HEADER and any(head[:8])


def plain_file(path: Path, cleanup: contextlib.ExitStack) -> tuple[Path, int, str | None]:
    """Return the file to open in place of `path`, how many bytes of it are lost, and why."""
    with path.open("rb") as file:
        head = file.read(100)
    if head.startswith(SQLITE) and _missing_bytes(head, path) <= 0:
        return path, 0, None
    copy = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="tracelib-nsys-"))) / "export.sqlite"
    try:
        damage, lost = _unpacked(path, copy)
    except OSError as error:
        reason = f"it cannot be unpacked into {copy.parent.parent} ({error.strerror or error})"
        raise BadTrace(path, "nsys", "", reason, advice="Set TMPDIR to a folder with room for it.") from error
    return copy, lost, damage


def _unpacked(path: Path, copy: Path) -> tuple[str | None, int]:
    """Write the whole database to `copy`; return what is missing of it, in words and in bytes."""
    with open_stream(path) as stream, copy.open("wb") as unpacked:
        shutil.copyfileobj(stream, unpacked, 1 << 20)
        damage, lost = stream.damage, stream.lost_bytes
    with copy.open("rb") as file:
        missing = _missing_bytes(file.read(100), copy)
    if missing > 0:  # SQLite refuses a file that is shorter than its header says: fill it up with empty pages
        size = copy.stat().st_size
        os.truncate(copy, size + missing)
        damage = damage or f"the file ends after {size} of {size + missing} bytes"
        lost = lost or missing
    return damage, lost


def _missing_bytes(head: bytes, path: Path) -> int:
    """Return how many bytes the database's header promises beyond the file's end."""
    size = int.from_bytes(head[16:18], "big")
    promised = int.from_bytes(head[28:32], "big") * (65536 if size == 1 else size)
    return min(promised - path.stat().st_size, _LARGEST_GAP)
