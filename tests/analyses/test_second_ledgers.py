"""Ledgers 1 and 2 by two implementations: tracelib's, and one of loops and lists (second_ledgers.py). To the
nanosecond.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import thorough
from tracelib import schema
from tracelib.analyses.results import Results, analyse

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode does not
from random_server import random_server
from second_ledgers import Blame, Span, gpu_states, merged

ALL = ("starved", "healthy", "throttled", "graph", "nsys_starved", "nsys_healthy")
SECONDS = 0.5


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


@pytest.mark.corpus
@pytest.mark.parametrize("name", thorough(ALL, but=("starved", "nsys_starved")))
@pytest.mark.parametrize("share", thorough([0.3, 0.65], but=[0.3]))
def test_both_say_the_same_of_half_a_second_of_the_captures(run_of, name, share):
    """Without their samples: the second implementation does not look with them into slices that outlast their
    siblings.
    """
    at = share * run_of(name).results.window.duration_ns / 1e9
    trace = run_of(name).trace.replace(samples=schema.empty("samples"), stacks=schema.empty("stacks"))
    results = analyse(trace, window_seconds=(at, at + SECONDS))
    assert results.lost.height > 100  # there is something to agree on
    agree(results)


@settings(max_examples=16)
@given(
    seed=st.integers(0, 10**9),
    slices=st.integers(0, 120),
    ops=st.integers(3, 40),
    switches=st.integers(2, 60),
    samples=st.sampled_from([0, 20, 150]),
)
def test_both_say_the_same_of_random_servers(seed, slices, ops, switches, samples):
    agree(analyse(random_server(seed, slices, ops, switches, samples)))


def test_random_servers_hold_every_way_to_lose_time():
    """What the comparison above would not see, it cannot compare."""
    found, seen = set(), set()
    for seed in range(25):
        results = analyse(random_server(seed, 100 if seed % 2 else 40, 40, 50, 0 if seed % 2 else 150))
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
