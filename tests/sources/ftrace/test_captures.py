"""The reader against a second, simple parser on the reference captures: every field of every event."""

import gzip
import random
import re

import polars as pl
import pytest

from tracelib.schema import IDLE
from tracelib.sources.files import head
from tracelib.sources.ftrace import read, sniff
from tracelib.sources.ftrace.reader import collect

pytestmark = pytest.mark.corpus

CAPTURES = ("starved", "healthy", "throttled")
LINE = re.compile(
    r"^ *(?P<comm>.+)-(?P<tid>\d+) +\( *(?P<pid>\d+|-+)\) \[(?P<cpu>\d{3})\] "
    r"(?P<flags>.{5}) +(?P<s>\d+)\.(?P<us>\d{6}): (?P<rest>.*)$"
)
SWITCH = re.compile(
    r"sched_switch: prev_comm=(.+) prev_pid=(\d+) prev_prio=(\d+) prev_state=(\S+) "
    r"==> next_comm=(.+) next_pid=(\d+) next_prio=(\d+)$"
)
WAKE = re.compile(r"sched_(waking|wakeup): comm=(.+) pid=(\d+) prio=(\d+) target_cpu=(\d+)$")


def plainly(text):
    """Return the events of a text, one dictionary each, by one regular expression per line."""
    found = []
    for line in text.splitlines():
        match = LINE.match(line)
        if match:
            event = match.groupdict()
            event["ts"] = int(event["s"]) * 10**9 + int(event["us"]) * 1000
            event["name"] = re.match(r"\w+", event["rest"])[0]
            found.append(event)
        else:
            assert line.startswith("#"), line
    return found


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request, captures):
    path = captures / request.param / "ftrace.txt.gz"
    return path, plainly(gzip.decompress(path.read_bytes()).decode()), read(path)


def test_recognised_by_content(capture):
    path, _, _ = capture
    assert sniff(head(path), "whatever.bin")


def test_counts_by_name_and_times(capture):
    path, events, trace = capture
    counts = {}
    for event in events:
        counts[event["name"]] = counts.get(event["name"], 0) + 1
    assert collect(path).events.counts == counts
    source = trace.sources.row(0, named=True)
    assert source["first_ns"] == min(event["ts"] for event in events)
    assert source["last_ns"] == max(event["ts"] for event in events)
    assert (source["cpus"], source["clock"], source["wall_offset_ns"]) == (32, "unknown", None)
    assert (source["lost_declared"], source["skipped_bytes"]) == (0, 0)


def test_sched_field_by_field(capture):
    _, events, trace = capture
    thread = {0: IDLE, **dict(trace.threads.select("tid", "thread").iter_rows())}
    expected = []
    for event in events:
        if match := SWITCH.match(event["rest"]):
            _, prev, _, state, _, following, _ = match.groups()
            row = (int(event["cpu"]), "switch", thread[int(prev)], state[0], thread[int(following)])
        elif match := WAKE.match(event["rest"]):
            name, _, woken, _, cpu = match.groups()
            row = (int(cpu), name, thread[int(event["tid"])], None, thread[int(woken)])
        else:
            assert not event["rest"].startswith("sched_w")
            assert not event["rest"].startswith("sched_s")
            continue
        expected.append((0, event["ts"], *row))
    expected.sort(key=lambda row: row[1])  # stable, as the frame is
    assert trace.sched.rows() == expected


def test_threads(capture):
    """One row per thread id, with the process of the TGID column and the name that the scheduler had last."""
    _, events, trace = capture
    pids, names, tids = {}, {}, set()
    for event in events:
        tids.add(int(event["tid"]))
        if event["pid"].isdigit():
            pids[int(event["tid"])] = int(event["pid"])
        if match := SWITCH.match(event["rest"]):
            pairs = [match.groups()[0:2], match.groups()[4:6]]
        elif match := WAKE.match(event["rest"]):
            pairs = [match.groups()[1:3]]
        else:
            pairs = []
        for name, tid in pairs:
            names[int(tid)] = name
            tids.add(int(tid))
    tids.discard(0)
    assert trace.threads["tid"].to_list() == sorted(tids)
    for row in trace.threads.iter_rows(named=True):
        assert row["pid"] == pids.get(row["tid"]), row
        if row["tid"] in names:
            assert row["name"] == names[row["tid"]], row
    known = set(trace.threads["name"].drop_nulls())
    assert {"engine_core", "worker_TP0", "worker_TP1", "api_server", "tokenizer"} <= known
    assert set(trace.threads.filter(pl.col("name") == "tokenizer")["process"]) == {"api_server"}


def test_system_calls_pair_by_thread(capture):
    _, events, trace = capture
    open_since, expected = {}, []
    for event in events:
        tid = int(event["tid"])
        if event["rest"].startswith("sys_futex("):
            assert tid not in open_since
            open_since[tid] = event["ts"]
        elif event["rest"].startswith("sys_futex -> ") and tid in open_since:
            start = open_since.pop(tid)
            expected.append((tid, start, event["ts"] - start))
    threads = trace.threads.select("thread", "tid")
    got = trace.slices.join(threads, on="thread").filter(pl.col("ts_ns") > trace.sources["first_ns"][0])
    assert set(got["category"]) == {"os"}
    assert set(got["name"]) == {"futex"}
    closed = got.select("tid", "ts_ns", "dur_ns").rows()
    assert set(expected) <= set(closed)
    open_at_end = set(closed) - set(expected)
    assert sorted(tid for tid, _, _ in open_at_end) == sorted(open_since)
    assert len(closed) == len(expected) + len(open_since)


def test_missing_switches_are_counted(capture):
    _, events, trace = capture
    on, missing, from_idle = {}, 0, 0
    for event in events:
        if match := SWITCH.match(event["rest"]):
            cpu, prev, following = event["cpu"], int(match[2]), int(match[6])
            if cpu in on and on[cpu] != prev:
                missing += 1
                from_idle += on[cpu] == 0
            on[cpu] = following
    assert missing > 100
    assert trace.sources["lost_detected"][0] == missing
    message = trace.health.filter(pl.col("level") == "warning")["message"][0]
    assert f"at least {missing:,} switches missing" in message
    assert f"({from_idle:,} of them from idle" in message


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_loses_nothing_but_the_cut_line(capture, tmp_path, seed):
    path, _events, _ = capture
    text = gzip.decompress(path.read_bytes())
    at = random.Random(seed).randrange(len(text) // 2, len(text))
    cut = tmp_path / "cut.txt"
    cut.write_bytes(text[:at])
    got = collect(cut)
    kept = plainly(text[: text.rfind(b"\n", 0, at) + 1].decode())
    whole = sum(got.events.counts.values())
    assert whole in {len(kept), len(kept) + 1}
    if whole == len(kept) and text[at - 1 : at] != b"\n":
        assert got.cut_line is not None
        trace = read(cut)
        assert trace.health.filter(pl.col("message").str.contains("last line is cut")).height == 1
        assert trace.sources["skipped_bytes"][0] == at - text.rfind(b"\n", 0, at) - 1


@pytest.mark.parametrize("size", [9999, 65537])
def test_pieces_of_any_size_give_the_same(capture, size):
    path, _events, _ = capture
    at_once, in_pieces = collect(path).events, collect(path, size).events
    assert at_once.counts == in_pieces.counts
    for group, text in (("sched", "text"), ("syscall", "word")):
        columns = [pl.col("index"), pl.col("ts_ns"), pl.col("cpu"), pl.col("task", text).cast(pl.String)]
        assert at_once.table(group).select(columns).equals(in_pieces.table(group).select(columns))


def test_a_cut_gzip_keeps_what_came_out(captures, tmp_path):
    packed = (captures / "starved" / "ftrace.txt.gz").read_bytes()
    cut = tmp_path / "ftrace.txt.gz"
    cut.write_bytes(packed[: len(packed) // 2])
    trace = read(cut)
    assert trace.sched.height > 500
    assert (
        trace.health.filter(
            (pl.col("level") == "error") & pl.col("message").str.contains("ends early")
        ).height
        == 1
    )
