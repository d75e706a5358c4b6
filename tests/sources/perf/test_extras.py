"""What perf adds to a text on demand: lines below a chain, records, columns; as perf 6.1 printed them."""

import polars as pl
import pytest

HEAD = "x 7/8 [003] 5.000001:         12 cycles: "
FRAMES = "\t    7f0012345678 foo+0x1 (/lib/x.so)\n\t    7f0012345690 main+0x2 (/bin/app)\n"
CHAIN = [("foo", "/lib/x.so"), ("main", "/bin/app")]


def chains(trace):
    made = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        made.setdefault(stack, []).append((symbol, library))
    return [made.get(stack) for stack in trace.samples["stack"]]


@pytest.mark.parametrize(
    "below",
    [
        " ABI:2    AX:0x1    SP:0xffffc9000706bcb8    IP:0xffffffff8161f591 ",  # +iregs, +uregs
        " insn: 89 9c 24 b0 00 00 00",
        " ilen: 0",
        " ilen: 7 insn: 89 9c 24 b0 00 00 00",
        "               0",  # +phys_addr of 0
        "        1a2b3c4d",  # +phys_addr: 16 columns, as wide as an address, but no frame
        "        1a2b3c4d 4K 2M",
        " 2M",
        " N/A",
        " 0x7f001234/0x7f005678/P/-/-/0  0x7f001234/0x7f005678/M/-/-/12 ",  # +brstack
        " foo+0x1/bar+0x2/P/-/-/0 ",
        "\t00007f0012345678\tinsn: 55 \t\t# PRED 3 cycles [3]",  # +brstackinsn
        "|12       return 0;",  # +srccode
    ],
)
def test_what_stands_below_a_chain_is_known_and_no_frame(load, below):
    trace = load(f"{HEAD}\n{FRAMES}{below}\n{HEAD}\n{FRAMES}{below}\n")
    assert chains(trace) == [CHAIN, CHAIN]
    assert trace.sources["skipped_bytes"].item() == (0)


@pytest.mark.parametrize(
    "position", ["foo.c:12", "[kernel.kallsyms][ffffffff822010c9]", ":0", "libc.so.6[26270]", "foo+18"]
)
def test_source_positions_resolved_and_not(load, position):
    lines = "".join(f"{frame}\n  {position}\n" for frame in FRAMES.splitlines())
    trace = load(f"{HEAD}\n{lines}\n{HEAD}\n{lines}\n")
    assert chains(trace) == [CHAIN, CHAIN]
    assert trace.sources["skipped_bytes"].item() == 0


def test_metrics_namespaces_and_rounds_are_no_samples(load):
    trace = load(
        "swapper     0 [000]     0.000000: PERF_RECORD_NAMESPACES 1/1 - nr_namespaces: 7\n"
        "\t\t[0/net: 0/0, 1/uts: 0/0, 2/ipc: 0/0, 3/pid: 0/0, \n\t\t 4/user: 0/0, 5/mnt: 0/0, 6/cgroup: 0/0]\n"
        f"PERF_RECORD_FINISHED_ROUND\n{HEAD}\n{FRAMES}\n"
        "          python 14092 [001]   531.565349: \tmetric: 1000.000 M/sec\n"
    )
    assert chains(trace) == [CHAIN]
    assert trace.sources["skipped_bytes"].item() == 0


@pytest.mark.parametrize("prefix", ["VM:  123 VCPU:000 ", "VCPU:001 ", "VM:    1 "])
def test_a_guest_s_thread_has_its_name(load, prefix):
    trace = load(f"{prefix}{HEAD}\n{FRAMES}\n" * 2)
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
    assert chains(trace) == [CHAIN, CHAIN]


@pytest.mark.parametrize(
    "text",
    ["ls-4734  [002] 106439.675571: bprint:  cycles\n", "bash-946 [003] 676.984916: cpu_idle: state=1\n"],
)
def test_ftrace_is_not_recognised_by_them(text):
    from tracelib.sources.perf import sniff

    assert not sniff(text.encode(), "trace.txt")


@pytest.mark.parametrize("name", ["#", "# 1", "# a: b"])
def test_a_name_may_begin_like_a_comment(load, name):
    trace = load(f"{HEAD}\n{FRAMES}\n{name} 9/9 [001] 6.000001:         12 cycles: \n{FRAMES}\n")
    assert trace.samples.height == 2
    assert trace.threads.filter(pl.col("tid") == 9)["name"].to_list() == [name]


@pytest.mark.parametrize(
    ("rest", "chain"),
    [
        ("    7f0012345678", ("[unknown]", None)),  # -F ip
        ("    7f0012345678 (/lib/x y.so)", ("[unknown]", "/lib/x y.so")),  # -F ip,dso
        ("    7f0012345678 foo+0x1 (/lib/x.so)", ("foo", "/lib/x.so")),
        ("    7f0012345678     7f0012340000 foo+0x1 (/lib/x.so)", ("foo", "/lib/x.so")),  # +addr
        (
            "       1e05080021 |OP LOAD|LVL L1 hit|SNP N/A|TLB L1 or L2 hit|LCK No|BLK  N/A      57    7f0012340000 foo+0x1 (/x)",
            ("foo", "/x"),
        ),  # +data_src,+weight
        (
            "    7f0012345678   1e05080021 |OP N/A|LVL N/A or N/A|SNP N/A|BLK  N/A 7f0012340000 foo (/x)",
            ("foo", "/x"),
        ),
    ],
)
def test_an_address_on_the_head_s_line(load, rest, chain):
    assert chains(load(f"{HEAD}{rest}\n" * 2)) == [[chain]] * 2


BEHIND = [
    " ABI:2    AX:0x1    SP:0xffffc9000706bcb8    IP:0xffffffff8161f591 ",  # +iregs, +uregs
    " insn: 48 85 ff",
    " ilen: 3",
    " ilen: 3 insn: 48 85 ff",
    "               0",  # +phys_addr
    "        1a2b3c4d",
    "        1a2b3c4d 4K N/A",
    " N/A",
    " 4K",
    "  foo+0x1/bar+0x2/P/-/-/0  foo+0x3/bar+0x4/M/-/-/12 ",  # +brstacksym
    " 0x401136/0x401132/P/-/-/0  0x0/0x0/P/-/-/0/ ",
    " 0x401136(/x)/0x401132(/x)/P/-/-/0 ",  # +brstack,+dso
    " ABI:2    AX:0x1 0x401136/0x401132/P/-/-/0  insn: 48 85 ff               0 4K",
    " \t IPC: 0.75 (3/4) ",
]


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize(
    ("frame", "chain"),
    [
        ("foo+0x1 (/lib/x.so)", ("foo", "/lib/x.so")),
        ("foo(int, a b)+0x1f (/memfd:x (deleted))", ("foo(int, a b)", "/memfd:x (deleted)")),
        ("[unknown] ([unknown])", ("[unknown]", "[unknown]")),
        ("native_write ([kernel.kallsyms])", ("native_write", "[kernel.kallsyms]")),
    ],
)
def test_what_stands_behind_a_frame_on_the_head_s_line_is_no_part_of_it(load, behind, frame, chain):
    assert chains(load(f"{HEAD}    7f0012345678 {frame}{behind}\n" * 2)) == [[chain]] * 2


@pytest.mark.parametrize("behind", [*BEHIND[:4], BEHIND[10]])
def test_behind_an_address_or_a_symbol_alone_too(load, behind):
    assert chains(load(f"{HEAD}    7f0012345678{behind}\n" * 2)) == [[("[unknown]", None)]] * 2
    assert chains(load(f"{HEAD}    7f0012345678 foo+0x1{behind}\n" * 2)) == [[("foo", None)]] * 2
    assert chains(load(f"{HEAD}{behind}\n" * 2)) == [None] * 2


def test_branches_of_symbols_with_blanks(load):
    trace = load(f"{HEAD}    7f0012345678 foo+0x1 (/x)  a<b, c>::d+0x1/operator new+0x2/P/-/-/0 \n" * 2)
    assert chains(trace) == [[("foo", "/x")]] * 2


@pytest.mark.parametrize(
    ("said", "chain"),
    [
        (
            "cbr:  cbr: 42 freq: 4219 MHz (156%)                  0 [unknown] ([unknown])",
            ("[unknown]", "[unknown]"),
        ),
        ("cbr:  cbr: 42 freq: 4219 MHz (156%)         401132 main (/bin/x)", ("main", "/bin/x")),
        ("ptwrite:  IP: 0 payload: 0x123456789abcdef     401132 main+0x2 (/bin/x)", ("main", "/bin/x")),
        ("mwait:  hints: 0x1 extensions: 0   401132 main (/bin/x)", ("main", "/bin/x")),
        ("pwre:  hw: 0 cstate: 2 sub-cstate: 0   401132 main (/bin/x)", ("main", "/bin/x")),
        ("exstop:  IP: 1   401132 main (/bin/x)", ("main", "/bin/x")),
        (
            "pwrx:  deepest cstate: 2 last cstate: 2 wake reason: 0x4   401132 main (/bin/x)",
            ("main", "/bin/x"),
        ),
        ("psb:  psb offs: 0x3f80   401132 main (/bin/x)", ("main", "/bin/x")),
    ],
)
def test_what_intel_pt_says_of_itself_is_no_symbol(load, said, chain):
    trace = load(f"x 7/8 [003] 5.000001:          1 {said}\n" * 2)
    assert chains(trace) == [[chain]] * 2
    assert trace.samples["event"].cast(pl.String).to_list() == [said.split(":")[0]] * 2


def test_a_share_that_was_lost_is_no_count(load):
    trace = load(
        f"{HEAD}\n{FRAMES}\nProcessed 100 samples and lost 12.34%!\nProcessed 9 events and lost 5 chunks!\n"
    )
    assert trace.sources["lost_declared"].item() == 1 + 5
    assert "6 events in 2 messages" in " ".join(trace.health["message"])
