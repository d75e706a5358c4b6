"""Threads, their context switches, samples and ranks, on rows written by hand."""

import pytest

from tests.sources.nsys.conftest import KERNELS, RUNTIME
from tracelib.sources.nsys import read
from tracelib.sources.nsys.threads import trigger


def test_ranks_of_mpi(export, process):
    """Of GPUs: the rank of the only process that drives each; of the file: the only one in it."""
    first, second, third = (process + (at << 24) for at in range(3))
    rows = {
        KERNELS: [
            (10, 20, device, 1, 7, 1, owner, 4, 4, None, None)
            for device, owner in [(0, first), (1, second), (2, first), (2, second), (3, third)]
        ],
        "MPI_RANKS": [(first + 100, 4), (second + 101, 5)],
    }
    trace = read(export(rows))
    assert trace.gpus.select("device", "rank").rows() == [(0, 4), (1, 5), (2, None), (3, None)]
    assert trace.sources["rank"].item() is None
    assert read(export({"MPI_RANKS": [(first + 100, 4), (first + 107, 4)]})).sources["rank"].item() == 4


def test_a_thread_is_its_process_and_its_id(export, process):
    rows = {
        RUNTIME: [(10, 15, 0, process + 107, 1, 1)],
        "ThreadNames": [(6, 20, process + 107), (13, 20, process + 100), (6, 20, 5 << 24 | 1)],
        "PROCESSES": [(process, 100, "python3"), (5 << 24, 5, "other")],
    }
    threads = read(export(rows)).threads
    assert threads.select("pid", "tid", "name", "process").rows() == [
        (100, 100, "main", "python3"),
        (100, 107, "worker", "python3"),
    ]


def test_a_process_without_a_name_has_that_of_its_main_thread(export, process):
    rows = {RUNTIME: [(10, 15, 0, process + 107, 1, 1)], "ThreadNames": [(13, 20, process + 100)]}
    assert read(export(rows)).threads["process"].to_list() == ["main", "main"]


def test_thread_names_may_come_from_nvtx(export, process):
    rows = {
        "NVTX_EVENTS": [(1, None, 39, "loader", process + 3, None, 0), (2, 4, 59, "a", process + 3, None, 0)]
    }
    assert read(export(rows)).threads["name"].to_list() == ["loader"]


def test_ids_with_the_sign_bit_set(export):
    """Hardware id 0xFE makes a globalTid negative as SQLite stores it."""
    process = (0xFE << 56 | 1 << 48 | 100 << 24) - (1 << 64)
    rows = {
        RUNTIME: [(10, 15, 0, process + 107, 9, 1)],
        KERNELS: [(20, 30, 0, 1, 7, 9, process, 4, 4, None, None)],
    }
    trace = read(export(rows))
    assert trace.threads.select("pid", "tid").rows() == [(100, 107)]
    assert trace.gpu_ops["pid"].to_list() == [100]


def test_context_switches(export, process):
    """Joined only at the same nanosecond on the same CPU; thread 0 of process 0 is idle."""
    one, two = process + 1, process + 2
    rows = {
        "SCHED_EVENTS": [
            (10, 0, 0, one, 2),
            (10, 0, 1, two, 0),
            (20, 0, 0, two, 0),
            (21, 0, 1, one, 0),
            (30, 1, 0, two, 5),
            (30, 2, 1, one, 0),
            (40, 1, 1, 0, 0),
        ],
        "ENUM_SAMPLING_THREAD_STATE": [(0, "Unknown", ""), (2, "Interruptible", ""), (5, "Terminated", "")],
    }
    trace = read(export(rows))
    tid = dict(trace.threads.select("thread", "tid").iter_rows())
    found = [
        (ts, cpu, tid.get(prev, prev), state, tid.get(next_, next_))
        for ts, cpu, prev, state, next_ in trace.sched.select(
            "ts_ns", "cpu", "prev", "prev_state", "next"
        ).iter_rows()
    ]
    assert found == [
        (10, 0, 1, "S", 2),
        (20, 0, 2, None, None),
        (21, 0, None, None, 1),
        (30, 1, 2, "X", None),
        (30, 2, None, None, 1),
        (40, 1, None, None, -1),
    ]


def test_samples_share_their_call_chains(export, process):
    rows = {
        "COMPOSITE_EVENTS": [
            (1, 10, 0, 1, process + 1, 1),
            (2, 20, 1, 1, process + 1, 1),
            (3, 30, 0, 1, process + 1, 1),
        ],
        "SAMPLING_CALLCHAINS": [(1, 13, 9, 0, 1), (1, 12, 9, 1, 0), (2, 12, 9, 1, 0), (2, 13, 9, 0, 1)],
        "DIAGNOSTIC_EVENT": [
            (0, 1, "Event 'CPU Cycles', with sampling period 1000, used to trigger sample collection.")
        ],
    }
    trace = read(export(rows))
    assert trace.samples.select("ts_ns", "cpu", "event", "period", "stack").rows() == [
        (10, 0, "cycles", 1000, 0),
        (20, 1, "cycles", 1000, 0),
        (30, 0, "cycles", 1000, None),
    ]
    assert trace.stacks.rows() == [(0, 0, "[unknown]", "libc.so.6"), (0, 1, "main", "libc.so.6")]


@pytest.mark.parametrize(
    ("said", "event"),
    [
        ("CPU Cycles", "cycles"),
        ("CPU Clock", "cpu-clock"),
        ("CPU Clock (sw)", "cpu-clock"),
        ("Instructions Retired (hw) ", "instructions-retired"),
        ("(sw) Clock", "(sw)-clock"),
    ],
)
def test_what_triggered_the_samples(said, event):
    text = f"Event '{said}', with sampling period 1000000, used to trigger CPU IP sample collection."
    assert trigger(["Profiling has started.", text]) == (event, 1_000_000)


@pytest.mark.parametrize(
    ("noted", "said", "expected"),
    [
        ("2000000", "", ("cpu-sample", 2_000_000)),
        ("2000000", "Event 'CPU Cycles', with sampling period 1000, used", ("cycles", 2_000_000)),
        ("0", "Event 'CPU Cycles', with sampling period 1000, used", ("cycles", 1000)),
        ("often", "Event 'CPU Cycles', with sampling period 1000, used", ("cycles", 1000)),
        ("0", "", ("cpu-sample", None)),
    ],
)
def test_the_recording_s_options_tell_the_period_and_prose_only_without_them(
    export, process, noted, said, expected
):
    rows = {
        "COMPOSITE_EVENTS": [(1, 10, 0, 1, process + 1, 1)],
        "META_DATA_CAPTURE": [("LINUX_PERF_OPTIONS:SAMPLING_PERIOD", noted)],
        "DIAGNOSTIC_EVENT": [(0, 1, said or "Profiling has started.")],
    }
    assert read(export(rows)).samples.select("event", "period").rows() == [expected]
