"""States in every spelling, and traces of some threads only: what is missing was left out, or lost."""

import polars as pl
import pytest

from tracelib.sources.ftrace import read
from tracelib.sources.kernel import sched


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
