"""One worker a GPU: takes each step from the ring, runs the model, answers the engine."""

import os
from pathlib import Path

from sample_traces.capture.recording import Log, Recorder, name_thread, now
from sample_traces.capture.ring import Ring


def worker(rank: int, ring_of: tuple, reader: int, results, barrier, options) -> None:
    """Run until the ring says None; only the first worker answers, as in vLLM."""
    name_thread(f"VLLM::Worker_TP{rank}")
    os.environ["OMP_NUM_THREADS"] = str(options.omp)
    model = _model(rank, options)
    ring, log = Ring(*ring_of), Log(Path(options.out) / f"worker{rank}.jsonl")
    cuda = options.device == "cuda"
    recorder = Recorder(
        options.profile,
        Path(options.out) / f"worker_TP{rank}.pt.trace.json.gz",
        stack=options.stack,
        cuda=cuda,
    )
    model.warm_up()
    recorder.warm_up()
    barrier.wait()
    while True:
        start = now()
        with recorder.annotate("shm_broadcast.dequeue"):
            message = ring.get(reader)
        taken = now()
        if message is None:
            break
        if message == "record":
            recorder.start()
            barrier.wait()
            continue
        tokens = _step(model, message, recorder)
        done = now()
        log.add(
            step=message["step"], dequeue_start=start, dequeue_end=taken, done=done, gpu_ms=model.gpu_ms()
        )
        if rank == 0:
            with recorder.annotate("ipc_send_output"):
                results.send(tokens)
    recorder.stop()
    log.close()
    ring.close()


def _step(model, message: dict, recorder: Recorder) -> list[int]:
    """Run the step under the name that vLLM's or SGLang's worker gives it."""
    prefill, decode = message["prefill"], message["decode"]
    name = f"execute_context_{len(prefill)}({sum(prefill)})_generation_{decode}({decode})"
    if message["names"] == "sglang":
        name = (
            f"step[EXTEND bs={len(prefill)} toks={sum(prefill)}]" if prefill else f"step[DECODE bs={decode}]"
        )
    with recorder.annotate(name):
        return model.step(prefill, decode)


def _model(rank: int, options):
    from sample_traces.capture.model import Model, NoTorch

    if options.device == "none":
        return NoTorch(options.hidden, options.layers)
    import torch

    torch.set_num_threads(options.omp)
    if options.device == "cuda":
        torch.cuda.set_device(rank)  # a graph is captured on the current device, whatever the tensors' is
    if options.tp > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
        backend = "nccl" if options.device == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, rank=rank, world_size=options.tp)
    return Model(
        device=options.device,
        rank=rank,
        tp=options.tp,
        hidden=options.hidden,
        layers=options.layers,
        graph=options.graph,
        jit=options.jit,
    )


def reader(number: int, ring_of: tuple, barrier) -> None:
    """Read every message of the ring and do nothing with it, as one more rank of a larger server would."""
    name_thread(f"VLLM::Worker_TP{number}")
    ring = Ring(*ring_of)
    barrier.wait()
    while (message := ring.get(number)) is not None:
        if message == "record":
            barrier.wait()
    ring.close()
