"""Archives of trace files: zip, and tar in any compression, as people send the ranks of one run.

Members are unpacked into a temporary folder that lives as long as the process, one plain file each, and read like any
other file. Names from an archive are never used as paths; links, devices and folders are left in it.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracelib.sources.files import ZIP, head, open_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_archive", "unpacked"]

#: Where a tar's first header has its magic.
TAR_MAGIC = slice(257, 262)
#: Unpack at most this share of the free disk, so that an archive made to explode fills nothing.
SHARE_OF_DISK = 0.5
LONGEST_NAME = 200
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


def is_archive(path: Path) -> bool:
    """Say whether the file at `path` is a zip or a tar, by its first bytes."""
    start = head(path, 512)
    return start.startswith(ZIP) or start[TAR_MAGIC] == b"ustar"


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as file:
                        yield entry.filename, file
        return
    with open_stream(path) as stream, tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content:
                yield member.name, content


def _place(folder: Path, name: str) -> Path:
    """Return a new place in `folder` for the member `name`: its own name, with its folders' where that is taken."""
    parts = [
        re.sub(r"[^\w.+=@,-]", "_", part) for part in name.replace("\\", "/").split("/") if part.strip(".")
    ]
    for count in range(1, len(parts) + 1):
        place = folder / "-".join(parts[-count:])[-LONGEST_NAME:]
        if not place.exists():
            return place
    return folder / f"{len(list(folder.iterdir()))}-{(parts or ['member'])[-1][-LONGEST_NAME:]}"


def _copied(content: IO[bytes], place: Path, limit: int) -> int:
    """Write `content` to `place`, up to `limit` bytes; return how many there were."""
    count = 0
    with place.open("wb") as out:
        while block := content.read(1 << 20):
            count += out.write(block)
            if count > limit:
                raise OSError(f"it unpacks to more than {SHARE_OF_DISK:.0%} of the free disk")
    return count


def unpacked(path: Path) -> list[Path]:
    """Return the files in the archive at `path`, unpacked; those before the damage if it is damaged.

    Raises
    ------
    OSError
        Nothing could be unpacked, or it is larger than half of the free disk.

    """
    status = path.stat()
    return list(_unpacked(path.resolve(), status.st_mtime_ns, status.st_size))


@functools.lru_cache
def _unpacked(path: Path, changed: int, size: int) -> tuple[Path, ...]:  # noqa: ARG001  (they tell versions apart)
    folder = tempfile.TemporaryDirectory(prefix="tracelib-")
    _folders.append(folder)
    free = int(shutil.disk_usage(folder.name).free * SHARE_OF_DISK)
    places: list[Path] = []
    try:
        for name, content in _members(path):
            place = _place(Path(folder.name), name)
            places.append(place)
            free -= _copied(content, place, free)
    except _BROKEN as error:
        if not any(place.stat().st_size for place in places) or "free disk" in str(error):
            folder.cleanup()
            raise OSError(f"the archive cannot be unpacked: {error}") from error
    return tuple(places)
