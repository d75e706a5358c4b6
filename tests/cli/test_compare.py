"""`tracelib compare`: what changed by hand-worked figures, CI's bounds, and the command on two samples."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.conftest import ROOT
from tracelib.analyses.comparison import COMPARISON, changes
from tracelib.charts.comparison import what_changed
from tracelib.cli import main

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
    ("old", "ttft in api_server", 200 * MS, 10 * MS, "ns"),
    ("old", "ttft in queue", 50 * MS, 10 * MS, "ns"),
    ("old", "steps", 0.0, 0.0, "1/s"),
    ("new", "useful", 0.8, 0.05, "share"),
    ("new", "lost to ipc", 0.205, 0.01, "share"),
    ("new", "ttft p50", 300 * MS, 10 * MS, "ns"),
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
        ("ttft in api_server", -110 * MS, -0.55, True),
        ("ttft in queue", 15 * MS, 0.3, False),
        ("steps", 5.0, None, True),
    ]


def test_the_sentence_leads_with_the_first_token_and_names_what_is_more_than_noise():
    assert what_changed(changes(BOTH)) == [
        (
            "new: time to first token p50 400 ms to 300 ms, -25 % (on average API server -110 ms). "
            "Of GPU time: useful GPU time +30.0 points."
        )
    ]


@pytest.fixture(scope="module")
def two():
    return [str(ROOT / "sample_traces" / "launch_eager"), str(ROOT / "sample_traces" / "launch_graph")]


def test_two_samples_as_json_and_a_bound_that_is_crossed(two, capsys):
    status = main(["compare", *two, "--json", "--fail-on", "lost_to_kernel_launch<-10%"])
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert status == 1
    assert {row["run"] for row in told["figures"]} == {"launch_eager", "launch_graph"}
    launch = next(row for row in told["changes"] if row["figure"] == "lost to kernel_launch")
    assert launch["relative"] < -0.1
    assert told["crossed"] == [
        (
            f"launch_graph: lost_to_kernel_launch changed by {launch['relative']:+.0%}, "
            "and lost_to_kernel_launch<-10% is not allowed"
        )
    ]
    assert told["crossed"][0] in said.err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--fail-on", "useful"], "--fail-on='useful' is not allowed"),
        (["--requests", "one.jsonl"], "2, one for each run"),
        (["--label", "a", "--label", "b", "--label", "c"], "at most 2"),
        (["--fail-on", "ttft_p50>+10%"], "ttft_p50"),
    ],
)
def test_what_cannot_be_asked_says_what_can(two, capsys, more, why):
    assert main(["compare", *two, *more]) == 2
    assert why in capsys.readouterr().err


def test_one_run_is_nothing_to_compare(two, capsys):
    assert main(["compare", two[0]]) == 2
    assert "two runs or more" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_of_both(two, tmp_path, capsys):
    assert main(["compare", *two, "--label", "eager", "-o", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "compare.html").read_text()
    assert "What changed" in page
    assert "launch_graph:" in page
    assert "compare.html" in capsys.readouterr().out
