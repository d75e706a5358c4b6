"""Writes `perf script`'s text of cpu-clock, sched_switch and sched_wakeup with call chains, -k mono."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from tests.simulator.kineto import BASE_NS, BEGIN_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.simulator.machine import Thread
    from tests.simulator.server import Server

#: CLOCK_MONOTONIC when the simulation begins, and perf's sampling at 999 Hz.
MONOTONIC_NS = 45_000_000_000
PERIOD_NS = 1_001_001

PYTHON, LIBC = "/usr/bin/python3.12", "/usr/lib/x86_64-linux-gnu/libc.so.6"
SITE = "/opt/serving/lib/python3.12/site-packages"
CUDA = "/usr/local/nvidia/lib64/libcuda.so.580.159.04"
_EVAL = f"1d55eb _PyEval_EvalFrameDefault ({PYTHON})"
#: What a sample's call chain looks like, innermost frame first.
STACKS = {
    "python": [_EVAL],
    "stress": ["1f40 stress_cpu_method (/usr/bin/stress-ng)"],
    "tokenize": [f"4fea76 [unknown] ({SITE}/tokenizers/tokenizers.abi3.so)", _EVAL],
    "pickle": [f"12ab _pickle_Pickler_dump ({SITE}/_pickle.cpython-312-x86_64-linux-gnu.so)", _EVAL],
    "yield": [
        "ffffffff813e0fb5 do_sched_yield ([kernel.kallsyms])",
        f"10e90b __sched_yield ({LIBC})",
        f"181d5a [unknown] ({PYTHON})",
    ],
    "dispatch": [f"5be1f0 at::native::empty_strided_cuda ({SITE}/torch/lib/libtorch_cuda.so)", _EVAL],
    "driver": [
        f"221684 [unknown] ({CUDA})",
        f"42331 [unknown] ({SITE}/nvidia/cu13/lib/libcudart.so.13)",
        _EVAL,
    ],
    "device_wait": [f"221684 [unknown] ({CUDA})", f"37b550 cuStreamSynchronize ({CUDA})", _EVAL],
    "jit": [
        f"9a1b2c [unknown] ({SITE}/nvidia/cu13/lib/libnvrtc.so.13)",
        f"5be1f0 at::native::jitted_gpu_kernel ({SITE}/torch/lib/libtorch_cuda.so)",
        _EVAL,
    ],
    "gc": [f"2b40de gc_collect_main ({PYTHON})", _EVAL],
    "profiler": [
        f"95b53 [unknown] ({SITE}/nvidia/cu13/lib/libcupti.so.13)",
        f"221684 [unknown] ({CUDA})",
        _EVAL,
    ],
}


@dataclass(frozen=True)
class _Line:
    ts: int
    order: int  # of lines at one time: a wake-up before the switch it leads to
    text: str


def write(
    server: Server, path: Path, *, sched: bool = True, samples: bool = True, from_idle: bool = True
) -> None:
    """Write the text of `perf script --header --ns -F +pid`.

    Without `from_idle` no switch from a CPU's idle task to a thread is recorded, as some kernels hardly ever
    do.
    """
    lines = []
    for thread in server.threads:
        lines += list(_samples(thread)) if samples else []
        lines += list(_wakeups(thread)) if sched else []
    for cpu in {thread.cpu for thread in server.threads} if sched else ():
        lines += list(_switches([t for t in server.threads if t.cpu == cpu], from_idle=from_idle))
    body = "\n".join(line.text for line in sorted(lines, key=lambda line: (line.ts, line.order)))
    path.write_text(
        _header(len({thread.cpu for thread in server.threads}), sched=sched, samples=samples) + body + "\n"
    )


def _header(cpus: int, *, sched: bool, samples: bool) -> str:
    wall = BASE_NS + BEGIN_NS
    moment = datetime.fromtimestamp(wall // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    micro = f"{wall % 10**9 // 1000:06d}"
    clock = f"{MONOTONIC_NS // 10**9}.{MONOTONIC_NS % 10**9:09d}"
    events = (["cpu-clock/freq=999/"] if samples else []) + (
        ["sched:sched_switch", "sched:sched_wakeup"] if sched else []
    )
    described = [
        f"# event : name = {name}, , id = {{ {n} }}, type = 1, size = 128, use_clockid = 1, clockid = 1"
        for n, name in enumerate(events)
    ]
    return "\n".join(
        [
            "# ========",
            "# captured on    : Mon Nov 30 02:39:47 2026",
            "# header version : 1",
            "# hostname : vm",
            "# os release : 6.18.44",
            "# perf version : 6.1.192",
            "# arch : x86_64",
            f"# nrcpus online : {cpus}",
            f"# nrcpus avail : {cpus}",
            "# cmdline : /usr/bin/perf record -a -k mono "
            + " ".join(f"-e {name}" for name in events)
            + " -g sleep 1",
            *described,
            "# clockid frequency: 1000 MHz",
            "# clockid: monotonic (1)",
            f"# reference time: {moment}.{micro} = {wall // 10**9}.{micro} (TOD) = {clock} (monotonic)",
            "# ========",
            "#",
            "",
        ]
    )


def _head(name: str, pid: int, tid: int, cpu: int, ts: int, period: int, event: str) -> str:
    at = MONOTONIC_NS + ts
    return f"{name} {pid:>5}/{tid:<5} [{cpu:03d}] {at // 10**9:>5}.{at % 10**9:09d}: {period:>10} {event}"


def _samples(thread: Thread) -> Iterator[_Line]:
    """A timer on the thread's CPU, out of step with the other CPUs', finds it there if it runs."""
    tick = (thread.cpu * 271_829) % PERIOD_NS
    for stretch in thread.life:
        tick += -(-max(0, stretch.begin - tick) // PERIOD_NS) * PERIOD_NS
        while tick < stretch.end:
            if stretch.cpu == "running":
                head = _head(
                    thread.name, thread.pid, thread.tid, thread.cpu, tick, PERIOD_NS, "cpu-clock/freq=999/: "
                )
                yield _Line(
                    tick, 0, "\n".join([head, *(f"\t{frame}" for frame in STACKS[stretch.stack]), ""])
                )
            tick += PERIOD_NS


def _wakeups(thread: Thread) -> Iterator[_Line]:
    """A thread that slept wants a CPU again."""
    for before, after in pairwise(thread.life):
        if before.cpu == "blocked" != after.cpu:
            yield _Line(after.begin, 1, _wakeup(thread, after.begin))


def _switches(threads: Sequence[Thread], *, from_idle: bool) -> Iterator[_Line]:
    """A CPU's threads are switched directly if one runs right after the other, else via the idle task."""
    runs = sorted((run for thread in threads for run in _runs(thread)), key=lambda run: run.begin)
    for before, after in pairwise([None, *runs, None]):
        if before and after and before.end == after.begin:
            yield _switch(
                after.thread.cpu, after.begin, _task(before.thread), before.left_in, _task(after.thread)
            )
            continue
        if before:
            cpu = before.thread.cpu
            yield _switch(cpu, before.end, _task(before.thread), before.left_in, _idle(cpu))
        if after and from_idle:
            cpu = after.thread.cpu
            yield _switch(cpu, after.begin, _idle(cpu), "R", _task(after.thread))


@dataclass(frozen=True)
class _Run:
    """A stretch in which a thread has its CPU, and the state in which it leaves that."""

    thread: Thread
    begin: int
    end: int
    left_in: str


def _runs(thread: Thread) -> Iterator[_Run]:
    for cpu, stretches in groupby(pairwise([*thread.life, None]), key=lambda pair: pair[0].cpu):
        of = list(stretches)
        if cpu == "running":
            last, then = of[-1]
            left_in = "S" if then is None or then.cpu == "blocked" else "R"
            yield _Run(thread, of[0][0].begin, last.end, left_in)


def _task(thread: Thread) -> tuple[str, int, int]:
    return thread.name, thread.pid, thread.tid


def _idle(cpu: int) -> tuple[str, int, int]:
    return f"swapper/{cpu}", 0, 0


def _switch(cpu: int, ts: int, left: tuple[str, int, int], state: str, came: tuple[str, int, int]) -> _Line:
    text = (
        f"prev_comm={left[0]} prev_pid={left[2]} prev_prio=120 prev_state={state} ==> "
        f"next_comm={came[0]} next_pid={came[2]} next_prio=120"
    )
    name, order = ("swapper", 3) if left[2] == 0 else (left[0], 2)
    return _Line(ts, order, f"{_head(name, left[1], left[2], cpu, ts, 1, 'sched:sched_switch:')} {text}\n")


def _wakeup(thread: Thread, ts: int) -> str:
    text = f"comm={thread.name} pid={thread.tid} prio=120 target_cpu={thread.cpu:03d}"
    return f"{_head('swapper', 0, 0, thread.cpu, ts, 1, 'sched:sched_wakeup:')} {text}\n"
