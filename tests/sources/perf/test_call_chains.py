"""Call chains as `perf script` spells them, below a head and on its line; each distinct one stored once."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelib.sources.perf import call_chains


def _expected(chains):
    known, stacks = {}, []
    for chain in chains:
        if chain and chain not in known:
            known[chain] = len(known)
        stacks.append(known.get(chain, -1))
    return stacks, known


def _flat(chains):
    event = np.array([at for at, chain in enumerate(chains) for _ in chain], dtype=np.int64)
    return event, np.array([f for chain in chains for f in chain], dtype=np.int64)


def _check(chains):
    stacks, known = _expected(chains)
    found, rows = call_chains.intern(*_flat(chains), len(chains))
    # numbers are free, the classes are not: same chain, same number
    assert [s >= 0 for s in found] == [s >= 0 for s in stacks]
    assert len(set(zip(found.tolist(), stacks, strict=True))) == len(set(stacks))
    made = {}
    for stack, depth, frame in rows.iter_rows():
        made.setdefault(stack, []).append(frame)
        assert depth == len(made[stack]) - 1
    assert sorted(map(tuple, made.values())) == sorted(known)
    for at, chain in enumerate(chains):
        assert not chain or tuple(made[int(found[at])]) == chain


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=30))
def test_equal_chains_share_a_stack_and_others_do_not(chains):
    _check(chains)


def test_chains_that_share_a_hash_are_told_apart(monkeypatch):
    honest = call_chains._hashes
    monkeypatch.setattr(
        call_chains,
        "_hashes",
        lambda f, p, s, salt: honest(f, p, s, salt) % np.uint64(2 if salt < 3 else 2**63),
    )
    _check([(1, 2), (2, 1), (1,), (1, 2), (3, 3, 3), (), (2, 1)])


def test_hashes_that_never_part_are_refused(monkeypatch):
    monkeypatch.setattr(call_chains, "_hashes", lambda f, p, s, salt: np.zeros(len(s), dtype=np.uint64))
    with pytest.raises(AssertionError):
        call_chains.intern(*_flat([(1,), (2,)]), 2)


CHAIN = "\t    7f00 foo+0x1 (/lib/x.so)\n\t    7f10 main+0x2 (/bin/app)\n\n"


def _chains(trace):
    made = {}
    for stack, _, symbol, library in trace.stacks.iter_rows():
        made.setdefault(stack, []).append((symbol, library))
    return [made.get(stack) for stack in trace.samples["stack"]]


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
        "8/9  108652.292046895:  1   branches:uH:   return      c8631f Base.fun_48+0xf "
        "(foo.exe) =>  bcd5dc Time_now.f+0x2c (foo.exe)\n"
        "8/9  108652.292046896:  1   branches:uH:   tr strt     0 [unknown] (foo.so) =>  "
        "404bf2 chan+0x372 (foo.so)\n"
        "8/9  108652.292046897:  jmp   439421 execute+0x61 =>  43942c execute+0x6c\n"
    )
    assert _chains(trace) == [[("Base.fun_48", "foo.exe")], [("[unknown]", "foo.so")], [("execute", None)]]
    assert trace.samples["event"].cast(pl.String).to_list() == ["branches:uH", "branches:uH", "jmp"]


def test_an_address_on_the_head_is_a_chain_of_one(load):
    trace = load(
        "x 8 [000] 1.000001: cycles:  ffffffff96613abf foo+0x1 "
        "0xffffffff96612350/0xffffffff96613a9a/P/-/-/0/  0x0/0x0/P/-/-/0/\n"
    )
    assert _chains(trace) == [[("foo", None)]]


def test_source_lines_and_other_programs_messages_leave_chains_whole(load):
    head = "x 7/8 [003] 5.000001: 12 cycles: \n"
    trace = load(
        f"{head}\t    7f00 foo+0x1 (/lib/x.so)\n  foo.c:12\n"
        f"build id event received for /a: abc\n\t    7f10 main+0x2 (/bin/app)\n  m.c:1\n\n"
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


def test_a_refused_head_keeps_its_chain_from_the_event_before(load):
    trace = load(
        f"x 1/1 [000] 1.000001: 1 cycles: \n{CHAIN}torn 2.0000: 1 cycles: \n"
        f"{CHAIN}x 1/1 [000] 3.000001: 1 cycles: \n{CHAIN}"
    )
    assert _chains(trace) == [[("foo", "/lib/x.so"), ("main", "/bin/app")]] * 2
    said = " ".join(trace.health["message"])
    assert "1 line (" in said
    assert "2 call-chain lines follow no readable event" in said


USUAL_HEAD = "x 7/8 [003] 5.000001:         12 cycles: "


FRAMES = "\t    7f0012345678 foo+0x1 (/lib/x.so)\n\t    7f0012345690 main+0x2 (/bin/app)\n"


BELOW = [("foo", "/lib/x.so"), ("main", "/bin/app")]


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
    trace = load(f"{USUAL_HEAD}\n{FRAMES}{below}\n{USUAL_HEAD}\n{FRAMES}{below}\n")
    assert chains(trace) == [BELOW, BELOW]
    assert trace.sources["skipped_bytes"].item() == (0)


@pytest.mark.parametrize(
    "position", ["foo.c:12", "[kernel.kallsyms][ffffffff822010c9]", ":0", "libc.so.6[26270]", "foo+18"]
)
def test_source_positions_resolved_and_not(load, position):
    lines = "".join(f"{frame}\n  {position}\n" for frame in FRAMES.splitlines())
    trace = load(f"{USUAL_HEAD}\n{lines}\n{USUAL_HEAD}\n{lines}\n")
    assert chains(trace) == [BELOW, BELOW]
    assert trace.sources["skipped_bytes"].item() == 0


@pytest.mark.parametrize(
    ("rest", "chain"),
    [
        ("    7f0012345678", ("[unknown]", None)),  # -F ip
        ("    7f0012345678 (/lib/x y.so)", ("[unknown]", "/lib/x y.so")),  # -F ip,dso
        ("    7f0012345678 foo+0x1 (/lib/x.so)", ("foo", "/lib/x.so")),
        ("    7f0012345678     7f0012340000 foo+0x1 (/lib/x.so)", ("foo", "/lib/x.so")),  # +addr
        (
            (
                "       1e05080021 |OP LOAD|LVL L1 hit|SNP N/A|TLB L1 or L2 hit|LCK No|BLK  "
                "N/A      57    7f0012340000 foo+0x1 (/x)"
            ),
            ("foo", "/x"),
        ),  # +data_src,+weight
        (
            "    7f0012345678   1e05080021 |OP N/A|LVL N/A or N/A|SNP N/A|BLK  N/A 7f0012340000 foo (/x)",
            ("foo", "/x"),
        ),
    ],
)
def test_an_address_on_the_head_s_line(load, rest, chain):
    assert chains(load(f"{USUAL_HEAD}{rest}\n" * 2)) == [[chain]] * 2


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
    assert chains(load(f"{USUAL_HEAD}    7f0012345678 {frame}{behind}\n" * 2)) == [[chain]] * 2


@pytest.mark.parametrize("behind", [*BEHIND[:4], BEHIND[10]])
def test_behind_an_address_or_a_symbol_alone_too(load, behind):
    assert chains(load(f"{USUAL_HEAD}    7f0012345678{behind}\n" * 2)) == [[("[unknown]", None)]] * 2
    assert chains(load(f"{USUAL_HEAD}    7f0012345678 foo+0x1{behind}\n" * 2)) == [[("foo", None)]] * 2
    assert chains(load(f"{USUAL_HEAD}{behind}\n" * 2)) == [None] * 2


def test_branches_of_symbols_with_blanks(load):
    trace = load(f"{USUAL_HEAD}    7f0012345678 foo+0x1 (/x)  a<b, c>::d+0x1/operator new+0x2/P/-/-/0 \n" * 2)
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
