"""A trace whose every name is an attack, through the command, to the page, the ticket and the terminal."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.report.browser import chromium, opened
from tracelib.findings import read, validate

ATTACK = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\x1b[31m\u202e**b**"
    "|@everyone [l](javascript:alert(1)) /home/mallory/x"
)
FILE = "w<img src=x onerror=alert(1)>\u202e{0} rank0.pt.trace.json"


def event(category, name, tid, ts, dur, **arguments):
    pid = 0 if category == "kernel" else 4242
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": arguments,
    }


def kineto():
    named = [
        {"ph": "M", "name": what, "pid": 4242, "tid": 4242, "ts": 0, "args": {"name": ATTACK}}
        for what in ("process_name", "thread_name", "process_labels")
    ]
    steps = [
        part
        for step, start in enumerate(range(1_000, 11_000, 1_000))
        for part in (
            event("cpu_op", ATTACK, 4242, start, 600),
            event("cuda_runtime", "cudaLaunchKernel", 4242, start + 610, 20, correlation=step + 1),
            event("kernel", f"{ATTACK}{step}", 7, start + 640, 300, correlation=step + 1, device=0, stream=7),
            event("user_annotation", ATTACK, 4242, start, 950),
        )
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": ATTACK}],
        "distributedInfo": {"backend": ATTACK, "rank": 0, "world_size": 1},
        "baseTimeNanoseconds": 1_796_006_360_000_000_000,
        "traceEvents": [*named, *steps],
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("tr {a}")
    (place / FILE).write_text(json.dumps(kineto()))
    command = [
        sys.executable,
        "-m",
        "tracelib",
        "report",
        str(place / FILE),
        "-o",
        str(place / "out"),
        "--title",
        ATTACK,
        "--ticket",
        ATTACK,
        "--role",
        f"{ATTACK}=worker",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return place / "out", done


def test_the_terminal_gets_no_escapes(made):
    _, done = made
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_the_figures_are_right_all_the_same(made):
    folder, _ = made
    findings = read((folder / "findings.json").read_bytes())
    assert validate(findings) == []
    # 10 kernels of 300 µs, 700 µs apart: 9 gaps in a window of 9.3 ms
    assert findings.window.duration_ns == 9_300_000
    assert findings.devices[0].gpu_time_ns.idle == 9 * 700_000


def test_home_directories_are_gone_from_every_file(made):
    folder, _ = made
    for path in folder.iterdir():
        assert b"mallory" not in path.read_bytes(), path.name


def test_the_ticket_s_comment_is_inert(made):
    folder, _ = made
    text = (folder / "summary.md").read_text()
    assert len(text.splitlines()) <= 30
    assert "<" not in text
    assert "\u202e" not in text
    assert "@everyone" not in text


@pytest.mark.browser
@pytest.mark.parametrize("javascript", [True, False])
def test_the_page_runs_nothing_of_it(made, javascript):
    folder, _ = made
    with (
        chromium() as browser,
        opened(browser, folder / "report.html", java_script_enabled=javascript) as (page, wrong),
    ):
        if javascript:
            page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
            page.wait_for_timeout(500)
            assert page.evaluate("window.pwned") is None
        assert page.locator("main img").count() == 0
        assert "<img src=x" in page.locator("h1").inner_text()
        assert wrong == []
