"""`tracelib report`: traces in, one folder out, whole or not at all (its contents: docs/output.md).

The notebook does the work and carries its outcome in its own outputs (`notebook_cells.record`), so that a
notebook run by papermill and rendered by nbconvert holds the same figures as a report written here. It runs
in the report's folder and names the traces from there: so it runs again where it lies, and tells nobody where
on which machine that was.
"""

import base64
import copy
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import convert
from nbformat import NotebookNode

from tracelib.errors import TraceError
from tracelib.findings import Document
from tracelib.options import Options
from tracelib.report import redact, ticket
from tracelib.report.bundle import whole_folder
from tracelib.report.exporter import TraceReport
from tracelib.report.notebook_cells import OUTCOME
from tracelib.report.notebooks import Kernel, notebook
from tracelib.report.run import DEFAULT_TIMEOUT_S, Failure, run_notebook, write_notebook
from tracelib.words import plain, readable


@dataclass(frozen=True)
class Report:
    """What was written; `findings` is None if the notebook failed before it had any."""

    folder: Path
    findings: Document | None
    failure: Failure | None = field(default=None)


def write_report(
    folder: Path, options: Options, *, timeout_s: int = DEFAULT_TIMEOUT_S, kernel: Kernel | None = None
) -> Report:
    """Run the root-cause notebook with `options` and write its report to `folder`.

    `kernel`: the process that runs it, if one waits already.

    Raises TraceError if the input cannot be used, or the folder not be written; nothing is left behind.
    """
    for name in (*options.files(), str(folder)):
        if readable(name) != name:
            raise TraceError(
                f"{plain(name)}: a notebook cannot hold this name, which is not UTF-8. Rename it."
            )
    with whole_folder(folder) as made:
        moved = options.with_files(lambda path: portable(path, made))
        try:
            ran = run_notebook(
                notebook("root_cause"),
                made / "root_cause.ipynb",
                moved.taken_by("report"),
                working_directory=made,
                timeout_s=timeout_s,
                kernel=kernel,
            )
        except TraceError as error:
            typed = dict(zip(moved.files(), options.files(), strict=True))
            raise TraceError(_as_typed(str(error), typed)) from error
        outcome = _outcome(ran.notebook)
        redactor = redact.Redactor(level=options.redact)
        failure = _clean_failure(ran.failure, redactor)
        findings = convert(outcome["findings"], Document) if "findings" in outcome else None
        said = {options.title: findings.title, options.ticket: findings.ticket} if findings else {}
        node = tidy(ran.notebook, folder, redactor, {text: new or "" for text, new in said.items() if text})
        write_notebook(node, made / "root_cause.ipynb")
        page, _ = TraceReport().from_notebook_node(_without_outcome(node))  # type: ignore[no-untyped-call]
        (made / "report.html").write_text(page, encoding="utf-8")
        digest = hashlib.sha256(page.encode()).hexdigest()
        comment = ticket.summary(findings, digest, failure) if findings else ticket.failed(failure, digest)
        (made / "summary.md").write_text(comment, encoding="utf-8")
        if findings:
            (made / "findings.json").write_text(findings.to_json(), encoding="utf-8")
        if "overview_png" in outcome:
            (made / "overview.png").write_bytes(base64.b64decode(outcome["overview_png"]))
    return Report(folder, findings, ran.failure)


def _clean_failure(failure: Failure | None, redactor: redact.Redactor) -> Failure | None:
    return failure and replace(failure, message=redactor.text(failure.message))


def portable(path: str, folder: Path) -> str:
    """Return `path` as a notebook in `folder` can name it without telling where on this machine it lies.

    Relative to `folder`; below `~` if that is where the file lies and the folder does not. Symbolic links on
    the way are resolved, because `..` would follow them; the file's own name stays.
    """
    # resolve() would rename a linked file.
    absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100
    real = absolute.parent.resolve() / absolute.name
    start, home = folder.resolve(), Path.home().resolve()
    if home != Path("/") and real.is_relative_to(home) and not start.is_relative_to(home):
        return str(Path("~") / real.relative_to(home))
    return os.path.relpath(real, start)


def _as_typed(message: str, names: Mapping[str, str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        message = message.replace(name, names[name])
    return message


def _outcome(node: NotebookNode) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for cell in node.cells:
        for output in cell.get("outputs", ()):
            parts.update(output.get("data", {}).get(OUTCOME, {}))
    return parts


def tidy(
    node: NotebookNode, folder: Path, redactor: redact.Redactor, typed: Mapping[str, str]
) -> NotebookNode:
    """Return `node` without the temporary folder, with what was typed and what failed redacted.

    `typed` has texts that the run, which knows the names in its traces, has redacted already.
    """
    papermill = node.metadata.get("papermill", {})
    papermill.pop("output_path", None)
    papermill.pop("input_path", None)
    node.metadata["title"] = redactor.text(folder.name)
    given = dict(papermill.get("parameters", {}))
    papermill["parameters"] = redactor.parameters(
        {key: typed.get(text, text) if isinstance(text, str) else text for key, text in given.items()}
    )
    roles = {name: redactor.parameters({"role": name})["role"] for name in given.get("roles") or {}}
    quoted = {f'"{text}"': f'"{new}"' for text, new in {**typed, **roles}.items()}
    for cell in node.cells:
        if {"injected-parameters", "papermill-error-cell-tag"} & set(cell.metadata.get("tags", ())):
            cell.source = redactor.text(_as_typed(cell.source, quoted))
        for output in cell.get("outputs", ()):
            for key in ("evalue", "text", "traceback"):
                if key in output:
                    output[key] = redactor.anything(output[key])
    return node


def _without_outcome(node: NotebookNode) -> NotebookNode:
    page = copy.deepcopy(node)
    for cell in page.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(OUTCOME, None)
    return page
