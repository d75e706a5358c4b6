"""Heads in every layout that `perf script -F` prints, what the header says, and texts that are not perf's."""

import polars as pl
import pytest

from tracelib.errors import BadTrace
from tracelib.sources.perf.heads import clock_of, of_lines

CHAIN = "\t    7f00 foo+0x1 (/lib/x.so)\n\t    7f10 main+0x2 (/bin/app)\n\n"


NAMES = [
    "my thread [x]",
    "a:b/c 123 [1]",
    "FS Broker 5906",
    "a: b: c",
    "1 2.123456: x",
    "[vkrt] Analysis",
    "(sd-pam)",
    "#1 x",
    "kworker/0:1-mm_",
    "123",
    "-",
    "dead beef",
    "x=1 ==> y=2",
]


def _chains(trace):
    made = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        made.setdefault(stack, []).append((symbol, library))
    return [made.get(stack) for stack in trace.samples["stack"]]


@pytest.mark.parametrize(
    "form",
    [
        "{n} {p}/{t} [001] {s}.000001: 100 cycles:u: \n" + CHAIN,
        "{n:>16} {t:7d} [001] {s:5d}.000000001: {one:10d} cycles:u:  7f01 foo+0x1 (/lib/x y (deleted))\n",
        "{n} {p:7d}/{t:<7d} {s}.000001: cycles: \n" + CHAIN,
    ],
)
def test_names_may_hold_anything(load, form):
    text = "".join(form.format(n=name, p=70, t=100 + at, s=5 + at, one=1) for at, name in enumerate(NAMES))
    trace = load(text)
    assert trace.threads["name"].to_list() == NAMES
    assert trace.threads["tid"].to_list()[: len(NAMES)] == [100 + at for at in range(len(NAMES))]
    assert trace.samples["ts_ns"].to_list() == [
        (5 + at) * 10**9 + (1 if "000000001" in form else 1000) for at in range(len(NAMES))
    ]
    assert trace.sources["skipped_bytes"][0] == 0


@pytest.mark.parametrize(
    ("head", "expected"),
    [  # (pid, tid, name, cpu, ns, period, event)
        ("x 7/8 [003] 5.000001: 12 cycles:u: ", (7, 8, "x", 3, 5_000_001_000, 12, "cycles:u")),
        ("x 7/8 5.000001: 12 cycles: ", (7, 8, "x", None, 5_000_001_000, 12, "cycles")),
        ("x 8 [003] 5.000001: cycles: ", (None, 8, "x", 3, 5_000_001_000, None, "cycles")),
        (
            "7/8 5.123456789: 50 branch-misses/period=50/u: ",
            (7, 8, None, None, 5_123_456_789, 50, "branch-misses/period=50/u"),
        ),
        ("x 8 5.000001: ", (None, 8, "x", None, 5_000_001_000, None, None)),
        (
            "x 7/8 [003] 5.000001: 12 cpu_core/cycles/P: ",
            (7, 8, "x", 3, 5_000_001_000, 12, "cpu_core/cycles/P"),
        ),
        ("x 7/8 [003] K 5.000001: 12 cycles: ", (7, 8, "x", 3, 5_000_001_000, 12, "cycles")),
        (
            "x 7/8 [003] 2026-01-02 03:04:05.123456 5.000001: 12 cycles: ",
            (7, 8, "x", 3, 5_000_001_000, 12, "cycles"),
        ),
        (
            "    bash       8   3     5.000001:         12 cycles: ",
            (None, 8, "bash", 3, 5_000_001_000, 12, "cycles"),
        ),  # -L
        (
            "x\t8 [003] 5.0000:\t\t12 task-clock:u:",
            (None, 8, "x", 3, 5_000_000_000, 12, "task-clock:u"),
        ),  # simpleperf
        ("x\t8 [003] 5.12:\t\t12 task-clock:u:", (None, 8, "x", 3, 5_000_012_000, 12, "task-clock:u")),
        ("x 7/8 [-01] 5.000001: 12 cycles: ", (7, 8, "x", None, 5_000_001_000, 12, "cycles")),
        (
            "x 7/8 [003] 5.000001: 18446744073709551615 cycles: ",
            (7, 8, "x", 3, 5_000_001_000, None, "cycles"),
        ),
    ],
)
def test_field_lists(load, head, expected):
    trace = load(f"{head}\n{CHAIN}" * 3)
    thread = trace.threads.row(0, named=True)
    rows = trace.samples.select("cpu", "ts_ns", "period", pl.col("event").cast(pl.String)).unique().rows()
    assert [(thread["pid"], 8, thread["name"], *rows[0])] == [expected]
    assert trace.threads.filter(pl.col("tid") == 8).height == 1
    assert _chains(trace) == [[("foo", "/lib/x.so"), ("main", "/bin/app")]] * 3
    assert trace.sources["skipped_bytes"][0] == 0


def test_idle_and_departed_threads_are_no_threads(load):
    trace = load(
        f"swapper 0/0 [000] 1.000001: 1 cycles: \n{CHAIN}:-1 -1/-1 [000] 2.000001: 1 cycles: \n{CHAIN}"
    )
    assert trace.samples["thread"].to_list() == [-1, None]
    assert trace.threads.is_empty()


def test_records_are_no_samples(load):
    trace = load(
        "x 12/12 [000] 0.000000: PERF_RECORD_COMM: named:12/13\n"
        "x 12/12 [000] 0.000000: PERF_RECORD_FORK(12:14):(12:12)\n"
        "x 12/12 [000] 5.000000: PERF_RECORD_LOST lost 17\n"
        f"x 12 [000] 6.000001: 1 cycles: \n{CHAIN}"
    )
    assert trace.samples.height == 1
    assert trace.sources.select("lost_declared", "first_ns").row(0) == (17, 6_000_001_000)
    assert dict(trace.threads.select("tid", "name").iter_rows()) == {12: "x", 13: "named"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("java 19983 cycles:\n\t  7f12 foo (/a)\n\n" * 2, "its 2 events carry no time"),
        ("java 19983 [003] cycles:\n" * 3, "its 3 events carry no time"),
        ("java 7/8 sched:sched_switch: prev_comm=java prev_pid=8\n" * 3, "its 3 events carry no time"),
        (
            "x 8 [000] 0.000000: 1 cycles:\nx 8 [000] 0.004000: 1 cycles:\n" * 4,
            r"since the event before \(--deltatime\)",
        ),
        ("# ========\n# perf version : 6.1\n# ========\n", "no event"),
        ("x 12/12 [000] 6.000001: 1 cycl", "no event"),
    ],
)
def test_texts_without_events_are_refused_with_the_reason(load, text, reason):
    with pytest.raises(BadTrace, match=reason):
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        "hello\nworld 1.5: \n",
        "bash-946   [003] ....   676.984916: sched_switch: x\n",
        "<idle>-0 2d..1. 2084.021443: cpu_idle: state=1\n",
        '{"traceEvents": []}',
    ],
)
def test_other_texts_are_not_recognised(text):
    from tracelib.sources.perf import sniff

    assert not sniff(text.encode(), "perf.txt")


SWITCH = (
    "sched_switch: prev_comm=a prev_pid=1234 prev_prio=120 prev_state=S ==> "
    "next_comm=b next_pid=12 next_prio=120"
)


@pytest.mark.parametrize(
    "line",
    [
        " request worker -1234    [000] d..2. 100.000002: {}",
        "                -80      [001] d..2. 100.000002: {}",
        "       worker 7 -1       [001] d..2. 100.000002: {}",
        "       worker 12 -1234  [000]   100.000002: {}",
        "       worker 12 -1234  (  1234) [000] d..2. 100.000002: {}",
        "worker 12 -1234  2d..1. 100.000002: {}",
    ],
)
@pytest.mark.parametrize("header", ["", "# tracer: nop\n#\n"])
def test_ftrace_names_that_end_in_a_blank_are_no_threads_of_perf(line, header):
    from tracelib.sources.ftrace import sniff as by_ftrace
    from tracelib.sources.perf import sniff

    text = (header + f"{line.format(SWITCH)}\n" * 3).encode()
    assert not sniff(text, "x.txt")
    assert by_ftrace(text, "x.txt")


def test_below_ftrace_s_header_nothing_is_perf_s():
    from tracelib.sources.perf import sniff

    assert not sniff(b"# tracer: nop\n#\n x 8 [000] 5.000001: cycles: \n", "x.txt")


@pytest.mark.parametrize("thread", [":-1 -1/-1", "-1/-1", ":-1    -1"])
def test_a_thread_that_had_left_is_perf_s(load, thread):
    trace = load(f"{thread} [000] 2.000001: 1 cycles: \n{CHAIN}")
    assert trace.samples.select("ts_ns", "cpu", "thread").rows() == [(2_000_001_000, 0, None)]


@pytest.mark.parametrize(
    ("head", "who"),
    [
        ("  python 26243   1 5.000001: ", (None, "python", 1)),
        ("kworker/ 26243 130 5.000001: ", (None, "kworker/", 130)),
        ("a worker 1234567  12 5.000001: ", (None, "a worker", 12)),
        ("  python 26000/26243   1 5.000001: ", (26000, "python", 1)),
        ("   26243   1 5.000001: ", (None, None, 1)),
        ("  python   26243   1 K    5.000001: ", (None, "python", 1)),
    ],
)
def test_the_latency_format(load, head, who):
    tid = 1234567 if "1234567" in head else 26243
    trace = load(f"{head}  20408163 cpu-clock/freq=49/:     7f3f00 tuple_alloc+0x37 (/bin/x)\n" * 2)
    assert trace.threads.filter(pl.col("tid") == tid).select("pid", "name").rows() == [who[:2]]
    assert trace.samples.select("cpu", "period").rows() == [(who[2], 20408163)] * 2
    assert trace.sources["skipped_bytes"].item() == 0


def test_a_name_that_looks_like_the_latency_format_is_a_name(load):
    trace = load(f"pool 12345 678 5.000001: 1 cycles: \n{CHAIN}x 9 5.000001: 1 cycles: \n{CHAIN}" * 2)
    assert trace.threads.select("tid", "name").rows() == [(9, "x"), (678, "pool 12345")]


@pytest.mark.parametrize("misc", ["K", "U", "KUH", "G", "KGg", "S", "KSp"])
def test_letters_of_misc(load, misc):
    trace = load(f"my thread 7/8 [003] {misc:<5} 5.000001: 12 cycles: \n{CHAIN}" * 2)
    assert trace.threads.filter(pl.col("tid") == 8).select("pid", "name").rows() == [(7, "my thread")]
    assert trace.samples["cpu"].to_list() == [3, 3]


USUAL_HEAD = "x 7/8 [003] 5.000001:         12 cycles: "


FRAMES = "\t    7f0012345678 foo+0x1 (/lib/x.so)\n\t    7f0012345690 main+0x2 (/bin/app)\n"


BELOW = [("foo", "/lib/x.so"), ("main", "/bin/app")]


def chains(trace):
    made = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        made.setdefault(stack, []).append((symbol, library))
    return [made.get(stack) for stack in trace.samples["stack"]]


def test_metrics_namespaces_and_rounds_are_no_samples(load):
    trace = load(
        "swapper     0 [000]     0.000000: PERF_RECORD_NAMESPACES 1/1 - nr_namespaces: 7\n"
        "\t\t[0/net: 0/0, 1/uts: 0/0, 2/ipc: 0/0, 3/pid: 0/0, \n"
        "\t\t 4/user: 0/0, 5/mnt: 0/0, 6/cgroup: 0/0]\n"
        f"PERF_RECORD_FINISHED_ROUND\n{USUAL_HEAD}\n{FRAMES}\n"
        "          python 14092 [001]   531.565349: \tmetric: 1000.000 M/sec\n"
    )
    assert chains(trace) == [BELOW]
    assert trace.sources["skipped_bytes"].item() == 0


@pytest.mark.parametrize("prefix", ["VM:  123 VCPU:000 ", "VCPU:001 ", "VM:    1 "])
def test_a_guest_s_thread_has_its_name(load, prefix):
    trace = load(f"{prefix}{USUAL_HEAD}\n{FRAMES}\n" * 2)
    assert trace.threads.select("pid", "tid", "name").rows() == [(7, 8, "x")]


@pytest.mark.parametrize(
    ("head", "cpu"),
    [
        ("my thread [003]     5.000001:          1 page-faults: ", 3),
        ("my thread-12 [003]     5.000001:          1 page-faults: ", 3),
        ("[003]     5.000001: cpu-clock: ", 3),
        ("  5.000001: cycles:u: ", None),
        ("            perf   5.000001: cpu_core/cycles/P: ", None),
    ],
)
def test_a_text_without_threads_is_recognised_by_its_events(load, head, cpu):
    trace = load(f"{head}\n{FRAMES}\n" * 2)
    assert trace.samples.select("ts_ns", "cpu", "thread").rows() == [(5_000_001_000, cpu, None)] * 2
    assert chains(trace) == [BELOW, BELOW]


@pytest.mark.parametrize(
    "text",
    ["ls-4734  [002] 106439.675571: bprint:  cycles\n", "bash-946 [003] 676.984916: cpu_idle: state=1\n"],
)
def test_ftrace_is_not_recognised_by_them(text):
    from tracelib.sources.perf import sniff

    assert not sniff(text.encode(), "trace.txt")


@pytest.mark.parametrize("name", ["#", "# 1", "# a: b"])
def test_a_name_may_begin_like_a_comment(load, name):
    trace = load(f"{USUAL_HEAD}\n{FRAMES}\n{name} 9/9 [001] 6.000001:         12 cycles: \n{FRAMES}\n")
    assert trace.samples.height == 2
    assert trace.threads.filter(pl.col("tid") == 9)["name"].to_list() == [name]


EVENT = (
    "# event : name = {name}, , id = {{ 12, 13 }}, type = {kind}, size = 128, {{ "
    "sample_period, sample_freq }} = {rate}, sample_type = IP, {freq}inherit = 1"
)
SAMPLE = "x 1/1 [000] 1.000001: 1 cycles: \n\n"


def test_the_pair_of_clocks_is_exact():
    header = of_lines(
        [
            "# hostname : gpu-7",
            "# perf version : 6.8",
            "# arch : aarch64",
            "# nrcpus online : 8",
            "# nrcpus avail : 16",
            "# cmdline : /usr/bin/perf record -k mono -a sleep 1",
            "# clockid: monotonic (1)",
            (
                "# reference time: 2026-11-30 02:40:04.348532 = 1796006404.348532 (TOD) = "
                "89.740626607 (monotonic)"
            ),
        ]
    )
    assert header.wall_offset_ns == 1796006404348532000 - 89740626607
    assert (header.host, header.cpus, header.recorder, header.architecture) == (
        "gpu-7",
        8,
        "perf 6.8",
        "aarch64",
    )
    assert (header.clock, header.system_wide) == ("monotonic", True)


@pytest.mark.parametrize(
    ("lines", "clock", "offset"),
    [
        ([], "unknown", None),
        (["# hostname : h"], "local", None),  # no -k: the scheduler's clock
        (["# hostname : h", "# clockid: realtime (0)"], "realtime", 0),
        (["# hostname : h", "# clockid: boottime (7)"], "boottime", None),
        (
            [
                "# hostname : h",
                "# clockid: monotonic_raw (4)",
                "# reference time: x = 10.000001 (TOD) = 1.000000002 (monotonic_raw)",
            ],
            "monotonic_raw",
            9_000_000_998,
        ),
    ],
)
def test_clocks(lines, clock, offset):
    header = of_lines(lines)
    assert (header.clock, header.wall_offset_ns) == (clock, offset)


@pytest.mark.parametrize(
    ("name", "kind", "rate", "freq", "sparse"),
    [
        ("sched:sched_switch", 2, 199, "freq = 1, ", True),  # perf record -F 199 -e sched:sched_switch
        ("sched:sched_switch", 2, 1, "", False),
        ("sched:sched_switch", 2, 100, "", True),  # -c 100
        ("cpu-clock/freq=199/", 1, 199, "freq = 1, ", False),
        ("cycles:u", 0, 4000, "freq = 1, ", False),
    ],
)
def test_thinned_out_tracepoints_are_told_from_samples(name, kind, rate, freq, sparse, load):
    line = EVENT.format(name=name, kind=kind, rate=rate, freq=freq)
    assert of_lines(["# hostname : h", line]).subsampled == ((name,) if sparse else ())
    trace = load(f"# hostname : h\n# perf version : 6.1\n{line}\n#\n{SAMPLE}")
    errors = trace.health.filter(trace.health["level"] == "error")
    assert errors.height == int(sparse)
    if sparse:
        assert "sched:sched_switch" in errors["message"][0]
        assert "cpu-clock/freq=199/" in errors["fix"][0]


@pytest.mark.parametrize(
    ("command", "clock"),
    [
        (["perf", "record", "-k", "mono"], "monotonic"),
        (["perf", "record", "--clockid=CLOCK_REALTIME"], "realtime"),
        (["perf", "record", "-a"], "local"),
        (["perf", "record", "-kboot"], "boottime"),
    ],
)
def test_the_clock_of_a_command_line(command, clock):
    assert clock_of(None, command) == clock


@pytest.mark.parametrize("command", ["perf record -p 12", "perf record ./app -x", "perf record --all-user x"])
def test_recordings_of_some_processes(command):
    assert of_lines([f"# cmdline : {command}"]).system_wide is False


@pytest.mark.parametrize(
    "command",
    ["perf record -a", "perf record --all-cpus -g", "perf record -ag sleep 1", "perf record -C 0-3 sleep 1"],
)
def test_recordings_of_the_whole_system(command):
    assert of_lines([f"# cmdline : {command}"]).system_wide is True


def test_a_text_without_header_says_what_is_unknown(load, messages):
    trace = load(SAMPLE)
    assert "no header" in messages(trace)
    assert trace.sources.select("clock", "host", "cpus").row(0) == ("unknown", None, None)
