"""What perf prints for any usual `-F` list, and what other producers of its format print."""

import polars as pl
import pytest

from tracelib.errors import BadTrace

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
        ("x\t8 [003] 5.12:\t\t12 task-clock:u:", (None, 8, "x", 3, 5_120_000_000, 12, "task-clock:u")),
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


@pytest.mark.parametrize(
    ("line", "symbol", "library"),
    [
        (
            "\t  7f00 bar<int (*)(int), a b>::operator()(int) const+0x2 (/lib/x)",
            "bar<int (*)(int), a b>::operator()(int) const",
            "/lib/x",
        ),
        ("\t  7f00 foo+0x2 (/memfd:x y (deleted))", "foo", "/memfd:x y (deleted)"),
        ("\t  7f00 [unknown] ([unknown])", "[unknown]", "[unknown]"),
        (
            "\t  7f00 py::Foo.bar:/a/b c.py+0x1 (/tmp/perf-12.map)",
            "py::Foo.bar:/a/b c.py",
            "/tmp/perf-12.map",
        ),
        (
            "\t  7f00 RegExp:[&<>\"'] /a (x).js (/tmp/perf-1.map)",
            "RegExp:[&<>\"'] /a (x).js",
            "/tmp/perf-1.map",
        ),
        ("\t  7f00 inlined_function (inlined)", "inlined_function", None),
        ("\t  7f00 foo+0x2 (/lib/x+0x1234)", "foo", "/lib/x"),
        ("\t  7f00 foo", "foo", None),
        ("\t  7f00", "[unknown]", None),
        ("\t  7f00 (/lib/x.so)", "[unknown]", "/lib/x.so"),
        ("\t  7f00 (anonymous namespace)::f() (/lib/x.so)", "(anonymous namespace)::f()", "/lib/x.so"),
        ("\t  7f00 f\x00\x1boo (/l)", "f\x00\x1boo", "/l"),
        ("        ffffffff8103d0ca native_write ([kernel.kallsyms])", "native_write", "[kernel.kallsyms]"),
        ("ffffffff8103d0ca native_write ([kernel.kallsyms])", "native_write", "[kernel.kallsyms]"),
    ],
)
def test_call_chain_lines(load, line, symbol, library):
    trace = load(f"x 7/8 [003] 5.000001: 12 cycles: \n{line}\n\n")
    assert _chains(trace) == [[(symbol, library)]]
    assert trace.sources["skipped_bytes"][0] == 0


def test_a_branch_row_keeps_where_it_came_from(load):
    trace = load(
        "8/9  108652.292046895:  1   branches:uH:   return      c8631f Base.fun_48+0xf (foo.exe) =>  bcd5dc Time_now.f+0x2c (foo.exe)\n"
        "8/9  108652.292046896:  1   branches:uH:   tr strt     0 [unknown] (foo.so) =>  404bf2 chan+0x372 (foo.so)\n"
        "8/9  108652.292046897:  jmp   439421 execute+0x61 =>  43942c execute+0x6c\n"
    )
    assert _chains(trace) == [[("Base.fun_48", "foo.exe")], [("[unknown]", "foo.so")], [("execute", None)]]
    assert trace.samples["event"].cast(pl.String).to_list() == ["branches:uH", "branches:uH", "jmp"]


def test_an_address_on_the_head_is_a_chain_of_one(load):
    trace = load(
        "x 8 [000] 1.000001: cycles:  ffffffff96613abf foo+0x1 0xffffffff96612350/0xffffffff96613a9a/P/-/-/0/  0x0/0x0/P/-/-/0/\n"
    )
    assert _chains(trace) == [[("foo", None)]]


def test_idle_and_departed_threads_are_no_threads(load):
    trace = load(
        f"swapper 0/0 [000] 1.000001: 1 cycles: \n{CHAIN}:-1 -1/-1 [000] 2.000001: 1 cycles: \n{CHAIN}"
    )
    assert trace.samples["thread"].to_list() == [-1, None]
    assert trace.threads.is_empty()


def test_source_lines_and_other_programs_messages_leave_chains_whole(load):
    head = "x 7/8 [003] 5.000001: 12 cycles: \n"
    trace = load(
        f"{head}\t    7f00 foo+0x1 (/lib/x.so)\n  foo.c:12\nbuild id event received for /a: abc\n\t    7f10 main+0x2 (/bin/app)\n  m.c:1\n\n"
        f"{head}{CHAIN}"
    )
    assert _chains(trace) == [[("foo", "/lib/x.so"), ("main", "/bin/app")]] * 2
    assert trace.sources["skipped_bytes"][0] == len("build id event received for /a: abc")
    assert "build id event" in " ".join(trace.health["message"])


def test_chains_without_empty_lines_between_events(load):
    trace = load(
        "".join(f"x 1/1 [000] {at}.000001: 100 cycles:u: \n\t 7f00 f{at} ([k])\n" for at in range(4))
    )
    assert _chains(trace) == [[(f"f{at}", "[k]")] for at in range(4)]


def test_an_unreadable_head_takes_its_chain_along(load):
    trace = load(f"x 1/1 [000] 1.000001: 1 cycles: \n{CHAIN}x 1/1 [000] 2.0000\x00\n{CHAIN}")
    assert trace.samples.height == 1
    assert len(_chains(trace)[0]) == 2
    assert any("2 call-chain lines follow no readable event" in m for m in trace.health["message"])


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


SWITCH = "sched_switch: prev_comm=a prev_pid=1234 prev_prio=120 prev_state=S ==> next_comm=b next_pid=12 next_prio=120"


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


def test_a_refused_head_keeps_its_chain_from_the_event_before(load):
    trace = load(
        f"x 1/1 [000] 1.000001: 1 cycles: \n{CHAIN}torn 2.0000: 1 cycles: \n{CHAIN}x 1/1 [000] 3.000001: 1 cycles: \n{CHAIN}"
    )
    assert _chains(trace) == [[("foo", "/lib/x.so"), ("main", "/bin/app")]] * 2
    said = " ".join(trace.health["message"])
    assert "1 line (" in said
    assert "2 call-chain lines follow no readable event" in said
