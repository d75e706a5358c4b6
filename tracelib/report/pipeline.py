"""`tracelib report`: traces in, one folder out, whole or not at all (the folder's contract is in FINDINGS.md).

The notebook does the work and carries its outcome in its own outputs (see `record`), so that a notebook run by papermill
and rendered by nbconvert holds the same figures as a report written here. It runs in the report's folder and names the
traces from there: so it runs again where it lies, and tells nobody where on which machine that was.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.errors import TraceError
from tracelib.report import bundle, ipynb, redact, ticket
from tracelib.report.exporter import TraceReport
from tracelib.report.notebooks import notebook
from tracelib.report.run import DEFAULT_TIMEOUT_S, Failure, run_notebook
from tracelib.report.sections.html import Section, esc
from tracelib.report.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelib.analyses.results import Results
    from tracelib.options import Options

__all__ = ["OUTCOME", "Report", "can_draw", "record", "record_picture", "removed", "write_report"]

#: Under this type a report notebook carries its findings and its picture, for whoever renders it.
OUTCOME = "application/vnd.tracelib.outcome+json"


@dataclass(frozen=True)
class Report:
    """What was written: the folder, the findings (None if the notebook failed before it had any), the failed cell."""

    folder: Path
    findings: dict[str, Any] | None
    failure: Failure | None = field(default=None)


@dataclass(frozen=True)
class Outcome:
    """A part of the outcome, in a form that a notebook's output can carry; shows nothing."""

    parts: dict[str, Any]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, Any]:  # noqa: ARG002 (IPython's signature)
        return {OUTCOME: self.parts, "text/html": ""}


def record(findings: dict[str, Any]) -> Outcome:
    """Return what makes the notebook's cell carry the findings.

    Raises
    ------
    TraceError
        The findings break the contract: a ledger does not add up (a defect of tracelib; nothing is shown then).

    """
    problems = validate(findings)
    if problems:
        raise TraceError(f"the findings contradict themselves, please report this: {'; '.join(problems)}")
    return Outcome({"findings": findings})


def can_draw() -> bool:
    """Say whether the package that draws `overview.png` is installed (the extra `image`)."""
    return importlib.util.find_spec("resvg_py") is not None


def record_picture(results: Results) -> Outcome:
    """Return what makes the notebook's cell carry the overview as PNG; nothing where the drawing package is absent."""
    from tracelib.charts.overview import overview_png  # noqa: PLC0415 (charts import plotly)

    if not can_draw():
        return Outcome({})
    return Outcome({"overview_png": base64.b64encode(overview_png(results)).decode("ascii")})


def write_report(folder: Path, options: Options, *, timeout_s: int = DEFAULT_TIMEOUT_S) -> Report:
    """Run the root-cause notebook with `options` and write its report to `folder`.

    Raises
    ------
    TraceError
        The input cannot be used, or the folder not be written; nothing is left behind.

    """
    with bundle.folder(folder) as made:
        moved = options.with_files(lambda path: portable(path, made))
        try:
            ran = run_notebook(
                notebook("root_cause"),
                made / "root_cause.ipynb",
                moved.taken_by("root_cause"),
                working_directory=made,
                timeout_s=timeout_s,
            )
        except TraceError as error:
            raise TraceError(
                _as_typed(str(error), dict(zip(moved.files(), options.files(), strict=True)))
            ) from error
        outcome = _outcome(ran.notebook)
        redactor = redact.Redactor() if options.redact else None
        failure = _clean_failure(ran.failure, redactor)
        node = _tidy(ran.notebook, folder, redactor)
        ipynb.write(node, made / "root_cause.ipynb")
        page, _ = TraceReport().from_notebook_node(_without_outcome(node))  # type: ignore[no-untyped-call]
        (made / "report.html").write_text(page, encoding="utf-8")
        _write_outcome(made, outcome, failure, hashlib.sha256(page.encode()).hexdigest())
    return Report(folder, outcome.get("findings"), ran.failure)


def _clean_failure(failure: Failure | None, redactor: redact.Redactor | None) -> Failure | None:
    if failure is None or redactor is None:
        return failure
    return replace(failure, message=redactor.text(failure.message))


def portable(path: str, folder: Path) -> str:
    """Return `path` as a notebook in `folder` can name it without telling where on this machine it lies.

    Relative to `folder`; below `~` if that is where the file lies and the folder does not. Symbolic links on the way are
    resolved, because `..` would follow them; the file's own name stays.
    """
    absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 (resolve() would rename a linked file)
    real = absolute.parent.resolve() / absolute.name
    start, home = folder.resolve(), Path.home().resolve()
    if home != Path("/") and real.is_relative_to(home) and not start.is_relative_to(home):
        return str(Path("~") / real.relative_to(home))
    return os.path.relpath(real, start)


def _as_typed(message: str, names: Mapping[str, str]) -> str:
    """Return an error's text with the files called as the user called them."""
    for name in sorted(names, key=len, reverse=True):
        message = message.replace(name, names[name])
    return message


def _write_outcome(made: Path, outcome: dict[str, Any], failure: Failure | None, digest: str) -> None:
    if "findings" in outcome:
        text = json.dumps(outcome["findings"], indent=1, ensure_ascii=False, allow_nan=False)
        (made / "findings.json").write_text(text + "\n", encoding="utf-8")
    (made / "summary.md").write_text(
        ticket.summary(outcome["findings"], digest, failure)
        if "findings" in outcome
        else ticket.failed(failure, digest),
        encoding="utf-8",
    )
    if "overview_png" in outcome:
        (made / "overview.png").write_bytes(base64.b64decode(outcome["overview_png"]))


def _outcome(node: ipynb.NotebookNode) -> dict[str, Any]:
    """Return what the cells of `node` recorded."""
    parts: dict[str, Any] = {}
    for cell in node.cells:
        for output in cell.get("outputs", ()):
            parts.update(output.get("data", {}).get(OUTCOME, {}))
    return parts


def _tidy(node: ipynb.NotebookNode, folder: Path, redactor: redact.Redactor | None) -> ipynb.NotebookNode:
    """Return `node` fit to be given away: no temporary folder in it; what was typed and what failed redacted."""
    papermill = node.metadata.get("papermill", {})
    papermill.pop("output_path", None)
    papermill.pop("input_path", None)
    node.metadata["title"] = folder.name
    if redactor is None:
        return node
    papermill["parameters"] = redactor.anything(dict(papermill.get("parameters", {})))
    for cell in node.cells:
        if {"injected-parameters", "papermill-error-cell-tag"} & set(cell.metadata.get("tags", ())):
            cell.source = redactor.text(cell.source)
        for output in cell.get("outputs", ()):
            for key in ("evalue", "text", "traceback"):
                if key in output:
                    output[key] = redactor.anything(output[key])
    return node


def _without_outcome(node: ipynb.NotebookNode) -> ipynb.NotebookNode:
    page = copy.deepcopy(node)
    for cell in page.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(OUTCOME, None)
    return page


def removed(redactor: redact.Redactor | None) -> Section:
    """Return the line that says what redaction removed; nothing if there was nothing."""
    off = "Redaction was off (--no-redact): names are as recorded."
    text = off if redactor is None else redactor.summary()
    return Section(f'<p class="more">{esc(text)}</p>' if text else "", text)
