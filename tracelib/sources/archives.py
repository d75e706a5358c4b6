"""Archives of trace files: zip, and tar (also in gzip or zstd), as people send the ranks of one run.

Members are unpacked into a temporary folder that lives as long as the process, one plain file each, and read
like any other file. Names from an archive are never used as paths; links, devices and folders are left in it.
What is damaged is unpacked as far as it is whole, and :func:`damage_of` says so.

A zip's directory stands at its end: where the file was cut there is none, and members are found by the
headers that stand before each (APPNOTE.TXT 4.3). Checksums are compared here, after the bytes were handed
out: `zipfile` keeps the last block of a damaged member to itself.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tracelib.sources.files import ZIP, Stream, head, open_stream
from tracelib.sources.programs import Scratch

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Unpack at most this share of the free disk, so that an archive made to explode fills nothing.
SHARE_OF_DISK = 0.5
#: And at most so many times its own size, and this many bytes more: traces pack to a tenth or so.
MOST_TIMES, ALWAYS = 250, 1 << 28
#: A tar whose header declares more than there is asks for the bytes behind its end, without an end.
MOST_EMPTY = 100
LONGEST_NAME = 200
#: No recording has more files: an archive of a million would keep the disk busy for many minutes.
MOST_MEMBERS = 10_000
#: A damaged tar loses the block in which the damage is.
TAR_BLOCK = 1 << 13
#: What macOS and file managers put beside the files that one meant to pack.
_JUNK = re.compile(r"(?:^|/)(?:__MACOSX/|\.(?!\.?(?:/|$)))")
#: What tarfile raises at headers that make no sense.
_SENSELESS = (ValueError, ArithmeticError, LookupError, struct.error)
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # NotImplementedError is one
    OSError,
    *_SENSELESS,
)

_folders: list[Scratch] = []  # removed when the process ends
_damage: dict[Path, Damage] = {}  # of members where they were unpacked to, and of archives


class Damage(NamedTuple):
    """What is wrong with `what`: an archive, or a member of one that was unpacked in part or not at all."""

    what: str
    reason: str


class _TooLarge(OSError):
    """The archive takes more of the disk than it may."""


def damage_of(path: Path) -> Damage | None:
    """Return what was wrong with the member or archive at `path` when it was unpacked, if something was."""
    return _damage.get(path)


def is_archive(start: bytes) -> bool:
    """Say whether a file that begins with `start` is a zip, or a tar (by its header's own checksum)."""
    if start.startswith(ZIP):
        return True
    try:
        return tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], "utf-8", "replace").size >= 0
    except tarfile.HeaderError:
        return False


class _Watched(io.RawIOBase):
    """A stream that remembers whether zeros, with which a tar ends, came last."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream, self.last, self.empty = stream, b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count = self.stream.readinto(buffer)
        self.empty = 0 if count else self.empty + 1
        if self.empty > MOST_EMPTY:
            raise EOFError("it is shorter than its headers say")
        self.last = (self.last + bytes(memoryview(buffer)[:count]))[-tarfile.BLOCKSIZE :]
        return count


def _tar_members(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    with open_stream(path) as stream:
        watched = _Watched(stream)
        with tarfile.open(fileobj=io.BufferedReader(watched), mode="r|") as tar:
            for member in tar:
                if member.issparse():
                    yield member.name, _refused("it is sparse, which is not read here")
                elif content := member.isfile() and tar.extractfile(member):
                    yield member.name, iter(functools.partial(content.read, TAR_BLOCK), b"")
        more = watched.last.strip(b"\0")
        while block := stream.read(1 << 20):  # zeros, and the checksum of all
            more = more or block.strip(b"\0")
        if stream.damage or more:
            raise EOFError(stream.damage or "it was cut short, or holds more behind its end")


def _refused(reason: str) -> Iterator[bytes]:
    raise NotImplementedError(reason)
    yield b""


def _copied(blocks: Iterator[bytes], place: Path, limit: int) -> int:
    count = 0
    with place.open("wb") as out:
        for block in blocks:
            count += out.write(block)
            if count > limit:
                raise _TooLarge(
                    f"it unpacks to {MOST_TIMES} times its size or {SHARE_OF_DISK:.0%} of the free disk"
                )
    return count


def _parts(name: str) -> list[str]:
    """Return the folders and the name of the member `name`, in characters that are safe in a file's name."""
    parts = [
        re.sub(r"[^\w.+=@,-]", "_", part) for part in name.replace("\\", "/").split("/") if part.strip(".")
    ]
    return parts or ["member"]


def _names(members: list[str]) -> list[str]:
    """Return a file name for each of `members`: its own, with the folders' before it where several have that.

    >>> _names(["run/rank0/trace.json", "run/rank1/trace.json", "run/notes.txt"])
    ['run-rank0-trace.json', 'run-rank1-trace.json', 'notes.txt']
    """
    several = defaultdict(list)
    for name in members:
        several[_parts(name)[-1]].append(name)
    return [
        (parts[-1] if len(several[parts[-1]]) == 1 else "-".join(parts))[-LONGEST_NAME:]
        for parts in map(_parts, members)
    ]


def unpacked(path: Path) -> list[Path]:
    """Return the files in the archive at `path`, unpacked; of damaged ones what is whole (:func:`damage_of`).

    Raises OSError if nothing could be unpacked, or it is larger than half of the free disk.
    """
    status = path.stat()
    places, damage = _unpacked(path.resolve(), status.st_mtime_ns, status.st_size)
    if damage:
        _damage[path] = Damage("archive", damage)
    return list(places)


@functools.lru_cache
def _unpacked(path: Path, *_version: int) -> tuple[tuple[Path, ...], str]:
    """Return where the members are, and what is wrong with the archive as a whole."""
    folder = Scratch()
    _folders.append(folder)
    names: list[str] = []
    reasons: dict[int, str] = {}
    damage = ""
    most = path.stat().st_size * MOST_TIMES + ALWAYS
    free = min(most, int(shutil.disk_usage(folder.name).free * SHARE_OF_DISK))
    try:
        for name, blocks in _zip_members(path) if _is_zip(path) else _tar_members(path):
            if _JUNK.search(name):
                continue
            if len(names) == MOST_MEMBERS:
                raise OSError(f"it holds more than {MOST_MEMBERS:,} files, and only so many were unpacked")
            names.append(name)
            try:
                free -= _copied(blocks, Path(folder.name, f"{len(names)}"), free)
            except _TooLarge:
                raise
            except _BROKEN as error:
                reasons[len(names)] = str(error)
    except _TooLarge as error:
        folder.cleanup()
        raise OSError(f"the archive cannot be unpacked: {error}") from error
    except _BROKEN as error:
        damage = f"its headers make no sense ({error})" if isinstance(error, _SENSELESS) else str(error)
    return _placed(Path(folder.name), path, names, reasons), damage


def _is_zip(path: Path) -> bool:
    return head(path, len(ZIP)).startswith(ZIP)


def _placed(folder: Path, path: Path, members: list[str], reasons: dict[int, str]) -> tuple[Path, ...]:
    """Return where the members are, those of one folder together as in there; remember which are damaged."""
    places = []
    seen: Counter[tuple[str, ...]] = Counter()
    folders: dict[tuple[tuple[str, ...], int], Path] = {}
    for number, (member, name) in enumerate(zip(members, _names(members), strict=True), start=1):
        parts = tuple(_parts(member))
        seen[parts] += 1
        home = folders.setdefault((parts[:-1], seen[parts]), folder / f"folder{len(folders) + 1}")
        home.mkdir(exist_ok=True)
        place = home / name
        (folder / f"{number}").rename(place)
        if number in reasons:
            _damage[place] = Damage(f"member of {path.name}", reasons[number])
        places.append(place)
    return tuple(places)


ZIP_BLOCK = 1 << 16
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


def _zip_members(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content, in blocks, of each file in the zip; damage ends a content by an error.

    Raises zipfile.BadZipFile after the last member that can be found if the zip has no directory, so that
    others may be missing. A content raises if it is cut short, damaged, or packed in a way that is not read
    here.
    """
    with path.open("rb") as file:
        listed = _listed(path, file)
        if listed and _overlap(listed):
            raise zipfile.BadZipFile("its members overlap, as in an archive that is made to explode")
        for entry in _entries(file) if listed is None else listed:
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


def _overlap(entries: list[_Entry]) -> bool:
    spans = sorted(
        (entry.start, entry.start + (entry.size or 0)) for entry in entries if entry.start is not None
    )
    return any(begin < end for (_, end), (begin, _) in itertools.pairwise(spans))


def _start(file: IO[bytes], offset: int) -> int | None:
    """Return where the bytes of the member whose header is at `offset` begin, None if that is not whole."""
    file.seek(offset)
    header = file.read(4 + 26)
    if len(header) < HEADER.size or not header.startswith(SIGNATURE):
        return None
    *_, name, extra = HEADER.unpack(header)
    return offset + HEADER.size + int(name) + int(extra)


def _entries(file: IO[bytes]) -> Iterator[_Entry]:
    """Yield the members by their headers; `file` is behind one's content when the next is asked for."""
    at = 0
    while (offset := _next(file, at)) is not None:
        start = _start(file, offset)
        if start is None:
            return
        file.seek(offset)
        _, flags, method, _, _, checksum, size, _, name, extra = HEADER.unpack(file.read(HEADER.size))
        text, more = file.read(name), file.read(extra)
        packed = None if flags & SIZES_FOLLOW else _wide(size, more)
        checksum = None if packed is None else checksum
        yield _Entry(text.decode(errors="replace"), flags, method, start, packed, checksum)
        at = max(start, file.tell()) if packed is None else start + packed


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
    while block := file.read(ZIP_BLOCK):
        window += block
        if (place := window.find(SIGNATURE)) >= 0:
            return at + place
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
    for block in _stored(file, entry.size or 0) if entry.method == STORED else _inflated(file, entry.size):
        checksum = zlib.crc32(block, checksum)
        yield block
    if entry.checksum is not None and checksum != entry.checksum:
        raise zipfile.BadZipFile("its checksum is another: it is damaged")


def _stored(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        block = file.read(min(size, ZIP_BLOCK))
        if not block:
            raise EOFError("it is cut short")
        size -= len(block)
        yield block


def _inflated(file: IO[bytes], size: int | None) -> Iterator[bytes]:
    """Yield the plain bytes of `size` deflated ones (None: it is not known).

    `file` is behind them afterwards, or where they are damaged.
    """
    end = None if size is None else file.tell() + size
    decoder = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    while not decoder.eof:
        here, before = file.tell(), decoder.copy()
        packed = file.read(ZIP_BLOCK if end is None else min(ZIP_BLOCK, end - here))
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
