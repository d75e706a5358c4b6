"""Marks that programs write, of atrace, Chromium, OpenHarmony and others, and graphs of functions."""

import time

import polars as pl
import pytest

from tests.sources.ftrace.lines import line, messages
from tracelib.sources.ftrace import read, sniff
from tracelib.sources.ftrace.reader import collect
from tracelib.sources.ftrace.slices import graph_events, read_marks


def marks_of(*texts):
    """Return what thread 0 says by texts, one a microsecond from 1 us on; the trace ends at 100 us."""
    rows = {"index": range(len(texts)), "ts_ns": [(at + 1) * 1000 for at in range(len(texts))], "text": texts}
    schema = {"index": pl.UInt32, "ts_ns": pl.Int64, "text": pl.String}
    thread = pl.lit(0, pl.Int32).alias("thread")
    return read_marks(
        pl.DataFrame(rows, schema=schema).with_columns(thread, tid=pl.lit(100, pl.Int64)), 100_000
    )


def ranges(marks):
    return marks.slices.select("name", "ts_ns", "dur_ns").sort("ts_ns").rows()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("C|100|cnt|5|cat", "cnt", 5.0),
        ("C|100|exp|1e3", "exp", 1000.0),
        ("C|100|H:c 5", "H:c", 5.0),
        ("C|100|H:c d|-5|M62", "H:c d", -5.0),
        ("C|100|a|b|2.5", "a|b", 2.5),
        ("C|100|wq:m|0", "wq:m", 0.0),
        ("C|100|x|+.5E-1|", "x", 0.05),
    ],
)
def test_counters(text, name, value):
    marks = marks_of(text)
    assert marks.counters.rows() == [(1000, name, "process 100", value)]
    assert marks.slices.height == 0


@pytest.mark.parametrize("text", ["C|100|x|1.2.3", "C|100|c 5", "C|100|x|five", "C|100|x|"])
def test_what_has_no_value_stays_text(text):
    marks = marks_of(text)
    assert marks.counters.height == 0
    assert ranges(marks) == [(text, 1000, 0)]


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        ("B|100|H:foo|M62", "H:foo"),
        ("B|100|H:foo |I3062|key=1,b=2", "H:foo"),
        ("B|100|H:foo ", "H:foo"),
        ("B|100|H:a|b|M62", "H:a|b"),
        ("B|100|foo|M62", "foo|M62"),
        ("B|100|H:foo|X", "H:foo|X"),
    ],
)
def test_names_without_levels_and_tags(begin, name):
    assert ranges(marks_of(begin, "E|100|M62")) == [(name, 1000, 1000)]


@pytest.mark.parametrize(
    ("begin", "end", "name"),
    [
        ("S|100|a|7", "F|100|a|7", "a"),
        ("S|100|a|7|k=v|cat", "F|100|a|7", "a"),
        ("S|100|H:a 5", "F|100|H:a 5", "H:a"),
        ("S|100|H:a|5|M62|cat|k", "F|100|H:a|5|M62", "H:a"),
        ("S|100|a|b|7", "F|100|a|b|7", "a|b"),
        ("S|100|a|0x7f", "F|100|a|0x7f", "a"),
        ("G|100|track|a|9", "H|100|track|9", "a"),
        ("G|100|track|a|9", "H|100|track|a|9", "a"),
    ],
)
def test_ranges_apart(begin, end, name):
    marks = marks_of(begin, "text", end)
    assert ranges(marks) == [(name, 1000, 2000), ("text", 2000, 0)]
    assert (marks.open_at_end, marks.without_start) == (0, 0)


def test_an_instant_on_a_track_goes_by_its_name():
    assert ranges(marks_of("I|100|one", "N|100|track|two")) == [("one", 1000, 0), ("two", 2000, 0)]


def test_ranges_of_one_cookie_that_overlap():
    marks = marks_of("F|100|a|0", "S|100|a|0", "S|100|a|0", "S|100|b|0", "F|100|a|0", "F|100|a|0")
    assert ranges(marks) == [("a", 2000, 4000), ("a", 3000, 2000), ("b", 4000, 96_000)]
    assert (marks.open_at_end, marks.without_start) == (1, 1)


def test_marks(trace_of):
    texts = [
        ("1.000000", "tracing_mark_write: B|5|outer|with bar"),
        ("1.000001", "print: tracing_mark_write: B|5|inner"),
        ("1.000002", "tracing_mark_write: C|5|queue|3"),
        ("1.000003", "0: E"),
        ("1.000004", "print: E|5"),
        ("1.000005", "print:                 ip=tracing_mark_write buf=S|5|load|77"),
        ("1.000006", "tracing_mark_write: hello: world"),
        ("1.000007", "bprint:               some_function: count=3"),
        ("1.000009", "tracing_mark_write: F|5|load|77"),
        ("1.000010", "tracing_mark_write: E|5"),
        ("1.000011", "tracing_mark_write: B|5|open"),
    ]
    trace = trace_of("".join(line(ts, rest) for ts, rest in texts) + line("1.000020", "cpu_idle: state=1"))
    assert trace.slices.select(pl.col("ts_ns") - 10**9, "dur_ns", "name").rows() == [
        (0, 4000, "outer|with bar"),
        (1000, 2000, "inner"),
        (5000, 4000, "load"),
        (6000, 0, "hello: world"),
        (7000, 0, "count=3"),
        (11000, 9000, "open"),
    ]
    assert trace.slices["category"].unique().to_list() == ["annotation"]
    assert trace.counters.rows() == [(0, 10**9 + 2000, "queue", "process 5", 3.0)]
    assert trace.threads.select("pid", "tid").row(0) == (5, 7)  # the marks name their process
    assert "1 marked range did not end" in messages(trace, "info")


def test_a_text_with_line_ends_and_a_kernel_stack(trace_of):
    text = (
        line("1.000000", "bprint: fn: first\nsecond\n third").rstrip("\n")
        + "\n"
        + line("1.000001", "<stack trace>")
        + " => schedule\n => do_nanosleep\n"
        + line("1.000002", "cpu_idle: state=1")
    )
    trace = trace_of(text)
    assert trace.slices["name"].to_list() == ["first"]
    assert "2 lines continue the text" in messages(trace, "info")
    assert messages(trace) == ""


@pytest.mark.parametrize("size", [60, 10_000])
def test_a_text_goes_on_in_the_next_piece(tmp_path, size):
    path = tmp_path / "t.txt"
    path.write_text(
        line("1.000000", "tracing_mark_write: first")
        + "second\n" * 30
        + line("1.000002", "cpu_idle: state=1")
        + "odd\n"
    )
    events = collect(path, size).events
    assert (events.continued, events.unread) == (30, 1)


def test_a_mark_by_address(trace_of):
    """Option sym-offset."""
    trace = trace_of(line("1.000000", "tracing_mark_write+0x8a/0x170: hello: you"))
    assert trace.slices["name"].to_list() == ["hello: you"]


def test_markers_of_one_layout_behind_events_of_another(tmp_path):
    """Found by fuzzing: Polars panicked on columns in unequal pieces, of two recordings in one text."""
    text = (
        "cpus=6\n"
        "           a-4734  [002] 10.675591: sched_switch:          prev_comm=a "
        "prev_pid=4734 prev_prio=120 prev_state=1024 next_comm=b next_pid=5 "
        "next_prio=120\n"
        "           <...>-18926 (-----) [005] ...1 683202.179559: tracing_mark_write: B|18926|doFrame\n"
        "           <...>-18926 (-----) [005] ...1 683202.179643: tracing_mark_write: E\n"
        "           <...>-18964 (-----) [005] ...1 683202.181975: tracing_mark_write: "
        "C|18926|texture|1906008\n"
        "           <...>-18964 (-----) [005] ...1 683202.181986: tracing_mark_write: C|18926|count|160\n"
    )
    path = tmp_path / "two.txt"
    path.write_text(text)
    trace = read(path)
    assert trace.counters.select("track", "name", "value").sort("value").rows() == [
        ("process 18926", "count", 160.0),
        ("process 18926", "texture", 1906008.0),
    ]
    assert trace.slices.select("ts_ns", "dur_ns").rows() == [(683_202_179_559_000, 84_000)]


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
    events, others, no_time = graph_events(lines)
    assert (events.height, others["index"].to_list(), no_time) == (0, [2], 1)
