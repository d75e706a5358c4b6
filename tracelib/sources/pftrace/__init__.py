"""Perfetto's own format (.pftrace, .perfetto-trace), by way of an installed `trace_processor_shell`. See README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.sources.pftrace.processor import opened
from tracelib.sources.pftrace.tables import trace_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.trace import Trace

__all__ = ["read", "sniff"]

#: What every packet of the file begins with: field 1 of the message `Trace`, with its length.
PACKET = 0x0A
#: Bytes of a value by its wire type (protocol buffers), where that is fixed.
FIXED = {1: 8, 5: 4}
VARINT, BYTES = 0, 2


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001 (the content tells)
    """Say whether `head` begins with two whole packets, or is one: messages whose fields end where they end."""
    at, whole = 0, 0
    while at < len(head) and whole < 2:
        length, begin = _varint(head, at + 1)
        if head[at] != PACKET or not length or not _holds_fields(head, begin, begin + length):
            return False
        at, whole = begin + length, whole + 1
    return whole > 0


def _holds_fields(data: bytes, at: int, end: int) -> bool:
    while at < end <= len(data):
        tag, at = _varint(data, at)
        if not tag or tag < 8:
            return False
        size, after = _varint(data, at) if tag & 7 in (VARINT, BYTES) else (FIXED.get(tag & 7), at)
        if size is None:
            return False
        at = after if tag & 7 == VARINT else after + size
    return at == end


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """Return the number that begins at `at`, and what comes after it; None if it has no end or is too long."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return None, at


def read(path: Path) -> Trace:
    """Read the trace at `path`.

    Raises
    ------
    BadTrace
        There is no `trace_processor_shell`, or it cannot read the file.

    """
    with opened(path) as query:
        return trace_of(query, path)
