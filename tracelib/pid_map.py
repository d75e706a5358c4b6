"""A map from the process and thread ids inside a container to those of its host, as a person or a script writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelib.errors import BadTrace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PidMap", "read_pid_map"]

#: File name or glob -> id in that file -> id on the host; "*" stands for every file of a profiler in a container.
PidMap = dict[str, dict[int, int]]
ADVICE = "A line is INSIDE OUTSIDE, GLOB INSIDE OUTSIDE, or one of `grep NSpid /proc/[0-9]*/task/*/status` as it is."


def read_pid_map(path: Path) -> PidMap:
    """Return the map in the file at `path`.

    Each line is `INSIDE OUTSIDE` (two ids), or `GLOB INSIDE OUTSIDE` for the files of that name only, or a line of
    ``grep NSpid /proc/[0-9]*/task/*/status`` run on the host, whose ids stand outermost first; ids that are the same inside
    and outside are skipped there. Empty lines and what follows a `#` are skipped. Source: proc_pid_status(5), "NSpid".

    Raises
    ------
    BadTrace
        The file cannot be read, a line has another form, or one id inside stands for two outside; the message names the line.

    """
    found: PidMap = {}
    for number, line in enumerate(_lines(path), 1):
        entry = _entry(path, number, line)
        if entry is None:
            continue
        glob, inside, outside = entry
        if found.setdefault(glob, {}).setdefault(inside, outside) != outside:
            reason = f"{inside} is {found[glob][inside]} on the host, says another line"
            raise BadTrace(
                path,
                "pid map",
                f"line {number}",
                reason,
                line,
                "Two containers: begin the lines with their files' names.",
            )
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(path, "pid map", "", error.strerror or str(error), advice=ADVICE) from error


def _entry(path: Path, number: int, line: str) -> tuple[str, int, int] | None:
    """Return glob, id inside and id outside; None for a line that says nothing."""
    said, nspid, ids = line.split("#", 1)[0].partition("NSpid:")
    words = ids.split() if nspid else said.split()
    glob = "*"
    if len(words) == 3 and not nspid:
        glob, *words = words
    if (
        not all(word.isdigit() for word in words)
        or len(words) < (1 if nspid else 2 if words else 0)
        or (len(words) > 2 and not nspid)
    ):
        raise BadTrace(path, "pid map", f"line {number}", "it is no entry of a map", line, ADVICE)
    if not words or (nspid and len(words) == 1):
        return None
    numbers = [int(word) for word in words]
    return (glob, numbers[-1], numbers[0]) if nspid else (glob, numbers[0], numbers[1])
