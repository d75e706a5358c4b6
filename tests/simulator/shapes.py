"""The servers that are simulated: which processes there are, and what each does in a step.

`tensor`: vLLM's processes on ranges of its own names; an API server that tokenizes, an engine that schedules
and broadcasts over a ring that the workers poll. `polling`: the same server on Python frames, and its engine
and API server poll, too. `sglang`: schedulers that launch; one asks its socket again and again, and hands on
to the other by gloo. `pipeline`: two stages and two batches under way. `replicas`: two engines of one worker
each, which do not wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulator.defects import REQUEST_EVERY
from tests.simulator.machine import US
from tests.simulator.server import ANNOTATION, LAYER, LAYERS, PYTHON, SEND_RECV, Server, inside, unnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.simulator.defects import Plan
    from tests.simulator.machine import Thread
    from tests.simulator.server import Worker

Range = tuple[str, str]

API_FRAME = "serving/images.py(40): resize"
ENGINE_FRAME = "serving/limits.py(17): enforce_budgets"


@dataclass(frozen=True)
class Part:
    """An engine with its workers, and the thread of the API server that feeds it."""

    number: int
    engine: Thread
    api: Thread
    workers: Sequence[Worker]


class Tensor(Server):
    """An API server, an engine, and two tensor-parallel workers."""

    schedule: Range = ("engine.schedule", ANNOTATION)
    enqueue: Range = ("shm_broadcast.enqueue", ANNOTATION)
    dequeue: Range = ("shm_broadcast.dequeue", ANNOTATION)
    output: Range = ("engine.wait_output", ANNOTATION)
    request: Range = ("ipc_send_request", ANNOTATION)
    names = ("engine_core", "tokenizer", "worker_TP{}")
    replicas = 1

    def __init__(self, plan: Plan, seed: int, *, graph: bool = False) -> None:
        super().__init__(plan, seed, graph=graph)
        engine, api, worker = self.names
        for rank in range(self.ranks):
            self.worker(rank, worker.format(rank), 700 + rank, worker.format(rank).split(":")[-1])
        self.parts = []
        for n in range(self.replicas):
            engine_thread = self.thread(engine.format(n), 770 - 2 * n)
            api_thread = self.thread(api, 771, tid=2383 + n)
            own = self.workers if self.replicas == 1 else [self.workers[n]]
            self.parts.append(Part(n, engine_thread, api_thread, own))
            self.files[f"engine_{n}"] = [engine_thread]
        self.background = self.thread(api, 771, tid=2390)  # its work is hidden behind the GPUs'
        self.strangers = self.rivals(900, "stress")
        self.tokenizers = self.rivals(771, api)
        front = [*(part.api for part in self.parts), self.background, *self.tokenizers]
        self.files["api_server"] = front

    def step(self, step: int) -> None:
        """Schedule, broadcast, launch, compute, answer."""
        for part in self.parts:
            self._serve(part, step)

    def _serve(self, part: Part, step: int) -> None:
        self._schedule(part, step)
        self._broadcast(part, step)
        self._execute(part, step)
        for worker in part.workers:
            self._reply(worker, step)
        self._collect(part, step, part.workers[0].replied)

    def idle(self, thread: Thread, until: int) -> None:
        """Wait for a message from another process."""
        thread.block(until)

    def _schedule(self, part: Part, step: int) -> None:
        """Schedule; where the next request is not there yet, wait for it inside."""
        self.draw(step, f"schedule {part.number}")
        with part.engine.slice(*self.schedule):
            self._wait_for_request(part, step)
            self._choose(part, step)
        self._limit(part, step)

    def _wait_for_request(self, part: Part, step: int) -> None:
        """A request comes, after a while without work, and is tokenized and sent."""
        if step % REQUEST_EVERY:
            return
        api, extra = part.api, self._at(part, step)
        self.idle(api, part.engine.now + extra("no_work") + extra("idle"))
        unnamed(api, extra("host_api"), API_FRAME)
        with api.slice("tokenize", ANNOTATION):
            api.run(extra("tokenization") + self.jitter(20 * US), "tokenize")
        with api.slice(*self.request):
            api.run(self.jitter(20 * US), "pickle")
        self.idle(part.engine, api.now)

    def _choose(self, part: Part, step: int) -> None:
        part.engine.run(self.jitter(40 * US) + self._at(part, step)("scheduling"), "python")

    def _limit(self, part: Part, step: int) -> None:
        unnamed(part.engine, self._at(part, step)("host_engine"), ENGINE_FRAME)

    def _at(self, part: Part, step: int) -> Callable[[str], int]:
        return lambda kind: self.plan.extra(kind, step, part.number)

    def _broadcast(self, part: Part, step: int) -> None:
        self.draw(step, f"broadcast {part.number}")
        with part.engine.slice(*self.enqueue):
            part.engine.run(self.jitter(20 * US) + self._at(part, step)("ipc"), "pickle")
        if not part.number and self.rng.random() < 0.2:
            self.background.sleep(part.engine.now + 500 * US)
            with self.background.slice("tokenize", ANNOTATION):
                self.background.run(self.jitter(1000 * US), "tokenize")

    def _execute(self, part: Part, step: int) -> None:
        for worker in part.workers:
            self.draw(step, f"receive {worker.rank}")
            with worker.thread.slice(*self.dequeue):
                worker.thread.spin(part.engine.now, "yield")
                worker.thread.run(self.jitter(8 * US), "yield")  # the flag is seen, the message read
            self.launch(worker, step)
        self.compute(step, part.workers)

    def _reply(self, worker: Worker, step: int) -> None:
        self.synchronise(worker, step)
        with worker.thread.slice("ipc_send_output", ANNOTATION):
            worker.thread.run(self.jitter(20 * US), "pickle")
        worker.replied = worker.thread.now

    def _collect(self, part: Part, step: int, answered: int) -> None:
        self.draw(step, f"collect {part.number}")
        with part.engine.slice(*self.output):
            self.idle(part.engine, answered)
            part.engine.block(part.engine.now + self.jitter(8 * US))  # the answer is on its way


class Polling(Tensor):
    """The same on Python frames: its engine and its API server never sleep, they ask again."""

    schedule = ("vllm/v1/core/sched/scheduler.py(200): schedule", PYTHON)
    enqueue = ("vllm/distributed/device_communicators/shm_broadcast.py(570): enqueue", PYTHON)
    dequeue = ("vllm/distributed/device_communicators/shm_broadcast.py(620): dequeue", PYTHON)
    output = ("vllm/v1/executor/multiproc_executor.py(310): get_response", PYTHON)
    request = ("zmq/sugar/socket.py(700): send_multipart", PYTHON)
    names = ("VLLM::EngineCore", "VLLM::APIServer", "VLLM::Worker_TP{}")
    around = (("vllm/v1/worker/gpu_model_runner.py(2900): execute_model", PYTHON),)

    def idle(self, thread: Thread, until: int) -> None:
        """Poll; each question takes a while, and so does asking again."""
        api = thread is not self.parts[0].engine
        poll(thread, until, "selectors.py(452): select" if api else "zmq/sugar/poll.py(106): poll")

    def _schedule(self, part: Part, step: int) -> None:
        self.draw(step, f"schedule {part.number}")
        with part.engine.slice("vllm/v1/engine/core.py(1100): _process_input_queue", PYTHON):
            self._wait_for_request(part, step)
        with part.engine.slice(*self.schedule):
            self._choose(part, step)
        self._limit(part, step)


class SGLang(Server):
    """Two schedulers that launch, the tokenizer manager, the detokenizer; nothing overlaps."""

    around = (
        ("sglang/srt/managers/scheduler.py(2010): run_batch", PYTHON),
        ("step[DECODE bs=32]", ANNOTATION),
    )
    sync_call = "cudaEventSynchronize"

    def __init__(self, plan: Plan, seed: int, *, graph: bool = False) -> None:
        super().__init__(plan, seed, graph=graph)
        for rank in range(self.ranks):
            name = f"sglang::scheduler_TP{rank}"
            self.worker(rank, name[:15], 5100 + rank, f"sglang-TP-{rank}", name)
        self.api = self.thread("sglang::server", 5000, "sglang::server")
        self.detokenizer = self.thread("sglang::detoken", 5050, "sglang::detokenizer")
        self.strangers = self.rivals(900, "stress")
        self.tokenizers = self.rivals(5000, "sglang::server", "sglang::server")
        self.files |= {"tokenizer": [self.api, *self.tokenizers], "detokenizer": [self.detokenizer]}

    def step(self, step: int) -> None:
        """Ask for requests, agree on them, choose a batch, run it, hand its result on."""
        self.draw(step, "requests")
        first, other = (worker.thread for worker in self.workers)
        if step % REQUEST_EVERY == 0:
            self._request(step, first.now)
            self._ask_again(first, self.api.now)
        with first.slice("sglang/srt/managers/scheduler.py(1300): recv_requests", PYTHON):
            poll(first, first.now + 10 * US, "zmq/sugar/socket.py(960): recv_pyobj")
            with inside(first, ("sglang/srt/utils/common.py(1200): broadcast_pyobj", PYTHON)):
                first.run(self.jitter(15 * US), "pickle")
        received = ("sglang/srt/managers/scheduler.py(1300): recv_requests", PYTHON)
        handed_on = ("sglang/srt/utils/common.py(1200): broadcast_pyobj", PYTHON)
        with inside(
            other, received, handed_on, ("c10d::broadcast_", "cpu_op"), ("gloo:broadcast", ANNOTATION)
        ):
            other.block(first.now)
            other.run(self.jitter(5 * US), "pickle")
        for worker in self.workers:
            self._run_batch(worker, step)
        self.compute(step, self.workers)
        for worker in self.workers:
            self._result(worker, step)
        self._detokenize(first.now)

    def _request(self, step: int, since: int) -> None:
        api, extra = self.api, lambda kind: self.plan.extra(kind, step)
        with api.slice("asyncio/base_events.py(1900): _run_once", PYTHON):
            with api.slice("selectors.py(452): select", PYTHON):
                api.block(since + extra("no_work") + extra("idle"))
            unnamed(api, extra("host_api"), API_FRAME)
            frame = "sglang/srt/managers/tokenizer_manager.py(560): _tokenize_one_request"
            with api.slice(frame, PYTHON):
                api.run(extra("tokenization") + self.jitter(20 * US), "tokenize")
            with api.slice("zmq/sugar/socket.py(1000): send_pyobj", PYTHON):
                api.run(self.jitter(20 * US), "pickle")

    def _ask_again(self, thread: Thread, until: int) -> None:
        """With nothing to run, the event loop finds out so again and again."""
        while thread.now < until:
            with thread.slice("sglang/srt/managers/scheduler.py(1300): recv_requests", PYTHON):
                poll(thread, thread.now + 10 * US, "zmq/sugar/socket.py(960): recv_pyobj")
            with thread.slice("sglang/srt/managers/scheduler.py(1850): get_next_batch_to_run", PYTHON):
                thread.run(4 * US, "python")
            with thread.slice("sglang/srt/managers/scheduler.py(2300): self_check_during_idle", PYTHON):
                thread.run(26 * US, "python")

    def _run_batch(self, worker: Worker, step: int) -> None:
        self.draw(step, f"batch {worker.rank}")
        thread, extra = worker.thread, lambda kind: self.plan.extra(kind, step)
        unnamed(thread, extra("host_engine"), ENGINE_FRAME)
        with thread.slice("sglang/srt/managers/scheduler.py(1850): get_next_batch_to_run", PYTHON):
            thread.run(self.jitter(60 * US) + extra("scheduling"), "python")
        self.launch(worker, step)

    def _result(self, worker: Worker, step: int) -> None:
        with worker.thread.slice("sglang/srt/managers/scheduler.py(2100): process_batch_result", PYTHON):
            self.synchronise(worker, step)
            worker.thread.run(self.jitter(20 * US), "python")
        with worker.thread.slice("zmq/sugar/socket.py(1000): send_pyobj", PYTHON):
            worker.thread.run(self.jitter(15 * US) + self.plan.extra("ipc", step), "pickle")

    def _detokenize(self, since: int) -> None:
        """While the next step runs: it costs nothing."""
        thread = self.detokenizer
        with thread.slice("sglang/srt/managers/detokenizer_manager.py(120): event_loop", PYTHON):
            with thread.slice("zmq/sugar/socket.py(960): recv_pyobj", PYTHON):
                thread.block(since)
            frame = "sglang/srt/managers/detokenizer_manager.py(180): _decode_batch_token_id_output"
            with thread.slice(frame, PYTHON):
                thread.run(self.jitter(900 * US), "tokenize")


class Pipeline(Tensor):
    """Two stages on a GPU each; two batches are under way, so that both work."""

    names = ("VLLM::EngineCore", "VLLM::APIServer", "VLLM::Worker_PP{}")

    def __init__(self, plan: Plan, seed: int, *, graph: bool = False) -> None:
        super().__init__(plan, seed, graph=graph)
        self.answered = [0, 0]
        self.stage = 0

    def step(self, step: int) -> None:
        """Schedule a batch as soon as the one before the last is done; stage by stage."""
        part = self.parts[0]
        self._collect(part, step, self.answered[step])
        self._schedule(part, step)
        self._broadcast(part, step)
        self._execute(part, step)
        self._reply(self.workers[-1], step)
        self.answered.append(self.workers[-1].replied)

    def launch(self, worker: Worker, step: int) -> None:
        """Launch a stage: the second waits for what the first sends."""
        self.stage = worker.rank
        super().launch(worker, step)

    def layers(self) -> Sequence[tuple[int, tuple[str, str, str, int]]]:
        """Return half of the layers, with the hand-over behind or before them."""
        half = [(layer, op) for layer in range(LAYERS) for op in LAYER[:2]]
        name = "c10d::recv_" if self.stage else "c10d::send"
        hand_over = (0, (SEND_RECV, name, "cuLaunchKernelEx", 20 * US))
        return [hand_over, *half] if self.stage else [*half, hand_over]

    def _last(self, worker: Worker) -> None:
        if worker.rank:
            super()._last(worker)


class Replicas(Tensor):
    """One API server, two engines that share nothing else, a worker each. All defects strike the second."""

    names = ("VLLM::EngineCore_DP{}", "VLLM::APIServer", "VLLM::Worker_DP{}")
    replicas = 2
    only = 1

    def finish(self) -> None:
        """The first one is faster, and has more work."""
        step, (first, second) = self.plan.steps, self.parts
        while first.engine.now < second.engine.now:
            self._serve(first, step)
            step += 1

    def layers(self) -> Sequence[tuple[int, tuple[str, str, str, int]]]:
        """Return a step's operations: one GPU has nobody to reduce with."""
        return [(layer, op) for layer in range(LAYERS) for op in LAYER[:2]]


SHAPES: Mapping[str, type[Server]] = {
    "tensor": Tensor,
    "polling": Polling,
    "sglang": SGLang,
    "pipeline": Pipeline,
    "replicas": Replicas,
}


def poll(thread: Thread, until: int, frame: str) -> None:
    """Ask until there is an answer."""
    while thread.now < until:
        with thread.slice(frame, PYTHON):
            thread.spin(min(until, thread.now + 40 * US), "poll")
        thread.run(2 * US, "python")
