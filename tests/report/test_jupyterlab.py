"""A notebook in a real JupyterLab, opened and run as a person does, by a browser."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

from tests.conftest import ROOT
from tests.cut import cut
from tests.report.browser import chromium
from tracelib.report.notebooks import notebook

TOKEN = "only-for-this-test"
PATIENCE_MS = 240_000


@pytest.fixture
def lab(tmp_path):
    """Give the address of a JupyterLab that serves `tmp_path`/work and knows nothing of this user's settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "work").mkdir()
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
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={tmp_path / 'work'}",
    ]  # fmt: skip
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
    """Run all cells by the menu. While the kernel is not up yet, JupyterLab asks which one and forgets what it was told."""
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


@pytest.mark.browser
def test_a_notebook_opens_runs_and_draws(lab, tmp_path):
    cut(ROOT / "sample_traces" / "starved", tmp_path / "work" / "traces", 46.4, 46.46)
    node = nbformat.read(notebook("tokenization"), as_version=4)
    node.cells[0].source = node.cells[0].source.replace("sample_traces/starved", "traces")
    nbformat.write(node, tmp_path / "work" / "tokenization.ipynb")
    asked = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1300, "height": 900}).new_page()
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_websocket(lambda socket: "/channels" in socket.url, timeout=PATIENCE_MS):
            page.goto(f"{lab}/lab/tree/tokenization.ipynb?token={TOKEN}")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE_MS)
        run_all(page)
        # The last cell's prompt gets its number when all before it are done.
        page.wait_for_function(
            "n => { const cells = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]; return cells.length >= n && /^\\[\\d+\\]:$/.test(cells.at(-1).textContent) }",
            arg=len(node.cells) // 2, timeout=PATIENCE_MS,
        )  # fmt: skip
        assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        assert page.locator("text=Traceback").count() == 0
        page.locator(".jp-OutputArea .js-plotly-plot .main-svg").first.wait_for(timeout=PATIENCE_MS)
        # The sentence stands under its chart.
        assert (
            page.locator(
                ".jp-RenderedHTMLCommon i", has_text=re.compile("Host threads spent .* on tokenization")
            ).count()
            == 1
        )
        context = page.context
        page.close()
        context.close()
    assert [url for url in asked if not re.match(rf"{lab}|ws://127\.0\.0\.1|data:|blob:", url)] == []
