"""Where the notebooks are, how papermill reads them by name (`tracelib://root_cause.ipynb`), what runs one.

A wheel carries them as `tracelib/_notebooks`; an editable install and a checkout have them in `notebooks/`
beside the package. Both hold the same files, so the first that exists is used.

A notebook runs in a process that loads what reports need while its parent loads what runs notebooks:
`python -P -m tracelib.report.notebooks` waits for one line on its standard input, JSON with `argv`, `env` and
`cwd` of a Jupyter kernel, and then is that kernel. It ends if none comes: its parent is gone.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tracelib.errors import BadParameter

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_notebooks", _PACKAGE.parent / "notebooks")
SCHEME = "tracelib://"
#: What a report's notebook is going to import.
_NEEDED = ("tracelib.charts", "tracelib.report.notebook_cells", "tracelib.sources.torch_profiler.reader")


def notebooks() -> dict[str, Path]:
    """Return the notebooks that come with tracelib: name (without `.ipynb`) to path, sorted by name."""
    for folder in _FOLDERS:
        paths = sorted(folder.glob("*.ipynb"))
        if paths:
            return {path.stem: path for path in paths}
    return {}


def notebook(name: str) -> Path:
    """Return the path of the notebook called `name`, which may carry `tracelib://` or `.ipynb`.

    Raises BadParameter if no notebook has that name; the message lists their names.
    """
    paths = notebooks()
    stem = name.removeprefix(SCHEME).removesuffix(".ipynb")
    if stem not in paths:
        raise BadParameter("notebook", stem, paths)
    return paths[stem]


def located(traces: str | Sequence[str]) -> list[Path]:
    """Return the paths that `traces` names, as a notebook's `traces` parameter is meant.

    `~` is expanded. A relative path is taken from the working directory and, where it does not exist there,
    from the folder that holds `notebooks/`: so that a default such as `sample_traces/starved` works from
    Jupyter (which works in the notebook's folder) and from papermill (which works in the caller's).
    """
    return [_located(Path(text).expanduser()) for text in ([traces] if isinstance(traces, str) else traces)]


def _located(path: Path) -> Path:
    beside_package = _PACKAGE.parent / path
    return beside_package if not path.exists() and beside_package.exists() else path


class NotebooksByName:
    """papermill's handler of `tracelib://NAME.ipynb` (entry point `papermill.io`): reads, never writes."""

    def read(self, path: str) -> str:
        """Return the text of the notebook."""
        return notebook(path).read_text(encoding="utf-8")

    def listdir(self, path: str) -> list[str]:  # noqa: ARG002 (papermill's signature; there are no folders)
        """Return the addresses of all notebooks."""
        return [f"{SCHEME}{name}.ipynb" for name in notebooks()]

    def write(self, buf: Any, path: str) -> None:  # noqa: ARG002 (papermill's signature)
        """Refuse: the notebooks belong to the installed package."""
        raise BadParameter("output", path, ["a path of your own, such as out.ipynb"])

    def pretty_path(self, path: str) -> str:
        """Return `path` as papermill shows it."""
        return path


#: papermill wants an instance, not the class.
PAPERMILL = NotebooksByName()


def environment() -> dict[str, str]:
    """Return what a kernel's environment has besides this process's own.

    It imports this very tracelib from any directory (a checkout need not be installed), prints no library's
    warning (with a path of this machine) into a report, and draws figures for the exporter and JupyterLab.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE.parent), os.environ.get("PYTHONPATH")])),
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
        "PLOTLY_RENDERER": "plotly_mimetype",
    }


class Kernel:
    """A process that waits to be a kernel; as a context, it ends with that, whatever it became."""

    def __init__(self) -> None:
        # ipykernel asks for its parent when it is imported; -P: the working directory may hold anything.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tracelib.report.notebooks"],
            stdin=subprocess.PIPE,
            env={**os.environ, **environment(), "JPY_PARENT_PID": str(os.getpid())},
            start_new_session=True,
        )

    def become(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> subprocess.Popen[bytes]:
        """Return the process, which is now the kernel that Jupyter would have started by `argv`."""
        line = json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd}).encode() + b"\n"
        stream = self._process.stdin
        assert stream is not None  # (it is a pipe)
        with contextlib.suppress(BrokenPipeError), stream:  # who waits for its answer sees that it died
            stream.write(line)
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipe and waits for it
            self._process.kill()


def main() -> None:
    """Load, wait, and be a kernel."""
    sys.modules["debugpy"] = None  # type: ignore[assignment]  # (nobody debugs a report; it is slow to load)
    from ipykernel.kernelapp import IPKernelApp  # noqa: PLC0415 (after that)

    for name in _NEEDED:
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        return
    asked = json.loads(line)
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None  # it is asked of the environment once
    os.chdir(asked["cwd"])
    IPKernelApp.launch_instance(asked["argv"])


if __name__ == "__main__":
    main()
