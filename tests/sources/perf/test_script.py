"""Texts of real recordings against second parsers and the truth; kernel events against hand-worked rows."""

import gzip
import json
import re
import shutil
import subprocess
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


def _sched(trace):
    tid = {None: None, IDLE: IDLE} | dict(trace.threads.select("thread", "tid").iter_rows())
    return [(r[1], r[2], r[3], tid[r[4]], r[5], tid[r[6]]) for r in trace.sched.iter_rows()]


def test_both_spellings_of_scheduler_events(load):
    trace = load(
        "swapper 0/0 [000] 6.000001: sched:sched_switch: swapper/0:0 [120] R ==> x y:12 [120]\n"
        "x y 10/12 [000] 6.000002: sched:sched_switch: prev_comm=x y prev_pid=12 "
        "prev_prio=120 prev_state=D|W ==> next_comm=a= b next_pid=13 next_prio=1\n"
        "a 12/12 [001] 6.000003: sched:sched_wakeup: comm=a b pid=14 prio=120 success=1 target_cpu=003\n"
        "a 12/12 [001] 6.000004: sched:sched_waking: a:15 [120] success=1 CPU:003\n"
        "a 12/12 [001] 6.000005: sched:sched_wakeup_new: comm=new pid=16 prio=120 target_cpu=002\n"
    )
    assert _sched(trace) == [
        (6_000_001_000, 0, "switch", IDLE, "R", 12),
        (6_000_002_000, 0, "switch", 12, "D", 13),
        (6_000_003_000, 3, "wakeup", 12, None, 14),
        (6_000_004_000, 3, "waking", 12, None, 15),
        (6_000_005_000, 2, "wakeup_new", 12, None, 16),
    ]
    names = dict(trace.threads.select("tid", "name").iter_rows())
    assert {t: names[t] for t in (13, 14, 15, 16)} == {13: "a= b", 14: "a b", 15: "a", 16: "new"}


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ("R", "R"),
        ("R+", "R"),
        ("S", "S"),
        ("D", "D"),
        ("I", "I"),
        ("T", "T"),
        ("t", "t"),
        ("X", "X"),
        ("Z", "Z"),
        ("P", "P"),
        ("x", "X"),
        ("S|W", "S"),
        ("0", "R"),
        ("1", "S"),
        ("2", "D"),
        ("0x100", "R"),
        ("0x2", "D"),
        ("128", "I"),
    ],
)
def test_states(load, printed, state):
    trace = load(
        f"x 12/12 [000] 1.000001: sched:sched_switch: prev_comm=x prev_pid=12 "
        f"prev_prio=120 prev_state={printed} ==> next_comm=y next_pid=13 next_prio=120\n"
    )
    assert trace.sched["prev_state"].to_list() == [state]


def test_missing_switches_are_proven_by_the_next_one_on_that_cpu(load):
    # by hand: cpu 0: A->idle, then A->B (idle->A is missing), B->A (fine); cpu 1: A->B, B->idle (fine)
    lines = [
        (0, 1, 11, 0),
        (1, 2, 11, 12),
        (0, 3, 11, 12),
        (0, 4, 12, 11),
        (1, 5, 12, 0),
        (0, 6, 11, 0),
        (0, 7, 0, 11),
    ]
    trace = load(
        "".join(
            (
                f"t {p}/{p} [{cpu:03d}] {s}.000001: sched:sched_switch: prev_comm=t prev_pid={p} "
                f"prev_prio=120 prev_state=S ==> next_comm=t next_pid={n} next_prio=120\n"
            )
            for cpu, s, p, n in lines
        )
    )
    assert trace.sources["lost_detected"][0] == 1
    assert any(
        "at least 1 switch missing: 1 of 5 times" in m and "(1 of them from idle to a thread)" in m
        for m in trace.health["message"]
    )


def test_a_recording_of_some_processes_is_not_called_lossy(load):
    header = "# ========\n# cmdline : /usr/bin/perf record -e sched:sched_switch -p 12\n# ========\n#\n"
    line = (
        "t 12/12 [000] {}.000001: sched:sched_switch: prev_comm=t prev_pid=12 "
        "prev_prio=120 prev_state=S ==> next_comm=u next_pid=99 next_prio=120\n"
    )
    trace = load(header + line.format(1) + line.format(2))
    assert trace.sources["lost_detected"][0] == 0
    assert any("recorded for some threads only" in m for m in trace.health["message"])


def test_system_calls_are_slices_where_enter_and_exit_meet(load):
    trace = load(
        "x 12/12 [000] 4.000001: syscalls:sys_exit_read: 0x0\n"  # entered before the recording began
        "x 12/12 [000] 5.000001: syscalls:sys_enter_futex: uaddr: 0x1, op: 0\n"
        "y 12/13 [001] 5.000002: syscalls:sys_enter_poll: 0x1\n"
        "x 12/12 [002] 5.000011: syscalls:sys_exit_futex: 0x0\n"
        "y 12/13 [001] 5.000013: syscalls:sys_exit_poll: 0x0\n"
        "x 12/12 [000] 7.000001: block:block_rq: 1\n"
    )
    tid = dict(trace.threads.select("thread", "tid").iter_rows())
    rows = [
        (tid[r["thread"]], r["ts_ns"], r["dur_ns"], r["name"], r["category"])
        for r in trace.slices.iter_rows(named=True)
    ]
    assert rows == [
        (12, 4_000_001_000, 0, "read", "os"),  # cut at the recording's first event
        (12, 5_000_001_000, 10_000, "futex", "os"),
        (13, 5_000_002_000, 11_000, "poll", "os"),
    ]
    said = " ".join(trace.health["message"])
    assert "block:block_rq (1)" in said
    assert "1 system call began before the trace or did not end in it" in said
    assert trace.samples.is_empty()


@pytest.mark.parametrize(
    ("arch", "number", "name"),
    [
        ("x86_64", 202, "futex"),
        ("x86_64", 24, "sched_yield"),
        ("x86_64", 232, "epoll_wait"),
        ("x86_64", 9999, "syscall 9999"),
        ("x86_64", 3, "close"),
        ("x86_64", 41, "socket"),
        ("x86_64", 72, "fcntl"),
        ("x86_64", 98, "syscall 98"),
        ("aarch64", 98, "futex"),
        ("aarch64", 124, "sched_yield"),
        ("aarch64", 202, "accept"),
        ("riscv64", 98, "syscall 98"),
        (None, 202, "futex"),
        (None, 98, "futex"),
    ],
)
def test_system_calls_by_number(load, arch, number, name):
    header = f"# ========\n# hostname : h\n# arch : {arch}\n# ========\n#\n" if arch else ""
    trace = load(
        f"{header}x 12/12 [000] 6.000001: raw_syscalls:sys_enter: NR {number} (0, 1)\n"
        f"x 12/12 [000] 6.000011: raw_syscalls:sys_exit: NR {number} = 0\n"
    )
    assert trace.slices.select(pl.col("name").cast(pl.String), "dur_ns").rows() == [(name, 10_000)]


@pytest.mark.parametrize(
    "said",
    [
        "probe_libc:up: (7f0012345678) arg=1",
        "probe:up: (7f00)",
        "sdt_app:up: (7f00)",
        "mine:up: (7f00) arg1=3",
        "mine:up: (7f00 <- 7f10)",
    ],
)
def test_a_probe_whose_name_looks_like_modifiers_is_a_tracepoint(load, said):
    trace = load(
        f"x 12/12 [000] 6.000001: {said}\nx 12/12 [000] 6.000002: 1 cycles:up: \n\t 7f00 f+0x1 (/x)\n\n"
    )
    assert trace.samples["event"].cast(pl.String).to_list() == ["cycles:up"]
    assert f"tracepoints that are counted only: {said.split(': ')[0]} (1)" in " ".join(
        trace.health["message"]
    )


def test_a_machine_that_no_header_names_is_judged_by_its_calls(load):
    """By hand: 98, 63 are futex, read on arm64, getrusage, uname on x86-64; 202 is accept, not futex."""
    calls = [(98, "futex"), (63, "read"), (202, "accept"), (57, "close"), (5, "syscall 5")]
    trace = load(
        "".join(
            f"x 12/12 [000] {at}.000001: raw_syscalls:sys_enter: NR {number} (0, 1)\n"
            f"x 12/12 [000] {at}.000002: raw_syscalls:sys_exit: NR {number} = 0\n"
            for at, (number, _) in enumerate(calls, 1)
        )
    )
    assert trace.slices["name"].cast(pl.String).to_list() == [name for _, name in calls]
    assert "named by number as on arm64, judged by which numbers occur" in " ".join(trace.health["message"])


def test_calls_told_by_number_alone_stay_beside_calls_told_by_name(load):
    """By hand: thread 12 reads (by number), then waits (recorded twice), thread 13 the other way round."""
    futex = ("raw_syscalls:sys_{}: NR 202 (0, 1)", "syscalls:sys_{}_futex: 0x1")
    said = [
        (1, 12, "raw_syscalls:sys_enter: NR 0 (3)"),
        (2, 12, "raw_syscalls:sys_exit: NR 0 = 5"),
        (3, 12, futex[0].format("enter")),
        (3, 12, futex[1].format("enter")),
        (4, 13, futex[1].format("enter")),
        (4, 13, futex[0].format("enter")),
        (6, 12, futex[1].format("exit")),
        (6, 12, futex[0].format("exit")),
        (9, 13, futex[0].format("exit")),
        (9, 13, futex[1].format("exit")),
    ]
    trace = load("".join(f"x {tid}/{tid} [000] {at}.000001: {text}\n" for at, tid, text in said))
    tid = dict(trace.threads.select("thread", "tid").iter_rows())
    rows = trace.slices.select("thread", "ts_ns", "dur_ns", pl.col("name").cast(pl.String)).rows()
    assert [(tid[row[0]], (row[1] - 1000) // 10**9, row[2] // 10**9, row[3]) for row in rows] == [
        (12, 1, 1, "read"),
        (12, 3, 3, "futex"),
        (13, 4, 5, "futex"),
    ]
    message = " ".join(trace.health["message"])
    assert "4 raw_syscalls events not used: the same calls were recorded by name" in message
    assert "began before the trace" not in message


@pytest.mark.parametrize(
    ("printed", "states"),
    [
        (["S", "Z", "X", "x", "R"], ["S", "Z", "X", "X", "R"]),  # of an old kernel, or nothing that tells
        (["S", "Z", "X", "x", "W"], ["S", "X", "Z", "P", "I"]),  # "W": Linux 4.14 or newer
    ],
)
def test_the_plugin_s_letters_are_those_of_old_kernels(load, printed, states):
    trace = load(
        "".join(
            (
                f"sched_switch 5/5 [000] {at}.000001: sched:sched_switch: kworker/0:1:55 [120] "
                f"{state} ==> swapper/0:0 [120]\n"
            )
            for at, state in enumerate(printed, 1)
        )
    )
    assert trace.sched["prev_state"].to_list() == states


def test_the_kernel_s_own_letters_stay(load):
    trace = load(
        "x 5/5 [000] 1.000001: sched:sched_switch: a:55 [120] W ==> swapper/0:0 [120]\n"
        "x 5/5 [000] 2.000001: sched:sched_switch: prev_comm=a prev_pid=5 prev_prio=120 "
        "prev_state=Z ==> next_comm=b next_pid=6 next_prio=1\n"
    )
    assert trace.sched["prev_state"].to_list() == ["I", "Z"]


WIDE = """\
   python 29760/29760 [001] 1759.734128922: PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid:  2773/2774
   pyt-2   2773/2774  [001] 1759.734133721: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid: 29760/29760
   pyt-2   2773/2774  [001] 1759.736046663: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:     0/0
  swapper     0/0     [001] 1759.736050000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:  2773/2774
     mypy  3235/3235  [001] 1759.736060000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:     0/0
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
        "python 29760/29760 [001]  1759.734128900: 1 sched:sched_switch: "
        "prev_comm=python prev_pid=29760 prev_prio=120 "
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
    """Recorded at once on this machine: both ways show the same threads following each other on each CPU.

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
        # at either end one of the pair may lie outside; a thread that has died meanwhile has no id any more
        # in a record
        dead = sum(count for (prev, _, after), count in by_record.items() if None in {prev, after})
        assert (by_tracepoint - by_record).total() <= 2 + dead, by_tracepoint - by_record


def _left(rows, first, last):
    """Count who left a CPU to whom between two times."""
    inside = [row for row in rows if first <= row[0] <= last]
    return Counter((prev, state if state == "R" else "blocked", after) for _, _, prev, state, after in inside)
