"""Other people's files: each loads with the counts that simple code found in it, or is refused."""

import json

import polars as pl
import pytest

from tracelib.errors import BadTrace, UnknownFormat
from tracelib.sources.discovery import recognised
from tracelib.sources.nsys import read

pytestmark = pytest.mark.corpus

NEITHER = "neither an export nor a report"
LOADED = (
    "0x822a5b87__test-cuda__report1.sqlite",
    "D-W-Chiang__JACC.jl__4e6_async_1_trace.sqlite",
    "D-W-Chiang__JACC.jl__report1.sqlite",
    "GindaChen__nsys-ai__tests__fixtures__mfu_2gpu_after.sqlite",
    "NVIDIA__Fuser__report1.sqlite",
    "NVIDIA__Fuser__report2.sqlite",
    "YoonKyonghwan__EfficientCenterFormer__poolformer.sqlite",
    "bwyogatama__Mordred-Deprecated__report1.sqlite",
    "cestwc__balinski-and-gomory-cuda__report1.sqlite",
    "cestwc__balinski-and-gomory-cuda__report16.sqlite",
    "cestwc__balinski-and-gomory-cuda__report6.sqlite",
    "handmade/GindaChen__nsys-ai__tests__fixtures__healthy_judged_1pct.sqlite",
    "lighttransport__gemm__profile.sqlite",
)
#: What `read` says of each other file.
REFUSED = {
    "NVIDIA__JAX-Toolbox__cuda-examples__nsys_report_cuda_graph_pdl_stream_capture.nsys-rep": "nsys export",
    "NVIDIA__JAX-Toolbox__cuda-examples__pdl_2p2c.nsys-rep": "nsys export",
    "amir-ghz__DynamicViT__nsys_profile.qdrep": "nsys export",
    "bwyogatama__Mordred-Deprecated__report1.qdrep": "nsys export",
    "CodeGandee__llm-perf-opt__reports__20251107-dsocr__"
    "nsys__all-stage__nsys__summary_cuda_gpu_kern_sum.csv": "nsys stats",
    "NVIDIA__JAX-Toolbox__.github__workflows__"
    "nsys-jax__maxtext_fsdp4_test_data__nvtx_gpu_proj_trace__trace.parquet": "recipes",
    "KOKOSde__nsys-llm-explainer__examples__a100_vllm__tables__nvtx_ranges.csv": NEITHER,
    "hpcgroup__pipit__pipit__tests__data__cloverleaf-nsys__cloverleaf-cuda_api_trace.csv": NEITHER,
    "handmade/rebuilt__truncated_100000.sqlite": "malformed",
    "not_nsys/hpcgroup__pipit__docs__examples__test.sqlite": "it holds 1 table, none of Nsight",
    "not_nsys/ingero-io__ingero__investigations__sample-gpu-node-01.db": "it holds 13 tables, none of Nsight",
}
#: Files that no reader takes for a trace.
UNKNOWN = [
    name
    for name in REFUSED
    if "trace.parquet" in name or "nvtx_ranges" in name or "cloverleaf" in name or "pipit__docs" in name
]


@pytest.fixture(scope="module")
def truth(corpus):
    counted = json.loads((corpus / "TRUTH.json").read_text())
    return {name.removeprefix("nsys/"): facts for name, facts in counted.items() if name.startswith("nsys/")}


def test_every_file_is_named_here(truth):
    assert set(truth) == {*LOADED, *REFUSED}


@pytest.mark.parametrize("name", LOADED)
def test_counts_and_sums_equal_the_truth(corpus, truth, name, became):
    path, rows, ranges = corpus / "nsys" / name, truth[name]["rows"], truth[name].get("ranges", {})
    assert recognised(path).format.name == "nsys"
    trace = read(path)

    def told(*tables):
        return sum(rows.get(table, 0) for table in tables), sum(
            ranges.get(table, {}).get("sum_ns", 0) for table in tables
        )

    for kind, table in (("kernel", "KERNEL"), ("memcpy", "MEMCPY"), ("memset", "MEMSET")):
        operations = trace.gpu_ops.filter(pl.col("kind") == kind)
        assert (operations.height, operations["dur_ns"].sum()) == told(f"CUPTI_ACTIVITY_KIND_{table}")
    calls = trace.slices.filter(pl.col("category").is_in(["runtime", "driver"]))
    assert (calls.height, calls["dur_ns"].sum()) == told("CUPTI_ACTIVITY_KIND_RUNTIME")
    libc = trace.slices.filter(pl.col("category") == "os")
    assert (libc.height, libc["dur_ns"].sum()) == told("OSRT_API")
    count = trace.slices["category"].cast(pl.String).value_counts()
    count = dict(count.iter_rows())
    nvtx = truth[name].get("nvtx_by_eventType", {})
    assert count.get("annotation", 0) == sum(nvtx.get(kind, 0) for kind in ("34", "59", "60"))
    assert count.get("overhead", 0) == told("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")[0]
    assert trace.sched.height == rows.get("SCHED_EVENTS", 0)
    assert trace.samples.height == rows.get("COMPOSITE_EVENTS", 0)
    depth = trace.stacks.group_by("stack").len("frames")
    assert trace.samples.join(depth, on="stack")["frames"].sum() == rows.get("SAMPLING_CALLCHAINS", 0)
    assert trace.gpus["name"].drop_nulls().to_list() == truth[name].get("gpus", [])
    assert trace.sources["lost_detected"].item() == 0 == trace.sources["skipped_bytes"].item()
    became("nsys", "equal to the truth")


@pytest.mark.parametrize("name", LOADED)
def test_kernels_find_the_call_that_launched_them(corpus, truth, name):
    """The truth joins by correlation alone: with two processes, two kernels find the other's call."""
    trace = read(corpus / "nsys" / name)
    kernels = trace.gpu_ops.filter(pl.col("kind") == "kernel")
    calls = trace.slices.filter(pl.col("category").is_in(["runtime", "driver"])).join(
        trace.threads, on="thread"
    )
    found = kernels.join(calls, on="correlation", how="semi")
    assert found.height == truth[name].get("kernels_with_runtime_correlation", 0)
    of_same_process = kernels.join(calls, on=["pid", "correlation"], how="semi")
    assert of_same_process.height == found.height - (2 if "mfu_2gpu" in name else 0)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_refusals_say_why(corpus, monkeypatch, name, reason, became):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadTrace, match=reason):
        read(corpus / "nsys" / name)
    became("nsys", "not taken for a trace" if name in UNKNOWN else "refused as expected")


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_trace_is_not_taken_for_one(corpus, name):
    with pytest.raises(UnknownFormat):
        recognised(corpus / "nsys" / name)


def test_recorder_and_clock(corpus):
    source = read(corpus / "nsys" / "NVIDIA__Fuser__report1.sqlite").sources.row(0, named=True)
    assert source["recorder"] == "nsys 2025.1.1"
    assert (source["clock"], source["wall_offset_ns"], source["cpus"]) == ("session", 1741793819042497997, 48)


def test_sampling_event_and_period_come_from_the_diagnostics(corpus):
    samples = read(corpus / "nsys" / "cestwc__balinski-and-gomory-cuda__report6.sqlite").samples
    assert samples.select("event", "period").unique().rows() == [("cycles", 2183584)]
