"""Context switches as perf's own records: by hand, and beside the tracepoint of the same switches."""

import shutil
import subprocess
from collections import Counter

import pytest

WIDE = """\
          python 29760/29760 [001]  1759.734128922: PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid:  2773/2774
          pyt-2   2773/2774  [001]  1759.734133721: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 29760/29760
          pyt-2   2773/2774  [001]  1759.736046663: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:     0/0
         swapper     0/0     [001]  1759.736050000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:  2773/2774
            mypy  3235/3235  [001]  1759.736060000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:     0/0
"""


def _rows(trace):
    tid = {-1: 0, None: None} | dict(trace.threads.select("thread", "tid").iter_rows())
    return [
        (row["ts_ns"], row["cpu"], tid[row["prev"]], row["prev_state"], tid[row["next"]])
        for row in trace.sched.iter_rows(named=True)
    ]


def test_a_switch_recorded_from_both_sides_is_one(load):
    trace = load(WIDE)
    assert _rows(trace) == [
        (1759734128922, 1, 29760, "other", 2774),
        (1759736046663, 1, 2774, "R", 0),
        (1759736060000, 1, 0, None, 3235),  # nobody recorded that the idle task left
    ]
    assert trace.sched["event"].unique().to_list() == ["switch"]
    assert dict(trace.threads.select("tid", "pid").iter_rows()) == {2774: 2773, 3235: 3235, 29760: 29760}
    assert trace.samples.is_empty()
    assert trace.sources.select("first_ns", "last_ns").row(0) == (1759734128922, 1759736060000)


def test_of_one_process_only_its_own_side_is_known(load):
    trace = load(
        "sleep  3269/3269   1758.043342123: PERF_RECORD_SWITCH IN         \n"
        "sleep  3269/3269   1758.044030278: PERF_RECORD_SWITCH OUT preempt\n"
        "sleep  3269/3269   1758.044605392: PERF_RECORD_SWITCH OUT        \n"
    )
    assert _rows(trace) == [
        (1758043342123, None, None, None, 3269),
        (1758044030278, None, 3269, "R", None),
        (1758044605392, None, 3269, "other", None),
    ]


def test_beside_the_tracepoint_the_records_are_not_counted_again(load):
    tracepoint = (
        "python 29760/29760 [001]  1759.734128900: 1 sched:sched_switch: prev_comm=python prev_pid=29760 prev_prio=120 "
        "prev_state=S ==> next_comm=pyt-2 next_pid=2774 next_prio=120\n"
    )
    trace = load(tracepoint + WIDE)
    assert _rows(trace) == [(1759734128900, 1, 29760, "S", 2774)]
    assert trace.sources.select("first_ns", "last_ns").row(0) == (1759734128900, 1759734128900)


def test_an_unreadable_record_is_counted(load, messages):
    trace = load(WIDE + "mypy 3235/3235 [001] 1760.000000001: PERF_RECORD_SWITCH_CPU_WIDE SIDEWAYS\n")
    assert trace.sched.height == 3
    assert "1 scheduler events could not be read" in messages(trace)


def _recorded(folder, *options):
    """Return the text of a short recording of this machine, or skip where that is not allowed."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed")
    data = folder / "perf.data"
    record = ["perf", "record", "-q", "-a", "-k", "mono", *options, "-o", str(data), "--", "sleep", "0.2"]
    if subprocess.run(record, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow perf to record all processes")
    shown = ["perf", "script", "--ns", "-F", "+pid", "--show-switch-events", "-i", str(data)]
    return subprocess.run(shown, capture_output=True, check=True, text=True).stdout


def test_records_and_tracepoints_of_the_same_switches_agree(load, tmp_path):
    """Recorded at once on this machine: the same threads follow each other on each CPU, whichever way they are recorded.

    The kernel may trace fewer switches than it records, never others.
    """
    text = _recorded(tmp_path, "--switch-events", "-e", "sched:sched_switch", "-m", "4096")
    lines = text.splitlines(keepends=True)
    records = load("".join(line for line in lines if "PERF_RECORD_SWITCH" in line))
    tracepoints = load("".join(line for line in lines if "sched:sched_switch:" in line))
    for cpu in tracepoints.sched["cpu"].unique():
        sides = [[row for row in _rows(trace) if row[1] == cpu] for trace in (records, tracepoints)]
        first, last = max(rows[0][0] for rows in sides), min(rows[-1][0] for rows in sides)
        by_record, by_tracepoint = (_left(rows, first, last) for rows in sides)
        assert by_tracepoint.total() > 5
        # at either end one of the pair may lie outside; a thread that has died meanwhile has no id any more in a record
        dead = sum(count for (prev, _, after), count in by_record.items() if None in {prev, after})
        assert (by_tracepoint - by_record).total() <= 2 + dead, by_tracepoint - by_record


def _left(rows, first, last):
    """Count who left a CPU to whom between two times."""
    inside = [row for row in rows if first <= row[0] <= last]
    return Counter((prev, state if state == "R" else "blocked", after) for _, _, prev, state, after in inside)
