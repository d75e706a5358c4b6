"""Ledgers of each rank alone, from its own rows and what passes between ranks, are those of all together.

Row by row. Of other ranks a rank sees who met in a collective, the lines of those for which it waited there,
what each says of itself (`Ranks`), and what those did whom the engine asked, while it did.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pytest

from tests.conftest import ROOT, thorough
from tests.simulator import SHAPES, Recording, simulate
from tracelib.analyses.awaited import Ranks
from tracelib.analyses.lost import idle_pieces, latency_bound, lost, upstreams
from tracelib.analyses.results import _INTERMEDIATE, ANALYSES, analyse, computed
from tracelib.analyses.stragglers import asked, collective_wait, line, waits
from tracelib.intervals import in_order
from tracelib.loading import load

BLAMED = ["gpu", "ts_ns", "dur_ns", "thread", "cause", "sub_cause", "what", "cpu_state"]
SAMPLES = ("starved", "launch_skew", "launch_eager", "ipc", "tokenization", "stack", "throttled")


@dataclass
class Run:
    """All frames of a run, which process drives each GPU, and the threads of each rank's process."""

    frames: dict[str, Any]
    drives: dict[int, int]
    threads: dict[int, list[int]]

    @property
    def span(self):
        window = self.frames["window"]
        return window.start_ns, window.end_ns

    def upstream(self, host_activity, ranks=None):
        frames = [self.frames[name] for name in ("thread_states", "ipc", "replicas")]
        made = upstreams(self.frames["trace"], host_activity, *frames, self.span)
        return made if ranks is None else {n: replace(one, ranks=ranks[n]) for n, one in made.items()}


def run_of(results):
    made = {"trace": results.trace, "window": results.window, "rules": results.rules, "requests_log": None}
    makes = ANALYSES | {make.__name__: make for make in _INTERMEDIATE}
    taken = {}
    wanted = list(inspect.signature(lost).parameters)
    for name in wanted:  # and what these take, and so on
        if name in makes and name not in taken:
            taken[name] = makes[name]
            wanted += inspect.signature(makes[name]).parameters
    frames = made | computed(taken, made)
    numbers = results.trace.threads.select("thread", of=pl.struct("host", "pid").rank("dense"))
    ranks = results.trace.threads.filter(pl.col("role") == "worker").select("thread")
    own = numbers.join(ranks.join(numbers, on="thread").select("of").unique(), on="of")
    processes = own.group_by("of").agg("thread").rows()
    launched = frames["launches"].select("gpu", thread="call_thread").drop_nulls().unique()
    of = dict(launched.join(numbers, on="thread").select("gpu", "of").unique().sort("gpu").iter_rows())
    return Run(frames, of, {number: sorted(threads) for number, threads in processes})


def rank_by_rank(run):
    """Return lost GPU time as :func:`tracelib.analyses.lost.lost`, made of one rank after the other."""
    whole, of_all = run.frames["host_activity"], run.frames["trace"].threads
    ranked = pl.col("thread").is_in(of_all.filter(pl.col("role") == "worker")["thread"].implode())
    front = whole.filter(~ranked)
    # What each rank says of itself, from its own rows and the front's.
    said = {}
    for n, asking in run.upstream(front).items():
        parts = []
        for threads in run.threads.values():
            own = whole.filter(pl.col("thread").is_in(threads) & ranked)
            parts.append(
                run.upstream(pl.concat([own, front]))[n].about(
                    pl.Series(threads, dtype=pl.Int32), asking.moments
                )
            )
        said[n] = Ranks.together(parts)
    # What those did whom the engine asks, from the front's rows alone.
    met = [run.upstream(front, said)[n].asked(whole) for n in said]
    lines = pl.concat(met).unique(maintain_order=True)
    frames, bound = run.frames, latency_bound(run.frames["launches"])
    idle = {}
    for gpu, process in run.drives.items():
        own = pl.col("thread").is_in(run.threads[process])
        rows = pl.concat([front, whole.filter(own & ranked), lines.filter(~own)])
        of_gpu = [frames[name].filter(pl.col("gpu") == gpu) for name in ("gpu_states", "launches")]
        upstream = run.upstream(in_order(rows, "thread"), said)
        idle[gpu] = idle_pieces(*of_gpu, frames["thread_states"], upstream, bound)
    waited = waits(frames["whole_collectives"], run.span[0])
    spans, out = asked(waited), []
    states = {gpu: frames["gpu_states"].filter(pl.col("gpu") == gpu) for gpu in idle}
    answers = {
        gpu: line(spans.filter(pl.col("gpu") == gpu), states[gpu], pieces) for gpu, pieces in idle.items()
    }
    for gpu, pieces in idle.items():
        own = waited.filter(pl.col("gpu") == gpu)
        others = [answers[other] for other in own["straggler"].unique().sort()]
        told = pl.concat(others) if others else answers[gpu].clear()
        waiting = collective_wait(states[gpu], own, told)
        out += [pieces.select(BLAMED), waiting.select(BLAMED)]
    return in_order(pl.concat(out), "gpu")


def agree(results, ranks):
    run = run_of(results)
    assert len(run.drives) == ranks
    order = ["gpu", "ts_ns", "dur_ns"]
    assert rank_by_rank(run).sort(order).rows() == results.lost.select(BLAMED).sort(order).rows()
    assert results.lost.height > 100 * ranks


@pytest.mark.parametrize("name", thorough(SAMPLES, but=("ipc", "launch_skew")))
def test_ranks_of_samples_one_by_one_give_the_same_rows(name):
    results = analyse(load(ROOT / "sample_traces" / name))
    agree(results, results.trace.gpu_ops["gpu"].n_unique())


@pytest.mark.parametrize("ranks", [4, 16])
@pytest.mark.parametrize("how", [Recording(), Recording(rank_off_ns=20_000)])
def test_many_simulated_ranks_one_by_one_give_the_same_rows(monkeypatch, tmp_path, ranks, how):
    monkeypatch.setitem(SHAPES, f"tensor{ranks}", type("Many", (SHAPES["tensor"],), {"ranks": ranks}))
    run = simulate({"tokenization": 0.1, "scheduling": 0.1}, shape=f"tensor{ranks}")
    agree(analyse(load(run.write(tmp_path, how))), ranks)


@pytest.mark.parametrize("shape", ["pipeline", "replicas", "polling"])
def test_stages_and_replicas_one_by_one_give_the_same_rows(shape):
    agree(simulate({"tokenization": 0.2}, shape=shape).results(), 2)


@pytest.mark.corpus
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["starved", "healthy", "vllm_2cpus", "nsys_starved"])
def test_ranks_of_captures_one_by_one_give_the_same_rows(run_of, name):
    agree(run_of(name).results, 2)
