"""Kinds of events by their first words, marks of losses, and what headers say."""

import pytest

from tests.sources.ftrace.lines import OTHER_CPU, SWITCH_1, SWITCH_2, messages
from tracelib.sources.ftrace.events import kind_of
from tracelib.sources.ftrace.reader import collect


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


def test_words():
    assert kind_of("sys_futex").ends
    assert not kind_of("sys_futex(uaddr:").ends
    assert kind_of("sys_sched_yield()").name == "sched_yield"
    assert kind_of("vfs_read").name == "function"
