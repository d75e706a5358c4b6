"""How long all ledgers take and how much memory they need, by size: `python benchmarks/ledgers.py [millions
...] [--profile]`.

A made-up server of eight GPUs: an API server whose threads tokenize, an engine that broadcasts every step,
eight workers that launch 2 M kernels out of 10 M nested slices (at size 10), an all-reduce after every
seventh kernel, and 5 M scheduler events on 64 CPUs, and half a million CPU samples. The server is made in a
process of its own; each size is then analysed in a fresh process with two worker threads: CPU and wall
seconds of `analyse`, and the process's highest memory, the trace's own frames included. `--profile` adds the
seconds of each analysis; some run side by side, and CPU seconds are those of the whole process.
"""

from __future__ import annotations

import argparse
import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib import schema
from tracelib.analyses.results import analyse
from tracelib.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

RANKS, OPS, LAYERS = 8, 8, 32  # a step = LAYERS layers of OPS kernels a rank, the last one an all-reduce
SLICES_PER_LAUNCH = 5
CPUS, THREADS, TOKENIZERS = 64, 600, 8
ENGINE, API = RANKS, RANKS + 1  # threads 0..RANKS-1 are the workers' launching ones
FRAME = "vllm/model_executor/layers/linear.py({}): forward"


def server(slices: int, seed: int = 1) -> Trace:
    """Return a trace of about so many host slices, a fifth as many GPU operations, half as many scheduler
    events.
    """
    rng = np.random.default_rng(seed)
    steps = max(2, slices // (RANKS * OPS * LAYERS * SLICES_PER_LAUNCH))
    host, kernels, gap, length = _work(rng, steps)
    parts = [_launching(host), *_others(rng, gap, length)]
    end = int((gap[:, 0] + gap[:, 1] + length).max())
    return Trace.of(
        {
            "slices": _frame("slices", pl.concat(parts, how="diagonal_relaxed")),
            "gpu_ops": _gpu_ops(*kernels),
            "sched": _sched(rng, slices // 2, end),
            "threads": _threads(),
            "samples": _samples(rng, slices // 20, end),
            "stacks": _stacks(),
            "gpus": pl.DataFrame(
                [{"gpu": r, "host": "h", "device": r, "rank": r} for r in range(RANKS)], schema=schema.GPUS
            ),
            "sources": pl.DataFrame(
                [{"source": 0, "format": "torch_profiler", "tied_by": "declared"}], schema=schema.SOURCES
            ),
        }
    )


def _work(rng: np.random.Generator, steps: int) -> tuple[Ints, tuple[Ints, Ints], Ints, Ints]:
    """Return (begin of host work [rank, step, layer, op, begin/end], kernels, steps' waits and lengths)."""
    shape = (RANKS, steps, LAYERS, OPS)
    takes = rng.integers(4_000, 18_000, shape)
    done = takes.cumsum(3)
    start, stop = np.empty(shape, np.int64), np.empty(shape, np.int64)
    free = np.zeros(shape[:3], np.int64)
    for op in range(OPS):  # a kernel starts when its launch is through and the one before it has ended
        start[..., op] = np.maximum(free, done[..., op] + rng.integers(-500, 4_000, shape[:3]))
        free = stop[..., op] = start[..., op] + rng.integers(2_000, 20_000, shape[:3])
    stop[..., -1] = start[..., -1].max(0) + 9_000  # an all-reduce ends for all when the last has come
    layer = np.maximum(stop[..., -1], done[..., -1]).max(0) + 3_000
    length = layer.sum(1)
    wait = rng.integers(800_000, 6_000_000, steps)
    step = np.concatenate([[0], np.cumsum(wait + length)[:-1]])
    base = (step + wait)[:, None] + np.concatenate(
        [np.zeros((steps, 1), np.int64), layer.cumsum(1)[:, :-1]], 1
    )
    base = base[None, :, :, None]
    host = np.stack([base + done - takes, base + done])
    return host, (base + start, base + stop), np.stack([step, wait], 1), length


def _launching(host: Ints) -> pl.DataFrame:
    """Return the workers' slices: per launch a Python frame, two operators, the call, and one operator beside
    it.
    """
    begin, end = host[0].ravel(), host[1].ravel()
    n, took = len(begin), end - begin
    thread = np.repeat(np.arange(RANKS), n // RANKS)
    correlation = np.tile(np.arange(n // RANKS), RANKS) + 1
    of = np.arange(n) % 97
    cuts = (
        (0, 100, "python", of, 30),
        (2, 95, "op", of, 60),
        (20, 90, "op", of, 61),
        (60, 88, "runtime", None, 1),
        (91, 94, "op", of, 62),
    )
    names = [FRAME, "aten::op{}", "aten::inner{}", "cudaLaunchKernel", "aten::view{}"]
    parts = []
    for (a, b, category, kinds, _), name in zip(cuts, names, strict=True):
        text = pl.Series([name.format(k) for k in range(97)])
        number = pl.Series(kinds if kinds is not None else np.zeros(n, np.int64))
        parts.append(
            pl.DataFrame(
                {
                    "thread": thread,
                    "ts_ns": begin + took * a // 100,
                    "dur_ns": took * (b - a) // 100,
                    "name": text.gather(number).cast(pl.Categorical()),
                    "category": pl.Series([category]).new_from_index(0, n),
                    "correlation": correlation
                    if category == "runtime"
                    else pl.Series([None], dtype=pl.Int64).new_from_index(0, n),
                }
            )
        )
    return pl.concat(parts)


def _others(rng: np.random.Generator, gap: Ints, length: Ints) -> list[pl.DataFrame]:
    """Return the ranges around the steps: the workers' waits and steps, the engine's loop, the tokenizers."""
    step, wait = gap[:, 0], gap[:, 1]
    work = step + wait
    rows: list[tuple[int, str, Ints, Ints]] = []
    for rank in range(RANKS):
        rows += [(rank, "shm_broadcast.dequeue", step, wait), (rank, "execute_model", work, length)]
    third = wait // 3
    rows += [
        (ENGINE, "wait_for_requests", step, third),
        (ENGINE, "engine.schedule", step + third, third),
        (ENGINE, "shm_broadcast.enqueue", step + 2 * third, wait - 2 * third),
        (ENGINE, "engine.wait_output", work, length),
    ]
    for n in range(TOKENIZERS):
        late = rng.integers(0, 400_000, len(step))
        rows.append((API + n, "tokenize", step + late, np.minimum(third, wait - late)))
    return [
        pl.DataFrame({"thread": np.full(len(at), thread), "ts_ns": at, "dur_ns": took}).with_columns(
            name=pl.lit(name).cast(pl.Categorical()), category=pl.lit("annotation")
        )
        for thread, name, at, took in rows
    ]


def _gpu_ops(start: Ints, stop: Ints) -> pl.DataFrame:
    n = start.size
    collective = np.arange(n) % OPS == OPS - 1
    only = pl.col("collective").is_not_null()
    rows = pl.DataFrame(
        {
            "gpu": np.repeat(np.arange(RANKS), n // RANKS),
            "stream": np.full(n, 7),
            "ts_ns": start.ravel(),
            "dur_ns": (stop - start).ravel(),
            "correlation": np.tile(np.arange(n // RANKS), RANKS) + 1,
            "collective": collective,
        }
    ).with_columns(
        collective=pl.when("collective").then(pl.lit("all_reduce")).cast(pl.Categorical()),
        kind=pl.lit("kernel"),
    )
    return _frame(
        "gpu_ops",
        rows.with_columns(
            pid=pl.col("gpu") + 100,
            name=pl.when(only).then(pl.lit("ncclAllReduce")).otherwise(pl.lit("gemm")).cast(pl.Categorical()),
            group=pl.when(only).then(pl.lit("tp")).cast(pl.Categorical()),
            group_size=pl.when(only).then(RANKS),
            elements=pl.when(only).then(8192),
        ),
    )


def _sched(rng: np.random.Generator, events: int, end: int) -> pl.DataFrame:
    """Return switches and wake-ups of 64 CPUs, each with threads of its own, over `[0, end)`."""
    switches = events * 4 // 5 // CPUS
    parts = []
    for cpu in range(CPUS):
        own = np.arange(cpu, THREADS, CPUS)
        on = own[rng.integers(0, len(own), switches)]
        on = np.where(np.r_[False, on[1:] == on[:-1]], schema.IDLE, on)
        at = np.sort(rng.integers(0, end, switches))
        left = np.r_[schema.IDLE, on[:-1]]
        state = np.where(rng.integers(0, 2, switches) == 0, "R", "S")
        parts.append(
            pl.DataFrame(
                {"ts_ns": at, "cpu": cpu, "event": "switch", "prev": left, "prev_state": state, "next": on}
            )
        )
        woken = np.sort(rng.choice(switches, switches // 4, replace=False))
        wakes = pl.DataFrame(
            {"ts_ns": at[woken] - 500, "cpu": cpu, "event": "wakeup", "prev": schema.IDLE, "next": on[woken]}
        )
        parts.append(wakes.filter(pl.col("next") >= 0))
    return _frame("sched", pl.concat(parts, how="diagonal_relaxed"))


def _samples(rng: np.random.Generator, samples: int, end: int) -> pl.DataFrame:
    rows = pl.DataFrame(
        {
            "thread": rng.integers(0, API + TOKENIZERS, samples),
            "ts_ns": np.sort(rng.integers(0, end, samples)),
            "stack": rng.integers(0, len(LEAVES), samples),
        }
    )
    return _frame(
        "samples",
        rows.with_columns(
            cpu=pl.lit(0), event=pl.lit("cpu-clock").cast(pl.Categorical()), period=pl.lit(2_000_000)
        ),
    )


LEAVES = (
    ("cuLaunchKernel", "libcuda.so"),
    ("at::native::add", "libtorch_cpu.so"),
    ("sched_yield", "libc.so.6"),
    ("take_gil", "python3.11"),
    ("tokenizers::encode", "tokenizers.abi3.so"),
    ("nvrtcCompileProgram", "libnvrtc.so"),
    ("_PyEval_EvalFrameDefault", "python3.11"),
)


def _stacks() -> pl.DataFrame:
    rows = [
        {"stack": n, "depth": depth, "symbol": symbol, "library": library}
        for n, leaf in enumerate(LEAVES)
        for depth, (symbol, library) in enumerate(
            [leaf, ("_PyEval_EvalFrameDefault", "python3.11"), ("main", "python3.11")]
        )
    ]
    return pl.DataFrame(rows, schema=schema.STACKS)


def _threads() -> pl.DataFrame:
    def role(thread: int) -> str | None:
        if thread < RANKS:
            return "worker"
        return "engine" if thread == ENGINE else "api_server" if thread < API + TOKENIZERS else None

    rows = [
        {
            "thread": t,
            "host": "h",
            "pid": 100 + min(t, API),
            "tid": 100 + t,
            "name": f"t{t}",
            "role": role(t),
            "rank": t if t < RANKS else None,
        }
        for t in range(THREADS)
    ]
    return pl.DataFrame(rows, schema=schema.THREADS)


def _frame(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    full = schema.FRAMES[name]
    missing = [
        pl.lit(None, dtype).alias(c) for c, dtype in full.items() if c not in rows.columns and c != "source"
    ]
    return rows.with_columns(*missing, source=pl.lit(0)).select(pl.col(c).cast(t) for c, t in full.items())


def _make(folder: Path, slices: int) -> None:
    for name, rows in server(slices).frames().items():
        rows.write_ipc(folder / name)
    os.sync()  # or the kernel writes a gigabyte to the disk while the analysis is measured


def _measure(folder: Path, *, profile: bool) -> None:
    trace = Trace(**{name: pl.read_ipc(folder / name) for name in schema.FRAMES}).check()
    before = resource.getrusage(resource.RUSAGE_SELF)
    if profile:
        _profiled()
    began = time.perf_counter()
    results = analyse(trace)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lost = results.gpu_time.filter(pl.col("state").is_in(["idle", "collective_wait"]))["ns"].sum()
    assert lost == results.causes["ns"].sum()
    frames = (trace.slices, trace.gpu_ops, trace.sched, results.lost)
    print(
        *(f"| {rows.height / 1e6:.2f}" for rows in frames),
        f"| {cpu:.1f} | {wall:.1f} | {before.ru_maxrss / 1e6:.2f} | {after.ru_maxrss / 1e6:.2f} |",
    )


def _profiled() -> None:
    """Print each analysis's seconds as it ends."""
    from tracelib.analyses import results

    def timed(name: str, function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)  # its parameters say what it takes
        def call(*args: object, **more: object) -> object:
            began, spent = time.perf_counter(), time.process_time()
            out = function(*args, **more)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            wall, cpu = time.perf_counter() - began, time.process_time() - spent
            print(f"    {name:18} {wall:6.2f} s wall {cpu:6.2f} s CPU, peak {peak:.2f} GB", file=sys.stderr)
            return out

        return call

    for name, make in results.ANALYSES.items():
        results.ANALYSES[name] = timed(name, make)


def main() -> None:
    """Print one row per size, each measured in a new process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="*", type=float, default=[1, 2, 4, 8, 10])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        _make(args.make, round(args.millions[0] * 1e6))
    elif args.measure:
        _measure(args.measure, profile=args.profile)
    else:
        _compare(args.millions, ["--profile"] if args.profile else [])


def _compare(sizes: list[float], more: list[str]) -> None:
    print("| M slices | M GPU ops | M sched events | M pieces | CPU s | wall s | GB before | GB peak |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    two = {"POLARS_MAX_THREADS": "2", **os.environ}
    for millions in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for work in (["--make", folder, str(millions)], ["--measure", folder, *more]):
                subprocess.run([sys.executable, __file__, *work], check=True, env=two)


if __name__ == "__main__":
    main()
