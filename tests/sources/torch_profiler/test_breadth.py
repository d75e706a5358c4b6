"""One small trace in every shape in which the world writes it gives the same hand-worked rows."""

import gzip
import io
import json
import tarfile
import zipfile

import polars as pl
import pytest

from tracelib.sources.discovery import discover, recognised

BASE = 1_700_000_000_000_000_000
EVENTS = [
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": "step",
        "pid": 7,
        "tid": 8,
        "ts": 10.5,
        "dur": 40,
        "args": {"External id": 1},
    },
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 7,
        "tid": 8,
        "ts": 11.001,
        "dur": 20.25,
        "args": {"External id": 2},
    },
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 7,
        "tid": 8,
        "ts": 12,
        "dur": 3.5,
        "args": {"cbid": 211, "correlation": 5},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 1,
        "tid": 7,
        "ts": 20.125,
        "dur": 4,
        "args": {"device": 1, "stream": 7, "correlation": 5, "grid": [1, 2, 3]},
    },
    {"ph": "s", "id": 5, "pid": 7, "tid": 8, "ts": 12, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 5, "pid": 1, "tid": 7, "ts": 20.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "M", "name": "thread_name", "ts": 0, "pid": 7, "tid": 8, "args": {"name": "thread 8 (worker)"}},
]
#: name, category, ts, dur, correlation
SLICES = [
    ("step", "annotation", 10_500, 40_000, None),
    ("aten::mm", "op", 11_001, 20_250, None),
    ("cudaLaunchKernel", "runtime", 12_000, 3_500, 5),
]
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
        return recognised(path).read()

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
    "base as a float": ({"baseTimeNanoseconds": float(BASE)}, {}),
    "base as the text of a float": ({"baseTimeNanoseconds": f"{BASE}.0"}, {}),
    "base before the events": ({"baseTimeNanoseconds": BASE}, {}),
    "base after the events": ({"displayTimeUnit": "ms"}, {"baseTimeNanoseconds": BASE}),
    "base among much else": (
        {"a": {"baseTimeNanoseconds": 3, "b": [1, {"c": 2}]}, "baseTimeNanoseconds": BASE},
        {"d": "]}"},
    ),
    "base as a text": ({"baseTimeNanoseconds": str(BASE)}, {}),
}


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


def test_a_bare_list_begins_with_anything(trace_of):
    """The arguments first (sorted keys, braces in a text), or an empty object."""
    odd = {"z": {"text": 'a "}" b'}, "External id": 1}
    first = {"args": odd, **{key: value for key, value in EVENTS[0].items() if key != "args"}}
    assert_rows(trace_of(json.dumps([first, *EVENTS[1:]])), base=0)
    trace = trace_of("[{}," + json.dumps(EVENTS)[1:-1] + ", {}]")
    assert_rows(trace, base=0)
    assert trace.sources["lost_detected"][0] == 0


def test_a_list_behind_much_else_is_found(trace_of):
    """Chrome's own keys may come first, and be longer than what is looked at to tell the format."""
    frames = {str(n): {"name": "a function of some library", "category": "c"} for n in range(2000)}
    text = json.dumps({"stackFrames": frames, "baseTimeNanoseconds": BASE, "traceEvents": EVENTS})
    assert text.index("traceEvents") > 1 << 16
    assert_rows(trace_of(text))


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


def test_a_base_beside_times_since_the_epoch_is_not_added(trace_of):
    trace = trace_of(document(shifted(EVENTS, lambda ts: ABSOLUTE + int(ts))))
    assert (trace.slices["ts_ns"] - ABSOLUTE * 1000).to_list() == [10_000, 11_000, 12_000]
    assert trace.health["message"].str.contains("it was not added").any()


@pytest.mark.parametrize("base", [-5, "x", 2**63, True, "9" * 5000, [1]])
def test_a_base_that_is_none_is_told(trace_of, base):
    trace = trace_of(document(before={"baseTimeNanoseconds": base}))
    assert_rows(trace, base=0)
    assert trace.sources["clock"][0] == "unknown"
    assert trace.health["message"].str.contains("baseTimeNanoseconds is not a number").any()


def test_ids_of_every_type_keep_threads_apart(trace_of):
    """Integers and texts of them are one thread; any other text is a thread of its own, of that name."""
    ids = [7, "7", 7.0, "-7", -7, 7.5, "9" * 5000, True, [7], None]
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{n}", "pid": 1, "tid": tid, "ts": n, "dur": 1}
        for n, tid in enumerate(ids)
    ]
    trace = trace_of(document(events))
    found = trace.slices.join(trace.threads.select("thread", "tid", called="name"), on="thread").sort("ts_ns")
    tids, called = found["tid"].to_list(), found["called"].to_list()
    assert tids[:5] == [7, 7, 7, -7, -7]
    assert len(set(tids)) == 7
    assert called == [*[None] * 5, "7.5", "9" * 5000, "True", "[7]", None]


def test_ids_that_are_texts(trace_of):
    events = [
        {
            "ph": "X",
            "cat": "Operator",
            "name": "conv",
            "pid": "CPU functions",
            "tid": "main",
            "ts": 5,
            "dur": 2,
        },
        {
            "ph": "X",
            "cat": "Kernel",
            "name": "conv_k",
            "pid": 0,
            "tid": "stream 20",
            "ts": 6,
            "dur": 2,
            "args": {"device": 0},
        },
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 0,
            "dur": 99,
        },
        {"ph": "C", "name": "GPU 0 Utilization", "pid": "GPU 0 Counters", "ts": 7, "args": {"util": 55.5}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 99, "s": "g"},
    ]
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
        ("outer", 0, 50_000),
        ("inner", 10_000, 10_000),
        ("request", 12_000, 28_000),
        ("request", 13_000, 2_000),
        ("open", 70_000, 0),
    }
    said = " ".join(trace.health["message"])
    assert "1 events: an end without a begin" in said
    assert "1 events: a begin without an end" in said


def test_ids_of_asynchronous_intervals_are_valid_where_they_say(trace_of):
    """Local ids in their process, global ones in the file; equal ids of two scopes are two intervals."""

    def mark(ph, ts, pid, name, **ident):
        return {"ph": ph, "cat": "req", "name": name, "pid": pid, "tid": 2, "ts": ts, **ident}

    local, far = {"id2": {"local": "0x1"}}, {"id2": {"global": "0x1"}}
    one, two = {"id": 1, "scope": "one"}, {"id": 1, "scope": "two"}
    events = [
        mark("b", 0, 1, "l1", **local),
        mark("b", 1, 9, "l9", **local),
        mark("b", 2, 1, "far", **far),
        mark("b", 3, 1, "one", **one),
        mark("b", 4, 1, "two", **two),
        mark("e", 10, 1, None, **local),
        mark("e", 30, 9, None, **local),
        mark("e", 32, 9, None, **far),
        mark("e", 43, 1, None, **one),
        mark("e", 54, 1, None, **two),
    ]
    trace = trace_of(document(events))
    assert dict(trace.slices.select(pl.col("name").cast(pl.String), "dur_ns").rows()) == {
        "l1": 10_000,
        "l9": 29_000,
        "far": 30_000,
        "one": 40_000,
        "two": 50_000,
    }


def test_many_open_begins_cost_no_more_than_as_many_ended_ones(trace_of):
    """50,000 begins of a thread left open, 50,000 ends by other names: each end closes the innermost."""
    count = 50_000
    events = [{"ph": "B", "name": f"b{n}", "pid": 1, "tid": 2, "ts": n} for n in range(2 * count)]
    events += [{"ph": "E", "name": f"e{n}", "pid": 1, "tid": 2, "ts": 2 * count + n} for n in range(count)]
    trace = trace_of(document(events))
    longest = trace.slices.sort("dur_ns")["name"].cast(pl.String)
    assert (longest[-1], trace.slices["dur_ns"].max()) == ("b50000", (3 * count - 1 - count) * 1000)
    assert "50000 events: a begin without an end" in " ".join(trace.health["message"])


def test_counters_of_every_form(trace_of):
    readings = [
        {"": 5},
        {"v": "2.5"},
        {"a": 1, "b": 2.5},
        {"v": True},
        {},
        {"v": "high"},
        {"v": {"deep": 1}},
        {"v": None},
    ]
    events = [
        EVENTS[0],
        *({"ph": "C", "name": f"c{n}", "pid": 1, "ts": n, "args": args} for n, args in enumerate(readings)),
    ]
    events += [{"ph": "C", "name": "each", "id": n, "pid": 1, "ts": 9, "args": {"v": n}} for n in (4, 5)]
    trace = trace_of(document(events))
    assert dict(trace.counters.select(pl.col("name").cast(pl.String), "value").rows()) == {
        "c0": 5,
        "c1": 2.5,
        "c2: a": 1,
        "c2: b": 2.5,
        "c3": 1,
        "each[4]": 4,
        "each[5]": 5,
    }
    assert "4 events: a counter without a number: left out" in " ".join(trace.health["message"])
    assert trace.sources["lost_detected"][0] == 4


#: What the runtimes of other devices call things, and what they are here.
DEVICES = {
    "ROCm": ("cuda_runtime", "hipLaunchKernel", "runtime", "kernel"),
    "ROCm, 2025": ("hip_runtime", "hipLaunchKernel", "runtime", "kernel"),
    "XPU": ("xpu_runtime", "urEnqueueKernelLaunch", "runtime", "kernel"),
    "MTIA": ("mtia_runtime", "runFunction", "runtime", "mtia_ccp_events"),
    "2020": ("Runtime", "cudaLaunchKernel", "runtime", "Kernel"),
    "driver": ("cuda_driver", "cuLaunchKernelEx", "driver", "concurrent_kernel"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_devices_of_every_kind(trace_of, device):
    call, name, category, kernel = DEVICES[device]
    events = [dict(event) for event in EVENTS]
    events[2] |= {"cat": call, "name": name}
    events[3] |= {"cat": kernel}
    assert_rows(trace_of(document(events)), slices=[*SLICES[:2], (name, category, 12_000, 3_500, 5)])


def test_a_cpu_only_trace_has_no_gpu_and_says_so_by_its_absence(trace_of):
    stack = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": f"run.py({n}): f{n}",
            "pid": 7,
            "tid": 8,
            "ts": n,
            "dur": 9 - 2 * n,
            "args": {"Python id": n + 1, "Python parent id": n or None},
        }
        for n in range(4)
    ]
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
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "dur": 1,
            "args": args | more,
        }
        for ts, (name, more) in enumerate(
            [
                ("k", {}),
                ("k", {"graph id": 3, "graph node id": 9}),
                ("ncclDevKernel_AllGather_RING_LL(x)", nccl),
                ("ncclDevKernel_ReduceScatter_Sum_bf16(x)", {}),
            ],
            start=5,
        )
    ]
    trace = trace_of(document([launch, *kernels]))
    found = trace.gpu_ops.select("graph", "collective", "group", "group_size", "sequence", "elements").rows()
    nothing = (None, None, None, None, None)
    assert found == [
        (0, *nothing),
        (3, *nothing),
        (0, "all_gather", "tp", 2, 11, 128),
        (0, "reduce_scatter", *nothing[1:]),
    ]


@pytest.mark.parametrize(
    ("groups", "by_name", "size"),
    [
        ({"pg_config": [{"pg_size": 4}, {"pg_size": 1}, {"pg_size": 4}]}, "<float>", 4),
        ({"pg_config": [{"pg_size": 4}, {"pg_size": 8}]}, "<float>", None),
        ({"pg_config": [{"pg_size": 4}, {"pg_size": 8}]}, "<float, 8>", 8),
        ({"world_size": 2}, "<float>", 2),
        ({"pg_config": "damaged", "world_size": "2"}, "<float>", 2),
        ({"world_size": 2**31}, "<float>", None),
        ({"pg_config": [{"pg_size": 2**64}, {"pg_size": []}]}, "<float>", None),
        ({}, "<float>", None),
    ],
)
def test_an_engine_s_own_all_reduce_in_a_graph(trace_of, groups, by_name, size):
    """It has no argument that tells its group: the name does, or that the process has only one."""
    name = f"void vllm::cross_device_reduce_1stage{by_name}(vllm::RankData*)"
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 1, "args": {"device": 0, "stream": 7}}
    kernels = [{**event, "name": n, "ts": ts} for ts, n in ((5, name), (9, "gemm"))]
    info = {"distributedInfo": {"backend": "nccl", "rank": 0, **groups}}
    trace = trace_of(document(kernels, after=info))
    assert trace.gpu_ops.select("collective", "group_size").rows() == [("all_reduce", size), (None, None)]


#: A kernel's arguments as Kineto wrote them from October 2023 on, and group, size and elements that they
#: tell.
KERNEL_ARGS = {
    "2023-10": ({"In msg size": 64, "Out msg size": 128, "Group size": 2, "dtype": "Float"}, (None, 2, 128)),
    "2023-12": (
        {"In msg nelems": 64, "Out msg nelems": 128, "Group size": 2, "dtype": "Float"},
        (None, 2, 128),
    ),
    "2024-03": (
        {
            "In msg nelems": 64,
            "Out msg nelems": 128,
            "Group size": 2,
            "dtype": "Float",
            "Process Group ID": 7,
            "Process Group Ranks": "[0, 1]",
        },
        ("7", 2, 128),
    ),
    "2024-04": (
        {
            "Collective name": "allgather_into_tensor_coalesced",
            "In msg nelems": 64,
            "Out msg nelems": 128,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "tp",
            "Process Group Description": "x",
        },
        ("tp", 2, 128),
    ),
}


@pytest.mark.parametrize("since", KERNEL_ARGS)
def test_collectives_of_every_kineto(trace_of, since):
    args, told = KERNEL_ARGS[since]
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_AllGather_RING_LL(x)",
        "pid": 0,
        "tid": 7,
        "ts": 5,
        "dur": 1,
        "args": {"device": 0, "stream": 7, "correlation": 4, **args},
    }
    old = kernel | {"name": "ncclAllGatherRingLLKernel_sum_f16(ncclColl)", "args": {"device": 0, "stream": 7}}
    trace = trace_of(document([kernel, old]))
    rows = trace.gpu_ops.sort("group_size").select("collective", "group", "group_size", "elements").rows()
    assert rows == [("all_gather", None, None, None), ("all_gather", *told)]


def test_ids_that_several_processes_count_name_no_launch(trace_of):
    """As SGLang merges the traces of its ranks: process ids become texts, correlation ids stay and meet."""

    def of(rank, correlation):
        return [
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": f"[TP0{rank}] {100 + rank}",
                "tid": 1,
                "ts": 5 + rank,
                "dur": 1,
                "args": {"correlation": correlation},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": f"k{rank}",
                "pid": f"[TP0{rank}] {rank}",
                "tid": 7,
                "ts": 9 + rank,
                "dur": 1,
                "args": {"device": rank, "stream": 7, "correlation": correlation},
            },
        ]

    trace = trace_of(
        document([*of(0, 5), *of(1, 5), *of(0, 6), *of(1, 7)], after={"distributedInfo": {"rank": 0}})
    )
    pids = dict(trace.threads.select("process", "pid").rows())
    found = sorted(trace.gpu_ops.select("correlation", pl.col("name").cast(pl.String), "pid").rows())
    assert found == [
        (5, "k0", None),
        (5, "k1", None),
        (6, "k0", pids["[TP00] 100"]),
        (7, "k1", pids["[TP01] 101"]),
    ]
    one_more = trace_of(document([*of(0, 5), *of(1, 5), *of(0, 6)]))
    assert one_more.gpu_ops["pid"].null_count() == 2
    assert trace.gpus["rank"].to_list() == [0, 1]
    assert (
        trace.health["message"].str.contains("1 correlation ids belong to calls of several processes").any()
    )


ANNOTATIONS = [
    # vLLM
    "execute_8192_context_9(sq8155sk8155sqsq66504025sqsk66504025)_generation_37(sq37sk44551sqsq37sqsk44551)",
    "step[DECODE bs=32]",  # SGLang
    "ProfilerStep#5",
    "Optimizer.step#Adam.step",
    "## Call CompiledFxGraph fabc ##",
    "Torch-Compiled Region: 0/0",  # torch
    "forward-backward-func",
    "nccl:all_reduce",
    "TransformerLayer: mlp 3",  # Megatron
]


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
    traces = [file.read() for file in discover([tmp_path / name]).traces]
    assert sorted(trace.sources["rank"][0] for trace in traces) == [0, 1, 2]
    for trace in traces:
        assert_rows(trace)
