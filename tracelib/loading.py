"""Files in, one aligned trace out: what `tracelib.load` does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracelib.align import align
from tracelib.manifest import FILE_NAME, manifest_of
from tracelib.pid_map import read_pid_map
from tracelib.schema import FRAMES
from tracelib.sources import not_opened, read_files, trace_files
from tracelib.sources.cache import cache as user_cache
from tracelib.sources.files import sha256
from tracelib.sources.progress import shown
from tracelib.sources.repeats import export_of, repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracelib.errors import BadTrace
    from tracelib.sources.cache import Cache
    from tracelib.trace import Trace

__all__ = ["load"]

TIMED = {"slices": "dur_ns", "gpu_ops": "dur_ns", "samples": None, "sched": None, "counters": None}


def load(
    paths: str | Path | Iterable[str | Path],
    *,
    offsets: Mapping[str, int] | None = None,
    roles: Mapping[str, str] | None = None,
    ftrace_clock: str | None = None,
    host: str | Mapping[str, str] | None = None,
    pid_map: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    cache: bool | None = None,
) -> Trace:
    """Return the trace files at `paths` as one trace on one timeline.

    A `run.toml` in a directory among `paths` (docs/run-toml.md) fills in what is not given here.

    Parameters
    ----------
    paths
        A file, a directory (every trace file below it), or several of them.
    offsets, roles, ftrace_clock
        See :func:`tracelib.align.align`.
    host
        The host of the files that do not name theirs: one name for all, or file name -> name.
    pid_map
        A file that maps ids inside a container to the host's (:func:`tracelib.pid_map.read_pid_map`).
    progress
        Called with each file's name before it is read; by default a bar appears after two seconds, on a terminal
        or in a notebook.
    cache
        Whether to keep the frames of each file in the user's cache folder, where a second load finds them
        (:mod:`tracelib.sources.cache`); None leaves it to the variable TRACELIB_CACHE ("off", or another folder).

    Raises
    ------
    UnknownFormat
        A path does not exist, is no trace, or a directory holds none.
    BadTrace
        No file could be read; where some could, the others are errors in `health`.
    BadParameter
        A parameter names a file, role, or clock that does not exist; or the manifest has a key that does not.

    """
    several = [paths] if isinstance(paths, str) or not hasattr(paths, "__iter__") else list(paths)
    said = manifest_of(several)
    pids = read_pid_map(Path(pid_map)) if pid_map else said.pids
    files, others = trace_files(several)
    traces, failures = _read(files, progress, user_cache(cache))
    if not traces:
        raise failures[0]
    readable = _readable(files, failures)
    twice = repeats(traces)
    named = {row["host"] for trace in traces for row in trace.sources.iter_rows(named=True)} - {None}
    # A manifest of one machine and files that call theirs otherwise: which is which the threads prove, not the name.
    stranger = said.host is not None and bool(named) and said.host not in named
    complete = [
        _completed(trace, path, host or (None if stranger else said.host), said.cpus)
        for index, (trace, path) in enumerate(zip(traces, readable, strict=True))
        if index not in twice
    ]
    trace = align(
        complete,
        offsets=_over(offsets, said.offsets),
        roles=_over(roles, said.roles),
        ftrace_clock=ftrace_clock or said.ftrace_clock,
        wall_offsets=said.wall_offsets(),
        pids=pids,
    )
    remarks = [_host_remark(named)] if stranger and not host else []
    remarks += [_twice_remark(readable[index], readable[first]) for index, first in twice.items()]
    return _with_file_remarks(
        trace, failures, files, [path for path in others if path.name != FILE_NAME], remarks
    )


def _over(given: Mapping[str, Any] | None, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, then what the manifest says beside it: the first pattern that fits counts."""
    first = dict(given or {})
    return {**first, **{key: value for key, value in said.items() if key not in first}}


def _readable(files: Sequence[Path], failures: Sequence[BadTrace]) -> list[Path]:
    failed = {error.path for error in failures}
    return [path for path in files if path not in failed]


def _read(
    files: Sequence[Path], progress: Callable[[str], None] | None, kept: Cache | None
) -> tuple[list[Trace], list[BadTrace]]:
    if progress is not None:
        return read_files(files, progress, kept)
    with shown(len(files)) as begin:
        return read_files(files, begin, kept)


def _completed(trace: Trace, path: Path, host: str | Mapping[str, str] | None, cpus: int | None) -> Trace:
    """Return the trace with what any reader can leave to us filled in: digest, size, span, what is said of the host."""
    row = trace.sources.row(0, named=True)
    first, last = _span(trace)
    given = host if isinstance(host, str) or host is None else host.get(path.name)
    filled: dict[str, Any] = {
        "file": row["file"] or path.name,
        "sha256": row["sha256"] or sha256(path),
        "bytes": row["bytes"] if row["bytes"] is not None else path.stat().st_size,
        "first_ns": row["first_ns"] if row["first_ns"] is not None else first,
        "last_ns": row["last_ns"] if row["last_ns"] is not None else last,
        "host": row["host"] or given,
        "cpus": row["cpus"] if row["cpus"] is not None else cpus,
    }
    schema = FRAMES["sources"]
    return trace.replace(
        sources=trace.sources.with_columns(
            pl.lit(value, schema[name]).alias(name) for name, value in filled.items()
        )
    )


def _span(trace: Trace) -> tuple[int | None, int | None]:
    """Return the first and last moment of the trace's events."""
    firsts, lasts = [], []
    for name, length in TIMED.items():
        frame = getattr(trace, name)
        if frame.height:
            ends = frame["ts_ns"] if length is None else frame["ts_ns"] + frame[length]
            firsts.append(int(frame["ts_ns"].min()))
            lasts.append(int(ends.max()))
    return min(firsts, default=None), max(lasts, default=None)


def _host_remark(named: set[str]) -> dict[str, Any]:
    # The name itself is not repeated: no frame holds it, so nothing would redact it.
    message = f"run.toml gives the host another name than the files do ({', '.join(sorted(named))}): its name is not used"
    return {"source": None, "level": "warning", "message": message, "fix": "correct [host] name in run.toml"}


def _twice_remark(path: Path, first: Path) -> dict[str, Any]:
    message = f"{path.name} holds the same recording as {first.name}, which was read alone"
    return {"source": None, "level": "info", "message": message, "fix": ""}


def _with_file_remarks(
    trace: Trace,
    failures: Sequence[BadTrace],
    files: Sequence[Path],
    others: Sequence[Path],
    remarks: Sequence[dict[str, Any]],
) -> Trace:
    rows: list[dict[str, Any]] = [
        *remarks,
        *(
            {
                "source": None,
                "level": "error",
                "message": f"not read: {error}",
                "fix": "Record or copy this file again.",
            }
            for error in failures
        ),
    ]
    closed = {path: reason for path in others if (reason := not_opened(path))}
    for path, reason in closed.items():
        message = f"{path.name} cannot be opened ({reason}): if it is a trace, what it recorded is missing"
        rows.append(
            {
                "source": None,
                "level": "error",
                "message": message,
                "fix": "Make it readable (chmod, chown), or move it away.",
            }
        )
    exports = {path: export for path in others if (export := export_of(path, files))}
    rows += [_twice_remark(path, export) for path, export in exports.items()]
    others = [path for path in others if path not in closed and path not in exports]
    if others:
        shown = ", ".join(path.name for path in others[:5]) + (
            f" and {len(others) - 5} more" if len(others) > 5 else ""
        )
        message = f"{len(others)} other files in the directories are no traces and were left out: {shown}"
        rows.append({"source": None, "level": "info", "message": message, "fix": ""})
    health = pl.concat([trace.health, pl.DataFrame(rows, schema=FRAMES["health"])])
    return trace.replace(health=health.sort("source", maintain_order=True))
