"""What the notebooks' cells call: parameters in, results out, names redacted, findings recorded."""

import base64
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracelib.align.timeline import stretches
from tracelib.analyses.results import Results, analyse
from tracelib.companions import companions
from tracelib.errors import BadParameter, BadTrace, TraceError
from tracelib.findings import Document, validate
from tracelib.loading import load
from tracelib.manifest import manifest_of
from tracelib.options import Options, injected, name_of, regular, seconds, toml
from tracelib.report import redact as redaction
from tracelib.report.notebooks import located
from tracelib.report.sections.render import Section, render
from tracelib.report.sections.tables import picture
from tracelib.sources.health import with_remarks
from tracelib.trace import Trace
from tracelib.words import duration, plain

#: Under this type a report notebook carries its findings and its picture, for whoever renders it.
OUTCOME = "application/vnd.tracelib.outcome+json"
SPAN = ("source", "first_ns", "last_ns")
COMPARE = "tracelib compare, for what changed between runs"


def asked(values: Mapping[str, Any]) -> Options:
    """Return the parameters among a notebook's `globals()`; the title and the ticket may come from run.toml.

    Raises BadTrace, BadParameter if a parameter has the wrong type; or as
    :func:`tracelib.manifest.manifest_of`.
    """
    options = Options.of(injected(values))
    manifest = manifest_of(located(options.traces))
    title = options.title or manifest.title or name_of(options.traces)
    return replace(options, title=title, ticket=options.ticket or manifest.ticket)


def opened(options: Options) -> tuple[Results, redaction.Redactor]:
    """Return the results of one run, and the redactor that cleaned its names.

    What the folders hold next to the traces (:func:`tracelib.companions.companions`) fills in what `options`
    leave open.

    Raises TraceError if a file cannot be read, or a parameter has a value that is not allowed; its subclass
    says which.
    """
    options = options.with_files(lambda path: str(located(path)[0]))
    run = load(options.traces, **options.arguments_of(load))
    _refuse_several_runs(run)
    run, redactor = redaction.trace(run, options.redact)
    near = companions(run=run, **options.arguments_of(companions))
    run = with_remarks(
        run, map(redactor.text, near.remarks), "each request needs its id, its arrival and its first token"
    )
    if near.taken:
        another = "--requests, --requests-clock and --requests-offset name another"
        run = with_remarks(run, [redactor.text(near.taken)], another, "info")
    results = analyse(
        run,
        window_seconds=seconds(options.window),
        window_of=options.window_of or None,
        rules_path=Path(options.rules) if options.rules else None,
        requests_log=redaction.request_ids(near.requests, redactor),
        supply=near.supply,
    )
    return results, redactor


def _refuse_several_runs(run: Trace) -> None:
    """Raise BadParameter if files lie apart in time, several at a time or with GPU work."""
    tied = run.sources.filter(pl.col("tied_by").ne_missing("untied") & pl.col("first_ns").is_not_null())
    together = stretches({source: (first, last) for source, first, last in tied.select(SPAN).iter_rows()})
    on_gpu = set(run.gpu_ops["source"].unique())
    apart = [files for files in together if len(files) > 1 or on_gpu & set(files)]
    if len(apart) > 1:
        names = dict(run.sources.select("source", "file").iter_rows())
        firsts = " and ".join(plain(names[files[0]], 60) for files in apart[:3])
        one = f"the files of one run: these lie in {len(apart)} stretches of time, nothing in between"
        raise BadParameter("traces", firsts, [one, "tracelib batch, for a report of each", COMPARE])


def opened_runs(runs: Mapping[str, Options]) -> dict[str, Results]:
    """Return the results of several runs by label, each with its parameters (`tracelib.options.compared`).

    Raises TraceError as :func:`opened`.
    """
    return {label: opened(options)[0] for label, options in runs.items()}


def heading(title: str, results: Results | Mapping[str, Results]) -> Section:
    """Return a notebook's title, and the files and windows that it is about.

    `results` are those of one run, or of several by label.
    """
    about = _several(results) if isinstance(results, Mapping) else _about(results)
    return Section(render("heading", title=title, about=about), title)


@dataclass(frozen=True, repr=False)
class Outcome:
    """A part of the outcome, in a form that a notebook's output can carry; shows nothing."""

    parts: dict[str, Any]

    def __repr__(self) -> str:
        return f"(for the report: {', '.join(self.parts) or 'nothing'})"

    def _repr_mimebundle_(self, **_: object) -> Mapping[str, Any]:
        return {OUTCOME: self.parts, "text/html": ""}


def record(findings: Document) -> Outcome:
    """Return what makes the notebook's cell carry the findings.

    Raises TraceError if the findings break the contract: a ledger does not add up, which is a defect of
    tracelib.
    """
    problems = validate(findings)
    if problems:
        raise TraceError(f"the findings contradict themselves, please report this: {'; '.join(problems)}")
    return Outcome({"findings": msgspec.to_builtins(findings)})


def can_draw() -> bool:
    """Say whether the package that draws `overview.png` is installed (the extra `image`)."""
    return importlib.util.find_spec("resvg_py") is not None


def record_picture(results: Results) -> Outcome:
    """Return what makes the notebook's cell carry the overview as PNG; empty without the drawing package."""
    from tracelib.charts.overview import overview_png  # noqa: PLC0415 (charts import plotly)

    if not can_draw():
        return Outcome({})
    return Outcome({"overview_png": base64.b64encode(overview_png(results)).decode("ascii")})


def removed(redactor: redaction.Redactor) -> Section:
    """Return the line that says what redaction removed; empty if it removed nothing."""
    off = "Redaction was off (--redact off): names are as recorded."
    text = off if redactor.level == "off" else redactor.summary()
    return Section(render("remark", text=text) if text else "", text)


def shown(run: Trace) -> Section:
    """Return the picture of `run` over its whole window, names redacted, with its sentence."""
    from tracelib.charts import overview_svg, timeline_sentence  # noqa: PLC0415 (plotly: only when it draws)

    results = analyse(redaction.trace(run)[0])
    return picture(overview_svg(results), timeline_sentence(results))


def _about(results: Results) -> str:
    files = results.trace.sources["file"].to_list()
    names = ", ".join(files[:4]) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    return f"{duration(results.window.duration_ns)} of {names} ({results.window.why})."


def _several(runs: Mapping[str, Results]) -> str:
    windows = "; ".join(f"{label}: {duration(results.window.duration_ns)}" for label, results in runs.items())
    which = "each over the window asked for, or that in which all its GPUs worked"
    return f"{len(runs)} runs, {which}. {windows}."


# -------------------- what cloud instances cost: a data file with dates, ours or the user's
INSTANCES = pl.Schema(
    {
        "instance": pl.String(),
        "gpus": pl.Int64(),
        "vcpus": pl.Int64(),
        "price_per_hour": pl.Float64(),
        "currency": pl.String(),
        "date": pl.String(),
        "source": pl.String(),
    }
)
_OURS = Path(__file__).with_name("instances.toml")


def instances(path: str | Path = "") -> pl.DataFrame:
    """Return the instances of the TOML file at `path`, or of the table that comes with tracelib.

    One row per instance: `instance` (String), `gpus`, `vcpus` (Int64), `price_per_hour` (Float64, in
    `currency`), `currency`, `date`, `source` (String). In the file's order.

    Raises BadTrace if the file is not TOML, or an instance lacks a column or holds another kind of value.
    """
    file = Path(path) if path else _OURS
    try:
        rows = toml(regular(file, "instances").read_text(encoding="utf-8"), file, "instance table").get(
            "instance", []
        )
        return pl.DataFrame([{name: row[name] for name in INSTANCES} for row in rows], schema=INSTANCES)
    except KeyError as error:
        raise BadTrace(file, "instance table", "", f"an instance has no {error}", advice=_ADVICE) from error
    except (UnicodeDecodeError, TypeError, pl.exceptions.PolarsError) as error:
        raise BadTrace(file, "instance table", "", str(error).split("\n")[0], advice=_ADVICE) from error


_ADVICE = f"Each [[instance]] needs {', '.join(INSTANCES)}."
