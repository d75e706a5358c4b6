"""What people type as parameters, as the analyses take it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.errors import BadParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["given", "name_of", "portable", "seconds"]


def seconds(window: str) -> tuple[float, float] | None:
    """Return `FROM:TO` as two numbers of seconds; None for an empty text.

    Raises
    ------
    BadParameter
        The text has another form, or TO does not come after FROM.

    """
    if not window:
        return None
    try:
        low, high = (float(part) for part in window.split(":"))
    except ValueError:
        raise BadParameter("window", window, ["FROM:TO in seconds, such as 0.5:2"]) from None
    if not low < high:
        raise BadParameter("window", window, ["FROM:TO with FROM before TO"])
    return low, high


def name_of(traces: str | Sequence[str]) -> str:
    """Return a report's title for want of a better one: the names of the files and folders."""
    paths = [traces] if isinstance(traces, str) else list(traces)
    names = [Path(path).resolve().name for path in paths]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def portable(path: str, folder: Path) -> str:
    """Return `path` as a notebook in `folder` can name it without telling where on this machine it lies.

    Relative to `folder`; below `~` if that is where the file lies and the folder does not. Symbolic links on the way are
    resolved, because `..` would follow them; the file's own name stays.
    """
    absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 (resolve() would rename a linked file)
    real = absolute.parent.resolve() / absolute.name
    start, home = folder.resolve(), Path.home().resolve()
    if home != Path("/") and real.is_relative_to(home) and not start.is_relative_to(home):
        return str(Path("~") / real.relative_to(home))
    return os.path.relpath(real, start)


def given(**parameters: Any) -> dict[str, Any]:
    """Return the parameters that say something, files by their base name: a report names no path of a machine."""
    said = {name: value for name, value in parameters.items() if not _unsaid(value)}
    for name in ("traces", "requests", "rules", "cpu_stat", "pid_map"):
        if name in said:
            value = said[name]
            said[name] = Path(value).name if isinstance(value, str) else [Path(path).name for path in value]
    return said


def _unsaid(value: Any) -> bool:
    """Say whether a parameter has the value that stands for nothing; False is something."""
    return value is not False and value in ("", {}, [], None, 0)
