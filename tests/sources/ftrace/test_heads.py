"""Heads as each tool writes them, and lines that only look like one."""

import random
import re

import polars as pl
import pytest

from tests.sources.ftrace.lines import HUGE, SWITCH_1, SWITCH_2, line, messages
from tracelib.schema import IDLE
from tracelib.sources.ftrace import heads

TRACEFS = (
    "prev_comm=a b:c prev_pid=11 prev_prio=120 prev_state={} ==> next_comm=x-1 [y] next_pid=22 next_prio=120"
)


PLUGIN = "a b:c:11 [120] {} ==> x-1 [y]:22 [120]"


RAW = "prev_comm=a b:c prev_pid=11 prev_prio=120 prev_state={} next_comm=x-1 [y] next_pid=22 next_prio=120"


HEADS = {
    "tracefs": "           a b:c-11      [003] d..2.   106.000007: ",
    "tracefs, four flags": "           a b:c-11    [003] d..2   106.000007: ",
    "tracefs, tgid": "           a b:c-11      (     10) [003] d..2.   106.000007: ",
    "tracefs, tgid unknown": "           a b:c-11      (-------) [003] d..2.   106.000007: ",
    "tracefs, no flags": "           a b:c-11      [003]   106.000007: ",
    "trace-cmd 3.2, no flags": "           a b:c-11    [003]   106.000007: ",
    "trace-cmd 2.9, flags": "           a b:c-11    [003] d..2.   106.000007: ",
    "trace-cmd -t": "           a b:c-11    [003]   106.000007000: ",
    "trace-cmd -l": "   a b:c-11      3d..2.   106.000007: ",
    "trace-cmd --ts-diff": "           a b:c-11    [003]   106.000007: (+232)  ",
    "trace-cmd, two files": "trace.dat:            a b:c-11    [003]   106.000007: ",
    "many CPUs, long uptime": "           a b:c-11      [1023] d..2. 10000106.000007: ",
}


@pytest.mark.parametrize("form", [TRACEFS, PLUGIN, RAW])
@pytest.mark.parametrize("head", HEADS)
def test_switch_in_every_spelling(trace_of, head, form):
    trace = trace_of(HEADS[head] + "sched_switch:         " + form.format("S") + "\n")
    assert trace.threads.select("tid", "name").rows() == [(11, "a b:c"), (22, "x-1 [y]")]
    many = "CPUs" in head
    ts_ns = (10000106 if many else 106) * 10**9 + 7000
    assert trace.sched.rows() == [(0, ts_ns, 1023 if many else 3, "switch", 0, "S", 1)]
    assert trace.threads["pid"].to_list() == [10 if head == "tracefs, tgid" else None, None]
    assert (trace.sources["first_ns"][0], trace.sources["last_ns"][0]) == (ts_ns, ts_ns)
    assert messages(trace) == ""


def test_latency_format_of_tracefs_counts_microseconds_from_the_start(trace_of):
    trace = trace_of(
        "    bash-20445   0d..2. 20618us!: sched_switch: bash:20445 [120] S ==> swapper/0:0 [120]\n"
    )
    assert trace.sched.rows() == [(0, 20618000, 0, "switch", 0, "S", IDLE)]
    assert "count from the start" in messages(trace)


def test_a_clock_that_counts(trace_of):
    trace = trace_of(
        "          <idle>-0     [000]178922114556024: sched_wakeup:  sshd:1639 [120] success=1 CPU:001\n"
    )
    assert trace.sched.rows() == [(0, 178922114556024, 1, "wakeup", IDLE, None, 0)]
    assert "bare numbers" in messages(trace)


@pytest.mark.parametrize(
    "bad",
    [
        line(f"{HUGE}.000000", "cpu_idle: state=1"),
        line("9999999999.000000", "cpu_idle: state=1"),
        line(HUGE, "cpu_idle: state=1"),
        f"bash-7 {HUGE}d..2. 1.000000: cpu_idle: state=1\n",
        f"bash-7 0d..2. {HUGE}us!: cpu_idle: state=1\n",
        f" {HUGE}.000000 |  1) bash-7 | ...1 | 1 us | f();\n",
    ],
)
def test_numbers_beyond_64_bits_make_no_event(trace_of, bad):
    trace = trace_of(SWITCH_1 + bad)
    assert trace.sources.select("first_ns", "last_ns").row(0) == (10**9, 10**9)
    assert "1 line not understood" in messages(trace)


def test_what_looks_like_an_event_in_a_line_that_is_none_leaves_no_trace(trace_of):
    """The second line has the columns of the first, but no time: its task and fields do not count."""
    bad = line("1.00000x", "sched_wakeup: comm=ghost pid=666 prio=1 target_cpu=001", "ghost-667")
    trace = trace_of(line("1.000000", "sched_wakeup: comm=a pid=5 prio=1 target_cpu=001") + bad)
    assert trace.threads["tid"].to_list() == [5, 7]
    assert "1 event: sched_wakeup 1" in messages(trace, "info")
    assert "1 line not understood" in messages(trace)


def test_names_that_hold_what_looks_like_a_head(trace_of):
    task = "my [001]: x]-3-44"
    trace = trace_of(line("1.000000", "sched_wakeup: comm=a pid=1 prio=1 target_cpu=000", task) + SWITCH_1)
    assert trace.threads.select("tid", "name").rows() == [(1, "a"), (2, "b"), (44, "my [001]: x]-3")]


@pytest.mark.parametrize("seed", range(25))
def test_layouts_find_what_the_expression_finds(seed):
    """The fast way and the plain one agree on lines whose bytes were changed at random places."""
    pick = random.Random(seed)
    forms = [
        head.rstrip() + " " + rest
        for head in HEADS.values()
        for rest in ("sched_switch: x", "sys_futex -> 0x0", "f <-g")
    ]
    lines = []
    for _ in range(300):
        text = list(pick.choice(forms[:6] if seed % 2 else forms))
        for _ in range(pick.randrange(3)):
            text[pick.randrange(len(text))] = pick.choice(" -:[]().0123456789+x\u00e9\t")
        lines.append("".join(text))
    numbered = pl.DataFrame({"line": lines}).with_row_index("index")
    quick, plain = heads.Heads(), heads.Heads()
    fast, fast_others = quick.split(numbered)
    slow, slow_others = plain._by_expression(numbered)
    assert fast_others["index"].to_list() == slow_others["index"].to_list()
    assert rows(quick, fast) == rows(plain, slow.sort("index"))


def rows(way, events):
    """Return index, task, cpu, time and rest of events, as text."""
    task = pl.col("task").cast(pl.String).str.strip_chars(" \t")
    return events.with_columns(task, rest=way.rests.all()[events["rest"]]).rows()


def test_the_expression_is_the_same_for_python_and_polars():
    for pattern in (heads.HEAD, heads.LATENCY):
        assert (
            re.compile(pattern).groups
            == pl.select(pl.lit("").str.extract_groups(pattern).struct.unnest()).width
        )


def test_both_forms_of_a_head_in_one_text(trace_of):
    """Found by fuzzing: where no layout fits, heads of both forms came out of order."""
    rest = "sched_switch: " + PLUGIN.format("S") + "\n"
    latency, brackets = HEADS["trace-cmd -l"] + rest, HEADS["trace-cmd --ts-diff"] + rest
    trace = trace_of(latency + "a message\n" + brackets + "another\n" + latency.replace("106.", "107."))
    assert trace.sched["ts_ns"].to_list() == [106 * 10**9 + 7000] * 2 + [107 * 10**9 + 7000]
    assert "2 lines not understood, first at line 2" in messages(trace)


def test_a_line_that_is_too_long_for_an_event_is_told(trace_of):
    """An endless line, or empty ones, cost no expression: 600 MB of them fit in 3 MB of gzip."""
    trace = trace_of(SWITCH_1 + "x" * 300_000 + "\n" * 5 + SWITCH_2)
    assert trace.sched.height == 2
    assert "1 line not understood, first at line 2" in messages(trace)
    assert trace.sources["skipped_bytes"][0] == 300_001
