"""Ledgers 1 and 2 by two implementations: tracelib's, and one of loops and lists (second_ledgers.py). To the
nanosecond, or, where samples look into long slices, to a thousandth of the window.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, thorough
from tests.simulator import simulate
from tracelib import schema
from tracelib.analyses.results import Results, analyse
from tracelib.loading import load

if TYPE_CHECKING:
    from collections.abc import Iterable

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from random_server import random_server
from second_ledgers import Blame, Span, gpu_states, merged

ALL = ("starved", "healthy", "throttled", "graph", "nsys_starved", "nsys_healthy")
VLLM = ("vllm_2cpus", "vllm_32cpus", "vllm_starved_stack", "vllm_healthy_stack")
SECONDS = 0.5
SAMPLES = (
    *("tokenization", "idle", "stack", "compile", "gpu_bound", "healthy", "throttled", "ipc", "starved"),
    *("launch_eager", "launch_graph", "launch_nsys", "launch_skew"),
    *(f"sweep/cpus_{cpus}" for cpus in (2, 3, 4, 6, 8)),
)
SIMULATED = (
    *(("replicas", "no_work"), ("replicas", "host_api"), ("sglang", "no_work"), ("sglang", "tokenization")),
    *(("polling", "idle"), ("pipeline", "tokenization"), ("tensor", "gc"), ("tensor", "jit_compile")),
)
CLOSE = 0.001


def states(results: Results) -> dict[int, list[Span]]:
    rows = results.gpu_states.select("gpu", "ts_ns", "dur_ns", pl.col("state").cast(pl.String))
    return {
        gpu: [(ts, ts + dur, s) for _, ts, dur, s in own.rows()]
        for (gpu,), own in rows.group_by("gpu", maintain_order=True)
    }  # type: ignore[misc]


def ledger(results: Results, gpu: int) -> list[Span]:
    words = pl.col("lost", "cause", "sub_cause", "cpu_state").cast(pl.String)
    rows = results.lost.filter(pl.col("gpu") == gpu).select("ts_ns", "dur_ns", words).rows()
    return merged([(ts, ts + dur, tuple(told)) for ts, dur, *told in rows])


def agree(results: Results) -> None:
    assert states(results) == gpu_states(results.trace, results.window)
    second = Blame(results.trace, results.window, results.thread_states)
    for gpu in second.states:
        assert ledger(results, gpu) == second.ledger(gpu)


def causes(spans: Iterable[tuple[int, tuple[str, ...]]], length: int) -> dict[tuple[str, ...], float]:
    """Return the share of the window of each cause and sub-cause."""
    spent: Counter[tuple[str, ...]] = Counter()
    for ns, cause in spans:
        spent[cause] += ns
    return {cause: ns / length for cause, ns in spent.items()}


def close(results: Results) -> None:
    """Both say the same of each GPU and cause, give or take so much of the window.

    They do not count the same rows of a thread among the siblings of a long one.
    """
    length = results.window.duration_ns
    second = Blame(results.trace, results.window, results.thread_states)
    lost = results.lost.select("gpu", "dur_ns", "cause", "sub_cause").rows()
    assert states(results) == second.states
    for gpu in second.states:
        theirs = causes(((b - a, what[1:3]) for a, b, what in second.ledger(gpu)), length)
        ours = causes(((ns, tuple(what)) for of, ns, *what in lost if of == gpu), length)
        assert ours == pytest.approx({cause: theirs.get(cause, 0) for cause in {*ours, *theirs}}, abs=CLOSE)


@pytest.mark.parametrize("name", thorough(SAMPLES, but=("tokenization",)))
def test_both_say_the_same_of_the_samples(name):
    close(analyse(load(ROOT / "sample_traces" / name)))


@pytest.mark.parametrize(
    ("shape", "defect"), thorough(SIMULATED, but=(("replicas", "no_work"), ("sglang", "no_work")))
)
def test_both_say_the_same_of_servers_of_other_shapes(shape, defect):
    close(simulate({defect: 0.2}, shape=shape).results())


@pytest.mark.corpus
@pytest.mark.thorough
@pytest.mark.parametrize("name", [*ALL, *VLLM])
def test_both_say_the_same_of_half_a_second_of_the_captures(run_of, name):
    at = 0.3 * run_of(name).results.window.duration_ns / 1e9
    results = analyse(run_of(name).trace, window_seconds=(at, at + SECONDS))
    assert results.lost.height > 100  # there is something to agree on
    close(results)


@pytest.mark.corpus
@pytest.mark.parametrize("name", thorough(ALL, but=("starved", "nsys_starved")))
def test_without_samples_to_the_nanosecond(run_of, name):
    """Those tell what goes on in long slices, of which there are none then."""
    at = 0.65 * run_of(name).results.window.duration_ns / 1e9
    trace = run_of(name).trace.replace(samples=schema.empty("samples"), stacks=schema.empty("stacks"))
    agree(analyse(trace, window_seconds=(at, at + 0.2)))


@settings(max_examples=6)
@given(
    seed=st.integers(0, 10**9),
    slices=st.integers(0, 120),
    ops=st.integers(3, 40),
    switches=st.integers(2, 60),
    samples=st.sampled_from([0, 20, 150]),
)
def test_both_say_the_same_of_random_servers(seed, slices, ops, switches, samples):
    agree(analyse(random_server(seed, slices, ops, switches, samples)))


def test_both_say_the_same_of_servers_that_hold_every_way_to_lose_time():
    """What is not there to see cannot be compared."""
    found, seen = set(), set()
    for seed in range(25):
        results = analyse(random_server(seed, 100 if seed % 2 else 40, 40, 50, 0 if seed % 2 else 150))
        agree(results)
        found |= set(results.lost.select("cause", "sub_cause").unique().rows())
        seen |= set(results.lost["cpu_state"].unique().to_list()) | set(
            results.gpu_time.filter(pl.col("ns") > 0)["state"].unique().to_list()
        )
    assert found >= {
        ("kernel_launch", "api"),
        ("kernel_launch", "dispatch"),
        ("kernel_launch", "latency"),
        ("kernel_launch", "alloc"),
        ("kernel_launch", "module_load"),
        ("tokenization", "encode"),
        ("scheduling", None),
        ("sync", None),
        ("ipc", "wait"),
        ("ipc", "copy"),
        ("no_work", None),
        ("imbalance", None),
        ("unattributed", None),
        ("unattributed", "no launch found"),
        ("gc", None),
        ("kernel_launch", "jit_compile"),
        ("host_work", "worker"),
        ("host_work", "engine"),
        ("device", "inside a graph"),
    }
    assert seen >= {
        "running",
        "runnable",
        "blocked",
        "unknown",
        "compute",
        "copy",
        "collective_transfer",
        "collective_wait",
        "idle",
    }
