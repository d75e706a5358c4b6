"""A report's folder: what it holds, and how it comes into being, whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tracelib.errors import TraceError

#: What a report's folder may hold.
FILES = ("report.html", "summary.md", "findings.json", "overview.png", "root_cause.ipynb")
_PREFIX = ".tracelib-"


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a new folder to fill; on success it becomes `target` in one step, on any error it vanishes.

    The new folder lies beside `target`, so that relative paths mean the same in both. An earlier report is
    replaced; anything else is left alone.

    Raises TraceError if `target` exists and is not a report's folder, or the place cannot be written.
    """
    # resolve() would follow a link and replace what it points to.
    target = Path(os.path.abspath(target))  # noqa: PTH100
    _refuse_what_is_not_ours(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=target.parent))
    except OSError as error:
        raise TraceError(
            f"{target.parent}: cannot write there: {error.strerror}. Choose another folder with -o."
        ) from None
    try:
        yield made
        made.chmod(0o777 & ~_umask())
        _replace(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _refuse_what_is_not_ours(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TraceError(f"{target}: a file or a link is in the way. Choose another folder with -o.")
    if target.is_dir():
        strangers = sorted(entry.name for entry in target.iterdir() if entry.name not in FILES)
        if strangers:
            raise TraceError(
                f"{target}: holds {strangers[0]!r}, which is not part of a report. "
                "Choose another folder with -o."
            )


def _replace(made: Path, target: Path) -> None:
    """Put `made` in the place of `target`: two renames, the old report is back if the second fails."""
    if not target.exists():
        made.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=target.parent)) / "old"
    target.rename(old)
    try:
        made.rename(target)
    except OSError:
        old.rename(target)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)


def _umask() -> int:
    """Return the process's umask: mkdtemp makes private folders; a report is as public as other files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
