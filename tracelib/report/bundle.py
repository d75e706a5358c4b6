"""A report's folder: what it holds, and how it comes into being, whole or not at all."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tracelib.errors import TraceError
from tracelib.sources.files import sha256
from tracelib.sources.programs import Scratch

#: What a report's folder may hold for people and programs.
FILES = ("report.html", "summary.md", "findings.json", "overview.png", "root_cause.ipynb")
#: In the folder: name -> SHA-256 of what was written there, by which it is known to be ours.
MARKER = ".tracelib-report.json"


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a new folder to fill; on success it becomes `target` in one step, on any error it vanishes.

    The new folder lies beside `target`, so that relative paths mean the same in both. An earlier report is
    replaced, unless a file in it was added or changed since.

    Raises TraceError if `target` holds what was not written here, or the place cannot be written.
    """
    # resolve() would follow a link and replace what it points to.
    target = Path(os.path.abspath(target))  # noqa: PTH100
    _refuse_what_is_not_ours(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Scratch(target.parent)
    except OSError as error:
        raise TraceError(
            f"{target.parent}: cannot write there: {error.strerror}. Choose another folder with -o."
        ) from None
    made = Path(scratch.name)
    with scratch:
        yield made
        written = {path.name: sha256(path) for path in sorted(made.iterdir())}
        (made / MARKER).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        made.chmod(0o777 & ~_umask())
        _replace(made, target)


def _refuse_what_is_not_ours(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TraceError(f"{target}: a file or a link is in the way. Choose another folder with -o.")
    if target.is_dir():
        written = _written(target / MARKER)
        entries = sorted(entry for entry in target.iterdir() if entry.name != MARKER)
        stranger = next((entry for entry in entries if not _is_ours(entry, written)), None)
        if stranger:
            why = "was changed since it was written" if stranger.name in written else "tracelib did not write"
            raise TraceError(
                f"{target}: holds {stranger.name!r}, which {why}. Choose another folder with -o."
            )


def as_written(file: Path) -> bool:
    """Say whether a file of a report's folder is what was written there, and no link."""
    return _is_ours(file, _written(file.parent / MARKER))


def _written(marker: Path) -> dict[str, str]:
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_ours(entry: Path, written: dict[str, str]) -> bool:
    return entry.is_file() and not entry.is_symlink() and written.get(entry.name) == sha256(entry)


def _replace(made: Path, target: Path) -> None:
    """Put `made` in the place of `target`: two renames, the old report is back if the second fails."""
    if not target.exists():
        made.rename(target)
        return
    with Scratch(target.parent) as folder:
        old = Path(folder) / "old"
        target.rename(old)
        try:
            made.rename(target)
        except BaseException:
            old.rename(target)
            raise


def _umask() -> int:
    """Return the process's umask: mkdtemp makes private folders; a report is as public as other files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
