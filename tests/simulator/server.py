"""What all simulated servers share: workers that launch, GPUs that run it, and what goes wrong.

`tests/simulator/shapes.py` puts the processes around them. Names and lengths are as in real captures.
"""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from tests.simulator.machine import US, Gpu, Launch, Op, Thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulator.defects import Plan

LATENCY_NS, GAP_NS = 3 * US, 1 * US
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
#: The result's copy; another that should not block; and that one from pageable memory, which does.
COPY, COPY_IN, PAGEABLE = (
    "Memcpy DtoH (Device -> Pinned)",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy HtoD (Pageable -> Device)",
)
COPY_NS = 2 * US
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
ANNOTATION, PYTHON = "user_annotation", "python_function"


@dataclass
class Worker:
    """One rank: the thread that launches, and its GPU."""

    rank: int
    thread: Thread
    gpu: Gpu
    #: Of this step: kernel, GPU time, call.
    launches: list[tuple[str, int, Launch]] = field(default_factory=list)
    replied: int = 0


class Server:
    """Workers, their GPUs, and what is to go wrong. A shape adds processes and says what a step is."""

    #: What lies around a step's launches: names and categories, outermost first.
    around: tuple[tuple[str, str], ...] = (("execute_model", ANNOTATION), ("decode", ANNOTATION))
    sync_call = "cudaStreamSynchronize"
    ranks = 2
    #: The rank or replica that every defect strikes; None = any.
    only: int | None = None

    def __init__(self, plan: Plan, seed: int, *, graph: bool = False) -> None:
        self.plan, self.seed, self.graph = plan, seed, graph
        self.rng = random.Random(seed)
        self.correlations = count(1)
        self.stops: list[tuple[int, int]] = []
        self.threads: list[Thread] = []
        #: Which processes a profiler ran in: file name -> threads.
        self.files: dict[str, list[Thread]] = {}
        self.workers: list[Worker] = []

    # -------------------- threads
    def thread(self, name: str, pid: int, process: str = "python3", **place: int) -> Thread:
        """Add a thread, on a CPU of its own unless `cpu` is given; a quota stops only such threads."""
        stops = [] if "cpu" in place else self.stops
        cpu = place.get("cpu", len({thread.cpu for thread in self.threads}))
        made = Thread(name, pid, place.get("tid", pid), cpu, process, stops)
        self.threads.append(made)
        return made

    def worker(self, rank: int, name: str, pid: int, file: str, process: str = "python3") -> Worker:
        """Add a rank."""
        made = Worker(rank, self.thread(name, pid, process), Gpu(rank))
        self.files[file] = [made.thread]
        self.workers.append(made)
        return made

    def rivals(self, pid: int, name: str, process: str = "python3") -> list[Thread]:
        """Add for each rank a thread that may take its worker's CPU; they are one process."""
        tids = range(2400, 2400 + len(self.workers))
        return [
            self.thread(name, pid, process, tid=tid, cpu=worker.thread.cpu)
            for tid, worker in zip(tids, self.workers, strict=True)
        ]

    def play(self) -> None:
        """Serve all steps."""
        phase = None
        for step in range(self.plan.steps):
            if self.plan.phase(step) != phase:
                phase, now = self.plan.phase(step), max(thread.now for thread in self.threads)
                self.stops[:] = [stop for stop in self.stops if stop[0] <= now] + self.plan.stops(phase, now)
            self.step(step)
        self.finish()
        end = max(thread.now for thread in self.threads)
        for thread in self.threads:
            thread.sleep(end)

    def step(self, step: int) -> None:
        """Serve a step."""
        raise NotImplementedError

    def finish(self) -> None:
        """Serve on where something is still at work."""

    def draw(self, step: int, part: str) -> None:
        """Begin a part of a step: its chances are the same whatever went wrong before."""
        self.rng.seed(f"{self.seed} {step} {part}")

    def jitter(self, ns: int, part: float = 0.2) -> int:
        """Return `ns` give or take a fifth, or another part."""
        return round(ns * self.rng.uniform(1 - part, 1 + part))

    # -------------------- workers
    def launch(self, worker: Worker, step: int) -> None:
        """Launch a step's operations, with all that goes wrong before and between."""
        self.draw(step, f"launch {worker.rank}")
        worker.launches.clear()
        thread = worker.thread
        with inside(thread, *self.around):
            thread.run(self.jitter(10 * US), "python")
            self._pauses(worker, step)
            (self._replay if self.graph else self._eager)(worker, step)
            self._last(worker)

    def _last(self, worker: Worker) -> None:
        """Launch the copy of the result."""
        with inside(worker.thread, ("sample.to_cpu", ANNOTATION), ("aten::to", "cpu_op")):
            worker.thread.run(self.jitter(8 * US), "dispatch")
            self.call(worker, "cudaMemcpyAsync", [(COPY, COPY_NS)], None)

    def layers(self) -> Sequence[tuple[int, tuple[str, str, str, int]]]:
        """Return a step's operations, each with its layer."""
        return [(layer, op) for layer in range(LAYERS) for op in LAYER]

    def _eager(self, worker: Worker, step: int) -> None:
        """Launch kernel by kernel."""
        thread = worker.thread
        for n, (layer, (kernel, op, call, ns)) in enumerate(self.layers()):
            if n == 2:
                self._copy_in(worker, step)
            with thread.slice(op, "cpu_op"):
                thread.run(self.jitter(8 * US), "dispatch")
                begins = op == LAYER[0][1]
                if begins and layer == 0:
                    self._delays(worker, step)
                elif begins:
                    self._hidden(worker)
                first = step if begins and layer == 0 else None
                self.call(worker, call, [(kernel, self.jitter(ns, KERNEL_JITTER))], first)

    def _replay(self, worker: Worker, step: int) -> None:
        """Copy the inputs in, and launch all kernels by one call: they share its correlation id."""
        with worker.thread.slice("aten::copy_", "cpu_op"):
            worker.thread.run(self.jitter(8 * US), "dispatch")
            self._delays(worker, step)
        kernels = [(kernel, self.jitter(ns, KERNEL_JITTER)) for _, (kernel, _, _, ns) in self.layers()]
        self.call(worker, "cudaGraphLaunch", kernels, step)

    def _pauses(self, worker: Worker, step: int) -> None:
        """What stops the interpreter between two operations, and work that no operation covers."""
        collect, wait, other = (
            self.plan.extra(kind, step, worker.rank) for kind in ("gc", "gil", "host_worker")
        )
        worker.thread.run(collect, "gc")
        with worker.thread.slice("waiting for GIL", ANNOTATION) if wait else nullcontext():
            worker.thread.block(worker.thread.now + wait)
        unnamed(worker.thread, other, "serving/drafts.py(88): propose_from_history")

    def _delays(self, worker: Worker, step: int) -> None:
        """What makes one operation slow before it launches anything."""
        thread, extra = worker.thread, self._extra(worker, step)
        thread.run(extra("dispatch"), "dispatch")
        if extra("shortage"):
            thread.preempted(extra("shortage"), self.strangers[worker.rank], "stress")
        if extra("starvation"):
            by = self.tokenizers[worker.rank]
            by.sleep(thread.now)
            with by.slice("tokenize", ANNOTATION):
                thread.preempted(extra("starvation"), by, "tokenize")
        thread.run(extra("jit_compile"), "jit")
        for kind, call in (("module_load", "cuLibraryLoadData"), ("alloc", "cudaMalloc")):
            if extra(kind):
                with thread.slice(call, _api(call), next(self.correlations)):
                    thread.run(extra(kind), "driver")

    def _extra(self, worker: Worker, step: int):
        return lambda kind: self.plan.extra(kind, step, worker.rank)

    def _hidden(self, worker: Worker) -> None:
        """What costs the host time and the GPU none: so much is queued there."""
        worker.thread.run(self.jitter(300 * US), "dispatch")
        if self.rng.random() < 0.3:
            with worker.thread.slice("cudaMalloc", "cuda_runtime", next(self.correlations)):
                worker.thread.run(self.jitter(200 * US), "driver")

    def _copy_in(self, worker: Worker, step: int) -> None:
        """Copy an input in and prepare the next operation: from pageable memory once the queue is empty."""
        after = self.plan.extra("drain", step, worker.rank)
        if not after:
            return
        thread, blocks, correlation = worker.thread, self.plan.drains, next(self.correlations)
        with (
            inside(thread, ("aten::copy_", "cpu_op")),
            thread.slice("cudaMemcpyAsync", "cuda_runtime", correlation),
        ):
            begin = thread.now
            thread.run(4 * US, "driver")
            launch = Launch(begin, thread.now, correlation)
            if blocks:
                thread.spin(self._queue_end(worker) + GAP_NS + COPY_NS, "device_wait")
        worker.launches.append((PAGEABLE if blocks else COPY_IN, COPY_NS, launch))
        with inside(worker.thread, ("aten::index_select", "cpu_op")):
            worker.thread.run(after, "dispatch")

    def _queue_end(self, worker: Worker) -> int:
        """Return when the GPU is done with what this step launched so far; no collective may be among it."""
        end = worker.gpu.ops[-1].end if worker.gpu.ops else 0
        for _, ns, launch in worker.launches:
            end = max(end + GAP_NS, launch.end + LATENCY_NS) + ns
        return end

    def call(self, worker: Worker, call: str, kernels: list[tuple[str, int]], step: int | None) -> None:
        """Launch kernels of so many ns; in a step's first the API, or the profiler in it, may be slow."""
        thread, begin, correlation = worker.thread, worker.thread.now, next(self.correlations)
        slow, flush = (
            0 if step is None else self.plan.extra(kind, step, worker.rank) for kind in ("api", "profiler")
        )
        with thread.slice(call, _api(call), correlation):
            thread.run(self.jitter(2 * US) + slow, "driver")
            with thread.slice("Buffer Flush", "overhead") if flush else nullcontext():
                thread.run(flush, "profiler")
            thread.run(self.jitter(2 * US), "driver")
        launch = Launch(begin, thread.now, correlation)
        worker.launches += [(kernel, ns, launch) for kernel, ns in kernels]

    def synchronise(self, worker: Worker, step: int) -> None:
        """Wait for the device."""
        self.draw(step, f"reply {worker.rank}")
        with worker.thread.slice(self.sync_call, "cuda_runtime", next(self.correlations)):
            worker.thread.spin(worker.gpu.ops[-1].end, "device_wait")
            late = self.jitter(10 * US) + self.plan.extra("sync", step, worker.rank)
            worker.thread.run(late, "device_wait")

    # -------------------- GPUs
    def compute(self, step: int, workers: Sequence[Worker]) -> None:
        """Every stream runs its operations in order; a collective ends everywhere once the last came."""
        queues = [list(worker.launches) for worker in workers]
        while any(queues):
            for worker, queue in zip(workers, queues, strict=True):
                while queue and not needs_all(queue[0][0], workers):
                    kernel, ns, launch = queue.pop(0)
                    heavier = kernel == LAYER[0][0] and not _has_begun(worker, step, kernel)
                    ns += self.plan.extra("imbalance", step, worker.rank) if heavier else 0
                    start = worker.gpu.ready(launch, LATENCY_NS, GAP_NS)
                    worker.gpu.ops.append(Op(step, start, start + ns, kernel, launch))
            if any(queues):
                heads = [queue.pop(0) for queue in queues]
                starts = [
                    worker.gpu.ready(launch, LATENCY_NS, GAP_NS)
                    for worker, (_, _, launch) in zip(workers, heads, strict=True)
                ]
                end = max(starts) + heads[0][1]
                for worker, start, (kernel, _, launch) in zip(workers, starts, heads, strict=True):
                    worker.gpu.ops.append(Op(step, start, end, kernel, launch, max(starts)))

    strangers: list[Thread]
    tokenizers: list[Thread]


def needs_all(kernel: str, workers: Sequence[Worker]) -> bool:
    """Whether a kernel waits for its like on the other ranks."""
    return len(workers) > 1 and kernel in (ALL_REDUCE, SEND_RECV)


def _has_begun(worker: Worker, step: int, kernel: str) -> bool:
    return any(op.step == step and op.name == kernel for op in worker.gpu.ops[-2 * len(LAYER) :])


def _api(call: str) -> str:
    return "cuda_driver" if call.startswith("cu") and not call.startswith("cuda") else "cuda_runtime"


@contextmanager
def inside(thread: Thread, *ranges: tuple[str, str]) -> Iterator[None]:
    """Record what happens inside as nested slices of those names and categories."""
    with ExitStack() as stack:
        for name, category in ranges:
            stack.enter_context(thread.slice(name, category))
        yield


def unnamed(thread: Thread, ns: int, frame: str) -> None:
    """Work in a Python frame that no rule knows."""
    if ns:
        with thread.slice(frame, PYTHON):
            thread.run(ns, "python")
