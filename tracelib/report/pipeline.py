"""`tracelib report`: traces in, one folder out, whole or not at all (the folder's contract is in FINDINGS.md).

The notebook does the work and carries its outcome in its own outputs (see `record`), so that a notebook run by papermill
and rendered by nbconvert holds the same figures as a report written here.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelib.errors import TraceError
from tracelib.report import bundle, ipynb, redact, ticket
from tracelib.report.exporter import TraceReport
from tracelib.report.notebooks import notebook
from tracelib.report.run import DEFAULT_TIMEOUT_S, Failure, run_notebook
from tracelib.report.sections.html import Section
from tracelib.report.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["OUTCOME", "Report", "record", "removed", "write_report"]

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
    """Findings and picture, in a form that a notebook's output can carry; shows nothing."""

    findings: dict[str, Any]
    overview_png: bytes

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, Any]:  # noqa: ARG002 (IPython's signature)
        picture = base64.b64encode(self.overview_png).decode("ascii")
        return {OUTCOME: {"findings": self.findings, "overview_png": picture}, "text/html": ""}


def record(findings: dict[str, Any], overview_png: bytes) -> Outcome:
    """Return what makes the notebook's cell carry its outcome.

    Raises
    ------
    TraceError
        The findings break the contract: a ledger does not add up (a defect of tracelib; nothing is shown then).

    """
    problems = validate(findings)
    if problems:
        raise TraceError(f"the findings contradict themselves, please report this: {'; '.join(problems)}")
    return Outcome(findings, overview_png)


def write_report(
    folder: Path, parameters: Mapping[str, Any], *, timeout_s: int = DEFAULT_TIMEOUT_S, redacted: bool = True
) -> Report:
    """Run the root-cause notebook with `parameters` and write its report to `folder`.

    Raises
    ------
    TraceError
        The input cannot be used, or the folder not be written; nothing is left behind.

    """
    with bundle.folder(folder) as made:
        ran = run_notebook(notebook("root_cause"), made / "root_cause.ipynb", parameters, timeout_s=timeout_s)
        _tidy(ran.notebook, folder)
        ipynb.write(ran.notebook, made / "root_cause.ipynb")
        page, _ = TraceReport().from_notebook_node(_for_page(ran.notebook, redacted=redacted))  # type: ignore[no-untyped-call]
        (made / "report.html").write_text(page, encoding="utf-8")
        outcome = _outcome(ran.notebook)
        if outcome is not None:
            digest = hashlib.sha256(page.encode()).hexdigest()
            _write_outcome(made, outcome, digest)
    return Report(folder, outcome["findings"] if outcome else None, ran.failure)


def _write_outcome(made: Path, outcome: dict[str, Any], digest: str) -> None:
    findings = outcome["findings"]
    text = json.dumps(findings, indent=1, ensure_ascii=False, allow_nan=False)
    (made / "findings.json").write_text(text + "\n", encoding="utf-8")
    (made / "summary.md").write_text(ticket.summary(findings, digest), encoding="utf-8")
    if outcome["overview_png"]:
        (made / "overview.png").write_bytes(base64.b64decode(outcome["overview_png"]))


def _outcome(node: ipynb.NotebookNode) -> dict[str, Any] | None:
    for cell in node.cells:
        for output in cell.get("outputs", ()):
            found = output.get("data", {}).get(OUTCOME)
            if found is not None:
                return dict(found)
    return None


def _tidy(node: ipynb.NotebookNode, folder: Path) -> None:
    """Take the temporary folder's name, under which papermill ran, out of the notebook's metadata."""
    papermill = node.metadata.get("papermill", {})
    papermill.pop("output_path", None)
    papermill.pop("input_path", None)
    node.metadata["title"] = folder.name


def _for_page(node: ipynb.NotebookNode, *, redacted: bool) -> ipynb.NotebookNode:
    """Return a copy for rendering: the outcome left out, what the user typed and what failed redacted."""
    page = copy.deepcopy(node)
    redactor = redact.Redactor()
    clean = redactor.text if redacted else str
    for cell in page.cells:
        if {"injected-parameters", "parameters"} & set(cell.metadata.get("tags", ())):
            cell.source = clean(cell.source)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(OUTCOME, None)
            for key in ("evalue", "text"):
                if key in output:
                    output[key] = clean(output[key])
            if "traceback" in output:
                output["traceback"] = [clean(line) for line in output["traceback"]]
    return page


def removed(redactor: redact.Redactor | None) -> Section:
    """Return the line that says what redaction removed; nothing if it was off."""
    text = (
        redactor.summary()
        if redactor is not None
        else "Redaction was off (--no-redact): names are as recorded."
    )
    return Section(f"<p class='more'>{text}</p>" if text else "", text)
