"""A tensor-parallel server at work, step by step, in virtual time; names and shapes are from real captures.

An API server tokenizes prompts in a thread, an engine schedules and broadcasts every step over a ring that
the workers poll, each worker launches two layers of kernels and an all-reduce a layer, then waits for the
device and answers.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from tests.simulator.machine import US, Gpu, Launch, Op, Thread

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.simulator.defects import Plan
    from tests.simulator.machine import Cause

DISPATCH: Cause = ("kernel_launch", "dispatch")
API: Cause = ("kernel_launch", "api")
IPC_WAIT: Cause = ("ipc", "wait")
SYNC: Cause = ("sync", None)
SCHEDULING: Cause = ("scheduling", None)

LATENCY_NS, GAP_NS = 3 * US, 1 * US
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy DtoH (Device -> Pinned)"
#: One layer: kernel, framework op, launch call, GPU time.
LAYER = (
    ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "aten::mm", "cuLaunchKernelEx", 900 * US),
    (
        "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>(Flash_fwd_params)",
        "aten::_flash_attention_forward",
        "cudaLaunchKernel",
        900 * US,
    ),
    (ALL_REDUCE, "c10d::allreduce_", "cuLaunchKernelEx", 150 * US),
)
LAYERS = 2
KERNEL_JITTER = 0.005
COPY_NS = 2 * US


@dataclass
class Worker:
    """One rank: the thread that launches, and its GPU."""

    rank: int
    thread: Thread
    gpu: Gpu
    launches: list[tuple[str, int, Launch]] = field(
        default_factory=list
    )  # of this step: kernel, GPU time, call
    replied: int = 0


@dataclass
class Server:
    """All threads and GPUs, and what is still to go wrong."""

    plan: Plan
    rng: random.Random
    workers: list[Worker]
    engine: Thread
    api: Thread
    background: Thread  # a second tokenizer thread: its work is hidden behind the GPUs'
    strangers: list[Thread]  # of another process, one on each worker's CPU
    tokenizers: list[Thread]  # of the API server, one on each worker's CPU
    graph: bool = False  # decode by graph replay
    correlations: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def threads(self) -> list[Thread]:
        """Return all threads."""
        workers = [worker.thread for worker in self.workers]
        return [*workers, self.engine, *self.api_threads, *self.strangers]

    @property
    def api_threads(self) -> list[Thread]:
        """Return the API server's threads."""
        return [self.api, self.background, *self.tokenizers]

    def play(self) -> None:
        """Serve all steps."""
        for step in range(self.plan.steps):
            self._next_request(step)
            self._broadcast(step)
            for worker in self.workers:
                self._receive(worker)
                self._launch(worker, step)
            self._compute(step)
            for worker in self.workers:
                self._reply(worker, step)
            self._collect()
        end = max(thread.now for thread in self.threads)
        for thread in self.threads:
            thread.sleep(end, ("no_work", None))

    def jitter(self, ns: int, part: float = 0.2) -> int:
        """Return `ns` give or take a fifth, or another part."""
        return round(ns * self.rng.uniform(1 - part, 1 + part))

    # API server and engine
    def _next_request(self, step: int) -> None:
        """The engine schedules; with nothing left to run it waits inside for the next request."""
        idle, tokenize = self.plan.server["no_work"][step], self.plan.server["tokenization"][step]
        engine, api = self.engine, self.api
        with engine.slice("engine.schedule", "user_annotation"):
            if idle or tokenize:
                api.sleep(engine.now + idle, ("no_work", None))
                with api.slice("tokenize", "user_annotation"):
                    api.run(tokenize + self.jitter(20 * US), ("tokenization", "encode"), "tokenize")
                with api.slice("ipc_send_request", "user_annotation"):
                    api.run(self.jitter(20 * US), ("ipc", "serialize"), "pickle")
                engine.sleep(api.now, IPC_WAIT, asks=api)
            engine.run(self.jitter(40 * US) + self.plan.server["scheduling"][step], SCHEDULING, "python")

    def _broadcast(self, step: int) -> None:
        with self.engine.slice("shm_broadcast.enqueue", "user_annotation"):
            self.engine.run(self.jitter(20 * US) + self.plan.server["ipc"][step], ("ipc", "copy"), "pickle")
        self._tokenize_hidden()

    def _tokenize_hidden(self) -> None:
        """Another prompt is tokenized while the GPUs compute: host time that costs nothing."""
        thread = self.background
        if self.rng.random() < 0.2:
            thread.sleep(self.engine.now + 500 * US, ("no_work", None))
            with thread.slice("tokenize", "user_annotation"):
                thread.run(self.jitter(1000 * US), ("tokenization", "encode"), "tokenize")

    def _collect(self) -> None:
        with self.engine.slice("engine.wait_output", "user_annotation"):
            first = self.workers[0]
            self.engine.sleep(first.replied, IPC_WAIT, asks=first.thread)
            self.engine.sleep(self.engine.now + self.jitter(8 * US), IPC_WAIT)  # the answer is on its way

    # Workers
    def _receive(self, worker: Worker) -> None:
        thread = worker.thread
        with thread.slice("shm_broadcast.dequeue", "user_annotation"):
            thread.spin(self.engine.now, IPC_WAIT, "yield", asks=self.engine)
            thread.run(self.jitter(8 * US), IPC_WAIT, "yield")  # the flag is seen, the message read

    def _launch(self, worker: Worker, step: int) -> None:
        worker.launches.clear()
        thread = worker.thread
        with thread.slice("execute_model", "user_annotation"), thread.slice("decode", "user_annotation"):
            thread.run(self.jitter(10 * US), DISPATCH, "python")
            self._pauses(worker, step)
            (self._replay if self.graph else self._eager)(worker, step)
            with thread.slice("sample.to_cpu", "user_annotation"), thread.slice("aten::to", "cpu_op"):
                thread.run(self.jitter(8 * US), DISPATCH, "dispatch")
                self._call(worker, "cudaMemcpyAsync", [(COPY, COPY_NS)], None)

    def _eager(self, worker: Worker, step: int) -> None:
        """Launch kernel by kernel."""
        thread = worker.thread
        for layer in range(LAYERS):
            for kernel, op, call, ns in LAYER:
                first = layer == 0 and not worker.launches
                with thread.slice(op, "cpu_op"):
                    thread.run(self.jitter(8 * US), DISPATCH, "dispatch")
                    if first:
                        self._delays(worker, step)
                    elif layer == 1 and op == LAYER[0][1]:
                        self._hidden(worker)
                    self._call(
                        worker, call, [(kernel, self.jitter(ns, KERNEL_JITTER))], step if first else None
                    )

    def _replay(self, worker: Worker, step: int) -> None:
        """Copy the inputs in, and launch all kernels by one call: they share its correlation id."""
        with worker.thread.slice("aten::copy_", "cpu_op"):
            worker.thread.run(self.jitter(8 * US), DISPATCH, "dispatch")
            self._delays(worker, step)
        kernels = [(kernel, self.jitter(ns, KERNEL_JITTER)) for kernel, _, _, ns in LAYER * LAYERS]
        self._call(worker, "cudaGraphLaunch", kernels, step)

    def _pauses(self, worker: Worker, step: int) -> None:
        """What stops the interpreter between two operations: no operation covers it."""
        collect, wait = (self.plan.worker[kind][step][worker.rank] for kind in ("gc", "gil"))
        worker.thread.run(collect, ("gc", None), "gc")
        with worker.thread.slice("waiting for GIL", "user_annotation") if wait else nullcontext():
            worker.thread.sleep(worker.thread.now + wait, ("gil", None))

    def _delays(self, worker: Worker, step: int) -> None:
        """What makes one operation slow before it launches anything."""
        thread = worker.thread
        extra = {kind: rows[step][worker.rank] for kind, rows in self.plan.worker.items()}
        thread.run(extra["dispatch"], DISPATCH, "dispatch")
        if extra["shortage"]:
            thread.preempted(
                extra["shortage"], DISPATCH, self.strangers[worker.rank], ("other", None), "stress"
            )
        if extra["starvation"]:
            by = self.tokenizers[worker.rank]
            by.sleep(thread.now, ("no_work", None))
            with by.slice("tokenize", "user_annotation"):
                thread.preempted(extra["starvation"], DISPATCH, by, ("tokenization", "encode"), "tokenize")
        thread.run(extra["jit_compile"], ("kernel_launch", "jit_compile"), "jit")
        for kind, call in (("module_load", "cuLibraryLoadData"), ("alloc", "cudaMalloc")):
            if extra[kind]:
                with thread.slice(
                    call, "cuda_driver" if kind == "module_load" else "cuda_runtime", next(self.correlations)
                ):
                    thread.run(extra[kind], ("kernel_launch", kind), "driver")

    def _hidden(self, worker: Worker) -> None:
        """What costs the host time and the GPU none: so much is queued there."""
        worker.thread.run(self.jitter(300 * US), DISPATCH, "dispatch")
        if self.rng.random() < 0.3:
            with worker.thread.slice("cudaMalloc", "cuda_runtime", next(self.correlations)):
                worker.thread.run(self.jitter(200 * US), ("kernel_launch", "alloc"), "driver")

    def _call(self, worker: Worker, call: str, kernels: list[tuple[str, int]], step: int | None) -> None:
        """Launch kernels of so many ns; a step's first call may be slow, in the API or in the profiler."""
        thread, begin, correlation = worker.thread, worker.thread.now, next(self.correlations)
        extra = {
            k: 0 if step is None else self.plan.worker[k][step][worker.rank] for k in ("api", "profiler")
        }
        with thread.slice(
            call,
            "cuda_driver" if call.startswith("cu") and not call.startswith("cuda") else "cuda_runtime",
            correlation,
        ):
            thread.run(self.jitter(2 * US) + extra["api"], API, "driver")
            with thread.slice("Buffer Flush", "overhead") if extra["profiler"] else nullcontext():
                thread.run(extra["profiler"], ("profiler", None), "profiler")
            thread.run(self.jitter(2 * US), API, "driver")
        launch = Launch(thread, begin, thread.now, correlation)
        worker.launches += [(kernel, ns, launch) for kernel, ns in kernels]

    def _reply(self, worker: Worker, step: int) -> None:
        thread, done = worker.thread, worker.gpu.ops[-1].end
        with thread.slice("cudaStreamSynchronize", "cuda_runtime", next(self.correlations)):
            thread.spin(done, SYNC, "device_wait")
            thread.run(
                self.jitter(10 * US) + self.plan.worker["sync"][step][worker.rank], SYNC, "device_wait"
            )
        with thread.slice("ipc_send_output", "user_annotation"):
            thread.run(self.jitter(20 * US), ("ipc", "serialize"), "pickle")
        worker.replied = thread.now

    # GPUs
    def _compute(self, step: int) -> None:
        """Every rank's stream runs in order; a collective ends on all ranks once the last has come."""
        heavier = [self.plan.worker["imbalance"][step][worker.rank] for worker in self.workers]
        for k, (kernel, _, _) in enumerate(self.workers[0].launches):
            starts = [w.gpu.ready(w.launches[k][2], LATENCY_NS, GAP_NS) for w in self.workers]
            met = max(starts) if kernel == ALL_REDUCE else None
            for worker, start, more in zip(self.workers, starts, heavier, strict=True):
                _, ns, launch = worker.launches[k]
                ns = self.workers[0].launches[k][1] if met is not None else ns + (more if k == 0 else 0)
                kind = "memcpy" if kernel == COPY else "kernel"
                end = (start if met is None else met) + ns
                worker.gpu.ops.append(Op(start, end, kernel, kind, launch, met))


def server(plan: Plan, ranks: int, rng: random.Random, *, graph: bool = False) -> Server:
    """Return a server at rest: each thread has a CPU; a stranger and a tokenizer may take a worker's."""

    def thread(name: str, pid: int, tid: int, cpu: int, *, bound: bool = True) -> Thread:
        return Thread(name, pid, tid, cpu, plan.stops if bound else [])

    workers = [Worker(r, thread(f"worker_TP{r}", 700 + r, 700 + r, r), Gpu(r)) for r in range(ranks)]
    return Server(
        plan,
        rng,
        workers,
        engine=thread("engine_core", 770, 770, ranks),
        api=thread("tokenizer", 771, 2383, ranks + 1),
        background=thread("tokenizer", 771, 2385, ranks + 2),
        graph=graph,
        strangers=[thread("stress", 900 + r, 900 + r, r, bound=False) for r in range(ranks)],
        tokenizers=[thread("tokenizer", 771, 2400 + r, r, bound=False) for r in range(ranks)],
    )
