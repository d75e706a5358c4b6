"""One recording in several files: a report beside its own export, a copy, the packed and the unpacked form.

Read twice, every GPU would be two and every sum double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tracelib.trace import Trace

__all__ = ["export_of", "repeats"]

#: Reports of Nsight Systems, which name their exports after themselves: run.sqlite, run_pqtdir/, run_arwdir/.
REPORTS = (".nsys-rep", ".qdrep")
DATABASE, DIRECTORIES = ".sqlite", ("_pqtdir", "_arwdir")
#: Frames that say where rows come from, not what was recorded.
ABOUT_FILES = ("sources", "health")


def export_of(report: Path, files: Iterable[Path]) -> Path | None:
    """Return that of `files` which is the export of the report at `path`, by its name, if it is not older; else None."""
    if report.suffix not in REPORTS:
        return None
    names = {report.with_suffix(DATABASE), *(report.with_name(report.stem + end) for end in DIRECTORIES)}
    return next(
        (
            file
            for file in files
            if (file in names or file.parent in names) and file.stat().st_mtime >= report.stat().st_mtime
        ),
        None,
    )


def repeats(traces: Sequence[Trace]) -> dict[int, int]:
    """Return which traces hold the very rows of an earlier one: index to the index of that; one without events is none."""
    found: dict[int, int] = {}
    for index, trace in enumerate(traces):
        first = next(
            (at for at in range(index) if at not in found and _holds_the_same(trace, traces[at])), None
        )
        if first is not None:
            found[index] = first
    return found


def _holds_the_same(one: Trace, other: Trace) -> bool:
    mine, others = one.frames(), other.frames()
    compared = [name for name in mine if name not in ABOUT_FILES]
    heights = [mine[name].height for name in compared]
    if not sum(heights) or heights != [others[name].height for name in compared]:
        return False
    return all(mine[name].equals(others[name]) for name in compared)
