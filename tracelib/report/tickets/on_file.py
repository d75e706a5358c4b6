"""A folder in the place of a ticket: what would be attached, and the comment beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.errors import BadParameter
from tracelib.report.tickets.parcel import refusals_told

if TYPE_CHECKING:
    from tracelib.report.tickets.parcel import Parcel

__all__ = ["ticket"]


class Folder:
    """A folder that takes everything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def uploads(self, sent: Parcel) -> tuple[Path, ...]:
        """Take all files."""
        return sent.files

    def comment(self, sent: Parcel) -> str:
        """Keep Markdown."""
        return sent.comment

    def by_hand(self, sent: Parcel) -> list[str]:  # noqa: ARG002 (the protocol's signature)
        """Leave nothing to do."""
        return []

    def send(self, sent: Parcel) -> list[str]:
        """Copy the files."""
        done: list[str] = []
        with refusals_told(str(self.path), done):
            self.path.mkdir(parents=True, exist_ok=True)
            for path in sent.files:
                shutil.copyfile(path, self.path / path.name)
                done.append(str(self.path / path.name))
            (self.path / "summary.md").write_text(sent.comment, encoding="utf-8")
        return [*done, str(self.path / "summary.md")]


def ticket(address: str) -> Folder:
    """Return the folder at `address`."""
    if not address:
        raise BadParameter("--to", "file:", ["file:DIRECTORY"])
    return Folder(Path(address).expanduser())
