"""The end of a text that may have been cut: the event that is not whole is left out, and said so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Ending"]


@dataclass
class Ending:
    """What was found at the end of the text; final once `of` is exhausted."""

    dropped_bytes: int = 0
    dropped: str = ""  # the line that is not whole
    open_chain: bool = (
        False  # the last call chain is not closed by an empty line: it may lack its outer frames
    )

    def of(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `pieces`, the last without an event that was cut."""
        held = None
        for piece in pieces:
            if held is not None:
                yield held
            held = piece
        if held is not None:
            yield self._whole(held)

    def _whole(self, piece: bytes) -> bytes:
        """Return `piece` without a cut event: a last line without an end whose right part is missing.

        A line that ends with the closing bracket of a library is whole even without a line end (an editor may have
        taken that away). Of other lines nobody can say so.
        """
        if piece.endswith(b"\n"):
            self.open_chain = _in_chain(piece)
            return piece
        last = piece.rfind(b"\n") + 1
        if piece.rstrip().endswith(b")") and b" (" in piece[last:]:
            self.open_chain = True
            return piece
        start = last
        while start > 0 and piece[start : start + 1] == b"\t":
            start = piece.rfind(b"\n", 0, start - 1) + 1
        self.dropped_bytes = len(piece) - start
        self.dropped = piece[last : last + 200].decode(errors="replace")
        return piece[:start]


def _in_chain(piece: bytes) -> bool:
    """Say whether the text ends behind a frame, in a recording that closes its chains with empty lines."""
    last = piece[piece.rfind(b"\n", 0, len(piece) - 1) + 1 :]
    return last.startswith(b"\t") and b"\n\n" in piece.replace(b"\r\n", b"\n")
