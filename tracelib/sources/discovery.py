"""Which files are traces, and of which format: each file is looked at once, by content."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tracelib import sources
from tracelib.errors import BadParameter, BadTrace, UnknownFormat
from tracelib.sources.archives import damage_of, is_archive, unpacked
from tracelib.sources.cache import Cache
from tracelib.sources.files import head, open_stream
from tracelib.sources.format import TraceFile
from tracelib.sources.health import with_remark
from tracelib.sources.programs import Scratch
from tracelib.trace import Trace
from tracelib.words import readable

#: What files begin with that are packed in a way that is not read here (gzip: packed twice).
PACKED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7-Zip",
    b"Rar!": "RAR",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x8b": "gzip twice",
}
#: How a trace in Perfetto's own format is named, and what its first packet begins with.
PERFETTO_SUFFIXES, PERFETTO_PACKET = (".pftrace", ".perfetto-trace"), b"\x0a"
PERFETTO_REFUSED = (
    "a trace in Perfetto's own format, which is not read here: convert it with Perfetto's traceconv "
    "(`traceconv systrace IN OUT` for scheduling, `traceconv json IN OUT` for ranges), "
    "or give the files that it was made of"
)


_links: list[Scratch] = []  # removed when the process ends


class Discovery(NamedTuple):
    """What is in `paths`: the traces, other files, and reports whose own export is among the traces."""

    traces: list[TraceFile]
    others: list[Path]
    exported: dict[Path, Path]
    paths: list[Path]


def recognised(path: Path) -> TraceFile:
    """Return the file at `path` with its format, by content.

    Raises UnknownFormat if it is of no format that is read, it is empty, or it cannot be opened.
    """
    try:
        start = head(path)
    except OSError as error:
        raise _unopened(path, error) from error
    return _recognised(path, start)


def _recognised(path: Path, start: bytes) -> TraceFile:
    if not start:
        raise _unknown(path, _nothing(path))
    for each in sources.FORMATS:
        if each.sniff(start, path.name):
            return TraceFile(path, each, start)
    packed = next((name for magic, name in PACKED.items() if start.startswith(magic)), None)
    if packed:
        raise _unknown(path, f"it is packed by {packed}: unpack it first")
    raise _unknown(path, f"it is {PERFETTO_REFUSED}" if _is_perfetto(path, start) else _instead(path, start))


def _unknown(path: Path, reason: str) -> UnknownFormat:
    return UnknownFormat(path, [each.name for each in sources.FORMATS], reason=reason)


def _unopened(path: Path, error: OSError) -> UnknownFormat:
    return _unknown(path, f"cannot be opened ({error.strerror or error})")


def _nothing(path: Path) -> str:
    """Return why no byte can be had from the file at `path`."""
    with open_stream(path) as stream:
        stream.read(1)
    packed = path.stat().st_size > 0
    return f"nothing can be decompressed from it ({stream.damage})" if packed else "the file is empty"


def _is_perfetto(path: Path, start: bytes) -> bool:
    return _called_perfetto(path) and start.startswith(PERFETTO_PACKET)


def _called_perfetto(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(PERFETTO_SUFFIXES)


def _instead(path: Path, start: bytes) -> str:
    """Return what to give in place of a file that is only a part of a recording, "" of any other."""
    return next(filter(None, (each.advice_for_part(path, start) for each in sources.FORMATS)), "")


def not_read(path: Path) -> str:
    """Return why a file that looks like a trace is not read, "" if it does not look like one."""
    may_be = _called_perfetto(path) and not not_opened(path)
    return PERFETTO_REFUSED if may_be and _is_perfetto(path, head(path, 1)) else ""


def not_opened(path: Path) -> str:
    """Return why the file at `path` cannot be opened, "" if it can be."""
    try:
        path.open("rb").close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def discover(paths: Iterable[str | Path]) -> Discovery:
    """Return the traces that `paths` name, and what else is in the folders and archives among them.

    A folder stands for every trace below it, an archive (zip, tar) for those in it; a file that is named
    itself must be either a trace or such an archive.

    Raises UnknownFormat if a path does not exist, a named file is not a trace, or a folder holds none.
    """
    traces: list[TraceFile] = []
    others: list[Path] = []
    places = [Path(path) for path in paths]
    if not places:
        raise BadParameter("traces", [], ["trace files, or folders that hold some"])
    for path in places:
        _check_place(path)
        inside = _traces_in(_named(path)) if path.is_file() else _traces_below(path)
        traces, others = [*traces, *inside[0]], [*others, *inside[1]]
    files = [trace.path for trace in traces]
    exported = {trace.path: export for trace in traces if (export := trace.export_among(files))}
    traces = [trace for trace in traces if trace.path not in exported]
    read = {file for trace in traces for file in trace.files} if others else set()
    others = [*exported, *(path for path in others if path not in read)]
    return Discovery(traces, others, exported, places)


def _check_place(path: Path) -> None:
    """Raise UnknownFormat unless `path` is a file or a directory that can be looked into."""
    try:
        exists, is_folder, is_file = path.exists(), path.is_dir(), path.is_file()
    except OSError as error:
        raise _unopened(path, error) from error
    if not exists:
        is_url = re.match(r"[a-z][a-z0-9+.-]+:/", str(path))
        raise _unknown(
            path, "a URL: copy what is there to this machine" if is_url else "no such file or directory"
        )
    if is_folder and not os.access(path, os.R_OK | os.X_OK):
        raise _unknown(path, "the directory cannot be opened: permission denied")
    if not (is_folder or is_file):
        raise _unknown(path, "a pipe or a device, not a file: save what comes out of it to one first")


def _traces_below(folder: Path) -> tuple[list[TraceFile], list[Path]]:
    files = [
        _named(file) for file in sorted(folder.rglob("*")) if file.is_file() and not _hidden(file, folder)
    ]
    inside = [_traces_or_none(file) for file in files]
    traces = [trace for each, _ in inside for trace in each]
    if not traces:
        raise _unknown(folder, _why_none(files))
    return traces, [other for _, others in inside for other in others]


def _named(file: Path) -> Path:
    """Return the file by a name that can be shown: of one that is not UTF-8, a link in a temporary folder."""
    name = readable(file.name)
    if name == file.name:
        return file
    _links.append(Scratch())
    link = Path(_links[-1].name, name)
    link.symlink_to(file.absolute())
    return link


def _hidden(file: Path, folder: Path) -> bool:
    """Say whether a file below `folder`, or a folder on its path, is hidden: editors keep copies there."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _why_none(files: Sequence[Path]) -> str:
    """Return why none of the files of a folder is a trace, as far as one of them tells."""
    if not files:
        return "it holds no files"
    closed = [file for file in files if not_opened(file)]
    reasons = [_none_is_a_trace("its", len(files))]
    reasons += [f"{file.name} cannot be opened ({not_opened(file)})" for file in closed[:1]]
    opened = [file for file in files if file not in closed]
    parts = (f"{file.name}: {advice}" for file in opened if (advice := _instead(file, head(file))))
    refused = (f"{file.name} is {PERFETTO_REFUSED}" for file in opened if not_read(file))
    return "; ".join([*reasons, *filter(None, [next(parts, ""), next(refused, "")])])


def _traces_in(path: Path) -> tuple[list[TraceFile], list[Path]]:
    """Return the file at `path` if it is a trace, else the traces in this archive and what else is there.

    What is damaged is among the traces: reading it says why.
    """
    try:
        start = head(path)
        if not is_archive(start):
            return [_recognised(path, start)], []
        members = unpacked(path)
    except OSError as error:
        raise _unopened(path, error) from error
    files = {member: _recognised_or_none(member) for member in members}
    if any(files.values()):
        damaged = [place for place in (*members, path) if not files.get(place) and damage_of(place)]
        files |= {place: TraceFile(place, None) for place in damaged}
        traces = [file for file in files.values() if file]
        return traces, [member for member in members if not files[member]]
    # a tar of a tracer's own files (raw ring buffers) is one recording: its reader says what it needs
    if whole := _recognised_or_none(path):
        return [whole], []
    raise _unknown(path, _why_none_packed(path, members))


def _why_none_packed(path: Path, members: Sequence[Path]) -> str:
    wrong = [damage for place in (*members, path) if (damage := damage_of(place))]
    return "; ".join(
        [_none_is_a_trace("the archive's", len(members)), *(f"{what}: {why}" for what, why in wrong[:3])]
    )


def _none_is_a_trace(whose: str, count: int) -> str:
    return f"{whose} only file is not a trace" if count == 1 else f"none of {whose} {count} files is a trace"


def _recognised_or_none(path: Path) -> TraceFile | None:
    try:
        return recognised(path)
    except UnknownFormat:
        return None


def _traces_or_none(path: Path) -> tuple[list[TraceFile], list[Path]]:
    """Return the traces in `path` and what else is in it; if it holds none, itself."""
    try:
        return _traces_in(path)
    except UnknownFormat:
        return [], [path]


def read_files(
    files: Sequence[TraceFile], progress: Callable[[str], None] = lambda _: None, cache: Cache | None = None
) -> tuple[list[tuple[TraceFile, Trace]], list[BadTrace]]:
    """Return the files that could be read, each with its trace, and the error of each that could not.

    `progress` is called with each file's name before it is read; what `cache` has is not read again.
    """
    traces: list[tuple[TraceFile, Trace]] = []
    failures: list[BadTrace] = []
    for file in files:
        progress(file.path.name)
        before = _size(file.path)
        try:
            trace = file.read() if cache is None else cache.read(file)
        except BadTrace as error:
            failures.append(error)
        else:
            if _size(file.path) != before:
                message = "it changed while it was read: what was written meanwhile may not be in here"
                trace = with_remark(trace, "warning", message, "Read it again when its recorder is done.")
            traces.append((file, _with_damage(trace, file.path)))
    return traces, failures


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:  # reading it says why
        return None


def _with_damage(trace: Trace, path: Path) -> Trace:
    """Return the trace of the file at `path` with a remark if it could not be unpacked whole."""
    if not (damage := damage_of(path)):
        return trace
    message = f"unpacked in part, a {damage.what}: {damage.reason}"
    return with_remark(trace, "error", message, "Copy the archive again.")
