"""Scheduler events and system calls in each spelling, to rows worked out by hand."""

import polars as pl
import pytest

from tests.sources.ftrace.lines import HUGE, SWITCH_1, SWITCH_2, line, messages


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
    """syscalls:*_futex and raw_syscalls together: read by number only, futex twice, in either order."""
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


def test_a_missing_switch_is_told_by_who_leaves(trace_of):
    trace = trace_of(SWITCH_1 + SWITCH_2)
    assert trace.sources.select("lost_declared", "lost_detected").row(0) == (0, 1)


def test_numbers_beyond_their_columns_are_not_recorded(trace_of):
    text = (
        f"# entries-in-buffer/entries-written: 1/{HUGE} #P:{HUGE}\ncpus={HUGE}\nCPU:1 [LOST {HUGE} EVENTS]\n"
        + line("1.000000", f"sched_wakeup: comm=a pid=5 prio=1 target_cpu={HUGE}")
        + line("1.000001", f"sched_wakeup: comm=a pid={HUGE} prio=1 target_cpu=1")
        + line(
            "1.000002",
            (
                f"sched_switch: prev_comm=a prev_pid=5 prev_prio=1 prev_state={HUGE}1 ==> "
                f"next_comm=b next_pid=6 next_prio=1"
            ),
        )
        + line(
            "1.000003",
            (
                "sched_switch: prev_comm=b prev_pid=6 prev_prio=1 prev_state=007 ==> next_comm=b "
                "next_pid=5 next_prio=1"
            ),
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
