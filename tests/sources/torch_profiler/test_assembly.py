"""Hand-worked rows: several ranks in one file, what Kineto draws where it does not belong, names, bases."""

import json

import polars as pl
import pytest

from tracelib.align import align
from tracelib.analyses.results import analyse
from tracelib.findings.verdict import verdict
from tracelib.sources.discovery import recognised
from tracelib.sources.torch_profiler import reader
from tracelib.sources.torch_profiler.document import Document, rank_of
from tracelib.trace import Trace

BASE = 1_700_000_000_000_000_000


def interval(name, ts, dur, pid=1, tid=1, cat=None, **args):
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        **({"cat": cat} if cat else {}),
        "args": args,
    }


def launched(pid, device_pid, correlation, ts=5):
    return [
        interval("cudaLaunchKernel", ts, 1, pid, 1, "cuda_runtime", correlation=correlation),
        interval(
            f"k{correlation}",
            ts + 4,
            10,
            device_pid,
            7,
            "kernel",
            device=0,
            stream=7,
            correlation=correlation,
        ),
    ]


@pytest.fixture
def trace_of(tmp_path):
    def load(events, name="trace.json", **fields):
        path = tmp_path / name
        path.write_text(json.dumps({"baseTimeNanoseconds": BASE, **fields, "traceEvents": events}))
        return recognised(path).read().check()

    load.folder = tmp_path
    return load


def said(trace):
    return " | ".join(trace.health["message"])


def gpu_of(trace):
    return dict(trace.gpu_ops.select(pl.col("name").cast(pl.String), "gpu").rows())


def test_a_second_list_of_events_is_said_and_is_no_loss(trace_of):
    others = {"type": "fuchsia", "events": [{"ph": "t", "pid": 1}, {"ph": "p", "pid": 1}]}
    trace = trace_of([interval("op", 1, 2)])
    text = json.dumps({"traceEvents": [interval("op", 1, 2)], "systemTraceEvents": others, "bytes": 5})
    path = trace_of.folder / "second.json"
    path.write_text(text)
    trace = recognised(path).read()
    assert "systemTraceEvents.events is a second list, of 2 events, which is not read" in said(trace)
    assert trace.sources.select("skipped_bytes", "lost_detected").row(0) == (0, 0)
    assert trace.health.filter(pl.col("level") == "error").is_empty()


@pytest.mark.parametrize(
    ("process", "category"),
    [
        ("/device:GPU:0", None),
        ("/job:localhost/replica:0/task:0/device:GPU:0/stream:all Compute", None),
        ("Ascend Hardware", None),
        ("other", "async_npu"),
    ],
)
def test_device_work_in_a_form_that_is_not_read_is_said_as_such(trace_of, process, category):
    named = {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "args": {"name": process}}
    run = align([trace_of([named, *(interval("k", at, 5, 3, 1, category) for at in range(0, 90, 10))])])
    assert "the work of a device is here in a form that is not read" in said(run)
    results = analyse(run)
    assert "the device's work was recorded in a form that is not read" in verdict(results).sentence
    assert "form that is not read" not in said(trace_of(launched(100, 0, 5)))


def xla_line(pid, tid, process, thread):
    """Return a line's names as XLA's profiler writes them (JAX)."""
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}},
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}},
    ]


XLA = [
    *xla_line(1, 13, "/device:GPU:0", "Stream #13(MemcpyD2D,Compute)"),
    *xla_line(1, 20, "/device:GPU:0", "Stream #20(MemcpyH2D)"),
    *xla_line(1, 2001, "/device:GPU:0", "XLA Ops"),
    *xla_line(2, 13, "/device:GPU:1", "Stream #13(Compute)"),
    *xla_line(701, 5, "/host:CPU", "python"),
    interval("loop_add_fusion", 10, 5, 1, 13, hlo_op="add.1", hlo_module="jit_step", correlation_id="7"),
    interval("MemcpyD2D", 15, 2, 1, 13, memcpy_details="kind_src:device kind_dst:device size:4"),
    interval("MemcpyH2D", 16, 3, 1, 20),
    interval("MemoryAlloc", 17, 0, 1, 20),
    interval("Memset", 18, 1, 2, 13),
    interval("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 20, 4, 2, 13),
    interval("add.1", 10, 5, 1, 2001),
    interval("PjitFunction(step)", 1, 8, 701, 5),
]


@pytest.mark.parametrize("way", ["in memory", "through the disk"])
def test_jax_streams_are_work_of_their_gpus_and_what_is_derived_from_them_lies_on_no_thread(
    trace_of, way, monkeypatch
):
    trace = trace_of(XLA)
    if way == "through the disk":
        reader.stream(trace_of.folder / "trace.json", trace_of.folder)
        trace = Trace.from_parquet(trace_of.folder).check()
    ops = trace.gpu_ops.sort("ts_ns").select(
        pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String), "gpu", "stream", "dur_ns"
    )
    assert ops.rows() == [
        ("loop_add_fusion", "kernel", 0, 13, 5000),
        ("MemcpyD2D", "memcpy", 0, 13, 2000),
        ("MemcpyH2D", "memcpy", 0, 20, 3000),
        ("Memset", "memset", 1, 13, 1000),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "kernel", 1, 13, 4000),
    ]
    assert trace.gpus["device"].to_list() == [0, 1]
    assert trace.threads.select("pid", "name").rows() == [(701, "python")]
    assert sorted(trace.slices.filter(pl.col("thread").is_null())["name"].cast(str)) == [
        "MemoryAlloc",
        "add.1",
    ]
    assert "read as GPU work" in said(trace)
    assert "form that is not read" not in said(trace)


def test_ids_moved_per_rank_keep_gpus_of_one_number_apart(trace_of):
    """As TraceLens' TraceFuse writes it: process and correlation ids are moved, `args.device` is not."""
    far = 800_000_000
    trace = trace_of(
        [
            *launched(100, 0, 5),
            *launched(100 + far, far, 5 + far),
            interval("Buffer Flush", 2, 1, far - 1, 0, "overhead"),
        ],
        distributedInfo={"rank": 0},
    )
    assert gpu_of(trace) == {"k5": 0, f"k{5 + far}": 1}
    assert trace.gpus.select("device", "rank").rows() == [(0, None), (0, None)]
    assert trace.sources["rank"].to_list() == [None]
    assert trace.threads["pid"].to_list() == [100, 100 + far]
    assert "several traces were merged into this file" in said(trace)
    assert "leave this file out" in said(trace)


def test_prefixes_tell_ranks_and_are_no_part_of_what_the_recorder_writes(trace_of):
    """As SGLang merges its ranks; the second rank stands first in the file."""
    events = [
        *launched("[TP01] 101", "[TP01] 0", 6),
        *launched("[TP00] 100", "[TP00] 0", 5),
        interval("PyTorch Profiler (0)", 1, 90, "[TP00] Spans", "PyTorch Profiler", "Trace"),
        {
            "ph": "i",
            "name": "Iteration Start: PyTorch Profiler",
            "s": "g",
            "pid": "[TP00] Traces",
            "tid": "Trace",
            "ts": 1,
        },
        {"ph": "i", "name": "Record Window End", "s": "g", "pid": "[TP01] ", "tid": "", "ts": 500},
        interval("Buffer Flush", 11, 3, "[TP00] -1", 0, "overhead"),
    ]
    trace = trace_of(events, distributedInfo={"rank": 0})
    assert gpu_of(trace) == {"k5": 0, "k6": 1}
    assert trace.gpus.select("device", "rank").rows() == [(0, 0), (0, 1)]
    assert trace.threads["process"].sort().to_list() == ["[TP00] 100", "[TP01] 101"]
    assert trace.slices["name"].cast(pl.String).sort().to_list() == [
        "Buffer Flush",
        *["cudaLaunchKernel"] * 2,
    ]
    assert trace.slices["thread"].null_count() == 1
    assert trace.sources["last_ns"][0] == BASE + 19_000
    assert f"recorded from {BASE + 1_000} to {BASE + 91_000} ns" in said(trace)


def test_gpus_of_one_number_stay_apart_beside_other_files(trace_of):
    """Without ranks, too: those of one source are different ones."""
    one = trace_of([*launched(100, 0, 5), *launched(800, 700, 6)])
    other = trace_of(launched(100, 0, 9), name="other.json")
    assert align([one, other]).gpus["device"].to_list() == [0, 0, 0]


def test_equal_process_ids_of_two_ranks_are_told_by_ids_of_calls_that_repeat(trace_of):
    assert "of another call of their process" not in said(
        trace_of([*launched(45, 0, 5), *launched(45, 0, 6)])
    )
    trace = trace_of([*launched(45, 0, 5), *launched(45, 0, 5, ts=105)])
    assert "1 runtime calls have the correlation id of another call of their process" in said(trace)


@pytest.mark.parametrize("category", ["cuda_event", "cuda_profiler_range", "mtia_insight"])
def test_what_is_drawn_on_a_device_lies_on_no_host_thread(trace_of, category):
    trace = trace_of(
        [interval("op", 1, 5, 100, 101, "cpu_op"), interval("cudaEvent", 11, 0.001, 0, 7, category)]
    )
    assert trace.threads.select("pid", "tid").rows() == [(100, 101)]
    assert trace.slices.select("name", "thread", "dur_ns").rows() == [("cudaEvent", None, 1), ("op", 0, 5000)]


def test_a_wait_lies_on_the_thread_that_called_though_its_process_has_the_number_of_a_device(trace_of):
    """Python is process 1 in a container, waits for stream 7 of GPU 1; the second wait's call is missing."""
    call = interval("cudaStreamSynchronize", 10, 5, 1, 1, "cuda_runtime", correlation=9)
    waits = [interval("Stream Sync", 11 + n, 3, 1, 7, "cuda_sync", correlation=9 - n) for n in range(2)]
    trace = trace_of([call, *waits])
    assert trace.threads.select("pid", "tid").rows() == [(1, 1)]
    rows = trace.slices.filter(pl.col("category") == "sync").select("ts_ns", "thread").sort("ts_ns").rows()
    assert rows == [(BASE + 11_000, 0), (BASE + 12_000, None)]
    assert "1 waits lie on no host thread" in said(trace)


RANKS = {
    "worker_TP1.pt.trace.json.gz": 1,
    "1757.5-TP-3.trace.json.gz": 3,
    "1757-TP-3-DP-0-EP-1.trace.json.gz": 3,
    "x-TP-2-DECODE.trace.json": 2,
    "dp0_pp1_tp2_dcp0_ep0_rank5.1733.pt.trace.json": 5,
    "rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 0,
    "rank_007.json": 7,
    "traceRank4.json": 4,
    "worker0.1623212756351.pt.trace.json.gz": 0,
    "worker3_step_12.1694128201557.pt.trace.json": 3,
    "node_rank1_rank9.json": None,
    "llama70b_tp8_bs32.trace.json": None,
    "llama_lora_rank16.pt.trace.json": None,
    "low-rank-8.json": None,
    "gpu-worker-3_12345.1700000000.pt.trace.json": None,
    "worker3_77.1700000000.pt.trace.json": None,
    "job-worker_12345.json": None,
    "worker_77.1700000000.pt.trace.json": None,
    "frank3.json": None,
    "llama-TP-8_bs32.json": None,
}


@pytest.mark.parametrize("name", RANKS)
def test_only_names_that_tell_a_rank_are_believed(name):
    assert rank_of(Document(), name)[0] == RANKS[name]


def test_counters_that_count_from_the_epoch_get_no_base(trace_of):
    epoch = 1_706_850_122_825_623
    counters = [{"ph": "C", "name": "util", "pid": 1, "ts": epoch + n, "args": {"v": n}} for n in range(2)]
    for others in ([], [interval("op", 1, 5)]):
        trace = trace_of([*others, *counters])
        assert trace.counters["ts_ns"].to_list() == [epoch * 1000, (epoch + 1) * 1000]
        assert trace.slices["ts_ns"].to_list() == [BASE + 1_000] * len(others)
        assert trace.sources["clock"][0] == "realtime"
        assert "it was not added" in said(trace)
    alone = trace_of(counters, baseTimeNanoseconds=None)
    assert alone.sources["clock"][0] == "realtime"
    relative = trace_of([{**counter, "ts": n} for n, counter in enumerate(counters)])
    assert relative.counters["ts_ns"].to_list() == [BASE, BASE + 1_000]


def test_phases_that_are_none_are_lost_and_told(trace_of):
    """Letters that are not phases, several at once (also of those that are); links are not used."""
    odd = [{"ph": ph, "name": "l", "pid": 1, "tid": 1, "ts": 3} for ph in ("Q", "In", "BE", "st", "PX")]
    links = [{"ph": "=", "cat": cat, "name": "l", "pid": 1, "ts": 3} for cat in "ab"]
    trace = trace_of([interval("op", 1, 5), *odd, *links])
    assert trace.slices["name"].to_list() == ["op"]
    assert "5 events: an unknown phase (ph): left out" in said(trace)
    assert "2 of '='" in said(trace)
    assert trace.sources["lost_detected"][0] == 5


def test_events_of_others_that_look_like_the_recorders_are_kept(trace_of):
    events = [
        interval("handle", 1, 2, cat="Trace"),
        {"ph": "i", "name": "mark", "pid": "", "tid": "", "ts": 9},
        interval("__MTIA_CCP_events__ (0)", 0, 50, "Traces", "x", "Trace"),
    ]
    trace = trace_of(events)
    assert trace.slices["name"].cast(pl.String).sort().to_list() == ["handle", "mark"]
    assert f"recorded from {BASE} to {BASE + 50_000} ns" in said(trace)


def test_a_collective_without_its_name_is_what_its_kernel_is(trace_of):
    kernel = interval(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
        5,
        1,
        0,
        7,
        "kernel",
        **{"device": 0, "stream": 7, "Collective name": "", "Group size": 2, "In msg nelems": 8},
    )
    trace = trace_of([kernel])
    assert trace.gpu_ops.select("collective", "group_size", "elements").rows() == [("all_reduce", 2, 8)]


def test_the_last_name_of_a_thread_is_its_name(trace_of):
    """Threads are renamed while they run: `pt_main_thread` becomes `pt_autograd_0`."""
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": f"thread 1 ({name})"}}
        for name in ("pt_main_thread", "pt_autograd_0")
    ]
    assert trace_of([interval("op", 1, 5), *names]).threads["name"].to_list() == ["pt_autograd_0"]
