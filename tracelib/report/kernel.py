"""The process in which a notebook runs: it loads what reports need while its parent loads what runs them.

`python -P -m tracelib.report.kernel` waits for one line on its standard input, JSON with `argv`, `env` and
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
from typing import Self

_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
#: What a report's notebook is going to import.
_NEEDED = ("tracelib.charts", "tracelib.report.notebook_cells", "tracelib.sources.torch_profiler.reader")


def environment() -> dict[str, str]:
    """Return what a kernel's environment has besides this process's own.

    It imports this very tracelib from any directory (a checkout need not be installed), prints no library's
    warning (with a path of this machine) into a report, and draws figures for the exporter and JupyterLab.
    """
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE_FOLDER), os.environ.get("PYTHONPATH")])),
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
        "PLOTLY_RENDERER": "plotly_mimetype",
    }


class Kernel:
    """A process that waits to be a kernel; as a context, it ends with that unless it became one."""

    def __init__(self) -> None:
        # ipykernel asks for its parent when it is imported; -P: the working directory may hold anything.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            env={**os.environ, **environment(), "JPY_PARENT_PID": str(os.getpid())},
            start_new_session=True,
        )
        self._waits = True

    def become(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> subprocess.Popen[bytes]:
        """Return the process, which is now the kernel that Jupyter would have started by `argv`."""
        self._waits = False
        line = json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd}).encode() + b"\n"
        stream = self._process.stdin
        assert stream is not None  # (it is a pipe)
        with contextlib.suppress(BrokenPipeError), stream:  # who waits for its answer sees that it died
            stream.write(line)
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._waits:
            self._process.kill()
            self._process.wait()


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
