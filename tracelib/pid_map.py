"""A map from ids of processes and threads inside a container to those of its host."""

from pathlib import Path

from tracelib.errors import BadTrace

#: File name or glob -> id in that file -> id on the host; "*" stands for every file of a profiler in a
#: container.
PidMap = dict[str, dict[int, int]]
ADVICE = "Lines are INSIDE OUTSIDE, GLOB INSIDE OUTSIDE, or as grep NSpid /proc/*/task/*/status prints them."


def read_pid_map(path: Path) -> PidMap:
    """Return the map in the file at `path`.

    Each line is `INSIDE OUTSIDE` (two ids), or `GLOB INSIDE OUTSIDE` for the files of that name only, or a
    line of ``grep NSpid /proc/[0-9]*/task/*/status`` run on the host, whose ids stand outermost first; of
    these, a line with one id is skipped. So are empty lines and what follows a `#`. Source:
    proc_pid_status(5), "NSpid".

    Raises BadTrace if the file cannot be read, a line has another form, or one id inside stands for two
    outside; the message says which line.
    """
    pid_map: PidMap = {}
    for number, line in enumerate(_lines(path), 1):
        entry = _entry(path, number, line)
        if entry is None:
            continue
        glob, inside, outside = entry
        first = pid_map.setdefault(glob, {}).setdefault(inside, outside)
        if first != outside:
            reason = f"{inside} is {first} on the host according to another line"
            advice = "Two containers: begin the lines with their files' names."
            raise BadTrace(path, "pid map", f"line {number}", reason, line, advice)
    return pid_map


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(path, "pid map", "", error.strerror or str(error), advice=ADVICE) from error


def _entry(path: Path, number: int, line: str) -> tuple[str, int, int] | None:
    """Return glob, id inside and id outside; None for a line that says nothing."""
    short, nspid, ids = line.split("#", 1)[0].partition("NSpid:")
    glob, words = "*", ids.split() if nspid else short.split()
    if not nspid and len(words) == 3:
        glob, *words = words
    fewest, most = (1, len(words)) if nspid else (2, 2)
    if (words or nspid) and not (fewest <= len(words) <= most and all(word.isdigit() for word in words)):
        raise BadTrace(path, "pid map", f"line {number}", "it is not an entry of a map", line, ADVICE)
    if len(words) < 2:
        return None
    numbers = [int(word) for word in words]
    return (glob, numbers[-1], numbers[0]) if nspid else (glob, numbers[0], numbers[1])
