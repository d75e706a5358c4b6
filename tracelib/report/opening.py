"""What every notebook begins with: parameters as people type them in, results out, names redacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.analyses.results import analyse
from tracelib.companions import companions
from tracelib.loading import load
from tracelib.manifest import manifest_of
from tracelib.options import Options, name_of, seconds
from tracelib.report import redact as redaction
from tracelib.report.notebooks import located
from tracelib.report.sections.chart import picture
from tracelib.report.sections.html import Section, esc
from tracelib.report.text import duration

if TYPE_CHECKING:
    from tracelib.analyses.results import Results
    from tracelib.trace import Trace


def asked(values: Mapping[str, Any]) -> Options:
    """Return the parameters among a notebook's `globals()`; the title and the ticket may come from run.toml.

    Raises
    ------
    BadTrace, BadParameter
        A parameter has the wrong type; or as :func:`tracelib.manifest.manifest_of`.

    """
    options = Options.of(values)
    manifest = manifest_of(located(options.traces))
    title = options.title or manifest.title or name_of(options.traces)
    return replace(options, title=title, ticket=options.ticket or manifest.ticket)


def opened(options: Options) -> tuple[Results, redaction.Redactor | None]:
    """Return the results of one run, and the redactor that cleaned its names (None if `redact` is off).

    What the folders hold next to the traces (:func:`tracelib.companions.companions`) fills in what `options` leave open.

    Raises
    ------
    TraceError
        A file cannot be read, or a parameter has a value that is not allowed; its subclass says which.

    """
    options = options.with_files(lambda path: str(located(path)[0]))
    run = load(options.traces, **options.arguments_of(load))
    run, redactor = redaction.trace(run) if options.redact else (run, None)
    near = companions(run=run, **options.arguments_of(companions))
    results = analyse(
        run,
        window_seconds=seconds(options.window),
        window_of=options.window_of or None,
        rules_path=Path(options.rules) if options.rules else None,
        requests_log=near.requests,
        supply=near.supply,
    )
    return results, redactor


def opened_runs(runs: Mapping[str, Options]) -> dict[str, Results]:
    """Return the results of several runs by label, each with its own parameters (:func:`tracelib.options.compared`).

    Raises
    ------
    TraceError
        As :func:`opened`.

    """
    return {label: opened(options)[0] for label, options in runs.items()}


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
