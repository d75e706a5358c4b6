"""One small trace in every shape in which the world writes it gives the same hand-worked rows."""

import gzip
import io
import json
import tarfile
import zipfile

import polars as pl
import pytest

from tracelib.sources import choose, trace_files

BASE = 1_700_000_000_000_000_000
EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 7, "tid": 8, "ts": 10.5, "dur": 40, "args": {"External id": 1}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 11.001, "dur": 20.25, "args": {"External id": 2}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8, "ts": 12, "dur": 3.5, "args": {"cbid": 211, "correlation": 5}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 7, "ts": 20.125, "dur": 4,
     "args": {"device": 1, "stream": 7, "correlation": 5, "grid": [1, 2, 3]}},
    {"ph": "s", "id": 5, "pid": 7, "tid": 8, "ts": 12, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 5, "pid": 1, "tid": 7, "ts": 20.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "M", "name": "thread_name", "ts": 0, "pid": 7, "tid": 8, "args": {"name": "thread 8 (worker)"}},
]  # fmt: skip
#: name, category, ts, dur, correlation
SLICES = [("step", "annotation", 10_500, 40_000, None), ("aten::mm", "op", 11_001, 20_250, None), ("cudaLaunchKernel", "runtime", 12_000, 3_500, 5)]  # fmt: skip
#: name, kind, ts, dur, stream, correlation, pid
KERNELS = [("gemm", "kernel", 20_125, 4_000, 7, 5, 7)]


def document(events=EVENTS, *, before=None, after=None) -> str:
    head = json.dumps({"schemaVersion": 1, **(before or {"baseTimeNanoseconds": BASE})})[:-1]
    tail = json.dumps({"traceName": "x", **(after or {})})[1:]
    return f'{head}, "traceEvents": {json.dumps(events)}, {tail}'


@pytest.fixture
def trace_of(tmp_path):
    def load(data, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return choose(path).read(path)

    return load


def assert_rows(trace, base=BASE, slices=SLICES, kernels=KERNELS):
    found = trace.slices.with_columns(pl.col("ts_ns") - base).select(
        "name", "category", "ts_ns", "dur_ns", "correlation"
    )
    assert found.rows() == slices
    ops = trace.gpu_ops.with_columns(pl.col("ts_ns") - base)
    assert ops.select("name", "kind", "ts_ns", "dur_ns", "stream", "correlation", "pid").rows() == kernels


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


def members(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 100]) for at in range(0, len(data), 100))


PACKED = {"plain": bytes, "gzip": gzip.compress, "gzip of several members": members, "zstd": zstd}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "no_suffix"])
def test_compressions_whatever_the_name(trace_of, packed, name):
    assert_rows(trace_of(PACKED[packed](document().encode()), name))


FIELDS = {
    "base before the events": ({"baseTimeNanoseconds": BASE}, {}),
    "base after the events": ({"displayTimeUnit": "ms"}, {"baseTimeNanoseconds": BASE}),
    "base among much else": ({"a": {"baseTimeNanoseconds": 3, "b": [1, {"c": 2}]}, "baseTimeNanoseconds": BASE}, {"d": "]}"}),
    "base as a text": ({"baseTimeNanoseconds": str(BASE)}, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("ranked", ["before", "after"])
def test_fields_stand_anywhere(trace_of, kind, ranked):
    before, after = (dict(fields) for fields in FIELDS[kind])
    (before if ranked == "before" else after)["distributedInfo"] = {
        "backend": "nccl",
        "rank": 3,
        "world_size": 8,
    }
    trace = trace_of(document(before=before, after=after))
    assert_rows(trace)
    assert trace.sources.select("rank", "clock", "wall_offset_ns").row(0) == (3, "realtime", 0)
    assert trace.gpus.select("device", "rank").row(0) == (1, 3)


def test_a_bare_list_and_every_layout(trace_of):
    assert_rows(trace_of(json.dumps(EVENTS)), base=0)
    for layout in ({"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"sort_keys": True}):
        text = json.dumps({"traceEvents": EVENTS, "baseTimeNanoseconds": BASE}, **layout)
        assert_rows(trace_of(text))
        assert_rows(trace_of("\ufeff" + text.replace("\n", "\r\n")))


def shifted(events, change):
    return [event if event["ph"] == "M" else {**event, "ts": change(event["ts"])} for event in events]


ABSOLUTE = 1_706_850_122_825_623


def test_absolute_times_decimal_integer_and_as_texts(trace_of):
    for spelt in (lambda ts: f"{ABSOLUTE + int(ts)}.{round(ts % 1 * 1000):03d}", str):
        as_text = shifted(
            EVENTS,
            lambda ts, spelt=spelt: (
                spelt(ts) if spelt is not str else f"{ABSOLUTE * 1000 + round(ts * 1000)}e-3"
            ),
        )
        for quote in ('"', ""):
            text = json.dumps({"traceEvents": as_text})
            for event in as_text:
                text = text.replace(f'"ts": "{event["ts"]}"', f'"ts": {quote}{event["ts"]}{quote}')
            trace = trace_of(text)
            assert_rows(trace, base=ABSOLUTE * 1000)
            assert trace.sources["clock"][0] == "realtime"
    whole = trace_of(json.dumps({"traceEvents": shifted(EVENTS, lambda ts: ABSOLUTE + int(ts))}))
    assert (whole.slices["ts_ns"] - ABSOLUTE * 1000).to_list() == [10_000, 11_000, 12_000]


def test_ids_that_are_texts(trace_of):
    events = [
        {"ph": "X", "cat": "Operator", "name": "conv", "pid": "CPU functions", "tid": "main", "ts": 5, "dur": 2},
        {"ph": "X", "cat": "Kernel", "name": "conv_k", "pid": 0, "tid": "stream 20", "ts": 6, "dur": 2, "args": {"device": 0}},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": 0, "dur": 99},
        {"ph": "C", "name": "GPU 0 Utilization", "pid": "GPU 0 Counters", "ts": 7, "args": {"util": 55.5}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 99, "s": "g"},
    ]  # fmt: skip
    trace = trace_of(document(events))
    assert trace.slices.select("name", "category").rows() == [("conv", "op")]
    assert trace.threads.select("name", "process").rows() == [("main", "CPU functions")]
    assert trace.gpu_ops.select("name", "stream", "dur_ns").rows() == [("conv_k", 20, 2000)]
    assert trace.counters.select("name", "track", "value").rows() == [
        ("GPU 0 Utilization", "GPU 0 Counters", 55.5)
    ]
    assert trace.health["message"].str.contains(f"recorded from {BASE} to {BASE + 99_000} ns").any()


def test_begins_and_ends(trace_of):
    events = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 2, "ts": 0},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 2, "ts": 10},
        {"ph": "b", "cat": "req", "id": "0x1", "name": "request", "pid": 1, "tid": 2, "ts": 12},
        {"ph": "b", "cat": "req", "id": "0x2", "name": "request", "pid": 1, "tid": 3, "ts": 13},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 20},
        {"ph": "e", "cat": "req", "id": "0x1", "name": "request", "pid": 1, "tid": 9, "ts": 40},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 50},
        {"ph": "e", "cat": "req", "id": "0x2", "name": "request", "pid": 1, "tid": 3, "ts": 15},
        {"ph": "E", "pid": 1, "tid": 77, "ts": 60},
        {"ph": "B", "name": "open", "pid": 1, "tid": 2, "ts": 70},
    ]
    trace = trace_of(document(events))
    found = {
        (name, ts - BASE, dur) for name, ts, dur in trace.slices.select("name", "ts_ns", "dur_ns").rows()
    }
    assert found == {
        ("outer", 0, 50_000), ("inner", 10_000, 10_000), ("request", 12_000, 28_000), ("request", 13_000, 2_000), ("open", 70_000, 0)
    }  # fmt: skip
    said = " ".join(trace.health["message"])
    assert "1 events: an end without a begin" in said
    assert "1 events: a begin without an end" in said


#: What the runtimes of other devices call things, and what they are here.
DEVICES = {
    "ROCm": ("cuda_runtime", "hipLaunchKernel", "runtime", "kernel"), "ROCm, 2025": ("hip_runtime", "hipLaunchKernel", "runtime", "kernel"),
    "XPU": ("xpu_runtime", "urEnqueueKernelLaunch", "runtime", "kernel"), "MTIA": ("mtia_runtime", "runFunction", "runtime", "mtia_ccp_events"),
    "2020": ("Runtime", "cudaLaunchKernel", "runtime", "Kernel"), "driver": ("cuda_driver", "cuLaunchKernelEx", "driver", "concurrent_kernel"),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_devices_of_every_kind(trace_of, device):
    call, name, category, kernel = DEVICES[device]
    events = [dict(event) for event in EVENTS]
    events[2] |= {"cat": call, "name": name}
    events[3] |= {"cat": kernel}
    assert_rows(trace_of(document(events)), slices=[*SLICES[:2], (name, category, 12_000, 3_500, 5)])


def test_a_cpu_only_trace_has_no_gpu_and_says_so_by_its_absence(trace_of):
    stack = [
        {"ph": "X", "cat": "python_function", "name": f"run.py({n}): f{n}", "pid": 7, "tid": 8, "ts": n, "dur": 9 - 2 * n,
         "args": {"Python id": n + 1, "Python parent id": n or None}} for n in range(4)
    ]  # fmt: skip
    trace = trace_of(document(stack))
    assert trace.slices.select("name", "category", "dur_ns").rows() == [
        (f"run.py({n}): f{n}", "python", 9_000 - 2_000 * n) for n in range(4)
    ]
    assert (trace.gpu_ops.height, trace.gpus.height) == (0, 0)


def test_graph_launches_and_collectives(trace_of):
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "pid": 7,
        "tid": 8,
        "ts": 1,
        "dur": 1,
        "args": {"correlation": 4},
    }
    args = {"device": 0, "stream": 7, "correlation": 4}
    nccl = {
        "Collective name": "_allgather_base",
        "Process Group Name": "tp",
        "Group size": 2,
        "In msg nelems": 64,
        "Out msg nelems": 128,
        "Seq": 11,
    }
    kernels = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 1, "args": args | more}
        for ts, (name, more) in enumerate([
            ("k", {}), ("k", {"graph id": 3, "graph node id": 9}), ("ncclDevKernel_AllGather_RING_LL(x)", nccl), ("ncclDevKernel_ReduceScatter_Sum_bf16(x)", {}),
        ], start=5)
    ]  # fmt: skip
    trace = trace_of(document([launch, *kernels]))
    found = trace.gpu_ops.select("graph", "collective", "group", "group_size", "sequence", "elements").rows()
    nothing = (None, None, None, None, None)
    assert found == [
        (0, *nothing),
        (3, *nothing),
        (0, "all_gather", "tp", 2, 11, 128),
        (0, "reduce_scatter", *nothing[1:]),
    ]


ANNOTATIONS = [
    "execute_8192_context_9(sq8155sk8155sqsq66504025sqsk66504025)_generation_37(sq37sk44551sqsq37sqsk44551)",  # vLLM
    "step[DECODE bs=32]",  # SGLang
    "ProfilerStep#5", "Optimizer.step#Adam.step", "## Call CompiledFxGraph fabc ##", "Torch-Compiled Region: 0/0",  # torch
    "forward-backward-func", "nccl:all_reduce", "TransformerLayer: mlp 3",  # Megatron
]  # fmt: skip


def test_annotations_of_servers_and_compilers_keep_their_names(trace_of):
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 8, "ts": 10 * n, "dur": 5, "args": {}}
        for n, name in enumerate(ANNOTATIONS)
        for cat in ("user_annotation", "gpu_user_annotation")
    ]
    trace = trace_of(document(events))
    for category in ("annotation", "gpu_annotation"):
        rows = trace.slices.filter(pl.col("category") == category).sort("ts_ns")
        assert rows["name"].to_list() == ANNOTATIONS
        assert (rows["thread"].null_count() > 0) == (category == "gpu_annotation")


def ranks():
    for rank in range(3):
        yield f"run/rank{rank}/trace.json", document(after={"distributedInfo": {"rank": rank}}).encode()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ranks():
            archive.writestr(name, data)
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in ranks():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(("name", "made"), [("ranks.zip", zipped), ("ranks.tar.gz", tarred)])
def test_archives_of_several_ranks(tmp_path, name, made):
    (tmp_path / name).write_bytes(made())
    files, _ = trace_files([tmp_path / name])
    traces = [choose(file).read(file) for file in files]
    assert sorted(trace.sources["rank"][0] for trace in traces) == [0, 1, 2]
    for trace in traces:
        assert_rows(trace)
