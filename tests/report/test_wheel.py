"""The built wheels, without a checkout, from an empty folder and an empty home: the stock tools and ours.

One has the compiled pass. The other was built from the sources where there is no compiler.

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

#: What is needed to build a wheel.
SOURCES = ("tracelib", "notebooks", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")


def built(folder, sources, **environment):
    """Return a wheel and what was said while it was built."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(
        build, check=True, capture_output=True, text=True, cwd=sources, env={**os.environ, **environment}
    )
    (made,) = folder.glob("*.whl")
    return made, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"), ROOT)[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Give the wheel that is built where there is no compiler, and what was said."""
    sources, nothing = (tmp_path_factory.mktemp(name) for name in ("sources", "nothing"))
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, sources / name)
    return built(tmp_path_factory.mktemp("plain"), sources, PATH=str(nothing), CC="cc")


def installed(wheel, place):
    """Return a function that runs a command of an environment with the wheel, in an empty folder."""
    venv.create(place / "venv", symlinks=True)
    base = {"base": str(place / "venv"), "platbase": str(place / "venv")}
    site = Path(sysconfig.get_path("purelib", vars=base))
    pip = [sys.executable, "-m", "pip", "--python", str(place / "venv" / "bin" / "python")]
    pip += ["install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    # The folder of the dependencies, but not what its .pth files add: one of them is this checkout.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("home", "work"):
        (place / name).mkdir()
    environment = {
        "PATH": f"{place / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "TRACELIB_CACHE": "off",
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),  # nbconvert"s own templates
    }

    def command(*words):
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=place / "work", env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command, place / "work"


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    return installed(wheel, tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture(scope="module")
def run_plain(plain, tmp_path_factory):
    return installed(plain[0], tmp_path_factory.mktemp("plainly"))


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut") / "traces"
    cut(ROOT / "sample_traces" / "starved", folder, 46.4, 46.46)
    return folder


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


def test_papermill_and_nbconvert_work_without_a_checkout(run, traces):
    command, work = run
    where = command("python", "-c", "import tracelib; print(tracelib.__file__)").strip()
    assert Path(where).is_relative_to(work.parent / "venv")
    notebook = ["tracelib://root_cause.ipynb", "out.ipynb", "-p", "traces", str(traces)]
    command("python", "-m", "papermill", *notebook)
    command("python", "-m", "nbconvert", "--to", "tracereport", "out.ipynb")
    page = (work / "out.html").read_text()
    assert "Content-Security-Policy" in page
    assert page.count('class="chart"') > 5
    assert not re.search(r'(?:src|href)="https?:', page)


def test_without_a_compiler_it_is_built_says_what_is_slower_and_makes_a_report(plain, run_plain, traces):
    wheel, said = plain
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "was not compiled" in said
    assert "several times slower, to the same result" in said
    command, work = run_plain
    assert "several times slower" in command("tracelib", "--version")
    command("tracelib", "report", str(traces))
    folder = work / "reports" / "traces"
    assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, MARKER))
    findings = json.loads((folder / "findings.json").read_text())
    assert findings["verdict"]["state"] in (folder / "report.html").read_text()
