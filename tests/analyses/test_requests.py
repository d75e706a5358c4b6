"""Ledger 4 by hand and against what the server itself wrote down; the tokens of steps by their names."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

import tracelib
from tests.conftest import ROOT
from tests.findings.sheet import Sheet, ns
from tracelib.analyses.ipc import worker_steps
from tracelib.analyses.requests import (
    BEFORE,
    NO_STEP,
    NO_STEPS,
    NOT_SENT,
    PARTS,
    first_tokens,
    left_out,
    requests,
)
from tracelib.analyses.results import analyse
from tracelib.analyses.steps import MODEL_STEPS, step_tokens
from tracelib.analyses.window import Window
from tracelib.schema import SLICES, THREADS
from tracelib.slice_rules import load_rules
from tracelib.sources.request_logs import TIMES as LOGGED
from tracelib.sources.request_logs import read_request_log
from tracelib.trace import Trace

TIMES = ("arrived", "tokenize_start", "tokenize_end", "scheduled", "first_token")
#: Nothing recorded of the API server.
NO_API = pl.DataFrame(schema={"kind": pl.Int32, "ts_ns": pl.Int64, "dur_ns": pl.Int64})
LOG = {"id": pl.String, **dict.fromkeys((*TIMES, "prompt_tokens"), pl.Int64)}


def server(*, engines=1):
    """Two ranks, three steps, in ms: the engine sends at 12, 66 and 77; step one reaches rank 0 at 14 and
    rank 1 at 20.
    """
    sheet = Sheet(ranks=2)
    for rank in (0, 1):
        sheet.kernel(-2, -1, rank=rank)  # before the first step that was recorded
    for rank, taken in ((0, [(-1, 14), (55, 67), (72, 78)]), (1, [(-1, 20), (55, 68), (72, 78)])):
        for begin, end in taken:
            sheet.doing(sheet.workers[rank], begin, end, "shm_broadcast.dequeue")
    senders = [sheet.engine, *(sheet.thread("engine", "engine_core", pid=201) for _ in range(engines - 1))]
    for number, sent in enumerate((12, 66, 77)):
        sheet.doing(senders[number % engines], sent, sent + 1, "shm_broadcast.enqueue")
    sheet.kernel(25, 40, (21, 22))
    sheet.kernel(30, 40, (21, 22), rank=1)
    sheet.all_reduce([41, 45], 50, 1)
    for rank in (0, 1):
        sheet.kernel(70, 71, rank=rank)
        sheet.kernel(80, 81, rank=rank)
    return sheet


def asked(arrived, start, end, token, *, scheduled=None, sheet=None):
    """Return the parts of a request (times in ms) in ms, by name, without those that are 0."""
    times = [None if at is None else ns(at) for at in (arrived, start, end, scheduled, token)]
    log = pl.DataFrame([("a", *times, None)], schema=LOG, orient="row")
    found = analyse((sheet or server()).trace(), requests_log=log).requests
    row = found.row(0, named=True)
    assert sum(row[part] or 0 for part in PARTS) == row["ttft_ns"] == ns(token - arrived)
    parts = {part.removesuffix("_ns"): row[part] / 1e6 for part in PARTS if row[part]}
    return parts | ({"why": row["unknown_why"]} if row["unknown_why"] else {})


def test_each_part_of_a_request_that_one_step_answered():
    """Rank 0 from 20: idle to 25, computes to 40, idle to 41, waits for rank 1 to 45, transfers to 50."""
    assert asked(0, 1, 10, 60) == {
        "before_tokenize": 1,
        "tokenize": 9,
        "queue": 2,
        "broadcast": 8,
        "gpu_useful": 20,
        "gpu_wait": 4,
        "gpu_idle": 6,
        "back": 10,
    }


def test_a_log_that_tells_only_the_tokenizer_s_end_leaves_what_is_before_to_the_api_server():
    found = asked(0, None, 10, 60)
    assert (found["api_server"], found["queue"], found["broadcast"]) == (10, 2, 8)
    assert "tokenize" not in found


def test_steps_that_went_before_are_not_guessed_at():
    """From 12 to 66 the request waited for the first step, or that held the first part of its prompt."""
    found = asked(0, 0, 11, 75)
    assert found == {
        "tokenize": 11,
        "queue": 1,
        "unknown": 54,
        "broadcast": 2,
        "gpu_useful": 1,
        "gpu_idle": 2,
        "back": 4,
        "why": BEFORE,
    }


def test_a_log_that_says_when_the_engine_took_the_request_settles_it():
    """Taken at 65: the first step was not its own. Taken at 11.5: it was, and its prompt took both."""
    assert asked(0, 0, 11, 75, scheduled=65) == {
        "tokenize": 11,
        "queue": 54,
        "broadcast": 3,
        "gpu_useful": 1,
        "gpu_idle": 2,
        "back": 4,
    }
    assert asked(0, 0, 11, 75, scheduled=11.5) == {
        "tokenize": 11,
        "queue": 0.5,
        "broadcast": 8.5,
        "gpu_useful": 21,
        "gpu_wait": 4,
        "gpu_idle": 26,
        "back": 4,
    }


def test_a_step_that_was_on_its_way_already_cannot_hold_the_request():
    """Tokenized at 13, after the step of 12 was sent: its first token cannot be that step's."""
    found = asked(0, 0, 13, 60)
    assert found == {
        "tokenize": 13,
        "unknown": 7,
        "gpu_useful": 20,
        "gpu_wait": 4,
        "gpu_idle": 6,
        "back": 10,
        "why": NOT_SENT,
    }


def test_a_first_token_before_any_step_was_done_is_not_placed():
    found = asked(0, 0, 10, 49)
    assert found == {"tokenize": 10, "unknown": 39, "why": NO_STEP}


def test_without_steps_all_that_follows_the_tokenizer_is_unknown():
    sheet = server()
    sheet.slices = [row for row in sheet.slices if row["name"] != "shm_broadcast.dequeue"]
    found = asked(0, 1, 10, 60, sheet=sheet)
    assert found == {"before_tokenize": 1, "tokenize": 9, "unknown": 50, "why": NO_STEPS}


def test_of_several_engines_nothing_says_whose_step_it_was():
    found = asked(0, 1, 10, 60, sheet=server(engines=2))
    assert (found["unknown"], found["why"], found["back"]) == (10, NOT_SENT, 10)


#: A log's line and the range beside it are not written at the same moment.
NEAR = 200_000


@pytest.mark.corpus
@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("name", ["starved", "healthy", "throttled"])
def test_the_parts_are_those_that_the_server_s_own_logs_say(run_of, name, logged):
    """The engine's log says which step gave each first token and when it was sent, the workers' when they had
    it and were done.

    That each prompt was one step's, only the server knows; a column `scheduled` made of its log says so.
    """
    run = run_of(name)
    sent = {row["output"]: row for row in run.log("steps.jsonl")}
    own = {str(row["id"]): row for row in run.log("requests.jsonl")}
    workers = [{row["step"]: row for row in run.log(f"worker{rank}.jsonl")} for rank in (0, 1)]
    log = read_request_log(run.folder / "requests.jsonl", epoch=False).rows
    log = log.with_columns(pl.col(*LOGGED) + run.wall_ns)
    if logged:
        taken = [
            sent[own[request]["first_token"]]["enqueue_start"] + run.wall_ns - NEAR for request in log["id"]
        ]
        log = log.with_columns(scheduled=pl.Series(taken))
    steps = worker_steps(run.trace, log, run.results.ipc, run.results.launches)
    found = requests(
        log, run.results.window, run.results.gpu_states, steps, pl.DataFrame(schema=MODEL_STEPS), NO_API
    )
    ends = (run.trace.gpu_ops["ts_ns"] + run.trace.gpu_ops["dur_ns"] - run.wall_ns).sort()
    assert found.height >= 7
    for row in found.iter_rows(named=True):
        said = own[row["id"]]
        step = sent[said["first_token"]]
        had = max(rows[step["step"]]["dequeue_end"] for rows in workers)
        done = max(rows[step["step"]]["done"] for rows in workers)
        last = ends.filter(ends <= done)[-1]  # done = the worker noticed it
        waited = step["enqueue_start"] - said["tokenize_end"]
        assert row["queue_ns"] + row["unknown_ns"] == pytest.approx(waited, abs=2 * NEAR)
        assert row["broadcast_ns"] == pytest.approx(had - step["enqueue_start"], abs=2 * NEAR)
        assert row["back_ns"] == pytest.approx(said["first_token"] - last, abs=NEAR)
        assert sum(row[part] or 0 for part in PARTS) == said["first_token"] - said["arrived"]
        other = [
            at
            for at in (s["enqueue_start"] for s in sent.values())
            if said["tokenize_end"] <= at < step["enqueue_start"]
        ]
        assert row["unknown_why"] == (BEFORE if other and not logged else None)
        assert (row["unknown_ns"] > 0) == bool(other and not logged)


WORKER, OTHER = 0, 1


def tokens_of(*ranges, window=(0, 1000)):
    """Return (begin, prefill, decode) of the steps among ranges of (thread, begin, length, name)."""
    rows = [
        {"source": 0, "thread": thread, "ts_ns": at, "dur_ns": length, "name": name, "category": "annotation"}
        for thread, at, length, name in ranges
    ]
    slices = pl.DataFrame(rows, schema_overrides=SLICES).match_to_schema(SLICES, missing_columns="insert")
    threads = pl.DataFrame([{"thread": t, "rank": t} for t in (WORKER, OTHER)], schema_overrides=THREADS)
    trace = Trace.of(
        {"slices": slices, "threads": threads.match_to_schema(THREADS, missing_columns="insert")}
    )
    steps = step_tokens(trace, Window(*window, "by hand"), load_rules())
    return list(steps.select("ts_ns", "prefill", "decode").iter_rows())


#: Its head is the sum: 8155 + 37 = 8192.
SUM = "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("execute_context_2(4096)_generation_10(10)", 4096, 10),
        ("execute_context_1(888_788544)_generation_0(0)", 888, 0),
        (SUM, 8155, 37),
        ("step[EXTEND bs=2 toks=107]", 107, 0),
        ("step[DECODE bs=32]", 0, 32),
        ("step[MIXED bs=2]", None, None),
    ],
)
def test_each_recorder_s_own_words(name, prefill, decode):
    assert tokens_of((WORKER, 10, 5, name)) == [(10, prefill, decode)]


def test_a_step_counts_once_and_where_most_of_it_lies():
    inner = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk9sqsq32sqsk9)"
    assert tokens_of(
        (WORKER, 0, 100, "step[DECODE bs=4]"),
        (WORKER, 10, 90, inner),
        (WORKER, 60, 40, inner),
        (WORKER, 100, 50, "step[DECODE bs=5]"),
        (OTHER, 10, 20, "step[DECODE bs=4]"),
        (WORKER, 200, 50, "forward"),
        (WORKER, 300, 20, "step[DECODE bs=6]"),
        window=(50, 305),
    ) == [(0, 0, 4), (100, 0, 5)]


@pytest.mark.parametrize("cpus", [2, 8])
def test_a_sweep_s_answers_are_as_long_as_they_were_asked_to_be(cpus):
    """23 requests of 6 tokens each: 23 prompts and 23 * 5 decoded tokens, by the workload's options and its
    own log.
    """
    folder = ROOT / "sample_traces" / "sweep" / f"cpus_{cpus}"
    truth = json.loads((folder / "truth.json").read_text())
    length = int(re.search(r"output_tokens = (\d+)", (folder / "PROVENANCE.md").read_text())[1])
    steps = tracelib.analyse(tracelib.load(folder)).step_tokens
    assert steps.height == truth["steps"]
    assert steps["decode"].sum() == truth["requests"] * (length - 1)
    assert (steps["prefill"] > 0).sum() == truth["requests"]


@pytest.mark.corpus
def test_two_recorders_around_one_step(corpus):
    """TraceLens's SGLang sample names its one step twice: 32 tokens, not 64."""
    file = (
        corpus
        / "kineto"
        / "AMD-AGI__TraceLens__tests__traces__inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz"
    )
    steps = tracelib.analyse(tracelib.load(file)).step_tokens
    assert list(steps.select("prefill", "decode").iter_rows()) == [(0, 32)]


def test_requests_that_are_not_whole_in_the_window_are_counted_by_their_reason():
    log = pl.DataFrame(
        {"arrived": [5, 10, 40, 80, 95, 120, 50], "first_token": [8, 30, 60, 100, 110, 130, None]},
        schema={"arrived": pl.Int64, "first_token": pl.Int64},
    )
    window = Window(20, 100, "")
    assert left_out(log, window) == {
        "before or after the window": 2,
        "whose first token came after the window": 1,
        "without a first token": 1,
    }
    assert left_out(None, window) == {}
    assert first_tokens(log, window)["ttft_ns"].to_list() == [20, 20, 20]
    assert first_tokens(None, window).is_empty()


def test_quantiles_of_a_window_do_not_favour_quick_requests():
    """A request arrives every 10 ns, and one in four takes 40 ns, the others 4; a window holds eight."""
    arrived = list(range(0, 1000, 10))
    took = [40 if at % 40 == 0 else 4 for at in arrived]
    log = pl.DataFrame(
        {"arrived": arrived, "first_token": [at + ns for at, ns in zip(arrived, took, strict=True)]}
    )
    window = Window(390, 470, "")
    assert sorted(first_tokens(log, window)["ttft_ns"]) == [4] * 6 + [40] * 2
    whole = log.filter(pl.col("arrived") >= window.start_ns, pl.col("first_token") <= window.end_ns)
    assert sorted(whole["first_token"] - whole["arrived"]) == [4] * 6 + [40]
