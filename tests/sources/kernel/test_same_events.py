"""The same kernel events, written down by perf and by ftrace, make the same frames."""

import random

import polars as pl
import pytest

from tracelib.align.ties import with_ftrace_clock
from tracelib.clocks import TRACE_CLOCKS
from tracelib.sources import ftrace, perf

SEEDS = 60
NAMES = [
    "python",
    "a b:c",
    "x-1 [y]",
    "kworker/0:1",
    "(sd-pam)",
    "a=b ==> c",
    "a pid=7 prio=1",
    "[003] 1.5: x",
    "tid 12",
    "VLLM::EngineCor",
]
STATES = {
    "letters": ["R", "R+", "S", "D", "I", "T", "t", "X", "Z", "x", "P", "D|W", "S|K"],
    "numbers": ["0", "1", "2", "0x80", "0x100", "64"],
    "old numbers": ["0", "1", "2", "512", "4096", "16"],
    "shifted numbers": ["1", "2", "4", "256"],
    "plugin": ["R", "S", "D", "Z", "X", "x", "W"],
}
CALLS = ["futex", "read", "epoll_wait", "clone", "exit_group", "sched_yield"]
NUMBERS = [202, 202, 0, 1, 232, 24, 16, 9999]
CLOCKS = {"mono": "monotonic (1)", "mono_raw": "monotonic_raw (4)", "boot": "boottime (7)", "tai": "tai (11)"}
HEADER = """# ========
# hostname : h
# nrcpus online : 2
# cmdline : /usr/bin/perf record -a -e sched:sched_switch
{}# ========
#
"""


class Events:
    """Random events of a few threads on two CPUs, of which some are not recorded."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.spelling = self.pick.choice(list(STATES))
        self.system_calls = self.pick.choice(["names", "numbers", "both", "none"])
        self.threads = {0: (0, "swapper")}
        for tid in range(11, 11 + self.pick.randrange(2, 7)):
            self.threads[tid] = (self.pick.choice([11, 12, tid]), self.pick.choice(NAMES))
        self.threads[11] = (11, self.threads[11][1])
        self.runs = {0: 0, 1: 0}
        self.rows: list[tuple[int, int, int, str, str]] = []  # us, cpu, tid, event, text
        self.us = 106_000_000
        while len(self.rows) < 1 or self.pick.random() < 0.97:
            self.us += self.pick.choice([0, 1, 7, 1000])
            self._event(self.pick.randrange(2))

    def _event(self, cpu: int) -> None:
        kind = self.pick.choice(["switch", "wakeup", "waking", "wakeup_new", "call", "switch", "call"])
        if kind == "switch":
            return self._switch(cpu)
        if kind == "call":
            return self._call(cpu)
        tid = self.pick.choice([tid for tid in self.threads if tid])
        name = self.threads[tid][1]
        if self.spelling == "plugin":
            text = f"{name}:{tid} [120] success=1 CPU:00{cpu}"
        else:
            text = f"comm={name} pid={tid} prio=120 target_cpu=00{1 - cpu}"
        return self._add(cpu, f"sched_{kind}", text)

    def _switch(self, cpu: int) -> None:
        comes = self.pick.choice([tid for tid in self.threads if tid != self.runs[1 - cpu] or not tid])
        state = self.pick.choice(STATES[self.spelling])
        prev, following = self.runs[cpu], comes
        a, b = (self.threads[tid][1] for tid in (prev, following))
        if self.spelling == "plugin":
            text = f"{a}:{prev} [120] {state} ==> {b}:{following} [120]"
        else:
            text = (
                f"prev_comm={a} prev_pid={prev} prev_prio=120 prev_state={state} ==> "
                f"next_comm={b} next_pid={following} next_prio=120"
            )
        if self.pick.random() < 0.9:  # else it was lost
            self._add(cpu, "sched_switch", text)
        self.runs[cpu] = comes

    def _call(self, cpu: int) -> None:
        number, name, way = (
            self.pick.choice(NUMBERS),
            self.pick.choice(CALLS),
            self.pick.choice(["enter", "exit"]),
        )
        raw = f"NR {number} (1, 80, 0)" if way == "enter" else f"NR {number} = 0"
        for _ in range(self.pick.choice([1, 1, 2])):  # entry and exit, or either alone
            if self.system_calls in ("numbers", "both"):
                self._add(cpu, f"raw_syscalls:sys_{way}", raw)
            if self.system_calls in ("names", "both"):
                self._add(cpu, f"syscalls:sys_{way}_{name}", "0x1")
            way, raw = "exit", f"NR {number} = 0"

    def _add(self, cpu: int, event: str, text: str) -> None:
        self.rows.append((self.us, cpu, self.runs[cpu], event, text))

    def perf(self) -> str:
        lines = []
        for us, cpu, tid, event, text in self.rows:
            pid, name = self.threads[tid]
            system = "sched:" if event.startswith("sched_") else ""
            time = f"{us // 10**6}.{us % 10**6:06d}000"
            lines.append(f"{name:>16} {pid:5}/{tid:<5} [{cpu:03d}] {time}: {system}{event}: {text}\n")
        return "".join(lines)

    def ftrace(self) -> str:
        lines = []
        for us, cpu, tid, event, text in self.rows:
            pid, name = self.threads[tid]
            name, process = (name, f"{pid:7d}") if tid else ("<idle>", "-------")
            time = f"{us // 10**6:5}.{us % 10**6:06d}"
            lines.append(
                f"{name:>16}-{tid:<7} ({process}) [{cpu:03d}] d..2. {time}: {event.split(':')[-1]}: {text}\n"
            )
        return "".join(lines)


def read_both(tmp_path, by_perf: str, by_ftrace: str):
    paths = tmp_path / "perf.txt", tmp_path / "ftrace.txt"
    for path, text, reader in zip(paths, (by_perf, by_ftrace), (perf, ftrace), strict=True):
        path.write_text(text)
        assert reader.sniff(text.encode()[: 1 << 16], path.name)
    return perf.read(paths[0]), ftrace.read(paths[1])


def assert_same(one, other):
    assert one.threads.drop("host").equals(other.threads.drop("host"))
    assert one.sched.equals(other.sched)
    text = pl.col("name").cast(pl.String)
    order = ["thread", "ts_ns", "dur_ns"]
    assert one.slices.with_columns(text).sort(order).equals(other.slices.with_columns(text).sort(order))
    assert one.sources.select("first_ns", "last_ns", "clock").equals(
        other.sources.select("first_ns", "last_ns", "clock")
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_events_make_the_same_frames(tmp_path, seed):
    events = Events(seed)
    clock = random.Random(seed).choice(list(CLOCKS))
    head = "# tracer: nop\n#\n"
    by_perf, by_ftrace = read_both(
        tmp_path,
        HEADER.format(f"# clockid: {CLOCKS[clock]}\n") + events.perf(),
        f"# clock: {clock}\n{head}{events.ftrace()}",
    )
    assert_same(by_perf, by_ftrace)
    if "for some threads only" not in " ".join(by_ftrace.health["message"]):
        assert by_perf.sources["lost_detected"].equals(by_ftrace.sources["lost_detected"])


@pytest.mark.parametrize("clock", TRACE_CLOCKS)
def test_a_clock_in_the_header_is_the_clock_of_the_flag(tmp_path, clock):
    text = "# tracer: nop\n#\n" + Events(0).ftrace()
    traces = []
    for name, head in (("header.txt", f"# clock: {clock}\n"), ("bare.txt", "")):
        (tmp_path / name).write_text(head + text)
        traces.append(ftrace.read(tmp_path / name))
    by_header, bare = traces
    assert bare.sources["clock"].to_list() == ["unknown"]
    (by_flag,) = with_ftrace_clock([bare], clock)
    assert by_flag.sources["clock"].equals(by_header.sources["clock"])


def test_the_generator_makes_what_readers_may_get_wrong():
    made = [Events(seed) for seed in range(SEEDS)]
    texts = "".join(events.perf() for events in made)
    for part in (
        "prev_state=R+ ",
        "prev_state=512 ",
        "] x ==> ",
        "a b:c",
        "x-1 [y]",
        "NR 9999",
        "sched_waking",
    ):
        assert part in texts, part
    last = [events.rows[-1][3] for events in made]
    assert any("sys_enter" in event for event in last)  # a call that is open at the end


def test_states_of_a_numbering_and_a_call_that_does_not_end(tmp_path):
    """By hand: x is dead and 512 parked before Linux 4.14; the wait is cut at the last event, 1 us later."""
    switch = "prev_comm={} prev_pid={} prev_prio=120 prev_state={} ==> next_comm={} next_pid={} next_prio=120"
    rows = [
        ("a", 11, "sched_switch", switch.format("a", 11, "x", "b", 22)),
        ("b", 22, "sched_switch", switch.format("b", 22, "512", "a", 11)),
        ("a", 11, "sys_enter", "NR 202 (1, 80, 0, 0, 0, 0)"),
        ("a", 11, "sched_switch", switch.format("a", 11, "S", "swapper/3", 0)),
    ]
    by_perf, by_ftrace = (
        HEADER.format("# arch : x86_64\n# clockid: monotonic (1)\n"),
        "# clock: mono\n# tracer: nop\n#\n",
    )
    for at, (name, tid, event, text) in zip((7, 17, 27, 28), rows, strict=True):
        system = "raw_syscalls" if event == "sys_enter" else "sched"
        by_perf += f"{name:>16} {tid}/{tid} [003] 106.{at:06d}000: {system}:{event}: {text}\n"
        by_ftrace += f"{name:>16}-{tid} ({tid:7}) [003] d..2. 106.{at:06d}: {event}: {text}\n"
    one, other = read_both(tmp_path, by_perf, by_ftrace)
    assert_same(one, other)
    assert one.sched["prev_state"].to_list() == ["X", "P", "S"]
    assert one.slices.select("dur_ns", "name").rows() == [(1000, "futex")]
