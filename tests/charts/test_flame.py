"""A frame's width is its share of the samples, its colour the cause by the rules of the run."""

from dataclasses import replace

import polars as pl
import pytest

from tracelib import charts, words
from tracelib.charts.flame import flame_tree
from tracelib.schema import STACKS
from tracelib.slice_rules import load_rules


def test_flame_widths_are_sample_counts(sampled):
    figure = charts.flame_chart(sampled, "worker")
    frames = sorted(
        (y, round(x, 6), round(b, 6)) for t in figure.data for y, x, b in zip(t.y, t.x, t.base, strict=True)
    )
    assert frames == [
        (0, 100, 0),
        (1, pytest.approx(200 / 6, abs=1e-5), pytest.approx(400 / 6, abs=1e-5)),
        (1, pytest.approx(400 / 6, abs=1e-5), 0),
    ]
    assert figure.layout.meta["table"][2] == ["[libcuda.so.1]", "/lib/libcuda.so.1", "2", "33 %"]
    assert charts.flame_chart(sampled, "engine") is None


def test_flame_colours_by_the_rules_of_the_run(sampled, tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text('[[stack]]\nlibrary = "."\ntier = "named"\ncause = "gc"\n')
    figure = charts.flame_chart(replace(sampled, rules=load_rules(own)), "worker")
    assert [bars.name for bars in figure.data] == [words.cause_name("gc")]


def test_flame_is_pruned_to_a_tree(sampled):
    n = 900
    stacks = pl.DataFrame(
        [(i, d, "root" if d else f"leaf{i}", None) for i in range(n) for d in (0, 1)],
        schema=STACKS,
        orient="row",
    )
    weights = pl.DataFrame(
        {"stack": range(n), "n": [1] * n, "cause": [None] * n},
        schema={"stack": pl.Int32, "n": pl.Int64, "cause": pl.String},
    )
    tree = flame_tree(stacks, weights, 400)
    assert len(tree) == 400
    assert tree["symbol"][0] == "root"
    assert tree.filter(pl.col("level") == 0)["n"].to_list() == [n]
    assert set(tree["parent"]) <= {-1, *tree["node"]}


def test_samples_without_call_chains_are_counted(sampled):
    bare = sampled.trace.samples.with_columns(stack=pl.lit(None, pl.Int32))
    figure = charts.flame_chart(replace(sampled, trace=sampled.trace.replace(samples=bare)), "worker")
    assert figure.layout.meta["table"][1:] == [["[no call chain]", "", "6", "100 %"]]


def test_the_blamed_role_is_that_of_the_threads_to_which_most_time_was_lost(sampled):
    """700 ms were lost to the API server's thread, 600 to the workers'; samples saw the workers more."""
    assert charts.blamed_role(sampled) == "api_server"
    assert charts.blamed_role(replace(sampled, lost=sampled.lost.clear())) == "worker"
