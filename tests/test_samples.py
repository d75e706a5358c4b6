"""Every sample gives the verdict that its run was made for, and the counts that its workload logged."""

import json
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tracelib.analyses.results import analyse
from tracelib.analyses.whatif import what_if
from tracelib.findings import diagnose

SAMPLES = Path(__file__).parent.parent / "sample_traces"
FOLDERS = sorted(path.parent.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("truth.json"))
#: Sample -> the finding that must stand first, and a word of its claim.
FIRST = {
    "compile": ("run_time_compilation", "compiled at run time"),
    "gpu_bound": ("gpu_bound", "they are the limit, not the host"),
    "idle": ("no_load", "there was no work"),
    "ipc": ("cpu_shortage", "ready to run and had no CPU"),  # eight readers on four CPUs: cheaper to mend
    "launch_eager": ("low_graph_coverage", "came from CUDA graphs"),
    "launch_graph": ("launch_bound", "waited for the next launch"),
    "throttled": ("quota_throttling", "had stopped the thread"),
    "tokenization": ("tokenization_exposed", "waited for tokenization"),
}


@pytest.fixture(scope="module", params=FOLDERS)
def sample(request):
    folder = SAMPLES / request.param
    results = analyse(tracelib.load(folder))
    truth = json.loads((folder / "truth.json").read_text()) | {"sample": request.param}
    return truth, results, diagnose(results)


def test_the_set_is_whole_and_small():
    assert len(FOLDERS) == 18
    assert FIRST.keys() <= set(FOLDERS)
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 25_000_000


def test_the_verdict_is_the_one_that_the_run_was_made_for(sample):
    truth, _, found = sample
    assert found.verdict.state == truth["verdict"]


def test_the_defect_stands_first(sample):
    truth, _, document = sample
    if truth["sample"] not in FIRST:
        pytest.skip("several defects, or none")
    first, word = FIRST[truth["sample"]]
    found = document.findings[0]
    assert found.id == first
    assert word in found.claim
    if truth.get("leading_cause"):
        assert max(document.findings, key=lambda f: f.gain_ns or 0).cause == truth["leading_cause"]


@pytest.mark.parametrize("closed_loop", [False, True])
def test_the_unchanged_run_comes_out_of_a_replay_as_it_was(sample, closed_loop):
    _, results, _ = sample
    row = what_if(results, {}, closed_loop=closed_loop).row(0, named=True)
    assert row["window_ns"] == pytest.approx(results.window.duration_ns, rel=0.05)


def test_the_cause_that_the_run_was_made_for_leads(sample):
    truth, _, found = sample
    if not truth.get("leading_cause"):
        pytest.skip("this run was made for a verdict, not for one cause")
    causes: dict[str, int] = {}
    for device in found.devices:
        for row in device.causes:
            causes[row.cause] = causes.get(row.cause, 0) + row.ns
    host = {
        cause: ns
        for cause, ns in causes.items()
        if cause not in ("no_work", "profiler", "unattributed", "imbalance")
    }
    assert max(host, key=host.__getitem__) == truth["leading_cause"]


def test_the_workload_s_own_counts_are_found(sample):
    truth, results, _ = sample
    trace = results.recorded
    slices = trace.slices.with_columns(pl.col("name").cast(pl.String))
    if "ttft_ms" not in truth or "cut_ms" in truth or not slices.filter(pl.col("name") == "tokenize").height:
        pytest.skip("recorded by another workload, or cut to a part of the load")
    assert slices.filter(pl.col("name") == "shm_broadcast.enqueue").height == truth["steps"]
    tokenize = slices.filter(pl.col("name") == "tokenize")
    assert tokenize.height == truth["requests"]
    if (
        truth["tokenize_ms"] > truth["requests"]
    ):  # cached prompts take microseconds, less than an annotation costs
        inside = (
            tokenize["dur_ns"].sum() / 1e6
        )  # the log's clock is read around the annotation, so never less
        assert 0.7 * truth["tokenize_ms"] < inside < truth["tokenize_ms"]
