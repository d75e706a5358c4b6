"""Bytes of trace files, compressed or not, whole or cut short.

The suffix says nothing here: profilers write gzip named `.json` and JSON named `.gz`, so the first bytes
decide. A stream that ends in the middle of a compressed member is not an error: what came out is used and
`Stream.damage` says what was lost.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
#: How a member begins: of gzip, of zstd, or of zstd with data of others that decompress to nothing (pzstd,
#: seekable zstd).
_MEMBER = re.compile(rb"\x1f\x8b|\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
BLOCK = 1 << 20
#: Compressed bytes that are decompressed at a time: what comes out, 15 times as much of JSON, stays in the
#: CPU's cache.
PACKED_BLOCK = 1 << 16
#: What the next piece of a file can use again; 32 MiB is the most that glibc takes for this threshold.
REUSED = 31 << 20

_hashing = threading.Lock()
_watchers: list[Callable[[Path, float], None]] = []


@contextlib.contextmanager
def watched(watcher: Callable[[Path, float], None]) -> Iterator[None]:
    """Call `watcher` meanwhile, as files are read: with the path and the share of its bytes read so far.

    The call comes from the thread that reads, once per piece of some megabytes.
    """
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _gzip_decoder() -> Any:
    """Return a decoder of one gzip member; Intel's library, if installed, is twice as fast as zlib."""
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:
        return _zlib_decoder()
    return isal_zlib.decompressobj(wbits=31)


def _zstd_decoder() -> Any:
    try:
        import zstandard  # noqa: PLC0415
    except ImportError as error:
        raise OSError("compressed with zstd; install the extra `fast` or unpack it with `zstd -d`") from error
    return zstandard.ZstdDecompressor().decompressobj()


def _zlib_decoder() -> Any:
    return zlib.decompressobj(wbits=31)


def _slowing(path: Path, place: int) -> Iterator[bytes]:
    """Yield the bytes of the file at `path`, in blocks up to `place`, then one by one."""
    with path.open("rb") as file:
        while block := file.read(min(PACKED_BLOCK, place - file.tell())):
            yield block
        while block := file.read(1):
            yield block


class Stream(io.RawIOBase):
    """A readable stream of a file's decompressed bytes.

    `damage` is None, or says why the stream ended before its end ("gzip data ends early after 123 bytes");
    `lost_bytes` counts the bytes of the file that were not decompressed. Both are final once `read` returned
    b"".
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.damage: str | None = None
        self.lost_bytes = 0
        self.position = 0
        self._file = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        magic = self._file.read(4)
        self._file.seek(0)
        self._new_decoder: Callable[[], Any] | None = (
            _gzip_decoder if magic.startswith(GZIP) else _zstd_decoder if _MEMBER.match(magic) else None
        )
        self._decoder = self._new_decoder() if self._new_decoder else None
        self._pending = memoryview(b"")  # decompressed, not yet handed out
        self._raw = b""  # read, not yet decompressed
        self._done = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        if self._decoder is None:
            count = self._file.readinto(view[: self._left(len(view))])
            self.position += count
            self._tell()
            return count
        while not self._pending and not self._done:
            self._pending = memoryview(self._decode())
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        self.position += count
        return count

    def _left(self, most: int) -> int:
        """Return how much to read: a file that grows as fast as it is read would have no end.

        What the kernel writes on demand says that it has no size.
        """
        return min(most, max(0, self._size - self._file.tell())) if self._size else most

    def _tell(self) -> None:
        for watcher in _watchers:
            watcher(self.path, self._file.tell() / max(self._size, 1))

    def _decode(self) -> bytes:
        """Return the next decompressed bytes, b"" if this block held none."""
        assert self._decoder is not None
        assert self._new_decoder is not None
        if self._decoder.eof:  # the next member, if there is one; padding after the last is not damage
            self._raw = self._behind(self._decoder.unused_data)
            self._decoder = self._new_decoder()
            if not _MEMBER.match(self._raw):
                return self._end(
                    f"{len(self._raw)} bytes after the last compressed member" if self._raw else None
                )
        else:
            self._raw = self._file.read(self._left(PACKED_BLOCK))
            self._tell()
            if not self._raw:
                return self._end(f"compressed data ends early, after {self.position} readable bytes")
        try:
            decoded: bytes = self._decoder.decompress(self._raw)
        except Exception as error:  # noqa: BLE001  (each library has its own error type)
            rest = self._rest()
            self._end(
                f"compressed data is damaged after {self.position + len(rest)} readable bytes ({error})"
            )
            return rest
        return decoded

    def _behind(self, data: bytes) -> bytes:
        """Return what follows a member that ended before `data`, without the zeros that may stand there."""
        data = (data + self._file.read(self._left(PACKED_BLOCK))).lstrip(b"\0")
        while not data and (more := self._file.read(self._left(PACKED_BLOCK))):
            data = more.lstrip(b"\0")
        return data

    def _rest(self) -> bytes:
        """Return what the damaged block gives before the damage: it is decompressed again, byte by byte."""
        new = _zlib_decoder if self._new_decoder is _gzip_decoder else self._new_decoder
        assert new is not None
        decoder, count, rest = new(), 0, [b""]
        try:
            for packed in _slowing(self.path, self._file.tell() - len(self._raw)):
                piece = packed
                while piece:
                    decoded = decoder.decompress(piece)
                    count += len(decoded)
                    rest.append(decoded[max(0, len(decoded) - (count - self.position)) :])
                    piece = decoder.unused_data.lstrip(b"\0") if decoder.eof else b""
                    decoder = new() if decoder.eof else decoder
        except Exception:  # noqa: BLE001  (each library has its own error type)
            return b"".join(rest)
        return b"".join(rest)

    def _end(self, damage: str | None) -> bytes:
        self._done = True
        self.damage = damage
        if damage:
            here = self._file.tell() - len(self._raw)
            self.lost_bytes = max(0, self._file.seek(0, io.SEEK_END) - here)
        return b""


def open_stream(path: Path) -> Stream:
    """Return the decompressed bytes of the file at `path` as a stream.

    Raises OSError if the file cannot be opened, or it needs a decompressor that is not installed.
    """
    return Stream(path)


def keep_freed_memory() -> None:
    """Make glibc keep the memory of one piece for the next, instead of asking the system for new pages.

    A block that is freed raises its threshold to the block's size (mallopt(3): the thresholds are dynamic).
    Fewer than half of the page faults are left.
    """
    bytearray(REUSED)


def head(path: Path, size: int = 1 << 16) -> bytes:
    """Return the first `size` decompressed bytes of the file, or all if it is shorter."""
    with open_stream(path) as stream:
        return io.BufferedReader(stream, BLOCK).read(size)


def sha256(path: Path) -> str:
    """Return the SHA-256 of the file as it lies on disk, in hex."""
    status = path.stat()
    with _hashing:  # whoever asks for a digest that is being computed waits for it
        return _sha256(path.resolve(), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@contextlib.contextmanager
def hashed(path: Path) -> Iterator[None]:
    """Compute :func:`sha256` of the file in another thread meanwhile; who asks for it then waits for that."""
    with ThreadPoolExecutor(1, thread_name_prefix="hash") as worker:
        worker.submit(sha256, path)
        yield


@functools.cache
def _sha256(path: Path, size: int, *_version: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(min(BLOCK, size - file.tell()) if size else BLOCK):
            digest.update(block)
    return digest.hexdigest()
