"""Texts of real recordings against second parsers and the truth."""

import gzip
import json
import re
from collections import Counter

import polars as pl
import pytest

from tracelib.errors import TraceError
from tracelib.schema import IDLE
from tracelib.sources.discovery import recognised
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
    assert any(f"at least {breaks:,} switches missing" in m for m in trace.health["message"])
    assert trace.sources["skipped_bytes"][0] == 0


SAMPLE_HEAD = re.compile(
    r"^\s*(?P<comm>\S.*?)\s+(?:(?P<pid>-?\d+)/)?(?P<tid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+"
    r"(?P<sec>\d+)\.(?P<frac>\d+):\s+(?P<period>\d+)\s+(?P<event>\S+?):?\s(?P<rest>.*)$"
)


SWITCH_FIELDS = re.compile(
    r"prev_comm=.*? prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=.*? next_pid=(\d+)"
)


@pytest.fixture(scope="module", params=["starved", "healthy", "throttled"])
def recording(request, captures):
    path = captures / request.param / "perf.txt.gz"
    heads = []
    for block in gzip.decompress(path.read_bytes()).decode(errors="replace").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        if lines:
            found = SAMPLE_HEAD.match(lines[0] + " ")
            assert found, lines[0]
            heads.append((found, len(lines) - 1))
    return recognised(path).read(), heads


def test_every_sample_switch_and_wakeup_is_read_once(recording):
    trace, heads = recording
    events = Counter(found["event"].split("/")[0] for found, _ in heads)
    assert trace.samples.height == events["cpu-clock"]
    kinds = Counter(trace.sched["event"].cast(pl.String).to_list())
    assert kinds["switch"] == events["sched:sched_switch"]
    assert kinds["wakeup"] == events["sched:sched_wakeup"]


def test_times_periods_cpus_and_threads_equal_a_second_parser(recording):
    trace, heads = recording
    tids = dict(trace.threads.select("thread", "tid").iter_rows())
    want = sorted(
        (int(f["sec"]) * 10**9 + int(f["frac"].ljust(9, "0")), int(f["tid"]), int(f["cpu"]), int(f["period"]))
        for f, _ in heads
        if f["event"].startswith("cpu-clock")
    )
    found = sorted(
        (ts, tids[thread], cpu, period)
        for ts, thread, cpu, period in trace.samples.select("ts_ns", "thread", "cpu", "period").iter_rows()
    )
    assert found == want


def test_switches_equal_a_second_parser(recording):
    trace, heads = recording
    tids = {-1: 0, **dict(trace.threads.select("thread", "tid").iter_rows())}
    want = []
    for f, _ in heads:
        if f["event"] == "sched:sched_switch":
            prev, state, nxt = SWITCH_FIELDS.search(f["rest"]).groups()
            want.append(
                (
                    int(f["sec"]) * 10**9 + int(f["frac"].ljust(9, "0")),
                    int(f["cpu"]),
                    int(prev),
                    state.rstrip("+"),
                    int(nxt),
                )
            )
    rows = trace.sched.filter(pl.col("event") == "switch").select(
        "ts_ns", "cpu", "prev", pl.col("prev_state").cast(pl.String), "next"
    )
    assert sorted((ts, cpu, tids[p], s, tids[n]) for ts, cpu, p, s, n in rows.iter_rows()) == sorted(want)


def test_call_chains_keep_every_frame(recording):
    trace, heads = recording
    depth = dict(trace.stacks.group_by("stack").len().iter_rows())
    found = Counter(depth[stack] if stack is not None else 0 for stack in trace.samples["stack"])
    assert found == Counter(frames for f, frames in heads if f["event"].startswith("cpu-clock"))


def test_the_header_ties_the_clock_exactly(recording):
    trace, _ = recording
    source = trace.sources.row(0, named=True)
    assert source["clock"] == "monotonic"
    assert source["wall_offset_ns"] == 1796006341777879000 - 27169973552 or source["wall_offset_ns"] > 10**18
    assert source["cpus"] == 32


@pytest.mark.corpus
def test_the_corpus_has_the_truth_s_samples(corpus):
    truth = json.loads((corpus / "TRUTH.json").read_text())
    checked = 0
    for key, expected in sorted(truth.items()):
        if not key.startswith("perf_script/"):
            continue
        trace = recognised(corpus / key).read()
        samples = sum(
            n
            for event, n in expected["by_event"].items()
            if not event.startswith(("sched:", "syscalls:", "raw_syscalls:"))
        )
        timeless = expected.get("samples_without_time", 0)
        assert trace.samples.height + timeless >= samples > 0 or samples == 0, key
        assert trace.samples.height <= samples, key
        if not timeless and expected.get("total_period"):
            assert trace.samples["period"].sum() == expected["total_period"], key
        checked += 1
    assert checked >= 15


@pytest.mark.corpus
def test_binary_recordings_are_read_by_perf_or_refused_in_a_line(corpus):
    for path in sorted((corpus / "perf_data").iterdir())[:6]:
        said, samples = "", 0
        try:
            samples = recognised(path).read().samples.height
        except TraceError as error:
            said = str(error)
        assert samples or "perf script" in said
        assert "\n" not in said


def test_a_cut_loses_nothing_but_the_cut_event(captures, tmp_path):
    text = gzip.decompress((captures / "starved" / "perf.txt.gz").read_bytes())
    for cut in (200_000, 400_001, 777_777):
        path = tmp_path / "cut.txt"
        path.write_bytes(text[:cut])
        trace = recognised(path).read()
        whole = text[:cut].rsplit(b"\n\n", 1)[0]
        blocks = [
            b
            for b in whole.decode(errors="replace").split("\n\n")
            if "cpu-clock" in b.split("\n")[0] or "cpu-clock/freq=499/:" in b
        ]
        assert len(blocks) - 2 <= trace.samples.height <= len(blocks) + 1


USUAL_HEAD = "x 7/8 [003] 5.000001:         12 cycles: "


FRAMES = "\t    7f0012345678 foo+0x1 (/lib/x.so)\n\t    7f0012345690 main+0x2 (/bin/app)\n"


def test_a_share_that_was_lost_is_no_count(load):
    trace = load(
        f"{USUAL_HEAD}\n{FRAMES}\nProcessed 100 samples and lost 12.34%!\n"
        f"Processed 9 events and lost 5 chunks!\n"
    )
    assert trace.sources["lost_declared"].item() == 1 + 5
    assert "6 events in 2 messages" in " ".join(trace.health["message"])
