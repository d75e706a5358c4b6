"""Texts that are damaged, cut, empty or of a form that is not read."""

import pytest

from tests.sources.ftrace.lines import OTHER_CPU, SWITCH_1, SWITCH_2, line, messages
from tracelib.errors import BadTrace
from tracelib.sources.ftrace import read, sniff


def test_damage(trace_of):
    text = (
        (SWITCH_1 + "warning: something on stderr <b>\x1b[31m\n" + OTHER_CPU).replace("\n", "\r\n").encode()
    )
    trace = trace_of(text.replace(b"a-1", b"\xff-1") + SWITCH_2.encode()[:50])
    assert trace.sched.height == 1
    said = messages(trace)
    assert "1 line not understood, first at line 2: 'warning: something on stderr <b>\\x1b[31m'" in said
    assert "last line is cut" in said
    assert "not UTF-8" in messages(trace, "info")
    assert trace.sources["skipped_bytes"][0] == 50 + len("warning: something on stderr <b>\x1b[31m\n")


def test_a_last_line_that_is_surely_whole_is_kept(trace_of):
    trace = trace_of(SWITCH_1 + SWITCH_2.rstrip("\n"))
    assert trace.sched.height == 2
    assert trace.sources["skipped_bytes"][0] == 0


@pytest.mark.parametrize(
    "rest",
    [
        "sched_wakeup: comm=a pid=1 prio=120 target_cpu=003",
        "sched_process_fork: comm=a pid=1 child_comm=a child_pid=12",
        "tracing_mark_write: B|7|decode",
        "sys_exit: NR 202 = 0",
        "cpu_idle: state=1",
    ],
)
def test_a_last_line_without_its_end_is_whole(trace_of, rest):
    trace = trace_of(SWITCH_1 + line("2.000000", rest).rstrip("\n"))
    assert trace.sources["last_ns"][0] == 2_000_000_000
    assert trace.sources["skipped_bytes"][0] == 0
    assert "the last line has no line end" in messages(trace, "info")


@pytest.mark.parametrize(
    "rest",
    ["sched_wakeup: comm=a pid=1 prio=120 target_cpu=00", "sys_enter: NR 20", "sched_swi", "cpu_idle:"],
)
def test_a_last_line_that_shows_its_cut_is_left_out(trace_of, rest):
    trace = trace_of(SWITCH_1 + line("2.000000", rest).rstrip("\n"))
    assert trace.sources["last_ns"][0] == 1_000_000_000
    assert "last line is cut" in messages(trace)


def test_the_mark_that_systrace_appends_without_a_time_is_no_event(trace_of):
    sync = line("0.0", "0: trace_event_clock_sync: parent_ts=0.0", "dummy-0000", 0)
    trace = trace_of(SWITCH_1 + SWITCH_2 + sync)
    assert trace.sources.row(0, named=True)["first_ns"] == 1_000_000_000
    assert set(trace.threads["tid"].drop_nulls()) <= {1, 2, 3}


def test_a_document_that_quotes_lines_is_no_trace():
    notes = f"What I saw on node 7\n\n  # cat trace\n{SWITCH_1}and then it hung.\n"
    assert not sniff(notes.encode(), "notes.md")
    assert sniff(
        f"# tracer: nop\n#\n{SWITCH_1}text of a marker\nthat goes on\nand on\n".encode(), "trace.txt"
    )
    assert sniff(f"cpus=4\n{SWITCH_1}".encode(), "trace.txt")


@pytest.mark.parametrize("text", ["\n", "hello\nworld\n", "no line end", "\x00\x01\x02" * 50])
def test_what_holds_no_event(trace_of, text):
    assert not sniff(text.encode(), "trace.txt")
    if text.strip():
        with pytest.raises(BadTrace):
            trace_of(text)


@pytest.mark.parametrize(
    "event",
    [
        "sys_exit: NR 1 = 2",  # context-info off
        "00005504 00000001 000002049d2f538c type: 442",  # hex
        (
            "            bash   21764   0 0 00000000 00000000 [84320ba8] 16.215ms "
            "(+0.002ms): sys_exit: NR 1 = 2"
        ),  # verbose
    ],
)
def test_forms_without_a_head_are_refused_with_the_options_to_set(trace_of, event):
    with pytest.raises(BadTrace, match=r"options/context-info"):
        trace_of(f"# tracer: nop\n#\n{event}\n")


def test_an_empty_buffer_says_so(trace_of):
    trace = trace_of("# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0   #P:2\n#\n")
    assert "no event" in messages(trace, "error")


def test_a_missing_file_is_a_typed_error(tmp_path):
    with pytest.raises(BadTrace, match="cannot be opened"):
        read(tmp_path / "absent")
