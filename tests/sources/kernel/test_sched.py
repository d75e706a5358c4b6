"""States in every spelling, names of threads whichever line showed them, and traces of some threads only."""

import polars as pl
import pytest

from tracelib.schema import IDLE
from tracelib.sources.ftrace import read
from tracelib.sources.kernel import sched
from tracelib.sources.kernel.sched import LESS_TRUSTED, NAMES, PROCESSES, number_of, threads


@pytest.mark.parametrize(
    ("texts", "letters"),
    [
        (["R", "R+", "S", "D|W", "x", "I", "t", "Z", "W"], ["R", "R", "S", "D", "X", "I", "t", "Z", "other"]),
        (["0x0", "0x100", "0x1", "0x80", "0x40"], ["R", "R", "S", "I", "P"]),  # Linux 4.16 and later
        (["0", "4096", "1", "2", "64", "129"], ["R", "R", "S", "D", "X", "S"]),  # before 4.14
    ],
)
def test_states(texts, letters):
    fields = pl.DataFrame({"state": texts, "prev": [11] * len(texts)})
    assert sched.states(fields).to_list() == letters


def test_states_of_the_kernels_that_shifted_them():
    fields = pl.DataFrame({"state": ["1", "2", "4", "256"], "prev": [0, 11, 12, 13]})
    assert sched.states(fields).to_list() == ["R", "S", "D", "I"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["S", "Z", "X", "D|W"], ["S", "Z", "X", "D"]),  # before 4.14, as far as one can tell
        (
            ["S", "Z", "X", "W", "x", "R"],
            ["S", "X", "Z", "I", "P", "R"],
        ),  # an idle kworker tells the newer kernel
    ],
)
def test_states_that_the_plugin_names_as_older_kernels_numbered_them(written, meant):
    args = pl.Series([f"a:1 [120] {state} ==> b:2 [120]" for state in written])
    events = pl.Series(["switch"] * len(args))
    assert sched.fields(events, args)["prev_state"].to_list() == meant


#: Thread 100 alone was recorded, on CPU 1: at three places others ran that the trace does not hold.
SWITCHES = [
    (11, 100),
    (100, 12),
    (13, 100),
    (100, 11),
    (12, 100),
    (100, 0),
    (0, 100),
    (100, 13),
    (11, 100),
    (100, 12),
]


def switch(at, prev, following, cpu=1):
    fields = (
        f"prev_comm=t prev_pid={prev} prev_prio=120 prev_state=S ==> next_comm=t "
        f"next_pid={following} next_prio=120"
    )
    return f"               t-{prev} [{cpu:03d}] d..2. 1.{at:06d}: sched_switch: {fields}\n"


def waking(at, waker, woken):
    return (
        f"               t-{waker} [001] d..2. 1.{at:06d}: sched_waking: comm=t "
        f"pid={woken} prio=120 target_cpu=001\n"
    )


RECORDED = [switch(10 * at, *pair) for at, pair in enumerate(SWITCHES)]


def lost(tmp_path, lines):
    path = tmp_path / "trace.txt"
    path.write_text("".join(lines))
    trace = read(path)
    said = trace.health.filter(pl.col("message").str.contains("for some threads only"))["message"].to_list()
    return trace.sources["lost_detected"][0], said


@pytest.mark.parametrize("more", [[], [waking(55, 0, 100), waking(95, 100, 12)]])
def test_what_was_left_out_is_not_lost(tmp_path, more):
    count, said = lost(tmp_path, RECORDED + more)
    assert count == 0
    assert len(said) == 1
    assert "at least 1)" in said[0]
    assert "3 places" in said[0]


@pytest.mark.parametrize(
    "lines",
    [
        [*RECORDED, waking(95, 11, 12)],  # of others
        [*RECORDED, waking(95, 0, 12)],
        [*RECORDED, switch(95, 11, 0, cpu=0)],
        [*RECORDED, switch(35, 100, 14, cpu=0)],  # 100 has left already
        RECORDED[:3] + RECORDED[4:] + [switch(100, 12, 100)],  # 100 does not leave
        RECORDED[:9],  # too few to tell
    ],
)
def test_what_may_be_lost_is_counted(tmp_path, lines):
    assert lost(tmp_path, lines) == (3, [])


def made(names, processes=()):
    names = pl.DataFrame(names, schema=NAMES, orient="row")
    return threads(names, pl.DataFrame(list(processes), schema=PROCESSES, orient="row"), "vm")


def test_the_latest_name_counts_and_a_less_trusted_one_only_alone():
    rows = [(5, "late", 9), (5, "early", 1), (5, "<...>", 10), (5, ":5", 11), (5, None, 12)]
    rows += [(6, "cut", 9), (6, "whole", 3 - LESS_TRUSTED), (7, "alone", 4 - LESS_TRUSTED), (8, None, 1)]
    assert made(rows).select("thread", "tid", "name").rows() == [
        (0, 5, "late"),
        (1, 6, "cut"),
        (2, 7, "alone"),
        (3, 8, None),
    ]


def test_a_process_is_named_by_its_first_thread_whose_id_it_has():
    frame = made([(5, "main", 1), (6, "worker", 2), (7, "other", 3)], [(6, 5, 2), (6, 4, 1), (7, 0, 1)])
    assert frame.select("host", "pid", "tid", "process", "name").rows() == [
        ("vm", 5, 5, "main", "main"),
        ("vm", 5, 6, "main", "worker"),
        ("vm", None, 7, None, "other"),
    ]


def test_idle_tasks_and_unknown_ids_are_no_threads():
    frame = made([(5, "a", 1), (0, "swapper/0", 2), (-1, "gone", 3), (9, "b", 4)])
    assert number_of(pl.Series([5, 9, 0, -1, 7, None]), frame).to_list() == [0, 1, IDLE, None, None, None]
    assert number_of(pl.Series([5, 0]), made([])).to_list() == [None, IDLE]
