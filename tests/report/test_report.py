"""One real report, made by the command that people use, and looked at by a browser."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys

import jsonschema
import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup

from tests.conftest import ROOT
from tests.report.browser import chromium, opened
from tracelib.findings import read, schema, validate
from tracelib.report.bundle import FILES, MARKER

SAMPLE = ROOT / "sample_traces" / "starved"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("reports") / "starved"
    command = [
        sys.executable,
        "-m",
        "tracelib",
        "report",
        str(SAMPLE),
        "-o",
        str(target),
        "--ticket",
        "INC-42",
        "--fail-on",
        "cpu_bound",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stderr  # the verdict named by --fail-on
    return target


@pytest.fixture(scope="module")
def findings(folder):
    return json.loads((folder / "findings.json").read_text())


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


#: Charts are drawn when the part that they are in is opened.
OPEN_ALL = "for (const part of document.querySelectorAll('details')) part.open = true"


@contextlib.contextmanager
def report_page(browser, folder, *, unfolded=True, **context):
    """Give the report in a browser, its parts unfolded and its charts drawn."""
    with opened(browser, folder / "report.html", **context) as (page, wrong):
        page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
        if unfolded:
            page.evaluate(OPEN_ALL)
            page.wait_for_selector(".plot .main-svg", timeout=60_000)
            page.wait_for_selector("html[data-charts=drawn]", timeout=60_000)
        yield page, wrong


def test_the_folder_holds_what_the_contract_says(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, MARKER))
    assert (folder / "report.html").stat().st_size < 1_200_000
    assert (folder / "overview.png").stat().st_size < 300_000
    assert (folder / "overview.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_verdict_is_the_truth_s(findings):
    truth = json.loads((SAMPLE / "truth.json").read_text())
    assert findings["verdict"]["state"] == truth["verdict"]
    assert "cpu_shortage" in {finding["id"] for finding in findings["findings"]}


def test_findings_keep_the_schema_and_add_up(findings):
    jsonschema.Draft202012Validator(schema()).validate(findings)
    assert validate(read(json.dumps(findings))) == []
    for part in ("launches", "collectives", "ipc", "scheduling", "requests", "cpu_time"):
        if findings[part] is None:
            assert part in {row["id"] for row in findings["abstained"]}


def test_the_summary_fits_a_ticket(folder):
    lines = (folder / "summary.md").read_text().splitlines()
    assert len(lines) <= 30
    assert "INC-42" in lines[0]
    assert any("CPU" in line for line in lines[:4])


def test_no_path_of_this_machine_is_in_the_report(folder):
    for name in ("report.html", "summary.md", "findings.json"):
        text = (folder / name).read_text()
        assert str(ROOT) not in text.replace(json.dumps(str(SAMPLE)).strip('"'), ""), name
    assert str(ROOT) not in (folder / "findings.json").read_text()


def test_the_notebook_runs_again_by_its_own_parameters(folder):
    cells = nbformat.read(folder / "root_cause.ipynb", as_version=4).cells
    assert any("injected-parameters" in cell.metadata.get("tags", ()) for cell in cells)
    assert not any(output.output_type == "error" for cell in cells for output in cell.get("outputs", ()))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_its_charts_asks_nobody_and_an_accessibility_checker_finds_nothing(
    folder, browser, scheme
):
    with report_page(browser, folder, color_scheme=scheme) as (page, wrong):
        charts = page.locator("figure.chart").count()
        assert charts >= 8
        assert page.locator("figure.chart .main-svg").count() >= charts
        assert wrong == []
        policy = page.locator('meta[http-equiv="Content-Security-Policy"]').get_attribute("content")
        assert "default-src 'none'" in policy
        found = Axe().run(page).response
    assert len(found["passes"]) > 30  # it did look
    assert [(v["id"], v["impact"], [node["html"] for node in v["nodes"]]) for v in found["violations"]] == []


@pytest.mark.browser
def test_the_page_is_short_until_a_part_is_opened(folder, browser):
    screen = {"width": 1200, "height": 900}
    with report_page(browser, folder, unfolded=False, viewport=screen) as (page, _):
        assert page.evaluate("document.documentElement.scrollHeight") < 6 * 900
        assert (
            page.locator("#plotly-gz").count() == 1
        )  # nothing that draws was unpacked: no chart is in sight
        assert page.locator("details.finding[open]").count() == 3


@pytest.mark.browser
def test_without_javascript_the_numbers_and_the_picture_are_there(folder, browser):
    with opened(browser, folder / "report.html", java_script_enabled=False) as (page, _):
        assert page.locator("h1").inner_text() == "starved"
        assert page.locator("figure.picture svg").is_visible()
        assert page.locator("#causes-table").is_visible()
        assert "wanted a CPU" in page.locator("#verdict").inner_text()
        page.locator("details.part summary").first.click()
        assert page.locator("#ranks-table").is_visible()


@pytest.mark.browser
def test_a_narrow_screen_needs_no_sideways_scrolling_and_no_word_of_a_chart_is_cut_off(folder, browser):
    cut = """[...document.querySelectorAll(".plot")].flatMap(plot => {
      const room = plot.getBoundingClientRect();
      const texts = ".infolayer text, .xtick text, .ytick text, .bartext-outside";
      return [...plot.querySelectorAll(texts)].filter(word => {
        const box = word.getBoundingClientRect();
        return box.width && (box.left < room.left - 2 || box.right > room.right + 2);
      }).map(word => word.textContent);
    })"""
    with report_page(browser, folder, viewport={"width": 360, "height": 800}) as (page, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator(".plot .xtick text").count() > 20
        assert page.evaluate(cut) == []


@pytest.mark.browser
def test_every_part_and_finding_can_be_opened_by_keyboard(folder, browser):
    """Tab reaches each summary in the page's order; Enter opens it."""
    with report_page(browser, folder, unfolded=False) as (page, _):
        names = page.locator("details.part > summary h2").all_inner_texts()
        reached = []
        for _ in range(400):
            page.keyboard.press("Tab")
            at = page.evaluate("""(() => {
                const part = document.activeElement.closest("details.part");
                return part && document.activeElement === part.firstElementChild
                    ? document.activeElement.querySelector("h2").innerText : null;
            })()""")
            if at is not None:
                reached.append(at)
                page.keyboard.press("Enter")
                page.keyboard.press("Enter")  # and closes it again
            if len(reached) == len(names):
                break
        assert reached == names
        assert len(names) >= 6


@pytest.mark.browser
def test_a_row_of_evidence_leads_to_its_moment_in_the_overview(folder, browser, findings):
    """What its row says of the GPU and of the thread, the lanes say of that moment."""
    row = next(f for f in findings["findings"] if f["id"] == "cpu_shortage")["evidence"][0]
    rank = re.search(r"GPU of rank (\d) idle", row["what"]).group(1)
    assert "without a CPU" in row["value"]
    at = row["ts_ns"] - findings["window"]["start_ns"]
    with report_page(browser, folder, unfolded=False) as (page, wrong):
        page.wait_for_selector("#overview[data-ready]")
        page.locator("#finding-cpu_shortage button.go").first.click()
        assert shown_stretch(page)[0] <= at < at + row["dur_ns"] <= shown_stretch(page)[1]
        assert page.evaluate("document.activeElement.closest('#overview') !== null")
        page.keyboard.press("ArrowRight")  # the pointer appears in the middle of the view: of the stretch
        said = page.locator("#overview output").inner_text()
        assert f"rank {rank} GPU: GPU idle;" in said
        assert f"rank {rank} launch thread: wanted a CPU and had none;" in said
        page.go_back()
        assert page.evaluate("location.hash") == "#finding-cpu_shortage"
        assert wrong == []


def shown_stretch(page):
    figure = page.locator("#overview")
    return int(figure.get_attribute("data-from")), int(figure.get_attribute("data-to"))


@pytest.mark.browser
def test_the_overview_zooms_and_moves_by_keys_buttons_and_mouse(folder, browser, findings):
    whole = findings["window"]["duration_ns"]
    with report_page(browser, folder, unfolded=False, viewport={"width": 1200, "height": 900}) as (
        page,
        wrong,
    ):
        page.wait_for_selector("#overview[data-ready]")
        headlines = page.locator("#overview .tl-now").all_text_contents()
        page.locator("#overview .scroll").focus()
        for key, stretch in (
            ("+", (0.25, 0.75)),
            ("+", (0.375, 0.625)),
            ("Shift+ArrowRight", (0.4375, 0.6875)),
            ("-", (0.3125, 0.8125)),
            ("0", (0, 1)),
        ):
            page.keyboard.press(key)
            assert shown_stretch(page) == pytest.approx([part * whole for part in stretch], abs=2), key
        for button in ("Zoom in", "Earlier"):
            page.get_by_role("button", name=button).click()
        assert shown_stretch(page) == pytest.approx((0, whole / 2), abs=2)
        command = page.locator("#overview .cmd code").text_content()
        assert command == f"tracelib export starved --to perfetto --window 0.000000:{whole / 2e9:.6f}"
        page.get_by_role("button", name="whole window").click()
        canvas = page.locator("#overview canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        unit = box["width"] / 700  # of the picture's: 640 for the lanes, 30 on either side
        page.mouse.move(box["x"] + (30 + 160) * unit, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + (30 + 480) * unit, box["y"] + 60)
        page.mouse.up()
        assert shown_stretch(page) == pytest.approx((whole / 4, 3 * whole / 4), rel=0.01)
        assert page.locator("#overview .tl-now").all_text_contents() != headlines  # what was at the pointer
        page.mouse.dblclick(box["x"] + 60 * unit, box["y"] + 60)
        page.mouse.move(5, 5)
        assert shown_stretch(page) == (0, whole)
        assert page.locator("#overview .tl-now").all_text_contents() == headlines
        page.emulate_media(media="print")
        assert not canvas.is_visible()
        assert page.locator("#overview svg").is_visible()
        assert wrong == []


def test_the_command_of_a_row_of_evidence_works_as_printed(folder, tmp_path):
    """Run where the traces lie, it writes a stretch of the run for Perfetto: less than a tenth of all."""
    page = BeautifulSoup((folder / "report.html").read_text(), "html.parser")
    printed = page.select_one("#finding-cpu_shortage .cmd code").get_text()
    (tmp_path / "starved").symlink_to(SAMPLE)
    words = shlex.split(printed)
    assert words[0] == "tracelib"
    command = [sys.executable, "-m", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
    (written,) = tmp_path.glob("*.pftrace")
    assert 1_000 < written.stat().st_size < 1_000_000


@pytest.mark.browser
def test_prints_to_pdf(folder, browser):
    with report_page(browser, folder, unfolded=False) as (page, _):
        pdf = page.pdf()
    assert pdf[:5] == b"%PDF-"
    assert 1 < len(re.findall(rb"/Type\s*/Page[^s]", pdf)) < 10
