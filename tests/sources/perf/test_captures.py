"""The reference captures, field by field against a second parser and against counts of plain regular expressions."""

import gzip
import json
import re
from collections import Counter

import polars as pl
import pytest

from tracelib.schema import IDLE
from tracelib.sources.perf import read

CONDITIONS = ["healthy", "starved", "throttled"]
SWITCH = re.compile(
    r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) "
)
WAKEUP = re.compile(r"comm=(.*) pid=(\d+) prio=\d+ target_cpu=(\d+)")


@pytest.fixture(params=CONDITIONS, scope="module")
def capture(request, captures):
    path = captures / request.param / "perf.txt.gz"
    return path, gzip.decompress(path.read_bytes()).decode(), read(path)


def test_counts_equal_those_of_plain_expressions(capture):
    _, text, trace = capture
    events = Counter(re.findall(r"(?m)^\S.*?\d\.\d{9}: +\d+ +(\S+): ", text))
    switches, wakeups = events.pop("sched:sched_switch"), events.pop("sched:sched_wakeup")
    assert dict(trace.sched["event"].value_counts().iter_rows()) == {"switch": switches, "wakeup": wakeups}
    assert dict(trace.samples["event"].cast(pl.String).value_counts().iter_rows()) == dict(events)
    assert trace.samples["period"].sum() == sum(map(int, re.findall(r"\.\d{9}: +(\d+) cpu-clock", text)))


def test_frames_of_samples_equal_the_indented_lines_below_them(capture):
    _, text, trace = capture
    paragraphs = [p for p in text.split("\n\n") if " cpu-clock" in p.rsplit("#\n")[-1].split("\n")[0]]
    expected = sum(p.count("\n\t") for p in paragraphs)
    lengths = trace.stacks.group_by("stack").len()
    assert trace.samples.join(lengths, on="stack", how="left")["len"].sum() == expected > 10_000


def test_first_and_last_time_are_exact(capture):
    _, text, trace = capture
    times = [int(s) * 10**9 + int(f) for s, f in re.findall(r"(?m)^\S.*? (\d+)\.(\d{9}): ", text)]
    assert (trace.sources["first_ns"][0], trace.sources["last_ns"][0]) == (min(times), max(times))


def test_every_field_agrees_with_a_second_parser(capture, reference, plain):
    _, text, trace = capture
    samples, sched = [], []
    for e in reference(text):
        if e.event == "sched:sched_switch":
            _, prev, state, _, following = SWITCH.match(e.rest).groups()
            sched.append((e.ns, e.cpu, "switch", int(prev), state[0], int(following)))
        elif e.event == "sched:sched_wakeup":
            _, woken, target = WAKEUP.match(e.rest).groups()
            sched.append((e.ns, int(target), "wakeup", e.tid, None, int(woken)))
        else:
            samples.append((e.ns, e.tid, e.cpu, e.event, e.period, tuple(e.frames)))
    found = plain(trace)
    assert sorted(found["samples"]) == sorted(samples)
    assert found["sched"] == sched  # also the order


def test_threads_have_the_process_and_the_last_name_that_the_text_shows(capture, reference):
    _, text, trace = capture
    name, pid = {}, {}
    for e in reference(text):
        name[e.tid], pid[e.tid] = e.comm, e.pid
    rows = {row["tid"]: row for row in trace.threads.iter_rows(named=True)}
    for tid in name.keys() - {0, -1}:
        assert (rows[tid]["name"], rows[tid]["pid"]) == (name[tid], pid[tid])
        if pid[tid] in name:
            assert rows[tid]["process"] == name[pid[tid]]
    assert 0 not in rows
    assert trace.threads["tid"].is_unique().all()


def test_roles_processes_are_those_of_the_stack(capture):
    path, _, trace = capture
    pids = json.loads((path.parent / "pids.json").read_text())["pids"]
    process = dict(trace.threads.drop_nulls("pid").select("pid", "process").iter_rows())
    assert process[pids["api"]] == "api_server"
    assert [process[pid] for pid in pids["workers"]] == ["worker_TP0", "worker_TP1"]


def test_header_ties_the_clock_to_wall_time(capture):
    path, text, trace = capture
    source = trace.sources.row(0, named=True)
    assert (source["host"], source["cpus"], source["recorder"], source["clock"]) == (
        "vm",
        32,
        "perf 6.1.192",
        "monotonic",
    )
    s, f, ms, mf = re.search(r"= (\d+)\.(\d+) \(TOD\) = (\d+)\.(\d+) ", text).groups()
    exact = int(s) * 10**9 + int(f) * 1000 - int(ms) * 10**9 - int(mf)
    assert source["wall_offset_ns"] == exact
    meta = json.loads((path.parent / "meta.json").read_text())
    assert (
        abs(exact - (meta["realtime_ns"] - meta["monotonic_ns"])) < 100_000
    )  # the stack's own pair of clocks


def test_missing_switches_are_counted_by_hand(capture):
    _, text, trace = capture
    latest, breaks = {}, 0
    for line in text.splitlines():
        if found := re.search(r"\[(\d+)\] .*sched_switch: .*prev_pid=(\d+) .*next_pid=(\d+) ", line):
            cpu, prev, following = found.groups()
            breaks += cpu in latest and latest[cpu] != prev
            latest[cpu] = following
    assert trace.sources["lost_detected"][0] == breaks > 100
    to_idle = trace.sched.filter((pl.col("event") == "switch") & (pl.col("next") == IDLE)).height
    assert to_idle == len(re.findall(r"next_pid=0 ", text))
    assert any(f"{breaks:,} switch events missing" in m for m in trace.health["message"])
    assert trace.sources["skipped_bytes"][0] == 0
