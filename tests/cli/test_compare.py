"""`tracelib compare`: what changed by hand-worked figures, CI's bounds, and the commands on samples."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys

import polars as pl
import pytest
import yaml

from tests.conftest import ROOT
from tracelib.analyses.comparison import COMPARISON, changes
from tracelib.charts.comparison import waterfall_chart, what_changed
from tracelib.cli import main
from tracelib.cli.compare import _shown

MS = 1e6


def figures(*rows):
    """Return figures of (run, figure, value, half a band, unit)."""
    made = [
        (run, None, figure, value, value - half, value + half, unit)
        for run, figure, value, half, unit in rows
    ]
    return pl.DataFrame(made, schema=COMPARISON, orient="row")


BOTH = figures(
    ("old", "useful", 0.5, 0.05, "share"),
    ("old", "lost to ipc", 0.2, 0.01, "share"),
    ("old", "ttft p50", 400 * MS, 10 * MS, "ns"),
    ("old", "ttft mean", 350 * MS, 10 * MS, "ns"),
    ("old", "ttft in api_server", 200 * MS, 10 * MS, "ns"),
    ("old", "ttft in queue", 50 * MS, 10 * MS, "ns"),
    ("old", "steps", 0.0, 0.0, "1/s"),
    ("new", "useful", 0.8, 0.05, "share"),
    ("new", "lost to ipc", 0.205, 0.01, "share"),
    ("new", "ttft p50", 300 * MS, 10 * MS, "ns"),
    ("new", "ttft mean", 255 * MS, 10 * MS, "ns"),
    ("new", "ttft in api_server", 90 * MS, 10 * MS, "ns"),
    ("new", "ttft in queue", 65 * MS, 10 * MS, "ns"),
    ("new", "steps", 5.0, 1.0, "1/s"),
    ("new", "busy", 0.9, 0.1, "share"),
)


def test_changes_are_told_from_noise_by_their_bands():
    rows = changes(BOTH).select("figure", pl.col("change", "relative").round(3), "beyond_noise").rows()
    assert rows == [
        ("useful", 0.3, 0.6, True),
        ("lost to ipc", 0.005, 0.025, False),
        ("ttft p50", -100 * MS, -0.25, True),
        ("ttft mean", -95 * MS, -0.271, True),
        ("ttft in api_server", -110 * MS, -0.55, True),
        ("ttft in queue", 15 * MS, 0.3, False),
        ("steps", 5.0, None, True),
    ]


def test_the_sentence_leads_with_the_first_token_and_names_what_is_more_than_noise():
    assert what_changed(changes(BOTH)) == [
        (
            "new: time to first token p50 400 ms to 300 ms, -25 %; on average -95.0 ms: API server -110 ms. "
            "Of GPU time: useful GPU time +30.0 points."
        )
    ]


def test_parts_within_noise_are_named_as_such_until_most_is_told():
    """-60 of -100 ms, then -35 within noise: 95 %; the last -5 are not named, nor what went the other way."""
    rows = figures(
        *((run, "ttft p50", value * MS, MS, "ns") for run, value in (("a", 300), ("b", 200))),
        *((run, "ttft mean", value * MS, MS, "ns") for run, value in (("a", 300), ("b", 200))),
        *((run, "ttft in queue", value * MS, 40 * MS, "ns") for run, value in (("a", 100), ("b", 65))),
        *((run, "ttft in back", value * MS, MS, "ns") for run, value in (("a", 100), ("b", 40))),
        *((run, "ttft in broadcast", value * MS, MS, "ns") for run, value in (("a", 90), ("b", 80))),
        *((run, "ttft in gpu_useful", value * MS, MS, "ns") for run, value in (("a", 10), ("b", 15))),
    )
    assert what_changed(changes(rows)) == [
        (
            "b: time to first token p50 300 ms to 200 ms, -33 %; on average -100 ms: "
            "back to the first token -60.0 ms, queue before the engine -35.0 ms (within noise). "
            "No share of GPU time changed beyond noise."
        )
    ]


def test_the_waterfall_s_steps_lead_from_the_first_run_to_the_last():
    bars = waterfall_chart(changes(BOTH)).data[0]  # the parts' sums: 250 and 155 ms
    assert list(bars.base) == pytest.approx([0, 140, 140, 0])
    assert list(bars.x) == pytest.approx([250, 110, 15, 155])
    assert list(bars.text) == ["250 ms", "-110 ms", "+15.0 ms", "155 ms"]
    lost = waterfall_chart(changes(BOTH.filter(~pl.col("figure").str.starts_with("ttft")))).data[0]
    assert list(lost.x) == pytest.approx([20, 0.5, 20.5])
    assert waterfall_chart(changes(BOTH.filter(pl.col("figure") == "useful"))) is None


@pytest.fixture(scope="module")
def two():
    return [str(ROOT / "sample_traces" / "launch_eager"), str(ROOT / "sample_traces" / "launch_graph")]


@pytest.fixture(scope="module")
def kept(two, tmp_path_factory):
    """Compare the samples once; return status, output, and a baseline of each."""
    folder = tmp_path_factory.mktemp("kept")
    old, new = folder / "launch_eager.json", folder / "launch_graph.json"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        bound = ["--fail-on", "lost_to_kernel_launch<-10%"]
        status = main(["compare", *two, "--json", *bound, "--save", str(new)])
    told = json.loads(out.getvalue())
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["compare", str(new), two[0], "--label", "any", "--save", str(old), "--json"]) == 0
    return status, told, err.getvalue(), json.loads(out.getvalue()), old, new


def test_two_samples_as_json_and_a_bound_that_is_crossed(kept):
    status, told, err, *_ = kept
    assert status == 1
    assert {row["run"] for row in told["figures"]} == {"launch_eager", "launch_graph"}
    graph = {row["name"]: row for row in told["kernels"]}
    assert any(row["seen"] == "gone" for row in graph.values())
    launch = next(row for row in told["changes"] if row["figure"] == "lost to kernel_launch")
    assert launch["relative"] < -0.1
    assert told["crossed"] == [
        (
            f"launch_graph: lost_to_kernel_launch changed by {launch['relative']:+.0%}, "
            "and lost_to_kernel_launch<-10% is not allowed"
        )
    ]
    assert told["crossed"][0] in err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--fail-on", "useful"], "--fail-on='useful' is not allowed"),
        (["--requests", "one.jsonl"], "2, one for each run"),
        (["--label", "a", "--label", "b", "--label", "c"], "at most 2"),
    ],
)
def test_what_cannot_be_asked_says_what_can(two, capsys, more, why):
    assert main(["compare", *two, *more]) == 2
    assert why in capsys.readouterr().err


def test_a_figure_that_a_run_cannot_tell_is_an_error(kept, capsys):
    *_, old, new = kept
    assert main(["compare", str(old), str(new), "--fail-on", "ttft_p50>+10%"]) == 2
    assert "ttft_p50" in capsys.readouterr().err


def test_one_run_is_nothing_to_compare(two, capsys):
    assert main(["compare", two[0]]) == 2
    assert "two runs or more" in capsys.readouterr().err


def test_a_page_s_parameters_do_not_tell_whose_runs_they_are():
    paths = [f"/home/{user}/traces" for user in ("giulia", "tamara")]
    given = {
        "runs": {"giulia-1": paths[0], "tamara-1": paths[1]},
        "requests": {"giulia-1": "/home/giulia/log"},
    }
    assert _shown(given, lambda path: path.replace("/home", "..")) == {
        "runs": {"1: [user]-1": "../giulia/traces", "2: [user]-1": "../tamara/traces"},
        "requests": {"1: [user]-1": "../giulia/log"},
    }


@pytest.mark.slow
def test_a_page_of_both(two, tmp_path, capsys):
    """Of a run below somebody's home, which the page does not tell."""
    run = tmp_path / "home" / "giulia" / "launch_eager"
    shutil.copytree(two[0], run)
    more = ["--label", "eager of giulia", "-o", str(tmp_path / "page")]
    assert main(["compare", str(run), two[1], *more]) == 0
    for name in ("compare.html", "compare.ipynb"):
        text = (tmp_path / "page" / name).read_text()
        assert "eager of" in text
        assert not [each for each in ("giulia", str(tmp_path)) if each in text]
    page = (tmp_path / "page" / "compare.html").read_text()
    assert "What changed" in page
    assert "launch_graph:" in page
    assert "compare.html" in capsys.readouterr().out


# -------------------- a baseline, and the gate in CI
def test_a_baseline_stands_for_its_traces(kept, capsys):
    _, told, _, reverse, old, new = kept
    labels = {"any": "launch_graph", "launch_eager": "launch_eager"}
    by_run = {(row["run"], row["figure"]): row for row in told["figures"]}
    assert by_run == {
        (labels[row["run"]], row["figure"]): row | {"run": labels[row["run"]]} for row in reverse["figures"]
    }
    assert reverse["figures"][0]["run"] == "any"  # in the order in which they were given
    names = ["--label", "launch_eager", "--label", "launch_graph"]
    assert main(["compare", str(old), str(new), *names, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == told["changes"]
    assert new.stat().st_size < 4_000
    assert "launch_" not in new.read_text().replace("kernel_launch", "")  # no name but of figures


def test_what_is_wrong_with_a_baseline_is_one_line(two, kept, tmp_path, capsys):
    baseline = kept[-1]
    cut = tmp_path / "cut.json"
    cut.write_text(baseline.read_text()[:300])
    assert main(["compare", str(cut), two[1]]) == 2
    assert "not readable as baseline" in capsys.readouterr().err
    assert main(["compare", str(baseline), two[1], "-o", str(tmp_path / "page")]) == 2
    assert "has none to draw" in capsys.readouterr().err


def test_a_baseline_that_is_nested_too_deep_is_one_line(tmp_path, capsys):
    deep = tmp_path / "deep.json"
    deep.write_text('{"schema": "tracelib.baseline/1", "figures": ' + "[" * 100_000)
    assert main(["compare", str(deep), str(deep)]) == 2
    assert "not readable as baseline" in capsys.readouterr().err


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def in_ci(folder, **inputs):
    """Run the action's steps as GitHub does; return status, output, and the job's summary.

    In place of an installation it gets the tracelib of these tests.
    """
    python = folder / "python"
    python.write_text(
        '#!/bin/bash\nmkdir -p "$3/bin"\n'
        f'printf "#!/bin/bash\\necho \\"pip \\$*\\"\\n" > "$3/bin/pip"\n'
        f'printf "#!/bin/bash\\nexec {sys.executable} -m tracelib \\"\\$@\\"\\n" > "$3/bin/tracelib"\n'
        'chmod +x "$3/bin/"*\n'
    )
    python.chmod(0o755)
    values = {name: about.get("default", "") for name, about in ACTION["inputs"].items()}
    values |= {"python": str(python)} | {name.replace("_", "-"): text for name, text in inputs.items()}
    known = {f"inputs.{name}": text for name, text in values.items()} | {"github.action_path": str(ROOT)}
    summary, said, status = folder / "summary.md", "", 0
    runner = {"RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(ROOT)}
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]  # an input is never part of the script
        given = {
            name: re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known[found[1]], text)
            for name, text in step["env"].items()
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, env=os.environ | runner | given, capture_output=True, text=True, check=False, cwd=folder
        )
        said, status = said + done.stdout + done.stderr, done.returncode
        if status:
            break
    return status, said, summary.read_text() if summary.exists() else ""


def test_the_action_fails_where_a_bound_is_crossed(kept, tmp_path):
    *_, old, new = kept
    status, said, summary = in_ci(
        tmp_path, base=str(old), new=str(new), fail_on="busy<-99%\nlost_to_kernel_launch<-10%\n"
    )
    assert status == 1
    assert f"pip install -q {ROOT}" in said
    assert summary.startswith("### tracelib compare: a bound was crossed\n")
    assert "lost_to_kernel_launch<-10% is not allowed" in summary
    assert "busy<-99%" not in summary
    assert "useful" in summary  # the table
    assert summary.count("`" * 40 + "\n") == 4


def test_the_action_passes_else_and_tells_what_is_wrong(kept, tmp_path):
    baseline = kept[-1]
    status, said, summary = in_ci(tmp_path, base=str(baseline), new=str(baseline), fail_on="useful<-1%")
    assert (status, summary.split("\n")[0]) == (0, "### tracelib compare: within the bounds")
    status, said, summary = in_ci(tmp_path, base=str(baseline), new="--json; touch x", fail_on="")
    assert status == 2
    assert "no such file" in said.lower()
    assert "### tracelib compare: failed" in summary
    assert not (tmp_path / "x").exists()


def test_the_action_is_as_github_wants_it():
    assert set(ACTION) == {"name", "description", "inputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    for about in ACTION["inputs"].values():
        assert set(about) <= {"description", "required", "default"}
    read = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert read == set(ACTION["inputs"])
