"""A second load of the same file: its frames, kept as Parquet in the user's cache folder.

An entry is named by all that decides what a reader returns: the content (SHA-256) and base name (which may
tell the rank) of the file and of those that are read with it; the source text of all readers and of what they
use, so that no one has to remember to raise a version; and the version of the program by way of which the
reader gets at the content, if it needs one (perf, nsys, trace-cmd). It appears whole, by a rename, or not at
all. The folder is for its owner alone, unless TRACELIB_CACHE_SHARED says otherwise. The checksums of an entry
are verified before Parquet is decoded, and a broken entry is replaced. The entries not used for longest are
removed once all of them take more than `LIMIT` bytes.

The content of a file is not hashed again while its path, size, inode and times of modification and change are
those that were seen when it was hashed, as in git's index; what was modified less than two seconds before is
not remembered, because a change within one tick of the clock would not show.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import polars as pl

from tracelib.sources.files import BLOCK, GZIP, ZSTD, sha256
from tracelib.sources.format import TraceFile
from tracelib.sources.health import with_remark
from tracelib.sources.programs import Scratch
from tracelib.trace import Trace

#: Bytes that all entries together may take.
LIMIT = 5 << 30
#: Smaller files are read faster than they are looked up.
SMALLEST = 1 << 17
#: Text of more bytes than this is streamed to the cache by readers that can; compressed text is taken to be
#: so much longer.
LARGE, TYPICAL_RATIO = 1 << 30, 15
#: What was modified so shortly before it was hashed may change again without a trace.
RACY_NS = 2 * 10**9
#: Unfinished entries and remembered hashes are removed after so many seconds without use.
STALE_S = 30 * 86_400
#: A program that has not told its version in so many seconds is known by its time of change alone.
VERSION_S = 10
VARIABLE = "TRACELIB_CACHE"
OFF = ("off", "0", "no", "false")
#: Says that the folder may be another user's, or several users'.
SHARED, YES = "TRACELIB_CACHE_SHARED", ("yes", "1", "on", "true")
#: Where the readers are, and what of the package they use besides.
PACKAGE = Path(__file__).parent.parent
USED_BY_READERS = ("clocks.py", "data.py", "errors.py", "schema.py", "trace.py", "words.py")
SOURCE_TEXT = ("*.py", "*.toml", "*.[ch]")


def cache(wanted: bool | None) -> Cache | None:  # noqa: FBT001  (passed on from `load(cache=…)`)
    """Return the user's cache, None if it is not `wanted`; None leaves that to the variable TRACELIB_CACHE.

    The variable holds "off" or another folder than the usual one.
    """
    given = os.environ.get(VARIABLE, "")
    if wanted is False or (wanted is None and given.lower() in OFF):
        return None
    usual = not given or given.lower() in OFF
    return Cache(platformdirs.user_cache_path("tracelib", appauthor=False) if usual else Path(given))


@dataclass(frozen=True)
class Cache:
    """Frames of files that were read before, in `folder`."""

    folder: Path
    limit: int = LIMIT

    def read(self, file: TraceFile) -> Trace:
        """Return what `file.read()` returns, from the cache if it has that, else to be found there next time.

        Raises BadTrace as `file.read`; then nothing is kept.
        """
        if file.format is None or sum(path.stat().st_size for path in file.files) < SMALLEST:
            return file.read()
        try:
            self._keep_private()
            entry = self.folder / "frames" / self._key(file)
        except OSError as error:
            return with_remark(file.read(), "info", f"not kept in the cache {self.folder}: {error}")
        if not entry.exists():
            return self._filled(entry, file, "")
        try:
            return _kept(entry)
        except (OSError, ValueError, pl.exceptions.PolarsError) as error:
            return self._filled(entry, file, f"the cache's copy was broken and was replaced: {error}")

    def _filled(self, entry: Path, file: TraceFile, note: str) -> Trace:
        """Return the file's trace; it is in the cache afterwards, as it is read or else after that."""
        stream = file.known_format.stream if _is_large(file.path) else None
        trace = None
        try:
            if stream is None:
                trace = file.read()
                _keep(entry, trace.to_parquet)
            else:
                _keep(entry, functools.partial(stream, file.path))
            self._forget_oldest()
            trace = trace or _kept(entry)
        except (OSError, pl.exceptions.PolarsError) as error:  # Polars has its own word for a full disk
            note = f"not kept in the cache {self.folder}: {error}"
        trace = trace or file.read()
        return with_remark(trace, "info", note) if note else trace

    def _keep_private(self) -> None:
        """Raise PermissionError if another user can have written in the folder: entries are believed."""
        if os.environ.get(SHARED, "").lower() in YES:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"it is another user's ({SHARED}=yes to use it all the same)")
        self.folder.chmod(0o700)

    def _key(self, file: TraceFile) -> str:
        parts = (
            *(f"{path.name} {self._content(path)}" for path in file.files),
            file.path.name,
            file.known_format.name,
            _source_version(PACKAGE),
            _program_version(file),
        )
        return hashlib.blake2b(
            "\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=20
        ).hexdigest()

    def _content(self, path: Path) -> str:
        """Return the SHA-256 of the file's content, remembered if the file has not changed since."""
        before = path.stat()
        note = self.folder / "files" / _identity(path, before)
        if note.exists():
            os.utime(note)
            return note.read_text()
        digest = sha256(path)
        settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > RACY_NS
        if settled and _identity(path, path.stat()) == note.name:
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _written(note, digest)
        return digest

    def _forget_oldest(self) -> None:
        """Remove the entries not used for longest until the rest is within the limit, and what is stale."""
        for stale in self.folder.glob("files/[!.]*"):
            if time.time() - stale.stat().st_mtime > STALE_S:
                stale.unlink()
        entries = list(self.folder.glob("frames/[!.]*"))
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries}
        for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime):
            if sum(sizes.values()) <= self.limit:
                return
            shutil.rmtree(entry, ignore_errors=True)  # another process may be doing the same
            del sizes[entry]


def _identity(path: Path, status: os.stat_result) -> str:
    parts = (
        path.resolve(),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()


@functools.cache
def _source_version(package: Path) -> str:
    """Return a digest of all source text that decides what a reader returns."""
    readers = (file for pattern in SOURCE_TEXT for file in (package / "sources").rglob(pattern))
    digest = hashlib.blake2b(pl.__version__.encode(), digest_size=20)
    used = [package / name for name in USED_BY_READERS]
    tables = [file for module in used if (file := module.with_suffix(".toml")).exists()]
    for file in sorted([*readers, *used, *tables]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _program_version(file: TraceFile) -> str:
    """Return the version of the program that helps to read `file`, "" if none does."""
    name = file.known_format.program(file.head)
    program = shutil.which(name) if name else None
    return _version(program) if program else ""


@functools.cache
def _version(program: str) -> str:
    """Return where a program is, when it was changed, and what it says of its version."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_S,
            check=False,
        )
        words = (done.stdout + done.stderr).decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        words = type(error).__name__
    return f"{program} {Path(program).stat().st_mtime_ns} {words}"


def _written(place: Path, text: str) -> None:
    with Scratch(place.parent) as folder:
        made = Path(folder) / place.name
        made.write_text(text)
        made.replace(place)


def _checksums(entry: Path) -> dict[str, int]:
    return {file.name: _checksum(file) for file in sorted(entry.glob("*.parquet"))}


def _checksum(place: Path) -> int:
    result, buffer = 0, memoryview(bytearray(BLOCK))  # used again: fresh memory costs more than the sum
    with place.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            result = zlib.crc32(buffer[:count], result)
    return result


def _keep(entry: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside the entry's place, and move it there."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Scratch(entry.parent) as folder:
        made = Path(folder) / entry.name
        made.mkdir()
        write(made)
        (made / "checksums.json").write_text(json.dumps(_checksums(made)))
        # There is one only if it was broken, or another process was faster.
        shutil.rmtree(entry, ignore_errors=True)
        made.rename(entry)


def _kept(entry: Path) -> Trace:
    """Return the trace in an entry.

    Raises OSError, ValueError, polars.exceptions.PolarsError if it is broken.
    """
    with ThreadPoolExecutor(1) as pool:
        checksums = pool.submit(_checksums, entry)
        trace = Trace.from_parquet(entry)
    if json.loads((entry / "checksums.json").read_text()) != checksums.result():
        raise ValueError("its checksums differ")
    os.utime(entry)
    return trace


def _is_large(path: Path) -> bool:
    """Say whether the file's rows should go through the disk rather than all be in memory at once."""
    with path.open("rb") as file:
        packed = file.read(4).startswith((GZIP, ZSTD))
    return path.stat().st_size * (TYPICAL_RATIO if packed else 1) > LARGE
