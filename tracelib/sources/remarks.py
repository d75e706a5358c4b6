"""What a reader has to say about the state of its file: rows of `health`, gathered while it is read."""

from __future__ import annotations

import polars as pl

from tracelib.schema import HEALTH
from tracelib.words import counted

__all__ = ["Remarks", "counted"]


class Remarks:
    """Remarks on one file, in the order in which they were made."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, str, str]] = []

    def add(self, level: str, message: str, fix: str = "") -> None:
        """Add a remark: `level` is info, warning or error, `fix` what to do about it."""
        self._rows.append((0, level, message, fix))

    def count(self, number: int, what: str, fix: str = "") -> None:
        """Add a warning that `number` things are so, unless there are none."""
        if number:
            self.add("warning", f"{number} {what}", fix)

    def frame(self) -> pl.DataFrame:
        """Return the remarks as the frame `health` of source 0."""
        return pl.DataFrame(self._rows, schema=HEALTH, orient="row")
