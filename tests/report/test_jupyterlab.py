"""Every notebook in a real JupyterLab, opened and run by a browser as a person does: one server for all."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

from tests.conftest import ROOT, thorough
from tests.cut import cut
from tests.report.browser import chromium
from tracelib.report.notebooks import notebooks

TOKEN = "only-for-this-test"
PATIENCE_MS = 240_000


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with every notebook, set to a few hundredths of a second of a real server."""
    folder = tmp_path_factory.mktemp("lab") / "work"
    cut(ROOT / "sample_traces" / "starved", folder / "traces", 46.4, 46.46)
    for name, path in notebooks().items():
        node = nbformat.read(path, as_version=4)
        first = node.cells[0]
        first.source = re.sub(r"(?m)^(traces: list =) \S+", r"\1 ['traces']", first.source)
        first.source = re.sub(
            r"(?m)^(runs: dict =) \S+", r"\1 {'2 CPUs': 'traces', '16 CPUs': 'traces'}", first.source
        )
        nbformat.write(node, folder / f"{name}.ipynb")
    return folder


@pytest.fixture(scope="module")
def lab(work):
    """Give the address of a JupyterLab that serves the folder `work`, without this user's settings."""
    tmp_path = work.parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # All cells in the page at once, not only those in sight: so that they can be looked at.
    tracker = tmp_path / "settings" / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text('{"windowingMode": "none"}')
    own = {f"JUPYTER_{name}_DIR": str(tmp_path / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    settings = {
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "spaces"),
    }
    environment = {
        **os.environ,
        **own,
        **settings,
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={work}",
    ]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, tmp_path / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=30)


def wait_for(address, server, log):
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"no JupyterLab: {log.read_text()[-2000:]}")


def run_all(page):
    """Run all cells by the menu. Before the kernel is up, JupyterLab asks for one and forgets the answer."""
    begun = page.locator(".jp-CodeCell .jp-InputPrompt", has_text=re.compile(r"\[[*\d]")).first
    choice = page.locator(".jp-Dialog").get_by_role("button", name="Select", exact=True)
    for _ in range(5):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        begun.or_(choice).first.wait_for(timeout=PATIENCE_MS)
        if not choice.count():
            return
        choice.click()
    pytest.fail("the kernel never came up")


@pytest.fixture(scope="module")
def window():
    with chromium() as browser:
        yield browser.new_context(viewport={"width": 1300, "height": 900})


@pytest.fixture
def kernels(lab):
    """Give a function that returns the running kernels; end them after the test: each holds frames."""

    def ask(method, path=""):
        request = urllib.request.Request(
            f"{lab}/api/kernels{path}", method=method, headers={"Authorization": f"token {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    yield lambda: ask("GET")
    for kernel in ask("GET"):
        ask("DELETE", f"/{kernel['id']}")


@pytest.mark.browser
@pytest.mark.parametrize("name", thorough(sorted(notebooks()), but=("tokenization",)))
def test_a_notebook_opens_runs_and_draws(name, work, lab, window, kernels):
    node = nbformat.read(work / f"{name}.ipynb", as_version=4)
    asked = []
    page = window.new_page()
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_websocket(lambda socket: "/channels" in socket.url, timeout=PATIENCE_MS):
        page.goto(f"{lab}/lab/tree/{name}.ipynb?token={TOKEN}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE_MS)
    run_all(page)
    # The last cell's prompt gets its number when all before it are done.
    page.wait_for_function(
        """n => {
            const cells = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
            return cells.length == n && /^\\[\\d+\\]:$/.test(cells.at(-1).textContent);
        }""",
        arg=sum(cell.cell_type == "code" for cell in node.cells),
        timeout=PATIENCE_MS,
    )
    wait_until(lambda: [kernel["execution_state"] for kernel in kernels()] == ["idle"])
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert page.locator("text=Traceback").count() == 0
    page.locator(".jp-OutputArea .js-plotly-plot .main-svg").first.wait_for(timeout=PATIENCE_MS)
    calls = sum(cell.source.count("charts.draw(") for cell in node.cells if cell.cell_type == "code")
    drawn = page.locator(".jp-OutputArea .js-plotly-plot").count()
    assert drawn + page.locator(".jp-OutputArea p.empty", has_text="No chart of").count() == calls
    # A sentence stands under each chart.
    assert page.locator(".jp-RenderedHTMLCommon p > i", has_text=re.compile(r"\d")).count() == drawn
    page.close()
    assert [url for url in asked if not re.match(rf"{lab}|ws://127\.0\.0\.1|data:|blob:", url)] == []


def wait_until(holds):
    for _ in range(300):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("the kernel never came to rest")
