"""What every notebook begins with: parameters as people type them in, results out, names redacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracelib.analyses.results import analyse
from tracelib.errors import BadParameter
from tracelib.loading import load
from tracelib.manifest import Manifest, manifest_of
from tracelib.report import redact as redaction
from tracelib.report.beside import companions
from tracelib.report.inputs import seconds
from tracelib.report.notebooks import located
from tracelib.report.sections.chart import picture
from tracelib.report.sections.html import Section, esc
from tracelib.report.text import duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelib.analyses.results import Results
    from tracelib.trace import Trace

__all__ = ["heading", "manifest", "opened", "opened_runs", "shown"]


def opened(
    traces: str | Sequence[str],
    *,
    window: str = "",
    window_of: str = "",
    offsets: Mapping[str, int] | None = None,
    roles: Mapping[str, str] | None = None,
    ftrace_clock: str = "",
    pid_map: str = "",
    requests: str = "",
    requests_offset: int = 0,
    requests_clock: str = "",
    cpu_stat: Sequence[str] = (),
    mean_input_tokens: float = 0,
    rules: str = "",
    redact: bool = True,
) -> tuple[Results, redaction.Redactor | None]:
    """Return the results of one run, and the redactor that cleaned its names (None if `redact` is off).

    The parameters are those of the notebooks' first cell. "" and empty collections stand for "not given"; what the folders
    hold beside the traces (:func:`tracelib.report.companions`) fills in.

    Raises
    ------
    TraceError
        A file cannot be read, or a parameter has a value that is not allowed; its subclass says which.

    """
    paths = located(traces)
    run = load(
        paths, offsets=offsets, roles=roles, ftrace_clock=ftrace_clock or None, pid_map=_file(pid_map) or None
    )
    run, redactor = redaction.trace(run) if redact else (run, None)
    beside = companions(
        paths,
        run,
        requests=_file(requests),
        requests_offset=requests_offset,
        requests_clock=requests_clock,
        cpu_stat=located(cpu_stat),
        mean_input_tokens=mean_input_tokens,
    )
    results = analyse(
        run,
        window_seconds=seconds(window),
        window_of=window_of or None,
        rules_path=located(rules)[0] if rules else None,
        requests_log=beside.requests,
        supply=beside.supply,
    )
    return results, redactor


def _file(name: str) -> Path | str:
    return located(name)[0] if name else ""


def opened_runs(
    runs: Mapping[str, str | Sequence[str]],
    requests: Mapping[str, str] | None = None,
    requests_offsets: Mapping[str, int] | None = None,
    **parameters: Any,
) -> dict[str, Results]:
    """Return the results of several runs by label.

    `requests` and `requests_offsets` have a run's request log and its offset to wall time, by label; `parameters` are those
    of :func:`opened` and hold for all runs.

    Raises
    ------
    BadParameter
        `requests` or `requests_offsets` names a run that there is not.
    TraceError
        As :func:`opened`.

    """
    logs, offsets = dict(requests or {}), dict(requests_offsets or {})
    for label in (*logs, *offsets):
        if label not in runs:
            raise BadParameter("run", label, runs)
    return {
        label: opened(
            traces, requests=logs.get(label, ""), requests_offset=offsets.get(label, 0), **parameters
        )[0]
        for label, traces in runs.items()
    }


def manifest(traces: str | Sequence[str]) -> Manifest:
    """Return what the `run.toml` among `traces` says, with `traces` as a notebook's parameter; all empty without one.

    Raises
    ------
    BadTrace, BadParameter
        As :func:`tracelib.manifest.manifest_of`.

    """
    return manifest_of(located(traces))


def heading(title: str, results: Results | Mapping[str, Results]) -> Section:
    """Return a notebook's title, and which window of which files it is about; `results` of one run or of several by label."""
    about = _several(results) if isinstance(results, Mapping) else _about(results)
    return Section(f'<header class="heading"><h1>{esc(title)}</h1><p>{esc(about)}</p></header>', title)


def shown(run: Trace) -> Section:
    """Return the picture of `run` over its whole window, names redacted, and the sentence that says what it shows."""
    from tracelib.charts import overview_svg, timeline_sentence  # noqa: PLC0415 (plotly: only when it draws)

    results = analyse(redaction.trace(run)[0])
    return picture(overview_svg(results), timeline_sentence(results))


def _about(results: Results) -> str:
    files = results.trace.sources["file"].to_list()
    names = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    return f"{duration(results.window.duration_ns)} of {names} ({results.window.why})."


def _several(runs: Mapping[str, Results]) -> str:
    windows = "; ".join(f"{label}: {duration(results.window.duration_ns)}" for label, results in runs.items())
    return f"{len(runs)} runs, each with the window in which all its GPUs worked or that was asked for. {windows}."
