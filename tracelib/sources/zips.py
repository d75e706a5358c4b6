"""The members of a zip, also of a damaged one: each comes out as far as it is whole, and no member takes others with it.

A zip's directory stands at its end: where the file was cut there is none, and members are found by the headers that
stand before each (APPNOTE.TXT 4.3). Checksums are compared here, after the bytes were handed out: `zipfile` keeps the
last block of a damaged member to itself.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["members"]

BLOCK = 1 << 16
SIGNATURE = b"PK\x03\x04"
#: Version, flags, method, time, date, checksum, compressed and plain size, lengths of name and extra field.
HEADER = struct.Struct("<4x5HIIIHH")
#: The extra field of a zip64: its kind (1) and length, plain and compressed size.
ZIP64 = struct.Struct("<HHQQ")
ENCRYPTED, SIZES_FOLLOW = 1 << 0, 1 << 3
STORED, DEFLATED = 0, 8
#: In a size: it is in the extra field, as a zip64 has it.
ELSEWHERE = 0xFFFFFFFF


@dataclass(frozen=True)
class _Entry:
    name: str
    flags: int
    method: int
    start: int | None  # of its bytes; None if its header is damaged
    size: int | None  # of them; None if that stands behind them only
    checksum: int | None


def members(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content, in blocks, of each file in the zip at `path`; a content ends with an error where it is damaged.

    Raises
    ------
    OSError, zipfile.BadZipFile
        After the last member that can be found: the zip has no directory, so that others may be missing. And in a
        content: it is cut short or damaged, or packed in a way that is not read here.

    """
    with path.open("rb") as file:
        listed = _listed(path, file)
        for entry in _found(file) if listed is None else listed:
            if not entry.name.endswith("/"):
                yield entry.name, _content(file, entry)
    if listed is None:
        raise zipfile.BadZipFile("it was cut short or damaged: its directory is missing")


def _listed(path: Path, file: IO[bytes]) -> list[_Entry] | None:
    """Return what the directory at the end lists, None if there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    return [
        _Entry(
            info.filename,
            info.flag_bits,
            info.compress_type,
            _start(file, info.header_offset),
            info.compress_size,
            info.CRC,
        )
        for info in infos
    ]


def _start(file: IO[bytes], offset: int) -> int | None:
    """Return where the bytes of the member with its header at `offset` begin, None if no whole header is there."""
    file.seek(offset)
    header = file.read(4 + 26)
    if len(header) < HEADER.size or not header.startswith(SIGNATURE):
        return None
    *_, name, extra = HEADER.unpack(header)
    return offset + HEADER.size + int(name) + int(extra)


def _found(file: IO[bytes]) -> Iterator[_Entry]:
    """Yield the members whose headers are found; `file` is where the content of one ended when the next is asked for."""
    at = 0
    while (offset := _next(file, at)) is not None:
        start = _start(file, offset)
        if start is None:
            return
        file.seek(offset)
        _, flags, method, _, _, checksum, size, _, name, extra = HEADER.unpack(file.read(HEADER.size))
        text, more = file.read(name), file.read(extra)
        known = None if flags & SIZES_FOLLOW else _wide(size, more)
        yield _Entry(
            text.decode(errors="replace"), flags, method, start, known, None if known is None else checksum
        )
        at = max(start, file.tell()) if known is None else start + known


def _wide(size: int, extra: bytes) -> int | None:
    """Return a member's compressed size, which a zip64 has in its extra field behind the plain one."""
    if size != ELSEWHERE:
        return size
    if len(extra) < ZIP64.size:
        return None
    kind, length, _, packed = ZIP64.unpack_from(extra)
    return int(packed) if kind == 1 and length >= 16 else None


def _next(file: IO[bytes], at: int) -> int | None:
    """Return where the next signature of a member stands, from `at` on; None if there is none."""
    file.seek(at)
    window = b""
    while block := file.read(BLOCK):
        window += block
        if (found := window.find(SIGNATURE)) >= 0:
            return at + found
        at += len(window) - 3
        window = window[-3:]
    return None


def _content(file: IO[bytes], entry: _Entry) -> Iterator[bytes]:
    if entry.start is None:
        raise zipfile.BadZipFile("its header is damaged")
    if entry.flags & ENCRYPTED:
        raise NotImplementedError("it is encrypted")
    if entry.method not in (STORED, DEFLATED):
        raise NotImplementedError(f"it is packed by method {entry.method}, which is not read here")
    if entry.method == STORED and entry.size is None:
        raise NotImplementedError("its size is not known")
    file.seek(entry.start)
    checksum = 0
    for block in _stored(file, entry.size or 0) if entry.method == STORED else _inflated(file):
        checksum = zlib.crc32(block, checksum)
        yield block
    if entry.checksum is not None and checksum != entry.checksum:
        raise zipfile.BadZipFile("its checksum is another: it is damaged")


def _stored(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        block = file.read(min(size, BLOCK))
        if not block:
            raise EOFError("it is cut short")
        size -= len(block)
        yield block


def _inflated(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the plain bytes of deflated ones; `file` is behind them afterwards, or where they are damaged."""
    decoder = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    while not decoder.eof:
        here, before = file.tell(), decoder.copy()
        packed = file.read(BLOCK)
        if not packed:
            raise EOFError("it is cut short")
        try:
            yield decoder.decompress(packed)
        except zlib.error:
            yield from _before_damage(before, packed)
            file.seek(here)
            raise
    file.seek(-len(decoder.unused_data), 1)


def _before_damage(decoder: Any, packed: bytes) -> Iterator[bytes]:
    for at in range(len(packed)):
        try:
            yield decoder.decompress(packed[at : at + 1])
        except zlib.error:
            return
