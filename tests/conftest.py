"""Where tests find what does not belong to the project: recorded captures and other people's files."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # no test asserts a time, hypothesis neither
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
#: Tests read the files themselves; those of the cache give it a folder of their own.
os.environ["TRACELIB_CACHE"] = "off"
SHARED = Path(os.environ.get("TRACELIB_SHARED", ROOT.parent / "shared"))


#: More of the same, left to `make test-all`: the further sizes of a defect, the further captures of a recovery, the
#: further notebooks in JupyterLab, every notebook on every capture, one more moment of a kill. Each kind is in every run of the tests once.
MORE_OF_THE_SAME = re.compile(
    r"test_blame\.py::.*-(?:0\.05|0\.6)\]|align/test_clocks\.py::.*(?:healthy|throttled|graph)|test_second_ledgers\.py::.*\[0\.(?:65|3-(?:graph|nsys_healthy|throttled))"
    r"|test_two_files_alone\[pair[1-3].*-(?:-20|0)\]|test_containers\.py::.*(?:healthy|throttled)|test_keeper\.py::.*killed\[3|test_removed_sources\.py::.*(?:gil|module_load|alloc)"
    r"|test_each_notebook_runs_on_each_capture"
    r"|test_jupyterlab\.py::.*\[(?!tokenization\])"
    r"|test_simulated\.py::.*\[(?:api|gil|module_load|alloc|sync|starvation)\]"
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is more of the same, unless TRACELIB_THOROUGH is set, and say how much."""
    if os.environ.get("TRACELIB_THOROUGH"):
        return
    left = [item for item in items if MORE_OF_THE_SAME.search(item.nodeid)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not MORE_OF_THE_SAME.search(item.nodeid)]


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set TRACELIB_SHARED to a folder that holds {name}/")
    return folder


@pytest.fixture(scope="session")
def captures() -> Path:
    """Folder of the reference captures (real runs on two GPUs, with ground truth)."""
    return _folder("captures")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Folder of other people's trace files, with TRUTH.json."""
    return _folder("corpus")
