"""The exporter on notebooks made by hand: what is in them arrives, and nothing in them acts."""

import base64
import gzip
import hashlib
import json
import re

import nbformat
import pytest
from bs4 import BeautifulSoup

from tests.report.browser import chromium, opened
from tests.report.example import everywhere, findings
from tracelib.report import sections
from tracelib.report.exporter import CARTESIAN, PLOTLY, TraceReport, bundle_script

HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'><!-- ${7*7} {{7*7}} "
    "\u202e\x1b[31m **b** [l](javascript:window.pwned=1)"
)
#: sha256 of plotly-cartesian.min.js in npm's plotly.js-cartesian-dist-min 4.1.1
CARTESIAN_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
PARTS = [
    "verdict",
    "three_numbers",
    "causes_table",
    "findings_list",
    "abstained",
    "per_rank_table",
    "per_role_table",
    "capacity_table",
    "request_parts_table",
    "health",
    "method",
    "footer",
]


def output(data, metadata=None):
    return nbformat.v4.new_output("display_data", data=data, metadata=metadata or {})


def cell(*outputs, source="show()", tags=()):
    made = nbformat.v4.new_code_cell(source, outputs=list(outputs))
    made.metadata["tags"] = list(tags)
    return made


def figure(kind="bar", text="A", height=300):
    return {
        "data": [{"type": kind, "x": [text], "y": [3], "name": text, "hovertext": [text]}],
        "layout": {"height": height, "title": {"text": text}},
    }


def rendered(*cells):
    node = nbformat.v4.new_notebook(cells=list(cells))
    return TraceReport().from_notebook_node(node, {"metadata": {"name": "<b>name</b>"}})[0]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


def hostile_page():
    shown = [cell(output({"text/html": getattr(sections, part)(everywhere(HOSTILE)).html})) for part in PARTS]
    chart = output({PLOTLY: figure(text=HOSTILE.replace("<", "&lt;"))}, {PLOTLY: {"caption": HOSTILE}})
    raw = output(
        {
            PLOTLY: {
                "data": [{"type": "scatter", "x": [1], "y": [1], "name": HOSTILE}],
                "layout": {"meta": {"sentence": HOSTILE, "table": [[HOSTILE], [HOSTILE]]}},
            }
        }
    )
    others = cell(
        nbformat.v4.new_output("stream", name="stdout", text=HOSTILE),
        nbformat.v4.new_output("error", ename=HOSTILE, evalue=HOSTILE, traceback=[HOSTILE]),
        output({"text/plain": HOSTILE}),
        output({"application/javascript": "window.pwned=1"}),
        source=HOSTILE,
    )
    return rendered(*shown, cell(chart), cell(raw), others)


def test_the_policy_comes_first_and_forbids_every_request():
    head = rendered(cell(output({PLOTLY: figure()})))[:600]
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    assert head.index("charset") < head.index(policy) < head.index("<title>")


def test_no_address_is_loaded():
    page = rendered(cell(output({PLOTLY: figure()})))
    outside = re.sub(
        r'<script[^>]*type="(?:text/plain|application/json)".*?</script>', "", page, flags=re.DOTALL
    )
    assert not re.search(r'(?:src|href|action|poster|data)\s*=\s*["\']?(?:https?:)?//', outside)
    assert "@import" not in outside
    assert "url(" not in outside


def test_plotly_is_embedded_once_the_small_bundle_where_it_serves():
    page = rendered(cell(output({PLOTLY: figure()}), output({PLOTLY: figure("scatter")})))
    packed = re.findall(r'id="plotly-gz"[^>]*>([^<]+)<', page)
    assert len(packed) == 1
    assert hashlib.sha256(gzip.decompress(base64.b64decode(packed[0]))).hexdigest() == CARTESIAN_SHA256
    assert len(page) < 800_000


def test_the_full_bundle_where_a_chart_needs_it():
    small, full = len(bundle_script([figure("heatmap")])), len(bundle_script([figure("icicle")]))
    assert small < 700_000
    assert full > 1_500_000
    assert "icicle" not in CARTESIAN


def test_no_figure_no_plotly():
    assert len(rendered(cell(output({"text/html": "<p>x</p>"})))) < 40_000


def test_a_figure_keeps_its_room_its_caption_and_its_table():
    meta = {"sentence": "It shows 3.", "table": [["who", "n"], ["A", "3"]]}
    page = rendered(cell(output({PLOTLY: {**figure(height=345), "layout": {"height": 345, "meta": meta}}})))
    assert 'style="height:345px"' in page
    assert "<figcaption>It shows 3.</figcaption>" in page
    assert 'aria-label="It shows 3."' in page
    assert re.search(r"<th[^>]*>who</th>", page)
    assert "<td>3</td>" in page
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page).group(1))
    assert data["data"] == figure()["data"]


def test_preparation_is_at_the_end_and_code_is_behind_a_disclosure():
    page = rendered(
        cell(source="a = 1", tags=["parameters"]),
        cell(source="prepare()", tags=["setup"]),
        nbformat.v4.new_markdown_cell("## First\n\ntext"),
        cell(output({"text/html": "<p>shown</p>"}), source="one()"),
        cell(source="two()"),
        cell(output({"text/html": "<p>end</p>"}), tags=["footer"]),
    )
    assert page.index("shown") < page.index("a = 1") < page.index("prepare()") < page.index("<p>end</p>")
    disclosed = re.findall(
        r'<details class="how"><summary>([^<]*)</summary><pre tabindex="0"><code>([^<]*)</code>', page
    )
    assert disclosed == [
        ("How this was computed", "one()\n\ntwo()"),
        ("The notebook&#39;s parameters", "a = 1"),
        ("Preparation", "prepare()"),
    ]


def test_sections_have_links_and_the_page_a_language_a_title_and_one_first_heading():
    verdict = sections.verdict(findings()).html
    page = rendered(
        cell(output({"text/html": verdict})), nbformat.v4.new_markdown_cell("## CPUs & roles\n\n### Under it")
    )
    assert '<html lang="en">' in page
    assert "<title>decode is slow</title>" in page
    assert page.count("<h1") == 1
    assert '<a href="#cpus-roles">CPUs &amp; roles</a>' in page
    assert '<h2 id="cpus-roles">' in page
    assert '<h3 id="under-it">' in page
    assert 'class="skip" href="#main"' in page
    assert 'id="main"' in page


def folded(name):
    made = nbformat.v4.new_markdown_cell(f"## {name}\n\nIts text.")
    made.metadata["tags"] = ["folded"]
    return made


def told(count, said):
    return output(
        {"text/html": "<p>inside</p>", "text/plain": "x"}, {"tracelib": {"count": count, "said": said}}
    )


def test_a_part_is_folded_behind_its_name_its_count_and_a_line_and_the_footer_is_in_no_part():
    node = BeautifulSoup(
        rendered(
            cell(output({"text/html": "<p>first</p>"})),
            nbformat.v4.new_markdown_cell("## Open"),
            cell(told(0, "")),
            folded("Folded <b>"),
            cell(told(64, "Half <i> of it.")),
            cell(output({"text/html": "<footer>end</footer>"}), tags=["footer"]),
        ),
        "html.parser",
    ).main
    section, part = node.find_all(["section", "details"], recursive=False)
    assert (section.h2["id"], part.h2["id"], part.has_attr("open")) == ("open", "folded-b", False)
    assert part.summary.get_text(" ", strip=True) == "Folded <b> 64 Half <i> of it."
    assert [each.get_text() for each in part.find_all("p")] == ["Its text.", "inside"]
    assert node.find("footer").find_parent(["section", "details"]) is None
    assert [" ".join(link.get_text().split()) for link in node.find_previous("nav").find_all("a")] == [
        "Open 0",
        "Folded <b> 64",
    ]


def test_what_a_notebook_says_of_its_parts_itself_is_not_believed():
    made = nbformat.v4.new_markdown_cell("text")
    made.metadata |= {"closes": "<script>1</script>", "part": {"folded": True, "name": "x", "id": "x"}}
    page = rendered(made)
    assert "<script>1</script>" not in page
    assert "<section" not in page


def test_where_a_part_shows_how_it_is_computed_the_notebook_s_calls_are_not_shown():
    shown = sections.computed("gpu_time")
    page = rendered(cell(output(*shown._repr_mimebundle_()), source="show.gpu_time()"))
    assert page.count("How this was computed") == 1
    assert "show.gpu_time()" not in page
    assert "def gpu_time(gpu_states: pl.DataFrame) -&gt; pl.DataFrame:" in page
    assert "tracelib.analyses.gpu_time.gpu_time" in page


def test_a_folder_of_traces_cannot_bring_templates(tmp_path, monkeypatch):
    for folder in ("base", "tracereport"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "conf.json").write_text("{}")
        (tmp_path / folder / "index.html.j2").write_text("OWNED")
    monkeypatch.chdir(tmp_path)
    assert "OWNED" not in rendered(cell(output({"text/html": "<p>x</p>"})))


@pytest.mark.browser
@pytest.mark.parametrize("javascript", [True, False])
def test_hostile_names_in_every_field_do_nothing(tmp_path, browser, javascript):
    (tmp_path / "page.html").write_text(hostile_page(), encoding="utf-8")
    with opened(browser, tmp_path / "page.html", java_script_enabled=javascript) as (page, wrong):
        if javascript:
            page.wait_for_selector("html[data-charts=drawn]", timeout=30_000)
            page.wait_for_timeout(300)
            assert page.evaluate("window.pwned") is None
            assert page.locator("main img, main iframe, main object, main embed").count() == 0
            assert (
                page.evaluate(
                    "[...document.querySelectorAll('a')].filter(a => a.href.startsWith('javascript')).length"
                )
                == 0
            )
        shown = page.locator("#verdict").inner_text()
        assert "<img src=x" in shown  # as text
        assert "\\u202e\\x1b[31m" in shown
        assert wrong == []


@pytest.mark.browser
def test_the_policy_is_in_force(tmp_path, browser):
    (tmp_path / "page.html").write_text(rendered(cell(output({"text/html": "<p>x</p>"}))), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as (page, wrong):
        blocked = page.evaluate(
            """new Promise(done => {
                addEventListener('securitypolicyviolation', e => done(e.effectiveDirective));
                fetch('https://example.com/').catch(() => {});
            })"""
        )
        assert blocked == "connect-src"
        assert any("Content Security Policy" in text for text in wrong)


@pytest.mark.browser
def test_nothing_moves_when_charts_are_drawn(tmp_path, browser):
    cells = [
        cell(output({PLOTLY: figure(kind, height=h)}, {PLOTLY: {"caption": "c"}}))
        for kind, h in (("bar", 300), ("scatter", 450), ("heatmap", 200))
    ]
    (tmp_path / "page.html").write_text(rendered(*cells), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as (page, wrong):
        page.wait_for_selector("html[data-charts=drawn]", timeout=30_000)
        shift = """new Promise(done => new PerformanceObserver(
            list => done(list.getEntries().reduce((sum, entry) => sum + entry.value, 0))
        ).observe({type: 'layout-shift', buffered: true}))"""
        moved = page.evaluate(f"Promise.race([{shift}, new Promise(d => setTimeout(() => d(0), 1000))])")
        assert moved < 0.01
        heights = page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => p.getBoundingClientRect().height)"
        )
        assert heights == [300, 450, 200]
        assert wrong == []


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "ink"), [("light", "rgb(58, 65, 73)"), ("dark", "rgb(204, 211, 218)")])
def test_charts_follow_light_and_dark(tmp_path, browser, scheme, ink):
    (tmp_path / "page.html").write_text(rendered(cell(output({PLOTLY: figure()}))), encoding="utf-8")
    with opened(browser, tmp_path / "page.html", color_scheme=scheme) as (page, _):
        page.wait_for_selector("html[data-charts=drawn]", timeout=30_000)
        assert page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill") == ink
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.main-svg')).backgroundColor")
            == "rgba(0, 0, 0, 0)"
        )


@pytest.mark.browser
def test_every_link_in_the_page_leads_somewhere(tmp_path, browser):
    cells = [
        nbformat.v4.new_markdown_cell("## One"),
        cell(output({"text/html": sections.findings_list(findings()).html})),
    ]
    (tmp_path / "page.html").write_text(rendered(*cells), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as (page, _):
        dead = """[...document.querySelectorAll('a[href^="#"]')]
            .map(a => a.hash.slice(1)).filter(id => !document.getElementById(id))"""
        assert page.evaluate(dead) == []
        assert page.locator("nav a").count() == 1
        assert page.locator("#finding-launch_bound").count() == 1
