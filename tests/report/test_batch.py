"""Many runs: an index that is right, survives bad runs, and is not done twice."""

import html
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.cut import cut
from tests.report.browser import chromium, opened
from tests.report.example import findings
from tracelib.cli import main
from tracelib.errors import BadParameter, TraceError
from tracelib.options import Options
from tracelib.report.batch import (
    Entry,
    _earlier,
    _told,
    _write,
    batch,
    entry_of,
    expanded,
    names,
    worst_first,
)
from tracelib.report.redact import Redactor
from tracelib.report.sections.render import render

HOSTILE = '</script><img src=x onerror=alert(1)>\u202e&amp;"'


def test_an_entry_by_hand():
    """In the hand-made findings rank 0 lost 300 of 1000 µs to its host, rank 1 400: the median is 0.35."""
    entry = entry_of("a", findings())
    assert entry.host_share == pytest.approx((0.3 + 0.4) / 2)
    assert entry.lost_share == pytest.approx(0.4)
    assert entry.shortage_share == pytest.approx((50_000 + 400_000) / 2_000_000)
    assert entry.useful_share == pytest.approx(0.6)
    assert (entry.top_cause, entry.state, entry.window_ns) == ("kernel_launch", "cpu_bound", 1_000_000)


@pytest.mark.parametrize("name", ["index.html", "index.json"])
def test_an_index_of_somebody_else_is_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("<title>my page</title>")
    with pytest.raises(TraceError, match=f"{name}: tracelib did not write it"):
        batch([tmp_path], tmp_path, Options())
    assert (tmp_path / name).read_text() == "<title>my page</title>"


def test_our_own_index_is_known(tmp_path):
    _write(tmp_path, [Entry("x", error="bad")], {}, Redactor())
    assert batch([], tmp_path, Options()) == []


def test_worst_first_then_what_does_not_tell_then_failures():
    rows = [
        Entry("x", error="bad"),
        Entry("b", state="mixed", host_share=0.1),
        Entry("n", state="insufficient"),
        Entry("a", state="cpu_bound", host_share=0.5),
    ]
    assert [row.name for row in worst_first(rows)] == ["a", "b", "n", "x"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [tmp_path / "one" / "traces", tmp_path / "two" / "traces", tmp_path / "three.json"]
    assert names(runs, Redactor()) == ["one-traces", "two-traces", "three.json"]


def test_neither_folders_nor_the_index_tell_what_reports_would_not(tmp_path):
    """Two homes, a token and an address in folders' names, a stranger's table in run.toml."""
    token = "hf_" + "AbCdEfGhIjKlMnOpQrSt1234"
    runs = [Path("/home/giulia/a"), Path("/home/tamara/a"), Path("/data/acme") / token, Path("/x@acme.com")]
    redactor = Redactor()
    named = names(runs, redactor)
    assert named == ["[user]-a", "[user]-a-2", "[secret]", "[email]"]
    errors = [f"{run}/x.json: table of run.toml='Tamara_Verdi_has_gout' is not allowed" for run in runs]
    told = _told(Options.of({"roles": {"/home/giulia/serve": "engine"}}), redactor)
    _write(
        tmp_path,
        [Entry(name, error=error) for name, error in zip(named, errors, strict=True)],
        told,
        redactor,
    )
    for name in ("index.html", "index.json"):
        text = (tmp_path / name).read_text()
        assert "is not allowed" in text
        assert not re.search(f"giulia|tamara|Tamara|acme|gout|{token[3:]}|/data", text)
    assert json.loads(text)["parameters"]["roles"] == {"~/serve": "engine"}
    _write(tmp_path, [entry_of("a", findings())], told, redactor)
    assert set(_earlier(tmp_path, told)) == {"a"}
    assert _earlier(tmp_path, _told(Options(), redactor)) == {}  # other parameters


def test_a_quoted_pattern_stands_for_what_it_matches(tmp_path, monkeypatch):
    for name in ("r1", "r2", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert expanded(["r*", "r1"]) == ([Path("r1"), Path("r2")], [])
    assert expanded([str(tmp_path / "r*")]) == ([tmp_path / "r1", tmp_path / "r2"], [])
    with pytest.raises(BadParameter, match="matches folders or traces"):
        expanded(["q*"])


def test_a_pattern_does_not_make_a_run_of_a_file_that_is_no_trace_but_of_one_that_may_be(tmp_path):
    (tmp_path / "README.md").write_text("What these runs are.")
    (tmp_path / "empty.json").touch()
    (tmp_path / "run").mkdir()
    mine, readme = [tmp_path / "empty.json", tmp_path / "run"], tmp_path / "README.md"
    assert expanded([str(tmp_path / "*")]) == (mine, [readme])
    # a file that is named itself is told of as what it is
    assert expanded([str(readme), str(tmp_path / "*")]) == ([readme, *mine], [])
    with pytest.raises(BadParameter, match="matches folders or traces"):
        expanded([str(tmp_path / "R*")])


def index(*entries):
    rows = [{k: v for k, v in vars(entry).items() if k != "resumed"} for entry in entries]
    return {"tool": {"name": "tracelib", "version": "0"}, "generated_utc": "now", "runs": rows}


def test_no_text_of_a_run_becomes_markup():
    entry = entry_of(HOSTILE, findings())
    hostile = Entry(**{**vars(entry), "sentence": HOSTILE, "top_cause": HOSTILE})
    page = render("batch", index=index(hostile, Entry(HOSTILE, error=HOSTILE)))
    assert "<img" not in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert "\u202e" not in page


@pytest.mark.browser
def test_the_table_sorts_by_a_column_and_puts_what_is_not_known_last(tmp_path):
    rows = [
        Entry(
            n,
            report=f"{n}/report.html",
            state="mixed",
            confidence="low",
            sentence="s",
            host_share=v,
            window_ns=w,
        )
        for n, v, w in (("a", 0.5, 2), ("b", 0.3, 10), ("c", None, 9))
    ]
    (tmp_path / "index.html").write_text(render("batch", index=index(*rows)), encoding="utf-8")
    with chromium() as browser, opened(browser, tmp_path / "index.html") as (page, wrong):
        order = "[...document.querySelectorAll('tbody th')].map(c => c.innerText)"
        assert page.evaluate(order) == ["a", "b", "c"]
        page.get_by_role("button", name="Window").click()
        assert page.evaluate(order) == ["b", "c", "a"]
        page.get_by_role("button", name="Lost to the host").click()
        page.get_by_role("button", name="Lost to the host").click()
        assert page.evaluate(order) == ["b", "a", "c"]
        assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Lost to the host")
        assert wrong == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small good run, and a folder whose only trace is damaged beyond use."""
    folder = tmp_path_factory.mktemp("runs")
    cut(ROOT / "sample_traces" / "starved", folder / "small", 46.4, 46.46)
    (folder / "small" / "perf.txt.gz").unlink()
    (folder / "broken").mkdir()
    (folder / "broken" / "x.pt.trace.json").write_text('{"schemaVersion": 1, "traceEvents": [')
    return folder


def test_a_bad_run_is_named_the_others_are_done_and_not_done_twice(runs, tmp_path, capsys):
    command = ["batch", str(runs / "*"), "-o", str(tmp_path / "out"), "-j", "2"]
    assert main(command) == 3
    said = capsys.readouterr().err
    assert "broken: " in said
    assert "failed: broken" in said
    made = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [(row["name"], bool(row["error"])) for row in made["runs"]] == [("small", False), ("broken", True)]
    one = json.loads((tmp_path / "out" / "small" / "findings.json").read_text())
    assert made["runs"][0]["sentence"] == one["verdict"]["sentence"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert (tmp_path / "out" / html.unescape(re.search(r'href="([^"]+)"', page)[1])).is_file()
    before = (tmp_path / "out" / "small" / "report.html").stat().st_mtime_ns
    shutil.rmtree(runs / "broken")
    assert main(command) == 0
    assert "small: " in (said := capsys.readouterr().err)
    assert "(done before)" in said
    assert (tmp_path / "out" / "small" / "report.html").stat().st_mtime_ns == before
    (runs / "small" / "ftrace.txt.gz").unlink()  # other traces: no longer the same run
    assert main(command) == 0
    assert "(done before)" not in capsys.readouterr().err
    assert (tmp_path / "out" / "small" / "report.html").stat().st_mtime_ns != before
