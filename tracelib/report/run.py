"""Run a notebook with papermill, without papermill's papercuts.

An unknown parameter is an error (papermill runs on with the default), braces in a path are text (papermill
formats paths), the run ends after a time limit (papermill's is "never"), the kernel's transport is encrypted
(ipykernel warns otherwise), and nothing is printed.
"""

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.execute import execute_notebook
from traitlets.config import Config

from tracelib import errors
from tracelib.options import assigned
from tracelib.report.notebooks import Kernel, environment
from tracelib.sources.programs import Scratch

DEFAULT_TIMEOUT_S = 900


@dataclass(frozen=True)
class Failure:
    """The cell that failed: its number as Jupyter counts, the error's type and text."""

    cell: int
    error: str
    message: str

    def one_line(self) -> str:
        """Return the failure in one line."""
        return f"cell {self.cell}: {self.error}: {' '.join(self.message.split())}"


@dataclass(frozen=True)
class NotebookRun:
    """An executed notebook and, if a cell failed, which."""

    notebook: NotebookNode
    failure: Failure | None


class SavedOnce(NBClientEngine):
    """papermill's engine, which does not write the notebook twice a cell: at the end, whatever that is."""

    @classmethod
    def execute_managed_notebook(  # type: ignore[override]  # (papermill names each of its arguments)
        cls, nb_man: Any, kernel_name: str, **kwargs: Any
    ) -> None:
        """Execute the notebook; papermill then writes it, also if this raises."""
        output, nb_man.output_path = nb_man.output_path, None
        try:
            super().execute_managed_notebook(nb_man, kernel_name, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            nb_man.output_path = output


papermill_engines.register("tracelib", SavedOnce)  # type: ignore[no-untyped-call]


def parameter_names(source: Path) -> list[str]:
    """Return the names assigned in the cell of `source` that is tagged `parameters`."""
    cells = read_notebook(source).cells
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    return assigned(tagged[0].source) if tagged else []


def run_notebook(
    source: Path,
    output: Path,
    parameters: Mapping[str, Any],
    *,
    working_directory: Path | None = None,
    timeout_s: int = DEFAULT_TIMEOUT_S,
    kernel: Kernel | None = None,
) -> NotebookRun:
    """Execute `source` with `parameters`, write it to `output`, and return it.

    A failing cell does not raise: the notebook up to there is written and :attr:`NotebookRun.failure` tells.
    The time limit holds for each cell. `kernel` runs it and is of no use afterwards; by default a new one.

    Raises BadParameter if the notebook has no such parameter, or the value cannot be written as text, number,
    list or dict; TraceError if the notebook raised one of tracelib's own errors: the input is wrong, not the
    notebook.
    """
    _check(source, parameters)
    notebook = read_notebook(source)
    with _quiet(), _environment(), kernel or Kernel() as waiting:  # it ends before its folders go
        run = _execute(notebook, output, dict(parameters), working_directory, timeout_s, waiting)
    if run.failure is not None and _is_ours(run.failure.error):
        raise errors.TraceError(run.failure.message)
    return run


def _is_ours(error: str) -> bool:
    kind = getattr(errors, error, None)
    return isinstance(kind, type) and issubclass(kind, errors.TraceError)


def _execute(
    node: NotebookNode,
    output: Path,
    parameters: dict[str, Any],
    working_directory: Path | None,
    timeout_s: int,
    kernel: Kernel,
) -> NotebookRun:
    # A NotebookNode is taken as it is; a path would be a format string, so the output's braces are doubled.
    try:
        done = execute_notebook(  # type: ignore[no-untyped-call]
            node,
            str(output.resolve()).replace("{", "{{").replace("}", "}}"),
            parameters,
            engine_name="tracelib",
            progress_bar=False,
            cwd=working_directory,
            execution_timeout=timeout_s,
            kernel_manager_class=_manager_of(kernel),
            shutdown_kernel="immediate",
            config=Config(
                {
                    "KernelManager": {"transport_encryption": "required"},
                    # A kernel stopped while it shuts down complains on the terminal; its errors are in cells.
                    "NotebookClient": {"extra_arguments": ["--IPKernelApp.log_level=50"]},
                }
            ),
        )
    except PapermillExecutionError as error:
        failure = Failure(error.exec_count or error.cell_index, error.ename, error.evalue)
        return NotebookRun(read_notebook(output), failure)
    except (CellTimeoutError, DeadKernelError) as error:
        return _stopped(output, type(error).__name__, timeout_s)
    return NotebookRun(done, None)


#: Not the user's, which may name another interpreter or start it elsewhere.
_SPECIFICATION = KernelSpec(
    argv=["-f", "{connection_file}"],
    language="python",
    metadata={
        "supported_encryption": "curve",
        "kernel_provisioner": {"provisioner_name": "local-provisioner"},
    },
)


def _manager_of(kernel: Kernel) -> type[AsyncKernelManager]:
    """Return Jupyter's manager of kernels, whose kernel is a process that waits already."""

    class Manager(AsyncKernelManager):
        kernel_spec = _SPECIFICATION

        async def _async_launch_kernel(self, kernel_cmd: list[str], **given: Any) -> None:
            provisioner: Any = self.provisioner
            provisioner.process = kernel.become(kernel_cmd, given["env"], given.get("cwd") or str(Path.cwd()))
            provisioner.pid = provisioner.pgid = provisioner.process.pid

    return Manager


def _stopped(output: Path, error: str, timeout_s: int) -> NotebookRun:
    """Mark the saved notebook as papermill does for a raised error: it does not if the kernel is gone."""
    reasons = {
        "CellTimeoutError": f"not done after {timeout_s} s; give it longer with --timeout",
        "DeadKernelError": "the kernel died; most often it ran out of memory",
    }
    node = read_notebook(output)
    done = sum(cell.cell_type == "code" and cell.get("execution_count") is not None for cell in node.cells)
    failure = Failure(done, error, reasons[error])
    # papermill's own tag, so that its next run takes the mark away.
    mark = markdown_cell(f"**This notebook stopped** at {failure.one_line()}.", "papermill-error-cell-tag")
    node.cells.insert(0, mark)
    write_notebook(node, output)
    return NotebookRun(node, failure)


def read_notebook(path: Path) -> NotebookNode:
    """Return the notebook at `path`."""
    node: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return node


def write_notebook(node: NotebookNode, path: Path) -> None:
    """Write the notebook to `path`."""
    nbformat.write(node, path)  # type: ignore[no-untyped-call]


def markdown_cell(source: str, *tags: str) -> NotebookNode:
    """Return a Markdown cell with `tags`."""
    cell: NotebookNode = nbformat.v4.new_markdown_cell(source)  # type: ignore[no-untyped-call]
    cell.metadata["tags"] = list(tags)
    return cell


def _check(source: Path, parameters: Mapping[str, Any]) -> None:
    allowed = parameter_names(source)
    for name, value in parameters.items():
        if name not in allowed:
            raise errors.BadParameter("parameter", name, allowed)
        if not _is_json(value):
            raise errors.BadParameter(
                name, value, ["text", "a number", "true or false", "a list or dict of these"]
            )


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_json(item) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep papermill, nbclient and the asyncio policy from talking to the user while a notebook runs."""
    loggers = [logging.getLogger(name) for name in ("papermill", "nbclient", "traitlets", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Give the kernel its environment, and a folder of ours for what it writes to temporary files.

    That goes however the kernel ends; so does the file with the key to it, which Jupyter writes in this
    process.
    """
    with Scratch() as folder:
        ours = environment() | {"TMPDIR": folder}
        before = {name: os.environ.get(name) for name in ours}
        place, tempfile.tempdir = tempfile.tempdir, folder
        os.environ.update(ours)
        try:
            yield
        finally:
            tempfile.tempdir = place
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
