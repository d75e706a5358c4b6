"""The same events as each tool writes them, and text that is damaged: hand-worked lines and their frames."""

import random
import re

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.schema import IDLE
from tracelib.sources.ftrace import graph, heads, read, sniff
from tracelib.sources.ftrace.events import kind_of
from tracelib.sources.ftrace.reader import collect

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


@pytest.fixture
def trace_of(tmp_path):
    def make(text):
        path = tmp_path / "trace.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(path)

    return make


def messages(trace, level="warning"):
    return " | ".join(trace.health.filter(pl.col("level") == level)["message"])


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
    ("fields", "cpu"),
    [
        ("comm=sshd pid=5 prio=120 target_cpu=007", 7),
        ("comm=sshd pid=5 prio=120 success=1 target_cpu=7", 7),
        ("comm=sshd pid=5 prio=120 success=1 target_cpu=002 state=W|m", 2),
        ("sshd:5 [120] success=1 CPU:006", 6),
        ("sshd:5 [120] CPU:006", 6),
        ("sshd:5 [120]", 1),
    ],
)
@pytest.mark.parametrize("event", ["wakeup", "waking", "wakeup_new"])
def test_wakeups(trace_of, event, fields, cpu):
    trace = trace_of(f"            bash-9     [001] d..2.     1.000000: sched_{event}: {fields}\n")
    assert trace.sched.rows() == [(0, 10**9, cpu, event, 1, None, 0)]
    assert trace.threads.select("tid", "name").rows() == [(5, "sshd"), (9, "bash")]


def line(ts, rest, task="bash-7", cpu=1):
    return f"{task:>22}     [{cpu:03d}] .....  {ts:>12}: {rest}\n"


NAMED = ("sys_futex(uaddr: 1, op: 0)", "sys_futex -> 0x0")
SPLIT = ("sys_enter_futex:      uaddr: 0x1, op: 0x0", "sys_exit_futex:       0x0")
NUMBERED = ("sys_enter: NR 202 (1, 0, 0)", "sys_exit: NR 202 = 0")
UNPRINTED = (
    "sys_enter:             id=202 args=ARRAY[01, 00, 00]",
    "sys_exit:              id=202 ret=0",
)  # -R


@pytest.mark.parametrize("spelling", [NAMED, SPLIT, NUMBERED, UNPRINTED])
def test_system_calls(trace_of, spelling):
    enter, leave = spelling
    text = (
        line("1.000000", enter)
        + line("1.000001", enter, "other-8")
        + line("1.000004", leave)
        + line("1.000009", leave, "other-8")
    )
    trace = trace_of(text)
    assert trace.slices.select("thread", "ts_ns", "dur_ns", "name", "category").rows() == [
        (0, 10**9, 4000, "futex", "os"),
        (1, 10**9 + 1000, 8000, "futex", "os"),
    ]


def test_both_spellings_of_one_call_count_once(trace_of):
    trace = trace_of(
        line("1.000000", NUMBERED[0])
        + line("1.000000", NAMED[0])
        + line("1.000002", NAMED[1])
        + line("1.000002", NUMBERED[1])
    )
    assert trace.slices.select("name", "dur_ns").rows() == [("futex", 2000)]


def test_raw_events_of_calls_that_no_name_stands_for_are_kept(trace_of):
    """syscalls:*_futex and raw_syscalls together: read is there by number only, futex twice, in either order."""
    trace = trace_of(
        line("1.000000", "sys_enter: NR 0 (3, 0, 0)")
        + line("1.000001", NAMED[0], "other-8")
        + line("1.000001", NUMBERED[0], "other-8")
        + line("1.000002", "sys_exit: NR 0 = 5")
        + line("1.000003", NUMBERED[0])
        + line("1.000003", NAMED[0])
        + line("1.000005", NUMBERED[1])
        + line("1.000005", NAMED[1])
        + line("1.000006", "sys_enter: NR 149 (3, 0, 0)")
        + line("1.000007", "sys_exit: NR 149 = 5")
        + line("1.000009", NAMED[1], "other-8")
        + line("1.000009", NUMBERED[1], "other-8")
    )
    assert trace.slices.select("thread", pl.col("ts_ns") - 10**9, "dur_ns", "name").rows() == [
        (0, 0, 2000, "read"),
        (0, 3000, 2000, "futex"),
        (0, 6000, 1000, "syscall 149"),
        (1, 1000, 8000, "futex"),
    ]
    assert "4 raw_syscalls events not used" in messages(trace, "info")
    assert messages(trace) == ""


def test_a_signal_handlers_return_ends_without_its_number(trace_of):
    raw = line("1.000000", "sys_enter: NR 15 (1, 2)") + line(
        "1.000002", "sys_exit: NR -1 = 0"
    )  # of any machine
    trace = trace_of(raw + line("1.000003", "sys_rt_sigreturn()") + line("1.000004", "sys_futex(uaddr: 1)"))
    assert trace.slices.select("name", "dur_ns").rows() == [
        ("rt_sigreturn", 2000),
        ("rt_sigreturn", 0),
        ("futex", 0),
    ]
    assert messages(trace) == ""


def test_numbers_that_the_option_fields_prints_twice(trace_of):
    text = (
        line(
            "1.000000",
            "sched_switch: prev_comm=sh prev_pid=0x61fe (25086) prev_prio=0x78 (120) prev_state=0x80 (128) "
            "next_comm=p-0 next_pid=0x642d (25645) next_prio=0xffffffff (-1)",
        )
        + line(
            "1.000001",
            "sched_waking: comm=sh pid=0x61fe (25086) prio=0x78 (120) target_cpu=0x11 (17)",
            "p-0-25645",
        )
        + line("1.000002", "sys_enter: id=0xca (202) args=0x1", "p-0-25645")
        + line("1.000004", "sys_exit: id=0xca (202) ret=0x0 (0)", "p-0-25645")
        + line("1.000005", "UNKNOWN TYPE 5", "p-0-25645")
    )
    trace = trace_of(text)
    assert trace.threads.filter(pl.col("tid") > 7).select("tid", "name").rows() == [
        (25086, "sh"),
        (25645, "p-0"),
    ]
    assert trace.sched.select("event", "prev_state", "cpu").rows() == [
        ("switch", "I", 1),
        ("waking", None, 17),
    ]
    assert trace.slices.select("dur_ns", "name").rows() == [(2000, "futex")]
    assert "unknown type 1" in messages(trace, "info")
    assert "1 event that the kernel did not print" in messages(trace)
    assert "fields that are not understood" not in messages(trace)


def test_calls_at_the_edges_and_with_a_missing_half(trace_of):
    text = (
        line("1.000000", "cpu_idle: state=1")
        + line("1.000002", "sys_poll -> 0x0")  # began before the trace
        + line("1.000003", "sys_read(fd: 1)")  # its exit is missing
        + line("1.000005", "sys_futex(uaddr: 1)")
        + line("1.000006", "sys_futex -> 0x0")
        + line("1.000007", "sys_write -> 0x0")  # its entry is missing
        + line("1.000008", "sys_nanosleep(rqtp: 1)")  # does not end in the trace
        + line("1.000008", "sys_clone3 -> 0x0", "child-8")  # a new thread returns from its creator's call
        + line("1.000009", "sys_exit_group(error_code: 0)", "child-8")  # never returns
        + line("1.000020", "cpu_idle: state=1")
    )
    trace = trace_of(text)
    assert trace.slices.select("thread", pl.col("ts_ns") - 10**9, "dur_ns", "name").rows() == [
        (0, 0, 2000, "poll"),
        (0, 3000, 0, "read"),
        (0, 5000, 1000, "futex"),
        (0, 8000, 12000, "nanosleep"),
        (1, 9000, 0, "exit_group"),
    ]
    assert "1 have no length, 1 are left out" in messages(trace)
    assert "2 system calls began before the trace or did not end" in messages(trace, "info")


def test_a_dead_thread_is_in_no_call_any_more(trace_of):
    text = line("1.000001", "sys_futex(uaddr: 1)") + line(
        "1.000003", "sched_switch: bash:7 [120] X ==> swapper/1:0 [120]"
    )
    trace = trace_of(text + line("1.000090", "cpu_idle: state=1", "<idle>-0"))
    assert trace.slices["dur_ns"].to_list() == [2000]


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
        "# tracer: function_graph\n#\n 3)   0.081 us    |  pick_task_fair(rq=0xffff); /* <-x ret=0x0 */\n 3)               |  }\n"
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
        "  1.000010 |   0)   ==========> |\n  1.000010 |   0)               |  irq() {\n  1.000015 |   0)   5.000 us    |  }\n"
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


SWITCH_1 = line("1.000000", "sched_switch: a:1 [120] S ==> b:2 [120]", "a-1")
SWITCH_2 = line("3.000000", "sched_switch: c:3 [120] S ==> a:1 [120]", "c-3")
OTHER_CPU = line("2.000000", "cpu_idle: state=1", "x-9", cpu=0)


@pytest.mark.parametrize(
    ("mark", "lost"),
    [
        ("CPU:1 [LOST 14279 EVENTS]\n", 14279),
        ("CPU:1 [141 EVENTS DROPPED]\n", 141),
        ("CPU:1 [LOST EVENTS]\n", 1),
        ("CPU:1 [EVENTS DROPPED]\n", 1),
        ("buffer: CPU:1 [7 EVENTS DROPPED]\n", 7),
        ("    other.dat: CPU:1 [8 EVENTS DROPPED]\n", 8),
    ],
)
def test_loss_marks_cut_their_cpu(trace_of, mark, lost):
    trace = trace_of(SWITCH_1 + mark + OTHER_CPU + SWITCH_2)
    assert trace.sched.rows() == [
        (0, 10**9, 1, "switch", 0, "S", 1),
        (0, 3 * 10**9, 1, "switch", None, None, None),
        (0, 3 * 10**9, 1, "switch", 2, "S", 0),
    ]
    assert trace.sources.select("lost_declared", "lost_detected").row(0) == (lost, 0)
    assert "on CPU 1 at 1 place" in messages(trace)


def test_a_loss_mark_at_the_end_cuts_at_the_last_event(trace_of):
    trace = trace_of(SWITCH_1 + OTHER_CPU + "CPU:1 [LOST 5 EVENTS]\n")
    assert trace.sched.row(1) == (0, 2 * 10**9, 1, "switch", None, None, None)


def test_a_loss_mark_waits_over_pieces(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text(SWITCH_1 + "CPU:1 [LOST 5 EVENTS]\n" + OTHER_CPU * 50 + SWITCH_2)
    marks = collect(path, 100).events.table("lost")
    assert marks.select("cpu", "events", "cut_ns").rows() == [(1, 5, 3 * 10**9)]


def test_a_missing_switch_is_told_by_who_leaves(trace_of):
    trace = trace_of(SWITCH_1 + SWITCH_2)
    assert trace.sources.select("lost_declared", "lost_detected").row(0) == (0, 1)


def test_overwritten_events(trace_of):
    trace = trace_of(
        "# tracer: nop\n#\n# entries-in-buffer/entries-written: 126/8736572   #P:8\n#\n" + SWITCH_1
    )
    assert trace.sources.select("lost_declared", "cpus").row(0) == (8736446, 8)
    assert "8,736,446 events overwritten" in messages(trace)


def test_cpus_of_several_files(trace_of):
    assert trace_of("a.dat: cpus=16\nb.dat: cpus=16\n" + SWITCH_1).sources["cpus"][0] == 16


def test_clock_where_it_is_stated(trace_of):
    assert trace_of("# clock: mono\n" + SWITCH_1).sources["clock"][0] == "monotonic"
    assert trace_of("# trace_clock: local global [boot] mono\n" + SWITCH_1).sources["clock"][0] == "boottime"


def test_damage(trace_of):
    text = (
        (SWITCH_1 + "warning: something on stderr <b>\x1b[31m\n" + OTHER_CPU).replace("\n", "\r\n").encode()
    )
    trace = trace_of(text.replace(b"a-1", b"\xff-1") + SWITCH_2.encode()[:50])
    assert trace.sched.height == 1
    said = messages(trace)
    assert "1 line not understood, first at line 2: 'warning: something on stderr <b>\ufffd[31m'" in said
    assert "last line is cut" in said
    assert "not UTF-8" in messages(trace, "info")
    assert trace.sources["skipped_bytes"][0] == 50 + len("warning: something on stderr <b>\x1b[31m\n")


def test_a_last_line_that_is_surely_whole_is_kept(trace_of):
    trace = trace_of(SWITCH_1 + SWITCH_2.rstrip("\n"))
    assert trace.sched.height == 2
    assert trace.sources["skipped_bytes"][0] == 0


HUGE = "99999999999999999999"


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


def test_numbers_beyond_their_columns_are_not_recorded(trace_of):
    text = (
        f"# entries-in-buffer/entries-written: 1/{HUGE} #P:{HUGE}\ncpus={HUGE}\nCPU:1 [LOST {HUGE} EVENTS]\n"
        + line("1.000000", f"sched_wakeup: comm=a pid=5 prio=1 target_cpu={HUGE}")
        + line("1.000001", f"sched_wakeup: comm=a pid={HUGE} prio=1 target_cpu=1")
        + line(
            "1.000002",
            f"sched_switch: prev_comm=a prev_pid=5 prev_prio=1 prev_state={HUGE}1 ==> next_comm=b next_pid=6 next_prio=1",
        )
        + line(
            "1.000003",
            "sched_switch: prev_comm=b prev_pid=6 prev_prio=1 prev_state=007 ==> next_comm=b next_pid=5 next_prio=1",
        )
        + line("1.000004", f"sys_enter: NR {HUGE} (1)")
        + line("1.000005", f"tracing_mark_write: trace_event_clock_sync: realtime_ts={HUGE}")
        + line("1.000006", f"tracing_mark_write: C|{HUGE}|x|{HUGE}")
        + line("1.000007", f"funcgraph_entry: {HUGE} us | f();")
    )
    trace = trace_of(text).check()
    assert trace.sources.select("cpus", "wall_offset_ns", "lost_declared").row(0) == (None, None, 1)
    assert trace.slices.filter(pl.col("category") == "os")["name"].to_list() == ["syscall ?"]
    wakeups = trace.sched.filter(pl.col("event") == "wakeup")
    assert wakeups["cpu"].to_list() == [1]  # its own, since the target's is none
    assert trace.sched.filter(pl.col("prev_state").is_not_null())["prev_state"].to_list() == ["other", "S"]
    assert "1 scheduler event with fields that are not understood" in messages(trace)


def test_what_looks_like_an_event_in_a_line_that_is_none_leaves_no_trace(trace_of):
    """The columns of the second line are the first one's, its time is none: neither its task nor its fields count."""
    bad = line("1.00000x", "sched_wakeup: comm=ghost pid=666 prio=1 target_cpu=001", "ghost-667")
    trace = trace_of(line("1.000000", "sched_wakeup: comm=a pid=5 prio=1 target_cpu=001") + bad)
    assert trace.threads["tid"].to_list() == [5, 7]
    assert "1 event: sched_wakeup 1" in messages(trace, "info")
    assert "1 line not understood" in messages(trace)


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
        "            bash   21764   0 0 00000000 00000000 [84320ba8] 16.215ms (+0.002ms): sys_exit: NR 1 = 2",  # verbose
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


def test_words():
    assert kind_of("sys_futex").ends
    assert not kind_of("sys_futex(uaddr:").ends
    assert kind_of("sys_sched_yield()").name == "sched_yield"
    assert kind_of("vfs_read").name == "function"


def test_drawn_lines_need_a_bar():
    lines = pl.DataFrame(
        {"index": [1, 2], "line": [" 3)   0.081 us    |  f();", " 3)   ping-1922    =>   ksoft-21"]}
    )
    events, others, no_time = graph.graph_events(lines)
    assert (events.height, others["index"].to_list(), no_time) == (0, [2], 1)


def test_the_expression_is_the_same_for_python_and_polars():
    for pattern in (heads.HEAD, heads.LATENCY):
        assert (
            re.compile(pattern).groups
            == pl.select(pl.lit("").str.extract_groups(pattern).struct.unnest()).width
        )


def test_both_forms_of_a_head_in_one_text(trace_of):
    """Found by fuzzing: where no layout fits, heads of both forms came out of order, and polars refused them."""
    rest = "sched_switch: " + PLUGIN.format("S") + "\n"
    latency, brackets = HEADS["trace-cmd -l"] + rest, HEADS["trace-cmd --ts-diff"] + rest
    trace = trace_of(latency + "a message\n" + brackets + "another\n" + latency.replace("106.", "107."))
    assert trace.sched["ts_ns"].to_list() == [106 * 10**9 + 7000] * 2 + [107 * 10**9 + 7000]
    assert "2 lines not understood, first at line 2" in messages(trace)


def test_a_line_that_is_too_long_for_an_event_is_told(trace_of):
    """A file of one endless line, or of empty ones, costs no expression: 600 MB of them come in 3 MB of gzip."""
    trace = trace_of(SWITCH_1 + "x" * 300_000 + "\n" * 5 + SWITCH_2)
    assert trace.sched.height == 2
    assert "1 line not understood, first at line 2" in messages(trace)
    assert trace.sources["skipped_bytes"][0] == 300_001


def test_markers_of_one_layout_behind_events_of_another(tmp_path):
    """Found by fuzzing: Polars panicked on columns in unequal pieces when two recordings stand in one text."""
    text = (
        "cpus=6\n"
        "           a-4734  [002] 10.675591: sched_switch:          prev_comm=a prev_pid=4734 prev_prio=120 prev_state=1024 next_comm=b next_pid=5 next_prio=120\n"
        "           <...>-18926 (-----) [005] ...1 683202.179559: tracing_mark_write: B|18926|doFrame\n"
        "           <...>-18926 (-----) [005] ...1 683202.179643: tracing_mark_write: E\n"
        "           <...>-18964 (-----) [005] ...1 683202.181975: tracing_mark_write: C|18926|texture|1906008\n"
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
