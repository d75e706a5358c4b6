"""The page of 64 ranks: short, small, in the ranks' own order."""

import json
import subprocess
import sys

import pytest
from bs4 import BeautifulSoup

from tests.conftest import ROOT
from tests.report.browser import chromium, opened
from tests.simulator import SHAPES, simulate

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


class Wide(SHAPES["tensor"]):
    """The tensor-parallel server with 64 workers."""

    ranks = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("wide")
    (here / "traces").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, "wide", Wide)
        simulate({"alloc": 0.1, "imbalance": 0.1}, shape="wide", seed=5).write(here / "traces")
    command = [sys.executable, "-m", "tracelib", "report", str(here / "traces"), "-o", str(here / "report")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return here / "report"


def test_ranks_stand_in_numeric_order(folder):
    devices = json.loads((folder / "findings.json").read_text())["devices"]
    assert [device["rank"] for device in devices] == list(range(64))
    page = BeautifulSoup((folder / "report.html").read_text(), "html.parser")
    heads = [row.th.contents[0] for row in page.select("#ranks-table tbody tr")]
    assert heads == [f"rank {rank}" for rank in range(64)]
    drawn = [
        int(text.get_text().split()[1]) for text in page.select("#overview svg .tl-b") if "rank" in text.text
    ]
    assert drawn == sorted(drawn)
    assert len(drawn) == 8
    assert "56 GPUs are not drawn." in page.select_one("#overview figcaption").get_text()


@pytest.mark.browser
def test_the_page_is_small_and_short(folder):
    assert (folder / "report.html").stat().st_size < 2_000_000
    screen = {"width": 1200, "height": 900}
    with chromium() as browser, opened(browser, folder / "report.html", viewport=screen) as (page, wrong):
        page.wait_for_selector("html[data-charts=drawn]")
        assert page.evaluate("document.documentElement.scrollHeight") < 8 * 900
        page.evaluate("document.querySelector('#gpus-and-ranks').closest('details').open = true")
        rows = page.locator("#ranks-table tbody tr:visible")
        assert rows.count() == 10
        page.get_by_role("button", name="show all 64").first.click()
        assert rows.count() == 64
        page.get_by_role("searchbox").first.fill("rank 63")
        assert rows.count() == 1
        assert wrong == []
