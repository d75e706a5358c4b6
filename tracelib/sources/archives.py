"""Archives of trace files: zip, and tar (also in gzip or zstd), as people send the ranks of one run.

Members are unpacked into a temporary folder that lives as long as the process, one plain file each, and read like any
other file. Names from an archive are never used as paths; links, devices and folders are left in it. What is damaged is
unpacked as far as it is whole, and :func:`damage_of` says so.
"""

from __future__ import annotations

import functools
import io
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tracelib.sources import zips
from tracelib.sources.files import ZIP, Stream, head, open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["Damage", "damage_of", "is_archive", "unpacked"]

#: Unpack at most this share of the free disk, so that an archive made to explode fills nothing.
SHARE_OF_DISK = 0.5
LONGEST_NAME = 200
#: A damaged tar loses the block in which the damage is.
TAR_BLOCK = 1 << 13
#: What macOS and file managers put beside the files that one meant to pack.
_JUNK = re.compile(r"(?:^|/)(?:__MACOSX/|\.(?!\.?(?:/|$)))")
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    NotImplementedError,
    OSError,
)

_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
_damage: dict[Path, Damage] = {}  # of members where they were unpacked to, and of archives


class Damage(NamedTuple):
    """What is wrong with `what`: a member of an archive that was unpacked in part or not at all, or an archive."""

    what: str
    reason: str


class _TooLarge(OSError):
    """The archive takes more of the disk than it may."""


def damage_of(path: Path) -> Damage | None:
    """Return what was wrong with the member or the archive at `path` when it was unpacked, None if nothing was."""
    return _damage.get(path)


def is_archive(start: bytes) -> bool:
    """Say whether a file that begins with `start` is a zip or a tar: a tar's header has a checksum of itself."""
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
        self.stream, self.last = stream, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        count = self.stream.readinto(buffer)
        self.last = (self.last + bytes(memoryview(buffer)[:count]))[-tarfile.BLOCKSIZE :]
        return count


def _tar_members(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    with open_stream(path) as stream:
        watched = _Watched(stream)
        with tarfile.open(fileobj=io.BufferedReader(watched), mode="r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content:
                    yield member.name, iter(functools.partial(content.read, TAR_BLOCK), b"")
        more = watched.last.strip(b"\0")
        while block := stream.read(1 << 20):  # zeros, and the checksum of all
            more = more or block.strip(b"\0")
        if stream.damage or more:
            raise EOFError(stream.damage or "it was cut short, or holds more behind its end")


def _copied(blocks: Iterator[bytes], place: Path, limit: int) -> int:
    """Write `blocks` to `place`, up to `limit` bytes; return how many there were."""
    count = 0
    with place.open("wb") as out:
        for block in blocks:
            count += out.write(block)
            if count > limit:
                raise _TooLarge(f"it unpacks to more than {SHARE_OF_DISK:.0%} of the free disk")
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

    Raises
    ------
    OSError
        Nothing could be unpacked, or it is larger than half of the free disk.

    """
    status = path.stat()
    places, damage = _unpacked(path.resolve(), status.st_mtime_ns, status.st_size)
    if damage:
        _damage[path] = Damage("archive", damage)
    return list(places)


@functools.lru_cache
def _unpacked(path: Path, changed: int, size: int) -> tuple[tuple[Path, ...], str]:  # noqa: ARG001  (they tell versions apart)
    """Return where the members are, and what is wrong with the archive as a whole."""
    folder = tempfile.TemporaryDirectory(prefix="tracelib-")
    _folders.append(folder)
    names: list[str] = []
    reasons: dict[int, str] = {}
    damage = ""
    free = int(shutil.disk_usage(folder.name).free * SHARE_OF_DISK)
    try:
        for name, blocks in zips.members(path) if _is_zip(path) else _tar_members(path):
            if _JUNK.search(name):
                continue
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
        damage = str(error)
    return _placed(Path(folder.name), path, names, reasons), damage


def _is_zip(path: Path) -> bool:
    return head(path, len(ZIP)).startswith(ZIP)


def _placed(folder: Path, path: Path, members: list[str], reasons: dict[int, str]) -> tuple[Path, ...]:
    """Return the places of the members, each in a folder of its own, under its name; remember which are damaged."""
    places = []
    for number, name in enumerate(_names(members), start=1):
        place = folder / f"member{number}" / name
        place.parent.mkdir()
        (folder / f"{number}").rename(place)
        if number in reasons:
            _damage[place] = Damage(f"member of {path.name}", reasons[number])
        places.append(place)
    return tuple(places)
