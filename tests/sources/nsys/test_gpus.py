"""GPUs, what ran on them and their counters, on rows written by hand."""

import pytest

from tests.sources.nsys.conftest import KERNELS, RUNTIME, messages
from tracelib.sources.nsys import read

OVERLAP = "kernels overlap one of another process on the same GPU and stream number"


def kernel(owner, device, start=10, end=20, stream=7):
    return (start, end, device, 1, stream, start, owner, 4, 4, None, None)


def placed(trace):
    seen = trace.gpu_ops.join(trace.gpus, on="gpu", suffix="_gpu")
    return sorted(seen.select("pid", "device", "name_gpu").rows())


def overlaps(trace):
    return [message.split(" ")[0] for message in trace.health["message"] if OVERLAP in message]


def test_kernels_fall_back_to_their_short_name_one_by_one(export, process):
    ids = [(4, 13), (999, 13), (999, 998)]
    rows = [(at, at + 1, 0, 1, 7, at, process, *pair, None, None) for at, pair in enumerate(ids, 1)]
    trace = read(export({KERNELS: rows}))
    assert trace.gpu_ops["name"].to_list() == ["my_kernel(int)", "main", "[unknown]"]
    assert "1 calls and kernels are called [unknown]" in messages(trace)


def test_processes_count_their_devices_from_0(export, process):
    other = process + (1 << 24)
    rows = {
        KERNELS: [
            (10, 20, 0, 1, 7, 1, process, 4, 4, None, None),
            (10, 20, 0, 1, 7, 1, other, 4, 4, None, None),
        ],
        "TARGET_INFO_CUDA_DEVICE": [(2, 0, 100), (3, 0, 101)],
        "TARGET_INFO_GPU": [(0, 2, "H200"), (0, 3, "H100")],
    }
    trace = read(export(rows))
    seen = trace.gpu_ops.join(trace.gpus, on="gpu", suffix="_gpu")
    assert sorted(seen.select("pid", "device", "name_gpu").rows()) == [(100, 2, "H200"), (101, 3, "H100")]


def test_gpus_of_older_exports_have_their_names(export, process):
    """Before mid-2021 nsys listed them in another table, by CUDA's number."""
    rows = {KERNELS: [kernel(process, 0), kernel(process, 1, 30, 40)]}
    path = export({**rows, "TARGET_INFO_CUDA_GPU": [(1, "V100"), (0, "T4")]})
    assert placed(read(path)) == [(100, 0, "T4"), (100, 1, "V100")]


def test_kernels_of_graphs(export, process):
    """By number where the row has it, 0 where it names only its node or was launched by cudaGraphLaunch."""
    rows = {
        RUNTIME: [(1, 2, 0, process + 100, 50, 3), (3, 4, 0, process + 100, 51, 1)],
        KERNELS: [
            (10, 11, 0, 1, 7, 50, process, 4, 4, None, None),
            (12, 13, 0, 1, 7, 51, process, 4, 4, None, None),
            (14, 15, 0, 1, 7, 52, process, 4, 4, 1 << 40, None),
            (16, 17, 0, 1, 7, 53, process, 4, 4, 1 << 40, 6),
            (18, 19, 0, 1, 7, 54, process, 4, 4, 0, 0),
        ],
    }
    assert read(export(rows)).gpu_ops["graph"].to_list() == [0, None, 0, 6, None]


def test_graphs_recorded_as_a_whole(export, process):
    rows = {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [(10, 30, 0, 7, 5, process, 3, 4)]}
    trace = read(export(rows))
    assert trace.gpu_ops.select("kind", "name", "graph", "dur_ns").rows() == [
        ("graph", "CUDA graph 3", 3, 20)
    ]
    assert "--cuda-graph-trace=node" in " ".join(trace.health["fix"])


def test_collectives_and_copies(export, process):
    rows = {
        KERNELS: [(10, 20, 0, 1, 7, 1, process, 5, 5, None, None)],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(30, 40, 0, 7, 0, process, 4096, 1, 0, 2)],
    }
    ops = read(export(rows)).gpu_ops
    assert ops["collective"].to_list() == ["all_reduce", None]
    assert ops.row(1, named=True)["name"] == "Memcpy HtoD (Pageable -> Device)"
    assert ops.select("bytes", "correlation").row(1) == (4096, None)


def test_gpu_counters(export):
    rows = {
        "GPU_METRICS": [(10, 256 + 3, 1, 42)],
        "TARGET_INFO_GPU_METRICS": [(256 + 3, 1, "SMs Active [%]")],
    }
    assert read(export(rows)).counters.rows() == [(0, 10, "SMs Active [%]", "GPU 3", 42.0)]


def test_cuda_numbers_gpus_in_its_own_order(export, process):
    """The fastest first, where nsys goes by bus: CUDA's device 0 is the GPU with `cuDevice` 0."""
    rows = {
        KERNELS: [kernel(process, 0), kernel(process, 1, 30, 40)],
        "TARGET_INFO_GPU": [(0, 1, "A100", 0), (0, 0, "T400", 1)],
    }
    assert placed(read(export(rows))) == [(100, 0, "T400"), (100, 1, "A100")]
    assert read(export(rows)).gpu_ops.sort("ts_ns")["gpu"].to_list() == [1, 0]


def test_a_process_that_is_not_listed_counts_as_cuda_does(export, process):
    rows = {
        KERNELS: [kernel(process, 0), kernel(process + (1 << 24), 0)],
        "TARGET_INFO_CUDA_DEVICE": [(0, 0, 101)],
        "TARGET_INFO_GPU": [(0, 1, "A100", 0), (0, 0, "T400", 1)],
    }
    assert placed(read(export(rows))) == [(100, 1, "A100"), (101, 0, "T400")]


@pytest.mark.parametrize(
    "listed",
    [
        [(0, 3, "A", None), (0, 0, "B", None)],  # not noted
        [(1, 3, "A", 0), (2, 4, "B", 0)],  # two machines' first
        [(0, -3, "A", 0)],  # no number of a GPU
        [(0, 1 << 40, "A", 0)],
    ],
)
def test_where_the_order_is_not_known_the_number_is_taken_for_the_gpu(export, process, listed):
    trace = read(export({KERNELS: [kernel(process, 0)], "TARGET_INFO_GPU": listed}))
    assert trace.gpu_ops.join(trace.gpus, on="gpu")["device"].to_list() == [0]


def test_kernels_of_two_processes_that_overlap_on_one_stream_are_told(export, process):
    """Each may have a GPU of its own and call it 0: of the four pairs that follow each other, two overlap."""
    other = process + (1 << 24)
    rows = {
        KERNELS: [
            kernel(process, 0, 10, 20),
            kernel(other, 0, 15, 25),
            kernel(process, 0, 24, 30),
            kernel(other, 0, 30, 40),
            kernel(process, 0, 35, 38, stream=8),
        ]
    }
    assert overlaps(read(export(rows))) == ["2"]
    rows["TARGET_INFO_CUDA_DEVICE"] = [(0, 0, 100), (0, 0, 101)]  # they do share one
    assert overlaps(read(export(rows))) == []


def test_kernels_of_one_process_may_overlap(export, process):
    rows = {KERNELS: [kernel(process, 0, 10, 20), kernel(process, 0, 15, 25)]}
    assert overlaps(read(export(rows))) == []
