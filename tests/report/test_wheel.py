"""The built wheel, without a checkout, from an empty folder and an empty home: the stock tools and ours.

Dependencies are borrowed from the environment of the tests; the package, its notebooks, templates and entry
points are the wheel's own.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.cut import cut
from tracelib.report.bundle import FILES, MARKER
from tracelib.report.notebooks import notebooks


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Give a function that runs a command of the environment in an empty folder, and that folder."""
    place = tmp_path_factory.mktemp("elsewhere")
    venv.create(place / "venv", symlinks=True)
    site = Path(
        sysconfig.get_path("purelib", vars={"base": str(place / "venv"), "platbase": str(place / "venv")})
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(place / "venv" / "bin" / "python"),
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    # The folder of the dependencies, but not what its .pth files add: one of them is this checkout.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("home", "work"):
        (place / name).mkdir()
    environment = {
        "PATH": f"{place / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "TRACELIB_CACHE": "off",
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),  # nbconvert's own templates
    }

    def command(*words):
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=place / "work", env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command, place / "work"


def test_it_holds_the_package_and_the_notebooks_and_nothing_of_the_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        Path(name).stem for name in names if name.startswith("tracelib/_notebooks/") and name[-6:] == ".ipynb"
    } == set(notebooks())
    assert {name.split("/")[0] for name in names} - {
        name.split("/")[0] for name in names if ".dist-info/" in name
    } == {"tracelib"}
    assert {"tracelib/py.typed", "tracelib/rules.toml", "tracelib/align/roles.toml"} <= set(names)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_it_holds_the_compiled_pass_and_is_for_this_platform_and_any_python(wheel, run):
    command, _ = run
    assert "-py3-none-linux_" in wheel.name
    here = "from tracelib.sources.torch_profiler import native; print(native.available())"
    assert command("python", "-c", here).strip() == "True"


def test_papermill_nbconvert_and_the_command_work_without_a_checkout(run, tmp_path):
    command, work = run
    where = command("python", "-c", "import tracelib; print(tracelib.__file__)").strip()
    assert Path(where).is_relative_to(work.parent / "venv")
    cut(ROOT / "sample_traces" / "starved", tmp_path / "traces", 46.4, 46.46)
    command(
        "python",
        "-m",
        "papermill",
        "tracelib://root_cause.ipynb",
        "out.ipynb",
        "-p",
        "traces",
        str(tmp_path / "traces"),
    )
    command("python", "-m", "nbconvert", "--to", "tracereport", "out.ipynb")
    page = (work / "out.html").read_text()
    assert "Content-Security-Policy" in page
    assert page.count('class="chart"') > 5
    assert not re.search(r'(?:src|href)="https?:', page)
    command("tracelib", "report", str(tmp_path / "traces"))
    assert sorted(path.name for path in (work / "reports" / "traces").iterdir()) == sorted((*FILES, MARKER))
    findings = json.loads((work / "reports" / "traces" / "findings.json").read_text())
    assert findings["verdict"]["state"] in page
