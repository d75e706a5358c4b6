"""Graphs of functions: with and without times, threads and durations, and what their comments hold."""

import time

import polars as pl
import pytest

from tests.sources.ftrace.lines import line, messages
from tracelib.sources.ftrace import graph, sniff

DRAWN = "  100.{:06d} |   0)   bash-100     |               |  {}\n"


def test_text_in_comments_is_a_marker(trace_of):
    texts = ["a() {", "/* B|100|hello */", "/* plain words: here */", "/* E|100 */", "/* C|100|cnt|5 */", "}"]
    trace = trace_of("".join(DRAWN.format(at, text) for at, text in enumerate(texts, 1)))
    assert trace.slices.select(pl.col("ts_ns") - 100 * 10**9, "dur_ns", "name", "category").rows() == [
        (1000, 5000, "a", "other"),
        (2000, 2000, "hello", "annotation"),
        (3000, 0, "plain words: here", "annotation"),
    ]
    assert trace.counters.select("ts_ns", "name", "value").rows() == [(100 * 10**9 + 5000, "cnt", 5.0)]


def test_events_calls_and_functions_in_comments_are_no_markers(trace_of):
    texts = [
        "/* sys_futex(uaddr: 1, op: 0) */",
        "/* sys_futex -> 0x0 */",
        "/* schedule <-do_nanosleep */",
        "/* <stack trace> */",
        (
            "/* sched_switch: prev_comm=bash prev_pid=100 prev_prio=120 prev_state=S ==> "
            "next_comm=x next_pid=7 next_prio=120 */"
        ),
        "/* cpu_idle: state=1 */",
    ]
    trace = trace_of("".join(DRAWN.format(at, text) for at, text in enumerate(texts, 1)))
    assert trace.slices.select("dur_ns", "name", "category").rows() == [(1000, "futex", "os")]
    assert trace.sched.select("event", "prev_state").rows() == [("switch", "S")]
    said = messages(trace, "info")
    assert "function 1" in said
    assert "stack trace 1" in said
    assert "cpu_idle 1" in said


def test_comments_without_a_task_are_told(trace_of):
    """A scheduler event names its threads itself; text and calls do not say who wrote or made them."""
    sched = (
        "/* sched_switch: prev_comm=a prev_pid=1 prev_prio=1 prev_state=S ==> "
        "next_comm=b next_pid=2 next_prio=1 */"
    )
    texts = ["/* B|100|hello */", "/* sys_futex(uaddr: 1, op: 0) */", sched]
    trace = trace_of(
        "".join(f"  100.00000{at} |   0)               |  {text}\n" for at, text in enumerate(texts))
    )
    assert trace.sched.height == 1
    assert trace.slices.height == 0
    assert "2 lines of a function graph carry no time, no task or no duration" in messages(trace)


@pytest.mark.parametrize(
    "lines",
    [
        [
            "  100.000001 |   0)   bash-100     |  a() {",
            "  100.000002 |   0)   bash-100     |    leaf1();",
            "  100.000004 |   0)   bash-100     |  } /* a ret=0x0 */",
        ],
        [" 0)  a(x=1) {", " 0)    leaf1 [mod](); /* ret=0x0 */", " 0)  }"],
        ["    10 us  |   0)   bash-100     |  d..1. |   0.100 us    |  leaf1();"] * 3,
        ["    10.123 us  |   0)   bash-100     |  d..1. |   0.100 us    |  leaf1();"] * 3,
    ],
)
def test_graphs_without_durations_or_from_their_start_name_the_options(trace_of, lines):
    trace = trace_of("\n".join(lines) + "\n")
    assert "3 lines of a function graph carry no time, no task or no duration" in messages(trace)
    advice = " ".join(trace.health["fix"].drop_nulls())
    assert "funcgraph-duration" in advice
    assert "display-graph" in advice


def test_comments_of_a_graph_without_durations_are_read(trace_of):
    texts = ["a() {", "/* B|100|hello */", "/* E|100 */"]
    drawn = [f"  100.00000{at} |   0)   bash-100     |  {text}\n" for at, text in enumerate(texts)]
    trace = trace_of("".join(drawn))
    assert trace.slices.select("dur_ns", "name").rows() == [(1000, "hello")]


@pytest.mark.parametrize(
    "text", ["\n" * 32768, " " * 32768, "1)" + " " * 1500, "1) " + "1" * 32768, "-1" * 4000 + "\n" * 16000]
)
def test_what_repeats_is_recognised_in_time(text):
    """Each of these took seconds to minutes, as expressions shared out blanks in every way."""

    def took(head):
        began = time.process_time()
        assert not sniff(head, "trace.txt")
        return time.process_time() - began

    prose = b"a line of words\n" * 2048
    assert min(took(text.encode()) for _ in range(3)) < 100 * min(took(prose) for _ in range(3))


def test_functions(trace_of):
    text = (
        line("1.000000", "schedule+0x14/0x1ac <-do_nanosleep+0xc0/0x41c")
        + line("1.000000", "sys_read <-do_syscall_64")
        + line("1.000001", "funcgraph_entry:                   |  do_sys_poll() {")
        + line("1.000002", "funcgraph_entry:        0.123 us   |    kfree();")
        + line("1.000009", "funcgraph_exit:         8.000 us   |  }")
    )
    trace = trace_of(text)
    assert trace.slices.select(pl.col("ts_ns") - 10**9, "dur_ns", "name", "category").rows() == [
        (1000, 8000, "do_sys_poll", "other"),
        (2000, 123, "kfree", "other"),
    ]
    assert "function 1" in messages(trace, "info")


def test_function_graph_without_times_is_counted_and_says_what_is_missing(trace_of):
    trace = trace_of(
        "# tracer: function_graph\n#\n"
        " 3)   0.081 us    |  pick_task_fair(rq=0xffff); /* <-x ret=0x0 */\n"
        " 3)               |  }\n"
    )
    assert trace.slices.height == 0
    assert "2 lines of a function graph carry no time, no task or no duration" in messages(trace)


@pytest.mark.parametrize(
    ("mark", "us"), [("+", "10.500"), ("!", "100.500"), ("#", "1000.25"), ("*", "10001.1"), ("$", "1000001")]
)
def test_long_functions_have_a_mark_before_their_time(trace_of, mark, us):
    drawn = f"  1.000010 |   0)    bash-100    | {mark} {us} us |  leaf();\n"
    told = line("1.000010", f"funcgraph_entry:      {mark} {us} us |  leaf();", "bash-100")
    for text in (drawn, told):
        assert trace_of(text).slices.select("name", "dur_ns").rows() == [("leaf", round(float(us) * 1000))]


def test_function_graphs_whose_lines_name_no_thread_and_arrows_at_interrupts(trace_of):
    trace = trace_of(
        "  1.000010 |   0)   ==========> |\n  1.000010 |   0)               |  irq() {\n"
        "  1.000015 |   0)   5.000 us    |  }\n"
        "  1.000015 |   0)   <========== |\n  1.000020 |   0)    bash-100    |   1.000 us    |  leaf();\n"
    )
    assert trace.slices.select("name", "dur_ns").rows() == [("leaf", 1000)]
    assert (
        messages(trace)
        == "2 lines of a function graph carry no time, no task or no duration and cannot be placed"
    )


def test_functions_by_address(trace_of):
    """trace-cmd report -R."""
    enter, leave = (
        "funcgraph_entry:       func=0xffffffff81 depth=0",
        "funcgraph_exit:        func=0xffffffff81 overrun=0x0",
    )
    trace = trace_of(line("1.000010", enter) + line("1.000016", leave))
    assert trace.slices.select("name", "dur_ns").rows() == [("0xffffffff81", 6000)]


def test_drawn_lines_need_a_bar():
    lines = pl.DataFrame(
        {"index": [1, 2], "line": [" 3)   0.081 us    |  f();", " 3)   ping-1922    =>   ksoft-21"]}
    )
    events, others, no_time = graph.graph_events(lines)
    assert (events.height, others["index"].to_list(), no_time) == (0, [2], 1)
