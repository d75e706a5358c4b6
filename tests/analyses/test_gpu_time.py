"""Ledger 1 by hand: what each GPU did."""

import polars as pl

from tests.analyses.server_by_hand import COLLECTIVE, call, op, run
from tests.findings.sheet import ANY_SIZE, MS
from tracelib.analyses.gpu_time import GPU_STATES, gpu_time, utilisation_steps
from tracelib.analyses.window import Window
from tracelib.findings import diagnose
from tracelib.findings.verdict import verdict


def test_one_rank_alone_cannot_tell_waiting_from_transfer():
    results = run([op(0, 10, 1), op(20, 110, 2, **COLLECTIVE)], [call(0, 1, 1), call(15, 18, 2)])
    state = dict(results.gpu_time.select(pl.col("state").cast(pl.String), "ns").iter_rows())
    assert (state["collective"], state["collective_wait"], state["collective_transfer"]) == (90, 0, 0)
    assert diagnose(results).devices[0].useful_share == 10 / 110  # what is in the collective stands apart


def test_a_gpu_that_never_waits_is_not_cpu_bound():
    ops = [op(i * 100, i * 100 + 99, i + 1) for i in range(20)]
    results = run(ops, [call(max(0, i * 100 - 50), max(0, i * 100 - 50) + 5, i + 1) for i in range(20)])
    assert verdict(results, ANY_SIZE).state == "not_cpu_bound"
    assert "gpu_bound" in {f.id for f in diagnose(results).findings}


def states(*rows):
    """Return states of (gpu, begin, end, state), in ms."""
    made = [(gpu, begin * MS, (end - begin) * MS, state) for gpu, begin, end, state in rows]
    return pl.DataFrame(made, schema=GPU_STATES, orient="row")


def test_states_are_summed_with_those_that_did_not_occur():
    ledger = gpu_time(states((0, 0, 30, "compute"), (0, 30, 90, "idle"), (0, 90, 100, "compute")))
    assert dict(ledger.select(pl.col("state").cast(pl.String), "ns").iter_rows()) == {
        **dict.fromkeys(("copy", "collective_transfer", "collective", "collective_wait"), 0),
        "compute": 40 * MS,
        "idle": 60 * MS,
    }


def test_bursts_and_starvation_in_turn_are_steps():
    """Ten bins of 10 ms: full, full, half (neither: it joins what was before), empty, empty, 7 of 10 ms, …"""
    rows = states(
        (0, 0, 25, "compute"),
        (0, 25, 50, "idle"),
        (0, 50, 57, "copy"),
        (0, 57, 60, "idle"),
        (0, 60, 100, "compute"),
    )
    steps = utilisation_steps(rows, Window(0, 100 * MS, "by hand"))
    assert steps.select(pl.col("ts_ns", "dur_ns") // MS, pl.col("level").cast(pl.String)).rows() == [
        (0, 30, "burst"),
        (30, 20, "starved"),
        (50, 50, "burst"),
    ]


def test_collectives_in_which_waiting_is_not_told_from_transfer_are_neither_a_burst_nor_starved():
    rows = states((0, 0, 50, "compute"), (0, 50, 100, "collective"))
    assert utilisation_steps(rows, Window(0, 100 * MS, "by hand"))["level"].to_list() == ["burst"]
