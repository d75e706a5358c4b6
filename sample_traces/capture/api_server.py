"""The API server: makes the load, tokenizes prompts in a thread, sends them to the engine, logs answers."""

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sample_traces.capture import text
from sample_traces.capture.recording import Log, Recorder, name_thread, now


class ApiServer:
    """The load is open (`rps` a second) or closed (`concurrency` clients that ask again once answered)."""

    def __init__(self, requests, answers, options) -> None:
        self.requests, self.answers, self.options = requests, answers, options
        self.tokenizer = text.tokenizer(Path(options.tokenizer))
        self.recorder = Recorder(
            options.profile, Path(options.out) / "api_server.pt.trace.json.gz", stack=options.stack
        )
        self.log = Log(Path(options.out) / "requests.jsonl")
        self.rows, self.known = {}, {}
        self.sending, self.free = threading.Lock(), threading.Semaphore(options.concurrency or 1 << 20)
        self.prompts = [
            text.prompt(options.prompt_tokens, 0 if options.cached else seed) for seed in range(8)
        ]

    def tokenize(self, ident: int) -> None:
        """Tokenize one prompt and hand it to the engine; a cached prompt's tokens are looked up."""
        row, prompt = self.rows[ident], self.prompts[ident % len(self.prompts)]
        row["tokenize_start"] = now()
        with self.recorder.annotate("tokenize"):
            tokens = self.known.get(prompt) if self.options.cached else None
            if tokens is None:
                tokens = self.known[prompt] = self.tokenizer.encode(prompt).ids
        row |= {"tokenize_end": now(), "prompt_tokens": len(tokens)}
        with self.recorder.annotate("ipc_send_request"), self.sending:
            self.requests.send({"id": ident, "tokens": len(tokens), "ids": tokens})

    def listen(self) -> None:
        """Note what the engine answers until it says None."""
        name_thread("api_output")
        while (answer := self.answers.recv()) is not None:
            ident, what, at = answer
            self.rows[ident] |= {what: at, f"{what}_seen": now()}
            if what == "finished":
                self.free.release()

    def load(self, pool: ThreadPoolExecutor) -> None:
        """Send requests for the given seconds."""
        begin, ident = time.monotonic(), 0
        while time.monotonic() - begin < self.options.seconds:
            if self.options.concurrency:
                if not self.free.acquire(timeout=0.1):
                    continue
            else:
                time.sleep(max(0.0, begin + ident / self.options.rps - time.monotonic()))
            self.rows[ident] = {"id": ident, "arrived": now()}
            pool.submit(self.tokenize, ident)
            ident += 1


def api_server(requests, answers, barrier, options) -> None:
    """Run the load once, with the recorder named by `--while-loaded` beside it."""
    name_thread("VLLM::APIServer")
    server = ApiServer(requests, answers, options)
    if options.cached:
        for prompt in server.prompts:
            server.known[prompt] = server.tokenizer.encode(prompt).ids
    server.recorder.warm_up()
    barrier.wait()
    requests.send("record")
    server.recorder.start()
    barrier.wait()
    beside = subprocess.Popen(options.while_loaded, shell=True) if options.while_loaded else None
    time.sleep(options.lead if beside else 0)
    (Path(options.out) / "started").write_text(str(now()))
    listener = threading.Thread(target=server.listen)
    listener.start()
    with ThreadPoolExecutor(
        options.tokenizers, "tokenizer", initializer=name_thread, initargs=("tokenizer",)
    ) as pool:
        server.load(pool)
    requests.send(None)
    listener.join()
    (Path(options.out) / "ended").write_text(str(now()))
    if beside is not None:
        beside.wait()
    server.recorder.stop()
    for _, row in sorted(server.rows.items()):
        server.log.add(**row)
    server.log.close()
