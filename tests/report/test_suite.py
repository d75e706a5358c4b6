"""Every notebook, run by papermill on a real server's traces, and on traces that lack what it asks for."""

import html
import re
import shutil

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

import tracelib
from tests.conftest import ROOT
from tests.cut import cut
from tracelib.charts.phrases import CAPTION
from tracelib.report.exporter import PLOTLY, TraceReport
from tracelib.report.notebooks import notebook, notebooks
from tracelib.report.run import parameter_names, run_notebook

NAMES = sorted(set(notebooks()) - {"root_cause"})
#: Charts that a full recording of two ranks gives each notebook; without a request log, on a fifth of a
#: second, and with names of steps that tell no tokens. One that is not listed may draw any number.
CHARTS = {
    "capacity": 5,
    "collectives": 5,
    "compare": 4,
    "cpu_scheduling": 7,
    "explore": 5,
    "ipc": 5,
    "kernel_launch": 6,
    "requests": 3,
    "tokenization": 5,
    "what_if": 1,
}
#: Charts left where only the API server's and the engine's threads were recorded: what host threads did.
WITHOUT_GPU = {"explore": 1, "ipc": 2, "requests": 2, "tokenization": 2}


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A fifth of a second of the starved server: all kinds of files, small."""
    folder = tmp_path_factory.mktemp("traces") / "server"
    cut(ROOT / "sample_traces" / "starved", folder, 46.3, 46.5)
    return folder


@pytest.fixture(scope="session")
def host_only(tmp_path_factory, server):
    """The API server and the engine alone: no GPU, no scheduler event, no sample."""
    folder = tmp_path_factory.mktemp("traces") / "host"
    folder.mkdir()
    for name in ("api_server.pt.trace.json.gz", "engine_core.pt.trace.json.gz"):
        shutil.copy(server / name, folder)
    return folder


def parameters(name, folder):
    log = folder / "requests.jsonl"  # of the captures whose perf ties its clock
    logged = log.exists() and (folder / "perf.txt.gz").exists()
    if name == "compare":
        runs = {"once": str(folder), "again": str(folder)}
        return {"runs": runs} | (
            {"requests": dict.fromkeys(runs, str(log)), "requests_clock": "monotonic"} if logged else {}
        )
    takes_a_log = logged and "requests" in parameter_names(notebook(name))
    return {"traces": [str(folder)]} | (
        {"requests": str(log), "requests_clock": "monotonic"} if takes_a_log else {}
    )


def all_run(folder, scratch, names=NAMES):
    """Return each notebook's cells after papermill ran them all, in one kernel that forgets in between."""
    together = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    for name in names:
        node = parameterize_notebook(load_notebook_node(str(notebook(name))), parameters(name, folder))
        for number, cell in enumerate([nbformat.v4.new_code_cell("%reset -f"), *node.cells]):
            cell["id"], cell.metadata["notebook"] = f"{name}-{number}", name
            together.cells.append(cell)
    nbformat.write(together, scratch / "together.ipynb")
    done = run_notebook(scratch / "together.ipynb", scratch / "done.ipynb", {}, working_directory=scratch)
    assert done.failure is None, done.failure
    return {name: [c for c in done.notebook.cells if c.metadata.get("notebook") == name] for name in names}


@pytest.fixture(scope="session")
def on_server(server, tmp_path_factory):
    return all_run(server, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def on_host(host_only, tmp_path_factory):
    return all_run(host_only, tmp_path_factory.mktemp("host"))


@pytest.mark.corpus
@pytest.mark.thorough
@pytest.mark.parametrize(
    "capture", ["healthy", "starved", "throttled", "graph", "nsys_healthy", "nsys_starved"]
)
def test_each_notebook_runs_on_each_capture_and_says_what_it_lacks(capture, captures, tmp_path):
    done = all_run(captures / capture, tmp_path, sorted(notebooks()))
    said = {}
    for name, cells in done.items():
        drawn = sum(PLOTLY in output.get("data", {}) for output in outputs(cells))
        calls = sum(cell.source.count("charts.draw(") for cell in cells if cell.cell_type == "code")
        said[name] = set(re.findall(r"No chart of ([\w ]+): ", text(cells)))
        assert text(cells).count("No chart of") == calls - drawn
    logged = capture in ("healthy", "starved", "throttled")
    assert all(("requests" in said[name]) != logged for name in ("root_cause", "requests", "tokenization"))
    assert ("first tokens" in said["compare"]) != logged
    assert all(
        ("demand" in said[name]) == (capture in ("graph", "nsys_healthy", "nsys_starved"))
        for name in ("root_cause", "capacity", "cpu_scheduling")
    )


def outputs(cells):
    return [output for cell in cells for output in cell.get("outputs", ())]


def text(cells):
    return "\n".join(
        str(output.get("data", {}).get("text/html", output.get("data", {}).get("text/plain", "")))
        for output in outputs(cells)
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_chart_is_followed_by_the_sentence_that_says_what_it_shows(name, on_server):
    shown = outputs(on_server[name])
    assert {output.output_type for output in shown} <= {"display_data", "execute_result"}
    drawn = [place for place, output in enumerate(shown) if PLOTLY in output.get("data", {})]
    page, _ = TraceReport().from_notebook_node(nbformat.v4.new_notebook(cells=on_server[name]))
    for place in drawn:
        sentence = shown[place].data[PLOTLY]["layout"]["meta"]["sentence"]
        caption = shown[place + 1]
        assert caption.metadata[CAPTION]
        assert caption.data["text/plain"] == sentence
        assert re.search(r"\d", sentence), sentence
        # In the page it is the figure's own, and no output beside it.
        assert html.unescape(page).count(f"<figcaption>{sentence}</figcaption>") == 1
        assert f"<i>{sentence}" not in html.unescape(page)
    assert len(drawn) == CHARTS.get(name, len(drawn)) == page.count('class="chart"')


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_recorded_is_said_in_the_place_of_its_chart(name, on_host):
    cells = on_host[name]
    drawn = sum(PLOTLY in output.get("data", {}) for output in outputs(cells))
    calls = sum(cell.source.count("charts.draw(") for cell in cells if cell.cell_type == "code")
    assert drawn == WITHOUT_GPU.get(name, 0) or name not in CHARTS
    assert text(cells).count("No chart of") == calls - drawn
    assert "100 %" not in text(cells)  # nothing recorded is no share


def test_a_run_shows_itself_and_its_names_complete(server):
    run = tracelib.load(server)
    shown = run.show()
    assert "<svg" in shown._repr_html_()
    assert shown.text.startswith("In the window of ")
    assert {"slices", "gpu_ops", "threads", "show"} <= {name for name in dir(run) if not name.startswith("_")}
    assert {"load", "analyse", "open_in_perfetto"} <= set(dir(tracelib))


def test_a_run_differs_from_itself_by_noise_alone(on_server):
    captions = [
        o.data["text/plain"] for o in outputs(on_server["compare"]) if o.get("metadata", {}).get(CAPTION)
    ]
    unchanged = r"\(within noise\)|no part moved|no kernel's share of the GPUs' time changed"
    assert captions
    assert all(re.search(unchanged, caption) and "more than noise" not in caption for caption in captions)
