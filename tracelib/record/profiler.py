"""The server's own profiler: switched by HTTP, its traces copied when they are whole."""

import shutil
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: vLLM answers /stop_profile when its traces are written; its manual speaks of ten minutes.
SWITCH_S = 1800.0
SETTLED_S, EMPTY_S = 2.0, 60.0


@dataclass
class Profiler:
    """The server's own profiler, switched by its HTTP endpoint.

    It counts as running before it is asked to: were we killed while we asked, it must be stopped all the
    same.
    """

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
        return f"{len(names)} traces of the server"

    def _copied(self, path: Path) -> str:
        part = self.folder / f".{path.name}.part"
        shutil.copyfile(path, part)
        part.replace(self.folder / path.name)
        return path.name

    def close(self) -> None:
        self.stop()


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
            if path.is_file() and path.stat().st_mtime >= since
        }
        if sizes == before and (sizes or time.monotonic() > limit - SWITCH_S + EMPTY_S):
            return list(sizes)
        before = sizes
        time.sleep(SETTLED_S)
    raise OSError(f"the files in {folder} are still growing after {SWITCH_S / 60:.0f} minutes")
