"""The server's own profiler, switched by its HTTP endpoint.

It counts as running before it is asked to: were we killed while we asked, it must be stopped all the same.
"""

from __future__ import annotations

import os
import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tracelib.record.folder import OWN_FILES, RECORDINGS

#: vLLM answers /stop_profile when its traces are written; its manual speaks of ten minutes.
SWITCH_S = 1800.0
SETTLED_S, EMPTY_S = 2.0, 60.0
LISTED = 8


@dataclass
class Profiler:
    """A step of a recording: started, stopped, its files copied into the recording's folder."""

    folder: Path
    start_url: str
    stop_url: str
    traces: str
    name: str = "profiler"
    handle: dict[str, Any] = field(default_factory=lambda: {"running": True, "since": time.time()})

    def start(self) -> None:
        try:
            _post(self.start_url)
        except urllib.error.HTTPError as error:
            self.handle["running"] = False
            raise OSError(
                f"{self.start_url}: {error}; was the server started with its profiler configured?"
            ) from error

    def stop(self) -> None:
        if self.handle["running"]:
            _post(self.stop_url)
            self.handle["running"] = False

    def save(self) -> str:
        if not self.traces:
            return "the traces are where the server writes them: give them to the report, too"
        names = [self._copied(path) for path in _settled(Path(self.traces), self.handle["since"])]
        if not names:
            raise OSError(f"the server wrote nothing to {self.traces}")
        more = ", …" if len(names) > LISTED else ""
        return f"{len(names)} files of the server: {', '.join(names[:LISTED])}{more}"

    def _copied(self, path: Path) -> str:
        """Copy a file, never one behind a link (it may be another user's), nor over one of ours."""
        ours = any(fnmatch(path.name, pattern) for pattern in (*OWN_FILES, *RECORDINGS))
        name = f"server-{path.name}" if ours else path.name
        part = self.folder / f".{name}.part"
        with open(path, "rb", opener=_unlinked) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        part.replace(self.folder / name)
        return name

    def close(self) -> None:
        self.stop()


def _unlinked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _post(url: str) -> None:
    # The plan takes http and https alone.
    request = urllib.request.Request(url, data=b"", method="POST")  # noqa: S310
    with urllib.request.urlopen(request, timeout=SWITCH_S) as answer:  # noqa: S310
        answer.read()


def _settled(folder: Path, since: float) -> list[Path]:
    """Return the files written since then, once none grows any more: SGLang writes after it has answered."""
    limit, before = time.monotonic() + SWITCH_S, None
    while time.monotonic() < limit:
        sizes = {
            path: path.stat().st_size
            for path in sorted(folder.glob("*"))
            if path.is_file() and not path.is_symlink() and path.stat().st_mtime >= since
        }
        if sizes == before and (sizes or time.monotonic() > limit - SWITCH_S + EMPTY_S):
            return list(sizes)
        before = sizes
        time.sleep(SETTLED_S)
    raise OSError(f"the files in {folder} are still growing after {SWITCH_S / 60:.0f} minutes")
