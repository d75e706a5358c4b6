"""What lies next to the traces and belongs to the run: manifest, request log, counters of the cgroup."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracelib.analyses.throttling import Supply, cpu_max
from tracelib.analyses.throttling import cpu_stat as growth
from tracelib.clocks import LONGEST_NS
from tracelib.errors import BadParameter, BadTrace
from tracelib.manifest import AFTER, BEFORE, CPU_MAX, Manifest, manifest_of
from tracelib.options import regular
from tracelib.sources.request_logs import MOST_BYTES, REALTIME, TIMES, RequestLog, read_request_log
from tracelib.trace import Trace

#: Clocks that are closer than this are one for a request, which takes milliseconds.
SAME_CLOCK_NS = 1_000_000
#: A file next to the traces that nobody named is read up to this size.
MOST_BESIDE = 64 << 20


@dataclass(frozen=True)
class Companions:
    """The request log on the timeline (None = there is none), and what is known of CPUs and quota."""

    requests: pl.DataFrame | None
    supply: Supply
    #: What of the request log could not be used.
    remarks: tuple[str, ...] = ()
    #: Which log was taken, and as of which clock, where nobody said so.
    taken: str = ""


def companions(
    traces: Sequence[str | Path],
    run: Trace,
    *,
    requests: str | Path = "",
    requests_offset: int = 0,
    requests_clock: str = "",
    cpu_stat: Sequence[str | Path] = (),
    mean_input_tokens: float = 0,
) -> Companions:
    """Return what is given, and what the folders among `traces` hold next to the traces.

    There a `run.toml`, `cpu.stat.before` with `cpu.stat.after`, `cpu.max` and the one request log are read.
    `requests` is a log (:mod:`tracelib.sources.request_logs`); `requests_offset` ns are added to its times,
    or they are of `requests_clock`, one that the manifest or a tied source of `run` names. Where nobody names
    a clock, it is the one by which requests fall into the recording, wall time first.
    `cpu_stat` is the cgroup's before and after the run; one file alone counts since the cgroup was made.
    `mean_input_tokens` holds where the log does not count them.

    Raises BadTrace if a file cannot be read, BadParameter if a clock is tied to nothing.
    """
    manifest = manifest_of(traces)
    folders = [Path(path) for path in traces if Path(path).is_dir()]
    log: pl.DataFrame | None = None
    remarks: tuple[str, ...] = ()
    path, held, taken = Path(requests) if requests else manifest.requests, None, ""
    if abs(requests_offset) > LONGEST_NS:
        raise BadParameter("requests_offset", requests_offset, [f"ns from {-LONGEST_NS} to {LONGEST_NS}"])
    typed = bool(requests_offset or requests_clock)
    clock = requests_clock if typed else manifest.requests_clock
    offset = requests_offset if typed else manifest.requests_offset_ns
    epoch = not offset and clock in ("", REALTIME)
    if path is None:
        path, held, taken, remarks = _log_beside(folders, epoch=epoch)
    if path is not None:
        if held is None:
            held = read_request_log(regular(path, "requests", MOST_BYTES), epoch=epoch)
        if not (clock or offset):
            held, clock = _clocked(path, held, manifest, run)
            taken = taken or f"the request log is {path.name}"
            taken = f"{taken}, read as {held.form}; its times are of the {clock} clock"
        moved = offset or _offset_of(clock, manifest, run)
        log, remarks = held.rows.with_columns(pl.col(*TIMES) + moved), held.remarks
    return Companions(log, _supply(manifest, folders, cpu_stat, log, mean_input_tokens), remarks, taken)


def _log_beside(
    folders: Sequence[Path], *, epoch: bool
) -> tuple[Path | None, RequestLog | None, str, tuple[str, ...]]:
    """Return the one request log next to the traces, what it holds, that it was taken, what was not taken.

    It must be named for what it is: to read every file there would cost more than it gives.
    """
    files = (file for folder in folders for file in sorted(folder.iterdir()) if file.is_file())
    logs: dict[Path, RequestLog] = {}
    refused = []
    for file in (file for file in files if re.match(r"[^.].*request|request", file.name, re.IGNORECASE)):
        try:
            if file.stat().st_size > MOST_BESIDE:
                refused.append(f"{file.name} is too large to be read unasked; --requests FILE reads it")
                continue
            logs[file] = read_request_log(file, epoch=epoch)
        except BadTrace as error:
            refused.append(f"{file.name} was not read as a request log: {error.reason}")
    if len(logs) == 1:
        ((path, held),) = logs.items()
        return path, held, f"the request log is {path.name}, found next to the traces", ()
    several = f"there are several request logs, and none was read: {', '.join(log.name for log in logs)}"
    return None, None, "", (f"{several}; --requests FILE says which",) if logs else tuple(refused)


def _clocked(path: Path, held: RequestLog, manifest: Manifest, run: Trace) -> tuple[RequestLog, str]:
    """Return the log, and the clock by which requests fall into the recording: its own, else the only one.

    Where no clock fits, it is the log's own if that is known, else wall time.
    """
    offsets = _offsets(manifest, run)
    own = held.clock if held.clock in offsets else REALTIME
    if _fits(held, offsets[own], run):
        return held, own
    plain_ns = read_request_log(path, epoch=False)  # a clock since boot may look like ms or us since 1970
    fitting = {offset: clock for clock, offset in offsets.items() if _fits(plain_ns, offset, run)}
    one = fitting and max(fitting) - min(fitting) < SAME_CLOCK_NS
    return (plain_ns, fitting[min(fitting)]) if one else (held, own)


def _fits(held: RequestLog, offset: int, run: Trace) -> bool:
    """Say whether a request was under way in what was recorded."""
    tied = run.sources.filter(run.sources["tied_by"].ne_missing("untied"))
    first, last = tied.select(pl.min("first_ns"), pl.max("last_ns")).row(0)
    inside = (pl.col("first_token") + offset >= first) & (pl.col("arrived") + offset <= last)
    return first is not None and bool(held.rows.select(inside.any()).item())


def _offset_of(clock: str, manifest: Manifest, run: Trace) -> int:
    """Return what to add to a reading of `clock` to get the timeline."""
    offsets = _offsets(manifest, run)
    if clock not in offsets:
        raise BadParameter("requests_clock", clock, list(offsets))
    return offsets[clock]


def _offsets(manifest: Manifest, run: Trace) -> dict[str, int]:
    """Return what to add to the reading of each clock that is known, wall time first, then by name."""
    tied = (pl.col("tied_by") != "untied") & (pl.col("clock") != "unknown")
    ties = run.sources.filter(tied).select("clock", "offset_ns")
    known = {**dict(ties.drop_nulls().iter_rows()), **manifest.wall_offsets()}
    return {REALTIME: 0, **{clock: int(known[clock]) for clock in sorted(known) if clock != REALTIME}}


def _supply(
    manifest: Manifest,
    folders: Sequence[Path],
    cpu_stat: Sequence[str | Path],
    log: pl.DataFrame | None,
    tokens: float,
) -> Supply:
    files = [Path(path) for path in cpu_stat] or list(manifest.cpu_stat or _together(folders, BEFORE, AFTER))
    text = manifest.cpu_max or next(map(_cpu_max_text, _together(folders, CPU_MAX)), "")
    quota, period = _cpu_max(text) if text else (None, None)
    mean, origin = _tokens(manifest, log, tokens)
    return Supply(
        cpus=manifest.cpus,
        allowed_cpus=manifest.allowed_cpus,
        limited=quota is not None if text else None,
        quota_us=quota,
        period_us=period,
        counters=_growth(files),
        since="" if not files else "between two readings" if len(files) > 1 else "since the cgroup was made",
        seconds=None if cpu_stat else manifest.seconds,
        mean_input_tokens=mean,
        tokens_from=origin,
    )


def _together(folders: Sequence[Path], *names: str) -> list[Path]:
    for folder in folders:
        paths = [folder / name for name in names]
        if all(path.is_file() for path in paths):
            return paths
    return []


def _cpu_max_text(path: Path) -> str:
    return regular(path, CPU_MAX).read_text(encoding="utf-8", errors="replace")


def _cpu_max(text: str) -> tuple[int | None, int]:
    try:
        return cpu_max(text)
    except ValueError:
        raise BadParameter("cpu.max", text.strip(), ["QUOTA PERIOD in us", "max PERIOD"]) from None


def _growth(files: Sequence[Path]) -> dict[str, int]:
    if len(files) > 2:
        raise BadParameter(
            "cpu_stat", ", ".join(path.name for path in files), ["one file", "two: before, after"]
        )
    texts = [_text(path) for path in files]
    if not texts:
        return {}
    grown = dict(growth(texts[0] if len(texts) > 1 else "", texts[-1]))
    shrunk = [name for name, value in grown.items() if value < 0]
    if shrunk:
        advice = "Give the earlier reading first; both must be of one cgroup."
        raise BadTrace(
            files[-1], "cpu.stat", shrunk[0], "it is less than before", str(grown[shrunk[0]]), advice
        )
    return grown


def _text(path: Path) -> str:
    try:
        text = regular(path, "cpu_stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadParameter("cpu_stat", path.name, [f"a file that can be read ({error.strerror})"]) from error
    if "nr_periods" not in growth("", text):
        first = text.split("\n", 1)[0]
        advice = "Copy it from a cgroup with the cpu controller."
        raise BadTrace(path, "cpu.stat", "", "it holds no nr_periods", first, advice)
    return text


def _tokens(manifest: Manifest, log: pl.DataFrame | None, argument: float) -> tuple[float | None, str]:
    if argument:
        return argument, "as given"
    counted = None if log is None else log["prompt_tokens"].mean()
    if isinstance(counted, (int, float)):
        return float(counted), "mean of the request log's prompt_tokens"
    return manifest.mean_input_tokens, "" if manifest.mean_input_tokens is None else "as run.toml says"
