"""Files in, one aligned trace out: what `tracelib.load` does."""

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tracelib.align import align
from tracelib.errors import BadTrace
from tracelib.manifest import FILE_NAME, manifest_of
from tracelib.options import regular, whole_number
from tracelib.schema import FRAMES
from tracelib.sources.cache import cache as user_cache
from tracelib.sources.discovery import Discovery, discover, not_opened, not_read, read_files
from tracelib.sources.files import sha256, watched
from tracelib.sources.format import TraceFile
from tracelib.trace import Trace
from tracelib.words import plain

#: Nothing is shown before reading takes longer than this.
PATIENCE_S = 2.0
#: Nor more often than this.
EVERY_S = 0.3


@contextlib.contextmanager
def progress_bar(files: int, name_told: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Give a function to call with each file's name before it is read.

    It shows the share of all files and of this one that was read so far, and calls `name_told` with the name.
    What was shown is removed at the end, so that no log and no report keeps it.
    """
    show, clear = _terminal() if sys.stderr.isatty() else _notebook()
    started, last, done = time.monotonic(), 0.0, -1

    def tell(name: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - started > PATIENCE_S and now - last > EVERY_S:
            last = now
            show((max(done, 0) + share) / files, name)

    def begin(name: str) -> None:
        nonlocal done
        done += 1
        if name_told is not None:
            name_told(name)
        tell(name, 0.0)

    def read(path: Path, share: float) -> None:
        tell(path.name, share)

    with watched(read):
        try:
            yield begin
        finally:
            clear()


def _terminal() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    used = False

    def show(share: float, name: str) -> None:
        nonlocal used
        used = True
        text = f"\r{share:4.0%} read: {plain(name)}\x1b[K"
        print(text, end="\r", file=sys.stderr, flush=True)  # noqa: T201

    def clear() -> None:
        if used:
            print("\x1b[K", end="\r", file=sys.stderr, flush=True)  # noqa: T201

    return show, clear


def _notebook() -> tuple[Callable[[float, str], None], Callable[[], None]]:
    """Return what shows a bar in the cell's output; where no notebook runs, nothing."""
    handle: Any = None
    # Only where IPython is loaded can anybody look at its outputs.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None

    def show(share: float, name: str) -> None:
        nonlocal handle
        if not hasattr(shell, "kernel"):
            return
        from IPython.display import display  # noqa: PLC0415

        text = f"{share:.0%} read: {plain(name)}"
        bar = {
            "text/html": f'<progress value="{share:.3f}"></progress> {html.escape(text)}',
            "text/plain": text,
        }
        if handle is None:
            handle = display(bar, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(bar, raw=True)

    def clear() -> None:
        if handle is not None:
            handle.update({"text/html": "", "text/plain": ""}, raw=True)

    return show, clear


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

    Raises BadParameter if it is not a regular file; BadTrace if it cannot be read, a line has another form,
    or one id inside stands for two outside; the message says which line.
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
        return regular(path, "pid_map").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadTrace(path, "pid map", "", error.strerror or str(error), advice=ADVICE) from error


def _entry(path: Path, number: int, line: str) -> tuple[str, int, int] | None:
    """Return glob, id inside and id outside; None for a line that says nothing."""
    short, nspid, ids = line.split("#", 1)[0].partition("NSpid:")
    glob, words = "*", ids.split() if nspid else short.split()
    if not nspid and len(words) == 3:
        glob, *words = words
    fewest, most = (1, len(words)) if nspid else (2, 2)
    numbers = [found for word in words if (found := whole_number(word)) is not None]
    if (words or nspid) and not fewest <= len(numbers) == len(words) <= most:
        raise BadTrace(path, "pid map", f"line {number}", "it is not an entry of a map", line, ADVICE)
    if len(numbers) < 2:
        return None
    return (glob, numbers[-1], numbers[0]) if nspid else (glob, numbers[0], numbers[1])


#: Frames that hold what happened, and each one's column of lengths.
TIMED = {"slices": "dur_ns", "gpu_ops": "dur_ns", "samples": None, "sched": None, "counters": None}
#: Frames that say where rows come from, not what was recorded.
ABOUT_FILES = ("sources", "health")


def load(
    paths: str | Path | Iterable[str | Path] | Discovery,
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

    `paths` are files, directories (every trace file below them), or what `discover` returned. A `run.toml` in
    such a directory (docs/run-toml.md) fills in what is not given here. `offsets`, `roles` and `ftrace_clock`
    are those of :func:`tracelib.align.align`; `host` is the host of the files that do not name theirs, one
    name for all or file name -> name; `pid_map` is a file (:func:`read_pid_map`).

    `progress` is called with each file's name before it is read; by default a bar appears after two seconds,
    on a terminal or in a notebook. `cache`: whether to keep the frames of each file in the user's cache
    folder, where a second load finds them (:mod:`tracelib.sources.cache`); None leaves it to the variable
    TRACELIB_CACHE ("off", or another folder).

    Raises UnknownFormat if a path does not exist, or is neither a trace nor a directory that holds one;
    BadTrace if no file could be read (where some could, the others are errors in `health`); BadParameter if a
    parameter or a key of the manifest names a file, role, clock or key that does not exist.
    """
    discovery = paths if isinstance(paths, Discovery) else discover(_several(paths))
    manifest = manifest_of(discovery.paths)
    pids = read_pid_map(Path(pid_map)) if pid_map else manifest.pids
    with progress_bar(len(discovery.traces), progress) as begin:
        read, failures = read_files(discovery.traces, begin, user_cache(cache))
    if not read:
        raise failures[0]
    copies = copies_among([trace for _, trace in read])
    strangers = _hosts_unlike(manifest.host, read)
    trace = align(
        [
            _completed(trace, file.path, host or (None if strangers else manifest.host), manifest.cpus)
            for index, (file, trace) in enumerate(read)
            if index not in copies
        ],
        offsets=_over(offsets, manifest.offsets),
        roles=_over(roles, manifest.roles),
        ftrace_clock=ftrace_clock or manifest.ftrace_clock,
        wall_offsets=manifest.wall_offsets(),
        pids=pids,
    )
    rows = [_host_row(strangers)] if strangers and not host else []
    rows += [_copy_row(read[copy][0].path, read[original][0].path) for copy, original in copies.items()]
    rows += [_row("error", f"not read: {error}", "Record or copy this file again.") for error in failures]
    rows += _rows_of_others(discovery)
    rows += [_row("warning", f"run.toml: {change}, which alone is used") for change in manifest.changed]
    health = pl.concat([trace.health, pl.DataFrame(rows, schema=FRAMES["health"])])
    return trace.replace(health=health.sort("source", maintain_order=True))


def _several(paths: str | Path | Iterable[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def _hosts_unlike(host: str | None, read: Sequence[tuple[TraceFile, Trace]]) -> set[str]:
    """Return the hosts that the files name if the manifest's `host` is another: activity decides."""
    named = {row["host"] for _, trace in read for row in trace.sources.iter_rows(named=True)} - {None}
    return named if host is not None and host not in named else set()


def _over(given: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given, then what the manifest adds: the first pattern that fits counts."""
    first = dict(given or {})
    return {**first, **{key: value for key, value in manifest.items() if key not in first}}


def _completed(trace: Trace, path: Path, host: str | Mapping[str, str] | None, cpus: int | None) -> Trace:
    """Return the trace with what a reader may leave out filled in: digest, size, span, host, CPUs."""
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
    firsts, lasts = [], []
    for name, length in TIMED.items():
        frame = getattr(trace, name)
        if frame.height:
            ends = frame["ts_ns"] if length is None else frame["ts_ns"] + frame[length]
            firsts.append(int(frame["ts_ns"].min()))
            lasts.append(int(ends.max()))
    return min(firsts, default=None), max(lasts, default=None)


def copies_among(traces: Sequence[Trace]) -> dict[int, int]:
    """Return which traces hold the same rows as an earlier one, as index -> index of that.

    Read twice, every GPU would be two and every sum double.
    """
    copies: dict[int, int] = {}
    for index, trace in enumerate(traces):
        originals = (at for at in range(index) if at not in copies)
        original = next((at for at in originals if _holds_the_same(trace, traces[at])), None)
        if original is not None:
            copies[index] = original
    return copies


def _holds_the_same(one: Trace, other: Trace) -> bool:
    mine, others = one.frames(), other.frames()
    compared = [name for name in mine if name not in ABOUT_FILES]
    heights = [mine[name].height for name in compared]
    if not sum(heights) or heights != [others[name].height for name in compared]:
        return False
    return all(mine[name].equals(others[name]) for name in compared)


def _row(level: str, message: str, fix: str = "") -> dict[str, Any]:
    return {"source": None, "level": level, "message": message, "fix": fix}


def _host_row(names: set[str]) -> dict[str, Any]:
    # The name itself is not repeated: no frame holds it, so nothing would redact it.
    message = (
        f"run.toml gives the host another name than the files do ({', '.join(sorted(names))}): "
        "its name is not used"
    )
    return _row("warning", message, "correct [host] name in run.toml")


def _copy_row(path: Path, original: Path) -> dict[str, Any]:
    return _row("info", f"{path.name} holds the same recording as {original.name}, which was read alone")


def _rows_of_others(discovery: Discovery) -> list[dict[str, Any]]:
    """Return what to say of the files beside the traces that were not read."""
    others = [path for path in discovery.others if path.name != FILE_NAME]
    closed = {path: reason for path in others if (reason := not_opened(path))}
    refused = {path: reason for path in others if path not in closed and (reason := not_read(path))}
    rows = [
        _row(
            "error",
            f"{path.name} cannot be opened ({reason}): if it is a trace, what it recorded is missing",
            "Make it readable (chmod, chown), or move it away.",
        )
        for path, reason in closed.items()
    ]
    rows += [_row("warning", f"{path.name} is left out: it is {reason}") for path, reason in refused.items()]
    rows += [_copy_row(path, export) for path, export in discovery.exported.items()]
    foreign = [path for path in others if path not in closed | refused | discovery.exported]
    if foreign:
        more = f" and {len(foreign) - 5} more" if len(foreign) > 5 else ""
        names = ", ".join(path.name for path in foreign[:5]) + more
        which = "file that is not a trace was" if len(foreign) == 1 else "files that are not traces were"
        rows.append(_row("info", f"{len(foreign)} {which} left out: {names}"))
    return rows
