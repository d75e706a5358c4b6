"""Tokens by the names of steps: as vLLM, its later forms and SGLang write them, and against what a server's own log says."""

import json
import re

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tracelib.analyses.requests import step_tokens
from tracelib.analyses.window import Window
from tracelib.rules import load_rules
from tracelib.schema import SLICES, THREADS
from tracelib.trace import Trace

WORKER, OTHER = 0, 1


def of(*ranges, window=(0, 1000)):
    """Return (begin, prefill, decode) of the steps among ranges of (thread, begin, length, name)."""
    rows = [
        {"source": 0, "thread": thread, "ts_ns": at, "dur_ns": length, "name": name, "category": "annotation"}
        for thread, at, length, name in ranges
    ]
    slices = pl.DataFrame(rows, schema_overrides=SLICES).match_to_schema(SLICES, missing_columns="insert")
    threads = pl.DataFrame([{"thread": t, "rank": t} for t in (WORKER, OTHER)], schema_overrides=THREADS)
    trace = Trace.of(
        {"slices": slices, "threads": threads.match_to_schema(THREADS, missing_columns="insert")}
    )
    steps = step_tokens(trace, Window(*window, "by hand"), load_rules())
    return list(steps.select("ts_ns", "prefill", "decode").iter_rows())


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("execute_context_2(4096)_generation_10(10)", 4096, 10),
        ("execute_context_1(888_788544)_generation_0(0)", 888, 0),
        # its head is the sum: 8155 + 37 = 8192
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            8155,
            37,
        ),
        ("step[EXTEND bs=2 toks=107]", 107, 0),
        ("step[DECODE bs=32]", 0, 32),
        ("step[MIXED bs=2]", None, None),
    ],
)
def test_each_recorder_s_own_words(name, prefill, decode):
    assert of((WORKER, 10, 5, name)) == [(10, prefill, decode)]


def test_a_step_counts_once_and_where_most_of_it_lies():
    inner = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk9sqsq32sqsk9)"
    assert of(
        (WORKER, 0, 100, "step[DECODE bs=4]"),
        (WORKER, 10, 90, inner),
        (WORKER, 60, 40, inner),
        (WORKER, 100, 50, "step[DECODE bs=5]"),
        (OTHER, 10, 20, "step[DECODE bs=4]"),
        (WORKER, 200, 50, "forward"),
        (WORKER, 300, 20, "step[DECODE bs=6]"),
        window=(50, 305),
    ) == [(0, 0, 4), (100, 0, 5)]


@pytest.mark.parametrize("cpus", [2, 8])
def test_a_sweep_s_answers_are_as_long_as_they_were_asked_to_be(cpus):
    """23 requests of 6 tokens each: 23 prompts and 23 * 5 decoded tokens, by the workload's options and its own log."""
    folder = ROOT / "sample_traces" / "sweep" / f"cpus_{cpus}"
    truth = json.loads((folder / "truth.json").read_text())
    length = int(re.search(r"output_tokens = (\d+)", (folder / "PROVENANCE.md").read_text())[1])
    steps = tracelib.analyse(tracelib.load(folder)).step_tokens
    assert steps.height == truth["steps"]
    assert steps["decode"].sum() == truth["requests"] * (length - 1)
    assert (steps["prefill"] > 0).sum() == truth["requests"]


@pytest.mark.corpus
def test_two_recorders_around_one_step(corpus):
    """TraceLens's SGLang sample names its one step twice: 32 tokens, not 64."""
    file = (
        corpus
        / "kineto"
        / "AMD-AGI__TraceLens__tests__traces__inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz"
    )
    steps = tracelib.analyse(tracelib.load(file)).step_tokens
    assert list(steps.select("prefill", "decode").iter_rows()) == [(0, 32)]
