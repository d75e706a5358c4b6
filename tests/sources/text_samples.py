"""Small texts of perf and ftrace to damage: one of each spelling."""

import json
import zlib

#: A file's name to its bytes; the first is the one that a reader is given, the others lie beside it.
Sample = dict[str, bytes]

ROWS = 40

PERF_HEADER = """# ========
# captured on    : Mon Nov 30 02:39:47 2026
# hostname : h
# perf version : 6.1
# arch : x86_64
# nrcpus online : 4
# cmdline : perf record -a -k mono -e cpu-clock/freq=499/ -e sched:sched_switch -g
# event : name = sched:sched_switch, , id = { 1 }, type = 2, { sample_period, sample_freq } = 1, sample_type =
# IP clockid: monotonic (1) reference time: 2026-11-30 02:39:01.777879 = 1796006341.777879 (TOD) =
# 27.169973552 (monotonic) ========
#
"""
PERF_CHAIN = """\tffffffff813b9d17 __schedule+0x1b7 ([kernel.kallsyms])
\t           ecb7a clock_nanosleep (/usr/lib/libc.so.6)
\t            2a7f std::vector<int (*)(int), a b>::at(int) const+0x2 (/memfd:x y (deleted))
\t              12 inlined_function (inlined)
  file.c:12
\t            7f00 py::Foo.bar:/a/b c.py+0x1 (/tmp/perf-12.map)
\t              99 [unknown] ([unknown])

"""
PERF_SAYS = (
    "2004008 cpu-clock/freq=499/: ",
    "1 cycles:u: ",
    "1 cycles:      401132 main+0x2 (/bin/x y) ABI:2    AX:0x5    BX:0x6",
    "1 cycles:      401132 [unknown] (/bin/x) insn: 48 85 ff ilen: 3  0x401136/0x401132/P/-/-/0",
    "cbr:  cbr: 42 freq: 4219 MHz (156%)                   0 [unknown] ([unknown])",
    (
        "1 sched:sched_switch: prev_comm=a b prev_pid=11 prev_prio=120 prev_state=R+ ==> "
        "next_comm=b:c next_pid=12 next_prio=120"
    ),
    "1 sched:sched_switch: b:c:12 [120] S ==> swapper/1:0 [120]",
    "1 sched:sched_switch: kworker/0:1:55 [120] W ==> b:c:12 [120]",
    "1 sched:sched_wakeup: comm=a b pid=11 prio=120 target_cpu=003",
    "1 syscalls:sys_enter_futex: uaddr: 0x1, op: 0x0",
    "1 syscalls:sys_exit_futex: 0x0",
    "1 raw_syscalls:sys_enter: NR 202 (1, 0, 0)",
    "1 raw_syscalls:sys_exit: NR 202 = 0",
    "1 irq:softirq_entry: vec=1 [action=TIMER]",
    "PERF_RECORD_COMM: named:11/13",
    "PERF_RECORD_LOST lost 17",
    "PERF_RECORD_SWITCH_CPU_WIDE OUT preempt next pid/tid:    12/12",
    "PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:    11/11",
    "PERF_RECORD_SWITCH OUT",
)
PERF_HEADS = (
    "{name:>16} {tid:5d}/{tid:<5d} [{cpu:03d}] {s:5d}.{ns:09d}: ",
    "{name} {tid} [{cpu:03d}] {s}.000001: ",
    "{name}\t{tid} [{cpu:03d}] {s}.12:\t\t",
    "{tid}/{tid} {s}.{ns:09d}: ",
    "{name:<8.8} {tid:7d} {cpu:3d} {s:5d}.{ns:09d}: ",
    "{name:>8.8} {tid:5d} {cpu:3d} {s:5d}.{ns:09d}: ",
    "{name:>16} {tid:5d}/{tid:<5d} [{cpu:03d}] Sp {s:5d}.{ns:09d}: ",
)
PERF_NAMES = ("a b", "b:c", "my [1]: x", "swapper", "FS Broker 5906")

FTRACE_HEADS = (
    "{name:>16}-{tid:<7} [{cpu:03d}] d..2. {s:5d}.{us:06d}: ",
    "{name:>16}-{tid:<7} ({tid:7d}) [{cpu:03d}] d..2. {s:5d}.{us:06d}: ",
    "{name:>16}-{tid:<7} [{cpu:03d}]   {s:5d}.{us:06d}000: ",
    "{name:>8}-{tid:<5} {cpu}d..2. {s:5d}.{us:06d}: ",
    "{name:>8}-{tid:<5}   {cpu}d..2. {us}us!: ",
    "{name:>16}-{tid:<7} [{cpu:03d}]{s}{us:06d}: ",
)
FTRACE_RESTS = (
    (
        "sched_switch: prev_comm=a b prev_pid=11 prev_prio=120 prev_state=S ==> "
        "next_comm=b-c next_pid=12 next_prio=120"
    ),
    "sched_switch:         b-c:12 [120] R ==> swapper/1:0 [120]",
    (
        "sched_switch: prev_comm=a prev_pid=11 prev_prio=120 prev_state=0x1 "
        "next_comm=b next_pid=12 next_prio=120"
    ),
    "sched_waking: comm=a b pid=11 prio=120 target_cpu=003",
    "sched_wakeup: a b:11 [120] success=1 CPU:003",
    "sys_futex(uaddr: 1, op: 0)",
    "sys_futex -> 0x0",
    "sys_enter_read:       fd: 0x1",
    "sys_exit_read:        0x0",
    "sys_enter: NR 202 (1, 0, 0)",
    "sys_exit: NR 202 = 0",
    "tracing_mark_write: B|11|outer|x",
    "tracing_mark_write: E|11",
    "print: tracing_mark_write: C|11|queue|3",
    "tracing_mark_write: C|11|queue|1e3|category",
    "tracing_mark_write: N|11|track|name",
    "tracing_mark_write: S|11|load|77",
    "tracing_mark_write: F|11|load|77",
    "tracing_mark_write: trace_event_clock_sync: realtime_ts=1700000000000",
    "bprint:               some_function: text\nthat goes on",
    "schedule+0x14/0x1ac <-do_nanosleep+0xc0/0x41c",
    "funcgraph_entry:                   |  do_sys_poll() {",
    "funcgraph_entry:        0.123 us   |    kfree();",
    "funcgraph_exit:         8.000 us   |  }",
    "cpu_idle: state=4294967295 cpu_id=2",
)
FTRACE_TOP = "# tracer: nop\n#\n# entries-in-buffer/entries-written: 126/8736572   #P:8\n# clock: mono\n#\n"
FTRACE_DRAWN = """# tracer: function_graph
 9344.121158 |   1)   ping-1922    |  ...1 |               |  do_sys_poll() {
 9344.122358 |   1)   ping-1922    |  ..s. |   1.747 us    |    e1000_clean_rx_irq [e1000]();
 9344.122360 |   1)   ping-1922    |  ...1 |               |  /* sys_sched_setaffinity -> 0x0 */
 9344.122387 |   1)   ping-1922    |  ..s. | + 35.582 us   |  } /* do_sys_poll */
 9344.122388 |   1)   ping-1922    |  ...1 |               |  /* B|1922|step 1 */
 9344.122389 |   1)   ping-1922    |  ...1 |               |  /* E|1922 */
 1)   0.081 us    |  pick_task_fair();
"""


def perf_texts() -> dict[str, Sample]:
    """Return texts of each head with each event, and JSON."""
    made = {}
    for place, form in enumerate(PERF_HEADS):
        lines = [PERF_HEADER]
        for at in range(ROWS):
            name = PERF_NAMES[at % len(PERF_NAMES)]
            start = form.format(name=name, tid=11 + at % 3, cpu=at % 2, s=20 + at // 9, ns=at * 1000 + 7)
            lines.append(start + PERF_SAYS[at % len(PERF_SAYS)] + "\n" + (PERF_CHAIN if at % 4 else "\n"))
        made[f"perf text {place}"] = {"perf.txt": "".join(lines).encode()}
    sample = {
        "timestamp": 5,
        "pid": 7,
        "tid": 8,
        "cpu": 1,
        "comm": "x",
        "callchain": [{"ip": "0x1", "symbol": "f", "dso": "/a"}],
    }
    switch = {"prev_comm": "x", "prev_pid": "8", "prev_state": "1", "next_comm": "y", "next_pid": "9"}
    document = {
        "linux-perf-json-version": 1,
        "headers": {"hostname": "h", "cmdline": ["perf", "-k", "mono"]},
        "samples": [sample, sample | switch, sample | {"target_cpu": "0", "pid": "12"}] * 5,
    }
    made["perf JSON"] = {"perf.json": json.dumps(document, indent="\t").encode()}
    return made


def ftrace_texts() -> dict[str, Sample]:
    """Return texts of each head with each event, drawn, in a page, and packed."""
    made = {"function graph": {"trace.txt": FTRACE_DRAWN.encode() * 5}}
    for place, form in enumerate(FTRACE_HEADS):
        text = FTRACE_TOP
        for at in range(2 * ROWS):
            name = ("a b", "b-c", "<idle>", "<...>", "request worker ", "")[at % 6]
            start = form.format(
                name=name, tid=0 if at % 6 == 2 else 11 + at % 2, cpu=at % 2, s=20 + at // 9, us=at
            )
            text += start + FTRACE_RESTS[at % len(FTRACE_RESTS)] + "\n"
            text += "CPU:1 [LOST 14279 EVENTS]\n" if at == ROWS else ""
        made[f"ftrace text {place}"] = {"trace.txt": text.encode()}
    body = made["ftrace text 1"]["trace.txt"]
    made["web page"] = {
        "t.html": b'<!DOCTYPE html>\n<script class="trace-data">\n' + body + b"</script></html>"
    }
    made["atrace -z"] = {"trace": b"capturing trace... done\nTRACE:\n" + zlib.compress(body)}
    return made
