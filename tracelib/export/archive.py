"""The recorded files as they are, packed with a manifest by which Perfetto (58 and later) aligns them.

Format: Perfetto's "Trace manifest format", version 1. What Perfetto does not read (nsys exports) is left out
and named: :mod:`tracelib.export.perfetto` converts it.
"""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracelib.clocks import PERFETTO
from tracelib.errors import TraceError
from tracelib.sources import format_named
from tracelib.trace import Trace

MANIFEST = "perfetto_manifest.json"
#: Longer names do not open in Perfetto's page.
NAME_CHARACTERS = 99


def write_archive(run: Trace, files: Sequence[Path], target: Path) -> list[str]:
    """Pack `files`, from which `run` was loaded, with a manifest; return what was left out, and why.

    The files go in as they are: whoever calls this redacts them before.

    Raises TraceError if none of the files is one that Perfetto opens; OSError if a file cannot be read, or
    the archive not be written.
    """
    by_name = {path.name: path for path in files}
    judged = [(row, _why_left_out(row, by_name)) for row in run.sources.iter_rows(named=True)]
    packed = [row for row, why in judged if not why]
    left = [f"{row['file']}: {why}" for row, why in judged if why]
    if not packed:
        raise TraceError(
            f"{target}: Perfetto opens none of these files ({'; '.join(left)}). Use --to perfetto."
        )
    bases = {row["file"]: _base_ns(row, by_name[row["file"]]) for row in packed}
    # Perfetto recognises a manifest by its first characters.
    text = json.dumps(_manifest(packed, bases), separators=(",", ":")).encode()
    with tarfile.open(target, "w") as archive:
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
        for row in packed:
            archive.add(by_name[row["file"]], row["file"], filter=_anonymous)
    return left


def _why_left_out(row: Mapping[str, Any], by_name: Mapping[str, Path]) -> str:
    if format_named(row["format"]).in_perfetto is None:
        return f"Perfetto does not read {row['format']}"
    if row["file"] not in by_name:
        return "it is part of another archive or was not found"
    if len(row["file"]) > NAME_CHARACTERS:
        return f"its name is longer than {NAME_CHARACTERS} characters"
    if row["tied_by"] == "untied":
        return "its clock is not tied to the others'"
    return ""


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Keep who packed it, on what machine, out of the archive."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _manifest(sources: Sequence[Mapping[str, Any]], bases: Mapping[str, int]) -> dict[str, Any]:
    """Return the manifest of `sources` (rows of that frame); one with a clock is the others' reference.

    A file with a clock of its own is *related*: when its clock reads T, the reference's reads T plus
    `offset_ns`. A file without one is *pinned*: so is Kineto's, whose events Perfetto shows at the times that
    stand in the file; `bases` has what must be added to these to get the file's wall time.
    """
    reference, *others = sorted(sources, key=lambda row: (not _clock(row), row["source"]))
    several = len({row["host"] for row in sources if row["host"]}) > 1
    files = [_entry(reference, several=several)]
    zero = _to_timeline(reference, bases)
    for row in others:
        clocks = {
            **_clock(row),
            "sync_to": {"file": reference["file"], **_clock(reference)},
            "offset_ns": _to_timeline(row, bases) - zero,
        }
        files.append({**_entry(row, several=several), "clocks": clocks})
    return {"perfetto_manifest": {"version": 1, "files": files}}


def _entry(row: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
    return {"path": row["file"]} | ({"machine": {"name": row["host"]}} if several and row["host"] else {})


def _clock(row: Mapping[str, Any]) -> dict[str, str]:
    opened = format_named(row["format"]).in_perfetto
    has_clock = opened and opened.has_clock and row["clock"] in PERFETTO
    return {"clock": PERFETTO[row["clock"]]} if has_clock else {}


def _base_ns(row: Mapping[str, Any], path: Path) -> int:
    """Return what must be added to the times in the file to get those of its clock."""
    opened = format_named(row["format"]).in_perfetto
    return opened.base_ns(path) if opened and opened.base_ns else 0


def _to_timeline(row: Mapping[str, Any], bases: Mapping[str, int]) -> int:
    """Return what to add to a time as Perfetto reads it in the file to get the run's timeline."""
    return int(row["offset_ns"] or 0) + bases.get(row["file"], 0)
