"""Which GPU a process's device is, and what is told where an export leaves it open."""

import pytest

from tracelib.sources.nsys import read

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
OVERLAP = "kernels overlap one of another process on the same GPU and stream number"


def kernel(owner, device, start=10, end=20, stream=7):
    return (start, end, device, 1, stream, start, owner, 4, 4, None, None)


def placed(trace):
    seen = trace.gpu_ops.join(trace.gpus, on="gpu", suffix="_gpu")
    return sorted(seen.select("pid", "device", "name_gpu").rows())


def overlaps(trace):
    return [message.split(" ")[0] for message in trace.health["message"] if OVERLAP in message]


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
