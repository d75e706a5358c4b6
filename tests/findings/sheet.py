"""One server's run, written by hand in ms: what each GPU, thread and CPU did, as frames of the schema.

Scheduler events are made from what is declared of each thread (`runs`, `ready`, asleep otherwise), so that a
test says what happened and not how a kernel spells it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelib import schema
from tracelib.analyses.results import Results, analyse
from tracelib.findings.verdict import Thresholds
from tracelib.trace import Trace

MS = 1_000_000
#: Runs written by hand are small.
ANY_SIZE = Thresholds(shortest_ns=0, fewest_operations=0)
PERIOD = 2 * MS  # of the CPU samples


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    made = [{**dict.fromkeys(schema.FRAMES[name]), **row} for row in rows]
    return pl.DataFrame(made, schema=schema.FRAMES[name])


def ns(ms: float) -> int:
    return round(ms * MS)


@dataclass
class Sheet:
    """A run with `ranks` workers (threads 0, 1, …), an engine and an API server."""

    ranks: int = 1
    ops: list[dict[str, Any]] = field(default_factory=list)
    slices: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    chains: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    threads: list[dict[str, Any]] = field(default_factory=list)
    on_cpu: dict[int, list[tuple[int, int, str, int]]] = field(default_factory=lambda: defaultdict(list))
    cpus: int = 8

    def __post_init__(self) -> None:
        self.workers = [
            self.thread("worker", f"worker_TP{r}", rank=r, pid=100 + r) for r in range(self.ranks)
        ]
        self.engine = self.thread("engine", "engine_core", pid=200)
        self.api = self.thread("api_server", "api_server", pid=300)

    def thread(self, role: str | None, name: str, *, rank: int | None = None, pid: int = 900) -> int:
        """Add a thread; the first one of a process has its id."""
        number = len(self.threads)
        first = all(row["pid"] != pid for row in self.threads)
        self.threads.append(
            {
                "thread": number,
                "host": "h",
                "pid": pid,
                "tid": pid if first else 10_000 + number,
                "name": name,
                "process": name,
                "role": role,
                "rank": rank,
            }
        )
        return number

    # -------------------- the GPUs
    def kernel(
        self, start: float, end: float, call: tuple[float, float] | None = None, rank: int = 0, **more: Any
    ) -> None:
        """Run a kernel; `call` = its launch call on the rank's worker, by default just before it."""
        number = len(self.ops) + 1
        begin, stop = call or (start - 0.01, start)
        self.ops.append(
            {
                "source": 0,
                "gpu": rank,
                "stream": 7,
                "ts_ns": ns(start),
                "dur_ns": ns(end) - ns(start),
                "name": "k",
                "kind": "kernel",
                "correlation": number,
                "pid": 100 + rank,
                **more,
            }
        )
        self.doing(self.workers[rank], begin, stop, "cudaLaunchKernel", "runtime", correlation=number)

    def all_reduce(self, starts: list[float], end: float, sequence: int) -> None:
        """Run one collective, which each rank enters at its own start."""
        for rank, start in enumerate(starts):
            self.kernel(
                start,
                end,
                rank=rank,
                collective="all_reduce",
                group="tp",
                group_size=len(starts),
                sequence=sequence,
                elements=8,
            )

    # -------------------- the threads
    def doing(
        self, thread: int, start: float, end: float, name: str, category: str = "annotation", **more: Any
    ) -> None:
        """Put a slice on a thread."""
        self.slices.append(
            {
                "source": 0,
                "thread": thread,
                "ts_ns": ns(start),
                "dur_ns": ns(end) - ns(start),
                "name": name,
                "category": category,
                **more,
            }
        )

    def sampled(self, thread: int, start: float, end: float, *chain: tuple[str, str]) -> None:
        """Sample a thread every 2 ms in a call chain of (symbol, library), innermost first."""
        if chain not in self.chains:
            self.chains.append(chain)
        for at in range(ns(start) + PERIOD, ns(end) + 1, PERIOD):
            self.samples.append(
                {
                    "source": 0,
                    "thread": thread,
                    "ts_ns": at,
                    "cpu": 0,
                    "event": "cpu-clock",
                    "period": PERIOD,
                    "stack": self.chains.index(chain),
                }
            )

    def runs(self, thread: int, start: float, end: float, cpu: int) -> None:
        """Let a thread have a CPU."""
        self.on_cpu[thread].append((ns(start), ns(end), "running", cpu))

    def ready(self, thread: int, start: float, end: float, cpu: int) -> None:
        """Let a thread want a CPU that it does not get."""
        self.on_cpu[thread].append((ns(start), ns(end), "ready", cpu))

    # -------------------- the run
    def results(self) -> Results:
        """Return the analyses of the run."""
        return analyse(self.trace())

    def trace(self) -> Trace:
        """Return the run as a trace."""
        stacks = [
            {"stack": n, "depth": depth, "symbol": symbol, "library": library}
            for n, chain in enumerate(self.chains)
            for depth, (symbol, library) in enumerate(chain)
        ]
        gpus = [
            {"gpu": r, "host": "h", "device": r, "rank": r, "name": "GPU"}
            for r in sorted({o["gpu"] for o in self.ops})
        ]
        source = {
            "source": 0,
            "file": "t.json",
            "sha256": "0" * 64,
            "bytes": 1,
            "format": "perf",
            "host": "h",
            "cpus": self.cpus,
            "clock": "realtime",
            "tied_by": "declared",
            "offset_ns": 0,
            "first_ns": 0,
            "last_ns": 1,
            "lost_declared": 0,
            "lost_detected": 0,
            "skipped_bytes": 0,
        }
        return Trace.of(
            {
                "gpu_ops": frame("gpu_ops", self.ops),
                "slices": frame("slices", self.slices),
                "samples": frame("samples", self.samples),
                "stacks": frame("stacks", stacks),
                "sched": self._sched(),
                "threads": frame("threads", self.threads),
                "gpus": frame("gpus", gpus),
                "sources": frame("sources", [source]),
            }
        )

    def _sched(self) -> pl.DataFrame:
        left: dict[tuple[int, int], tuple[int, str]] = {}
        came: dict[tuple[int, int], int] = {}
        rows: list[tuple[int, int, dict[str, Any]]] = []
        for thread, spans in self.on_cpu.items():
            line = sorted(spans)
            for n, (start, end, state, cpu) in enumerate(line):
                before = line[n - 1] if n and line[n - 1][1] == start else None
                after = line[n + 1] if n + 1 < len(line) and line[n + 1][0] == end else None
                if before is None:  # it slept until now
                    rows.append(
                        (start, 0, {"cpu": cpu, "event": "wakeup", "prev": schema.IDLE, "next": thread})
                    )
                if state == "running":
                    came[start, cpu] = thread
                    left[end, cpu] = (thread, "R" if after is not None else "S")
        for at, cpu in sorted({*left, *came}):
            prev, state = left.get((at, cpu), (schema.IDLE, "R"))
            rows.append(
                (
                    at,
                    1,
                    {
                        "cpu": cpu,
                        "event": "switch",
                        "prev": prev,
                        "prev_state": state,
                        "next": came.get((at, cpu), schema.IDLE),
                    },
                )
            )
        ordered = sorted(rows, key=lambda row: row[:2])
        return frame("sched", [{"source": 0, "ts_ns": at, **row} for at, _, row in ordered])
