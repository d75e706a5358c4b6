"""`python -m sample_traces.capture SCENARIO --out DIR`: run the serving stack once and record it."""

import argparse
import json
import multiprocessing
import os
import socket
import time
import tomllib
from pathlib import Path

from sample_traces.capture.api_server import api_server
from sample_traces.capture.engine import engine
from sample_traces.capture.ring import Ring
from sample_traces.capture.truth import truth
from sample_traces.capture.worker import reader, worker

SCENARIOS = tomllib.loads((Path(__file__).parent / "scenarios.toml").read_text())
#: Every option, its default, and what it means; a scenario sets some of them, the command line the others.
OPTIONS = {
    "tp": (1, "ranks, one a GPU (NCCL) or one a process (gloo)"),
    "readers": (0, "more readers of the ring than there are ranks"),
    "device": ("auto", "cuda, cpu (torch without a GPU), none (no torch), auto"),
    "cpus": (0, "CPUs that all processes share; 0 = all"),
    "omp": (1, "OpenMP threads of each worker"),
    "hidden": (2048, "width of the model"),
    "layers": (12, "its layers"),
    "graph": (False, "decode through CUDA graphs"),
    "jit": ("none", "build a new kernel at each prompt: none, triton, nvrtc, cudnn (attention engines)"),
    "batch": (16, "sequences that decode together, at most"),
    "seconds": (2.0, "how long requests arrive"),
    "rps": (4.0, "requests a second"),
    "concurrency": (0, "instead of rps: clients that ask again when they are answered"),
    "prompt_tokens": (1000, "tokens of a prompt, about"),
    "output_tokens": (16, "tokens of an answer"),
    "tokenizers": (1, "tokenizer threads"),
    "cached": (False, "tokens of a prompt are known before it arrives"),
    "payload_mb": (0.0, "megabytes broadcast with each step"),
    "profile": ("torch", "torch, nvtx (for nsys), none"),
    "stack": (False, "record Python stacks"),
    "names": ("vllm", "annotations as vllm's or sglang's"),
    "lead": (0.3, "seconds that the recorder of --while-loaded gets before the load"),
    "while_loaded": ("", "shell command to run while the load runs"),
}


def main() -> None:
    """Read the options, start the processes, wait for them, write down the truth."""
    options = _options()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if options.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cpus])
    _write_meta(options)
    context = multiprocessing.get_context("spawn")
    readers = options.tp + options.readers
    ring = Ring(readers, int(1e6 + options.payload_mb * 1e6))
    barrier = context.Barrier(readers + 2)
    requests, engine_requests = context.Pipe()
    engine_answers, answers = context.Pipe()
    results, worker_results = context.Pipe()
    started = (
        [
            context.Process(target=worker, args=(rank, ring.reader(), rank, worker_results, barrier, options))
            for rank in range(options.tp)
        ]
        + [
            context.Process(target=reader, args=(number, ring.reader(), barrier))
            for number in range(options.tp, readers)
        ]
        + [
            context.Process(target=api_server, args=(requests, answers, barrier, options)),
            context.Process(
                target=engine,
                args=(ring.reader(), engine_requests, engine_answers, results, barrier, options),
            ),
        ]
    )
    for process in started:
        process.start()
    try:
        _wait(started)
    finally:
        ring.close(unlink=True)
    (Path(options.out) / "truth.json").write_text(
        json.dumps(truth(Path(options.out), SCENARIOS.get(options.scenario, {})), indent=1) + "\n"
    )


def _wait(started: list) -> None:
    """Wait for all processes; if one fails the others would wait for it forever, so end them."""
    while any(process.is_alive() for process in started):
        if any(process.exitcode for process in started):
            for process in started:
                process.terminate()
        for process in started:
            process.join(0.2)
    failed = [process.name for process in started if process.exitcode]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sample_traces.capture",
        description="Run a small LLM server under load and record it.",
        epilog="scenarios: " + ", ".join(SCENARIOS),
    )
    parser.add_argument(
        "scenario",
        choices=[*SCENARIOS, "plain"],
        help="a set of options (scenarios.toml); plain = the defaults",
    )
    parser.add_argument("--out", required=True, help="folder for the traces and logs")
    scenario = parser.parse_known_args()[0].scenario
    chosen = SCENARIOS.get(scenario, {}).get("options", {})
    for name, (default, meaning) in OPTIONS.items():
        value = chosen.get(name, default)
        how = (
            {"action": argparse.BooleanOptionalAction}
            if isinstance(default, bool)
            else {"type": type(default)}
        )
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            default=value,
            help=f"{meaning} ({value!r})".replace("%", "%%"),
            **how,
        )
    options = parser.parse_args()
    options.out = str(Path(options.out).resolve())
    options.tokenizer = str(Path(options.out).parent / "tokenizer.json")
    options.device = _device() if options.device == "auto" else options.device
    if options.device == "none":
        options.profile = "none"
    if options.device != "cuda":  # a model for a GPU would take a CPU seconds a step
        options.hidden, options.layers = min(options.hidden, 512), min(options.layers, 4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        options.port = free.getsockname()[1]
    return options


def _device() -> str:
    try:
        import torch
    except ImportError:
        return "none"
    return "cuda" if torch.cuda.is_available() else "cpu"


def _write_meta(options: argparse.Namespace) -> None:
    kept = {k: v for k, v in vars(options).items() if k not in ("out", "tokenizer", "port", "while_loaded")}
    clocks = {
        "monotonic_ns": time.monotonic_ns(),
        "realtime_ns": time.time_ns(),
        "boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    }
    (Path(options.out) / "meta.json").write_text(
        json.dumps({"args": kept, "cpus": sorted(os.sched_getaffinity(0)), **clocks}) + "\n"
    )


if __name__ == "__main__":
    main()
