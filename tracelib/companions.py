"""What lies next to the traces and belongs to the run: manifest, request log, counters of the cgroup."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracelib.analyses.throttling import Supply, cpu_max
from tracelib.analyses.throttling import cpu_stat as growth
from tracelib.errors import BadParameter, BadTrace
from tracelib.manifest import AFTER, BEFORE, CPU_MAX, Manifest, manifest_of
from tracelib.sources.request_logs import REALTIME, TIMES, read_request_log
from tracelib.trace import Trace


@dataclass(frozen=True)
class Companions:
    """The request log on the timeline (None = there is none), and what is known of CPUs and quota."""

    requests: pl.DataFrame | None
    supply: Supply
    #: What of the request log could not be used.
    remarks: tuple[str, ...] = ()


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

    There a `run.toml`, `cpu.stat.before` with `cpu.stat.after`, and `cpu.max` are read. `requests` is a log
    (:mod:`tracelib.sources.request_logs`); `requests_offset` ns are added to its times, or they are
    of `requests_clock`: realtime (the default), or one that the manifest or a tied source of `run` names.
    `cpu_stat` is the cgroup's before and after the run; one file alone counts since the cgroup was made.
    `mean_input_tokens` holds where the log does not count them.

    Raises BadTrace if a file cannot be read, BadParameter if a clock is tied to nothing.
    """
    manifest = manifest_of(traces)
    folders = [Path(path) for path in traces if Path(path).is_dir()]
    log: pl.DataFrame | None = None
    remarks: tuple[str, ...] = ()
    path = Path(requests) if requests else manifest.requests
    if path is not None:
        typed = bool(requests_offset or requests_clock)
        clock = requests_clock if typed else manifest.requests_clock
        offset = requests_offset if typed else manifest.requests_offset_ns
        held = read_request_log(path, epoch=not offset and clock in ("", REALTIME))
        moved = offset or _offset_of(clock or held.clock, manifest, run)
        log, remarks = held.rows.with_columns(pl.col(*TIMES) + moved), held.remarks
    return Companions(log, _supply(manifest, folders, cpu_stat, log, mean_input_tokens), remarks)


def _offset_of(clock: str, manifest: Manifest, run: Trace) -> int:
    """Return what to add to a reading of `clock` to get the timeline."""
    if clock in ("", REALTIME):
        return 0
    ties = run.sources.filter(~run.sources["tied_by"].is_in(["untied"])).select("clock", "offset_ns")
    offsets = {**dict(ties.drop_nulls().iter_rows()), **manifest.wall_offsets()}
    if clock not in offsets:
        raise BadParameter("requests_clock", clock, [REALTIME, *sorted(set(offsets) - {REALTIME})])
    return int(offsets[clock])


def _supply(
    manifest: Manifest,
    folders: Sequence[Path],
    cpu_stat: Sequence[str | Path],
    log: pl.DataFrame | None,
    tokens: float,
) -> Supply:
    files = [Path(path) for path in cpu_stat] or list(manifest.cpu_stat or _together(folders, BEFORE, AFTER))
    text = manifest.cpu_max or next((path.read_text() for path in _together(folders, CPU_MAX)), "")
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
        text = path.read_text(encoding="utf-8", errors="replace")
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
