"""Writes what `perf record -k mono -e cpu-clock -e sched:sched_switch -e sched:sched_wakeup -g` would have seen, as text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.simulator.kineto import BASE_NS, BEGIN_NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.simulator.machine import Stretch, Thread
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
    "tokenize": [f"4fea76 [unknown] ({SITE}/tokenizers/tokenizers.abi3.so)", _EVAL],
    "pickle": [f"12ab _pickle_Pickler_dump ({SITE}/_pickle.cpython-312-x86_64-linux-gnu.so)", _EVAL],
    "yield": ["ffffffff813e0fb5 do_sched_yield ([kernel.kallsyms])", f"10e90b __sched_yield ({LIBC})", f"181d5a [unknown] ({PYTHON})"],
    "dispatch": [f"5be1f0 at::native::empty_strided_cuda ({SITE}/torch/lib/libtorch_cuda.so)", _EVAL],
    "driver": [f"221684 [unknown] ({CUDA})", f"42331 [unknown] ({SITE}/nvidia/cu13/lib/libcudart.so.13)", _EVAL],
    "device_wait": [f"221684 [unknown] ({CUDA})", f"37b550 cuStreamSynchronize ({CUDA})", _EVAL],
    "jit": [f"9a1b2c [unknown] ({SITE}/nvidia/cu13/lib/libnvrtc.so.13)", f"5be1f0 at::native::jitted_gpu_kernel ({SITE}/torch/lib/libtorch_cuda.so)", _EVAL],
    "gc": [f"2b40de gc_collect_main ({PYTHON})", _EVAL],
    "profiler": [f"95b53 [unknown] ({SITE}/nvidia/cu13/lib/libcupti.so.13)", f"221684 [unknown] ({CUDA})", _EVAL],
}  # fmt: skip


@dataclass(frozen=True)
class _Line:
    ts: int
    order: int  # of lines at one time: a wake-up before the switch it leads to
    text: str


def write(
    server: Server, path: Path, *, sched: bool = True, samples: bool = True, from_idle: bool = True
) -> None:
    """Write the text of `perf script --header --ns -F +pid`.

    Without `from_idle` no switch from a CPU's idle task to a thread is recorded, as some kernels hardly ever do.
    """
    lines = []
    for thread in server.threads:
        lines += list(_samples(thread)) if samples else []
        lines += list(_switches(thread, from_idle=from_idle)) if sched else []
    body = "\n".join(line.text for line in sorted(lines, key=lambda line: (line.ts, line.order)))
    path.write_text(_header(len(server.threads), sched=sched, samples=samples) + body + "\n")


def _header(cpus: int, *, sched: bool, samples: bool) -> str:
    wall = BASE_NS + BEGIN_NS
    moment = datetime.fromtimestamp(wall // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    clock = f"{MONOTONIC_NS // 10**9}.{MONOTONIC_NS % 10**9:09d}"
    events = (["cpu-clock/freq=999/"] if samples else []) + (
        ["sched:sched_switch", "sched:sched_wakeup"] if sched else []
    )
    described = [
        f"# event : name = {name}, , id = {{ {n} }}, type = 1, size = 128, use_clockid = 1, clockid = 1"
        for n, name in enumerate(events)
    ]
    return "\n".join([
        "# ========", "# captured on    : Mon Nov 30 02:39:47 2026", "# header version : 1", "# hostname : vm", "# os release : 6.18.44",
        "# perf version : 6.1.192", "# arch : x86_64", f"# nrcpus online : {cpus}", f"# nrcpus avail : {cpus}",
        "# cmdline : /usr/bin/perf record -a -k mono " + " ".join(f"-e {name}" for name in events) + " -g sleep 1", *described,
        "# clockid frequency: 1000 MHz", "# clockid: monotonic (1)",
        f"# reference time: {moment}.{wall % 10**9 // 1000:06d} = {wall // 10**9}.{wall % 10**9 // 1000:06d} (TOD) = {clock} (monotonic)",
        "# ========", "#", "",
    ])  # fmt: skip


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


def _switches(thread: Thread, *, from_idle: bool) -> Iterator[_Line]:
    """Between two stretches of different CPU states the scheduler did something."""
    off: Stretch | None = None  # the stretch that the thread left its CPU for
    for before, after in pairwise([None, *_merged(thread.life)]):
        assert after is not None
        if before is not None and before.cpu == "running":
            other = _task(after.by) if after.by else _idle(thread)
            yield _switch(
                thread, after.begin, _task(thread), "S" if after.cpu == "blocked" else "R", other, 2
            )
        elif before is not None and before.cpu == "blocked":
            yield _Line(after.begin, 1, _wakeup(thread, after.begin))
        if after.cpu == "running":
            by = off.by if off else None
            if by is None and not from_idle:
                continue
            yield _switch(thread, after.begin, _task(by) if by else _idle(thread), "R", _task(thread), 3)
        else:
            off = after


def _merged(life: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches in which the CPU state changes."""
    kept: list[Stretch] = []
    for stretch in life:
        if not kept or kept[-1].cpu != stretch.cpu:
            kept.append(stretch)
    return kept


def _task(thread: Thread) -> tuple[str, int, int]:
    return thread.name, thread.pid, thread.tid


def _idle(thread: Thread) -> tuple[str, int, int]:
    return f"swapper/{thread.cpu}", 0, 0


def _switch(
    thread: Thread, ts: int, left: tuple[str, int, int], state: str, came: tuple[str, int, int], order: int
) -> _Line:
    text = f"prev_comm={left[0]} prev_pid={left[2]} prev_prio=120 prev_state={state} ==> next_comm={came[0]} next_pid={came[2]} next_prio=120"
    name = "swapper" if left[2] == 0 else left[0]
    return _Line(
        ts, order, f"{_head(name, left[1], left[2], thread.cpu, ts, 1, 'sched:sched_switch:')} {text}\n"
    )


def _wakeup(thread: Thread, ts: int) -> str:
    text = f"comm={thread.name} pid={thread.tid} prio=120 target_cpu={thread.cpu:03d}"
    return f"{_head('swapper', 0, 0, thread.cpu, ts, 1, 'sched:sched_wakeup:')} {text}\n"
