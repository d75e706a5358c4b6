"""What the rest of the reader needs of an export, in whichever container it came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

__all__ = ["Tables"]


class Tables(Protocol):
    """The tables of one open export, any of which may be absent or lack columns.

    `files` are the files it lies in, `tables` maps each table's name to its columns, `damage` says in words what could
    not be read so far.
    """

    files: list[Path]
    tables: dict[str, tuple[str, ...]]
    damage: list[str]

    @property
    def lost_bytes(self) -> int:
        """How many bytes of the input could not be read so far."""
        ...

    def has(self, table: str, *columns: str) -> bool:
        """Say whether `table` is there and has all `columns`."""
        ...

    def read(self, table: str, columns: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` (name to dtype) of `table`; null where the export has none, no rows if it lacks the table."""
        ...
