"""Where the notebooks are, and how papermill reads them by name (`tracelib://root_cause.ipynb`).

A wheel carries them as `tracelib/_notebooks`; an editable install and a checkout have them in `notebooks/`
beside the package. Both hold the same files, so the first that exists is used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracelib.errors import BadParameter

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (_PACKAGE / "_notebooks", _PACKAGE.parent / "notebooks")
SCHEME = "tracelib://"


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
