"""Writes as text what `perf record -k mono -e cpu-clock -e sched:sched_switch -e …_wakeup -g` would see."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from tests.simulator.recording import BASE_NS, BEGIN_NS, shifted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from tests.simulator.machine import Thread
    from tests.simulator.recording import Recording
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
    "poll": ["ffffffff8141a0c5 do_poll.constprop.0 ([kernel.kallsyms])", f"11b0cf __poll ({LIBC})", _EVAL],
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
    text: str  # without its time, for which "{}" stands


def write(server: Server, path: Path, how: Recording) -> None:
    """Write the text of `perf script --header --ns -F +pid`."""
    lines: list[_Line] = []
    for thread in server.threads:
        lines += _samples(thread) if how.samples else []
        lines += _wakeups(thread) if how.sched and how.wakeups else []
    cpus = {thread.cpu for thread in server.threads}
    for cpu in cpus if how.sched else ():
        lines += _switches([t for t in server.threads if t.cpu == cpu], from_idle=how.from_idle)
    lines.sort(key=lambda line: (line.ts, line.order))
    path.write_text("\n".join([_header(len(cpus), how), *_timed(lines, how), ""]))


def _timed(lines: Iterable[_Line], how: Recording) -> Iterator[str]:
    for line in lines:
        at = MONOTONIC_NS + shifted(line.ts, how.perf_off_ns, how.perf_drift_ppm)
        yield line.text.replace("{}", f"{at // 10**9:>5}.{at % 10**9:09d}", 1)


def _header(cpus: int, how: Recording) -> str:
    wall = BASE_NS + BEGIN_NS
    moment = datetime.fromtimestamp(wall // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    clock = f"{MONOTONIC_NS // 10**9}.{MONOTONIC_NS % 10**9:09d}"
    events = ["cpu-clock/freq=999/"] * how.samples + ["sched:sched_switch"] * how.sched
    events += ["sched:sched_wakeup"] * (how.sched and how.wakeups)
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
            (
                f"# reference time: {moment}.{wall % 10**9 // 1000:06d} = "
                f"{wall // 10**9}.{wall % 10**9 // 1000:06d} (TOD) = {clock} (monotonic)"
            ),
            "# ========",
            "#",
            "",
        ]
    )


def _head(task: tuple[str, int, int], cpu: int, period: int, event: str) -> str:
    name, pid, tid = task
    return f"{name[:15]} {pid:>5}/{tid:<5} [{cpu:03d}] {{}}: {period:>10} {event}"


def _samples(thread: Thread) -> Iterator[_Line]:
    """A timer on the thread's CPU, out of step with the other CPUs', finds it there if it runs."""
    tick = (thread.cpu * 271_829) % PERIOD_NS
    for stretch in thread.life:
        tick += -(-max(0, stretch.begin - tick) // PERIOD_NS) * PERIOD_NS
        while tick < stretch.end:
            if stretch.cpu == "running":
                head = _head(_task(thread), thread.cpu, PERIOD_NS, "cpu-clock/freq=999/: ")
                yield _Line(
                    tick, 0, "\n".join([head, *(f"\t{frame}" for frame in STACKS[stretch.stack]), ""])
                )
            tick += PERIOD_NS


def _wakeups(thread: Thread) -> Iterator[_Line]:
    """A thread that slept wants a CPU again."""
    for before, after in pairwise(thread.life):
        if before.cpu == "blocked" != after.cpu:
            yield _Line(after.begin, 1, _wakeup(thread))


def _switches(threads: Sequence[Thread], *, from_idle: bool) -> Iterator[_Line]:
    """On one CPU, threads right after each other are switched directly, others through the idle task."""
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
    return thread.name[:15], thread.pid, thread.tid


def _idle(cpu: int) -> tuple[str, int, int]:
    return f"swapper/{cpu}", 0, 0


def _switch(cpu: int, ts: int, left: tuple[str, int, int], state: str, came: tuple[str, int, int]) -> _Line:
    text = (
        f"prev_comm={left[0]} prev_pid={left[2]} prev_prio=120 prev_state={state} ==> "
        f"next_comm={came[0]} next_pid={came[2]} next_prio=120"
    )
    task, order = (("swapper", 0, 0), 3) if left[2] == 0 else (left, 2)
    return _Line(ts, order, f"{_head(task, cpu, 1, 'sched:sched_switch:')} {text}\n")


def _wakeup(thread: Thread) -> str:
    text = f"comm={thread.name[:15]} pid={thread.tid} prio=120 target_cpu={thread.cpu:03d}"
    return f"{_head(('swapper', 0, 0), thread.cpu, 1, 'sched:sched_wakeup:')} {text}\n"
