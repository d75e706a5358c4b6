"""The engine: batches what the API server sends, broadcasts every step, waits for the worker's tokens."""

from pathlib import Path

import numpy as np

from sample_traces.capture.recording import Log, Recorder, name_thread, now
from sample_traces.capture.ring import Ring


def engine(ring_of: tuple, requests, answers, results, barrier, options) -> None:
    """Run until the API server sends None and everything is answered."""
    name_thread("VLLM::EngineCore")
    ring = Ring(*ring_of)
    log = Log(Path(options.out) / "steps.jsonl")
    recorder = Recorder(
        options.profile, Path(options.out) / "engine_core.pt.trace.json.gz", stack=options.stack
    )
    recorder.warm_up()
    payload = np.zeros(int(options.payload_mb * 1e6), np.uint8)
    barrier.wait()
    requests.recv()  # "record"
    ring.put("record")
    recorder.start()
    barrier.wait()
    waiting, running, step, more = [], {}, 0, True
    while more or waiting or running:
        with recorder.annotate("engine.schedule"):
            more = _receive(requests, waiting, more=more, block=not running and not waiting)
            prefill = [waiting.pop(0)] if waiting and len(running) < options.batch else []
            decode = len(running)
        if not prefill and not running:
            continue
        enqueue = now()
        with recorder.annotate("shm_broadcast.enqueue"):
            ring.put(
                {
                    "step": step,
                    "prefill": [r["tokens"] for r in prefill],
                    "decode": decode,
                    "names": options.names,
                    "payload": payload,
                }
            )
        sent = now()
        with recorder.annotate("engine.wait_output"):
            results.recv()
        output = now()
        log.add(
            step=step,
            enqueue_start=enqueue,
            enqueue_end=sent,
            output=output,
            prefill=len(prefill),
            decode=decode,
        )
        _account(prefill, running, answers, output, options.output_tokens)
        step += 1
    ring.put(None)
    answers.send(None)
    recorder.stop()
    log.close()
    ring.close()


def _receive(requests, waiting: list, *, more: bool, block: bool) -> bool:
    """Take what has arrived; wait for it only where nothing else is to be done. None ends the stream."""
    while more and (block or requests.poll()):
        request = requests.recv()
        if request is None:
            return False
        waiting.append(request)
        block = False
    return more


def _account(prefill: list, running: dict, answers, output: int, length: int) -> None:
    """Count the tokens: a prompt gives its first one, every running sequence one more."""
    for ident in list(running):
        running[ident] -= 1
        if running[ident] <= 0:
            del running[ident]
            answers.send((ident, "finished", output))
    for request in prefill:
        answers.send((request["id"], "first_token", output))
        running[request["id"]] = length - 1
