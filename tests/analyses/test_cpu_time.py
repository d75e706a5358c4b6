"""CPU time by role and cause, on rows worked by hand and on the captures."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import polars as pl
import pytest

from tracelib import schema
from tracelib.analyses.cpu_samples import sample_stretches
from tracelib.analyses.cpu_time import cpu_time
from tracelib.analyses.host_activity import host_activity
from tracelib.analyses.launches import LAUNCHES
from tracelib.analyses.replicas import REPLICAS
from tracelib.analyses.thread_states import thread_states
from tracelib.analyses.window import window as gpu_window
from tracelib.slice_rules import load_rules

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from scheduling_frames import switch, trace, wakeup, window

A, B, C = 1, 2, 3
SERVER = {A: "worker", B: "api_server", C: "system"}
PYTHON, CLOCK, CUDA = (
    ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),
    ("clock_gettime", "[vdso]"),
    "/x/libcuda.so.1",
)
#: The loop of a reader as CPython's perf trampoline names it: the innermost frame first.
READER = [
    (
        "py::MessageQueue.acquire_read:/x/vllm/distributed/device_communicators/shm_broadcast.py",
        "[JIT] tid 7",
    ),
    ("py::MessageQueue.dequeue:/x/vllm/distributed/device_communicators/shm_broadcast.py", "[JIT] tid 7"),
    ("py::WorkerProc.worker_busy_loop:/x/vllm/v1/executor/multiproc_executor.py", "[JIT] tid 7"),
]
CHAINS = {
    0: [("merge_all", "/x/tokenizers.abi3.so")],
    1: [("cudaLaunchKernel", "/x/libcudart.so.13")],
    2: [PYTHON],
    3: [CLOCK, PYTHON, *READER],
    4: [("_pickle_loads", "/x/_pickle.cpython-312.so"), *READER],
    5: [("py::Propose.draft:/x/propose.py", "[JIT] tid 7"), READER[-1]],
    6: [("sem_clockwait", "/lib/libc.so.6"), ("time_sleep", "/usr/bin/python3.12"), PYTHON],
    7: [("[unknown]", CUDA)],
    8: [PYTHON, ("py::SelectorLoop.select:/usr/lib/python3.12/selectors.py", "[JIT] tid 7")],
    9: [("gc_collect_main", "/usr/bin/python3.12"), *READER],
    10: [
        PYTHON,
        ("py::Requests._work:/x/own_server.py", "[JIT] tid 7"),
        ("py::_worker:/x/concurrent/futures/thread.py", "[JIT] tid 7"),
    ],
}
STACKS = [(n, depth, *frame) for n, chain in CHAINS.items() for depth, frame in enumerate(chain)]


def sampled(
    rows: list[tuple[int, int, int | None]],
    sched: list[tuple[object, ...]] = (),
    ranges: list[tuple[int, int, int, str]] = (),
    category: str = "annotation",
):
    """Trace of samples (time, thread, stack), one per 1000 ns, and ranges (thread, time, length, name)."""
    of = trace([*sched], [(ts, thread) for ts, thread, _ in rows], period=1000, roles=SERVER)
    samples = of.samples.drop("stack").with_columns(
        pl.Series("stack", [stack for *_, stack in sorted(rows, key=lambda r: r[:2])], pl.Int32)
    )
    slices = [(0, thread, ts, dur, name, category, None) for thread, ts, dur, name in ranges]
    return of.replace(
        samples=samples,
        stacks=pl.DataFrame(STACKS, schema=schema.STACKS, orient="row"),
        slices=pl.DataFrame(slices, schema=schema.SLICES, orient="row"),
    )


def spent(of, over, states=None) -> pl.DataFrame:
    states, rules = thread_states(of, over) if states is None else states, load_rules()
    alone = pl.DataFrame(schema=REPLICAS)
    stretches = sample_stretches(of, over, rules, states)
    activity = host_activity(of, over, rules, states, stretches, pl.DataFrame(schema=LAUNCHES), alone)
    return cpu_time(of, over, states, activity, rules)


def ledger(of, start: int, end: int) -> dict[tuple[str | None, str, str | None], tuple[int, int]]:
    got = spent(of, window(start, end))
    return {
        (r["role"], r["cause"], r["sub_cause"]): (r["samples"], r["cpu_ns"])
        for r in got.iter_rows(named=True)
    }


def test_samples_weigh_their_period() -> None:
    of = sampled([(1000, B, 0), (2000, B, 0), (3000, A, 1), (4000, A, 2), (5000, A, None), (9000, B, 0)])
    assert ledger(of, 0, 6000) == {
        ("api_server", "tokenization", "encode"): (2, 2000),
        ("worker", "kernel_launch", "api"): (1, 1000),
        ("worker", "kernel_launch", "dispatch"): (1, 1000),
        ("worker", "unattributed", None): (1, 1000),
    }


def test_system_threads_are_left_out() -> None:
    assert ledger(sampled([(1000, C, 0), (2000, B, 0)]), 0, 6000) == {
        ("api_server", "tokenization", "encode"): (1, 1000)
    }


def test_samples_are_scaled_to_the_running_time_that_switches_prove() -> None:
    # B ran from 0 to 2500: two samples of 1000 ns stand for 2500 ns.
    sched = [switch(0, 0, A, "S", B), wakeup(1, 1, C), switch(2500, 0, B, "S", A)]
    of = sampled([(1000, B, 0), (2000, B, 0)], sched)
    assert ledger(of, 0, 2500) == {("api_server", "tokenization", "encode"): (2, 2500)}


def test_a_cpu_inside_a_wait_is_polling() -> None:
    of = sampled([(1000, A, 2), (2000, A, 2), (2100, A, 1)], ranges=[(A, 1900, 300, "shm_broadcast.dequeue")])
    assert ledger(of, 0, 3000) == {
        ("worker", "kernel_launch", "dispatch"): (1, 1000),
        ("worker", "spin", "poll"): (1, 1000),
        ("worker", "kernel_launch", "api"): (1, 1000),  # what a frame says outright stands
    }


POLLS, SERIALIZES = ("worker", "spin", "poll"), ("worker", "ipc", "serialize")
DISPATCH = ("worker", "kernel_launch", "dispatch")


@pytest.mark.parametrize(
    ("stack", "means"),
    [
        (3, POLLS),  # it reads the clock in its loop
        (6, POLLS),  # it sleeps for an instant, and asks again
        (8, POLLS),
        (4, SERIALIZES),  # the message is there, and is unpacked
        (9, ("worker", "gc", None)),
        (5, DISPATCH),  # the loop's frame is that of the thread: what lies in it is work
        (10, DISPATCH),  # so is what a pool's thread was given to do
    ],
)
def test_a_polling_frame_anywhere_in_the_chain_is_polling(stack: int, means: tuple[str, str, str]) -> None:
    assert ledger(sampled([(1000, A, stack)]), 0, 2000) == {means: (1, 1000)}


def test_the_loop_around_a_poll_is_polling_too() -> None:
    """The poll that began last is over; the reader's frame around it is not."""
    ranges = [
        (A, 500, 3000, "vllm/x/shm_broadcast.py(648): dequeue"),
        (A, 600, 100, "vllm/x/shm_broadcast.py(703): acquire_read"),
    ]
    of = sampled([(1000, A, 2), (2000, A, 2), (5000, A, 2)], ranges=ranges, category="python")
    assert ledger(of, 0, 6000) == {POLLS: (2, 2000), DISPATCH: (1, 1000)}


def test_a_pass_through_an_idle_loop_is_polling() -> None:
    """What lies between two passes through an idle branch found nothing to do (`[[span]]`)."""
    idle = "sglang/srt/managers/scheduler.py(2000): on_idle"
    of = sampled(
        [(1500, A, 2), (9000, A, 2)],
        ranges=[(A, n * 1000, 100, idle) for n in range(1, 4)],
        category="python",
    )
    assert ledger(of, 0, 9000) == {POLLS: (1, 1000), DISPATCH: (1, 1000)}


def test_a_driver_without_symbols_polls_while_its_thread_waits_for_the_device() -> None:
    of = sampled(
        [(1000, A, 7), (2000, A, 7)], ranges=[(A, 900, 200, "cudaStreamSynchronize")], category="runtime"
    )
    assert ledger(of, 0, 3000) == {
        ("worker", "spin", "device_wait"): (1, 1000),
        ("worker", "kernel_launch", "api"): (1, 1000),
    }


def test_shares_carry_wilsons_interval() -> None:
    of = sampled([(1000 * n, B, 0) for n in range(1, 31)] + [(1000 * n + 500, A, 1) for n in range(1, 71)])
    got = spent(of, window(0, 10**6))
    row = got.filter(pl.col("cause") == "tokenization").row(0, named=True)
    # Wilson's score interval of 30 of 100, computed by its textbook formula.
    z, n, p = 1.96, 100, 0.3
    centre, half = (
        (p + z * z / 2 / n) / (1 + z * z / n),
        z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n),
    )
    assert row["share"] == pytest.approx(0.3)
    assert (row["ci_low"], row["ci_high"]) == (pytest.approx(centre - half), pytest.approx(centre + half))
    assert got["share"].sum() == pytest.approx(1)


def test_no_samples() -> None:
    of = trace([switch(0, 0, A, "S", B)])
    assert spent(of, window(0, 10)).is_empty()


@pytest.mark.corpus
@pytest.mark.parametrize("capture", ["starved", "healthy", "throttled"])
def test_samples_and_switches_agree_on_the_servers_cpu_time(run_of, capture: str) -> None:
    """Two independent measurements: CPU samples times their period, and running time from switches."""
    of = run_of(capture).trace
    over = gpu_window(of)
    states = thread_states(of, over)
    server = of.threads.filter(pl.col("role").is_in(["api_server", "engine", "worker"]))["thread"]
    running = states.filter(pl.col("thread").is_in(server.implode()) & (pl.col("state") == "running"))[
        "dur_ns"
    ].sum()
    sampled_ns = of.samples.filter(
        pl.col("thread").is_in(server.implode()) & pl.col("ts_ns").is_between(over.start_ns, over.end_ns)
    )["period"].sum()
    assert running == pytest.approx(sampled_ns, rel=0.03)
    got = spent(of, over, states)
    assert got.filter(pl.col("role").is_not_null())["cpu_ns"].sum() == pytest.approx(running, rel=0.03)
