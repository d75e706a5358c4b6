"""What the run would have been with one thing changed, by replaying it (docs/numbers.md, "What-if replay").

A change says how much of each piece of host time it leaves; :mod:`tracelib.analyses.replay` says what follows
from that for all that depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from tracelib.analyses.capacity import cores_had
from tracelib.analyses.dependencies import graph_of
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.replay import Floats, Graph, Ints, replayed
from tracelib.analyses.replicas import replicas
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, tells_shortage
from tracelib.analyses.upstream import ENTRANCE
from tracelib.errors import BadParameter

WHAT_IF = pl.Schema(
    {
        "scenario": pl.String(),
        "window_ns": pl.Int64(),
        "gained_ns": pl.Int64(),
        "lost_ns": pl.Int64(),
        "ttft_p50_ns": pl.Int64(),
        "ttft_mean_ns": pl.Int64(),
        "why_not": pl.String(),
    }
)

UNCHANGED = "unchanged"
#: What launching a graph costs the host (NVIDIA, "Constant time launch for straight-line CUDA graphs", 2024:
#: some microseconds, and some ns for each node), and the framework's replay around it.
GRAPH_LAUNCH_NS = 20_000.0
#: Time before a request comes to the engine.
BEFORE_ENGINE = ("before_tokenize_ns", "tokenize_ns", "api_server_ns")
#: Known CPU states of what a thread does stand for unknown ones if they are so much of it.
ENOUGH = 0.05


@dataclass(frozen=True)
class Change:
    """What is changed: what is true of it, is still there.

    `cores`: how many the server has (None = as many as it had). `graphs`: decode steps are launched by one
    graph each.
    """

    cores: float | None = None
    shortage: bool = True
    tokenization: bool = True
    graphs: bool = False
    skew: bool = True
    recorder: bool = True


#: The scenarios that are replayed unless others are asked for.
SCENARIOS: Mapping[str, Change] = {
    "no CPU shortage": Change(shortage=False),
    "tokenization elsewhere": Change(tokenization=False),
    "decode by graphs": Change(graphs=True),
    "no skew": Change(skew=False),
    "no recorder": Change(recorder=False),
}


#: What a person can take away, by its word.
WITHOUT: Mapping[str, Mapping[str, bool]] = {
    "shortage": {"shortage": False},
    "tokenization": {"tokenization": False},
    "launches": {"graphs": True},
    "skew": {"skew": False},
    "recorder": {"recorder": False},
}


def scenarios(cores: float = 0, without: Sequence[str] = ()) -> Mapping[str, Change]:
    """Return the scenario of so many cores (0 = as many as there were) and without all that is named.

    Without either: each of :data:`SCENARIOS` by itself. Raises BadParameter if a word is not in
    :data:`WITHOUT`.
    """
    change = Change(cores=cores or None)
    for word in without:
        if word not in WITHOUT:
            raise BadParameter("without", word, WITHOUT)
        change = replace(change, **WITHOUT[word])
    if change == Change():
        return SCENARIOS
    parts = [f"{cores:g} cores"] * bool(cores) + [f"no {word}" for word in without]
    return {", ".join(parts): change}


def what_if(
    results: Results, changes: Mapping[str, Change] = SCENARIOS, *, closed_loop: bool = False
) -> pl.DataFrame:
    """Return what each scenario would have made of the run, the unchanged run first.

    `closed_loop`: the clients wait for an answer before they ask again, so requests come earlier where
    answers do; else they come at the moments at which they came.

    One row per scenario: `scenario` (String), `window_ns` (Int64: how long the same work would have taken),
    `gained_ns` (Int64: by how much that is less than the unchanged run replayed; of that one, than the window
    itself, which is the replay's error), `lost_ns` (Int64: GPU time lost in it, mean of the devices),
    `ttft_p50_ns`, `ttft_mean_ns` (Int64, null = no request is known), `why_not` (String: why the scenario
    cannot be replayed, its figures being null then; "" = it can).
    """
    replay = Replay(results, closed_loop=closed_loop)
    first = replay.row(UNCHANGED, Change())
    if not first["why_not"]:
        first["gained_ns"] = results.window.duration_ns - first["window_ns"]
    rows = [replay.row(name, change) for name, change in changes.items()]
    return pl.DataFrame([first, *rows], schema=WHAT_IF)


class Replay:
    """A run that can be replayed with changes: its graph is made once."""

    def __init__(self, results: Results, *, closed_loop: bool = False) -> None:
        self.results = results
        frames = ("launches", "collectives", "host_activity", "thread_states", "ipc")
        self.graph: Graph = graph_of(
            results.trace,
            results.window,
            **{name: getattr(results, name) for name in frames},
            replicas=replicas(results.trace, results.ipc, results.collectives),
            steps=_decode_steps(results),
            follows=closed_loop,
        )
        self.pieces = _in_words(self.graph.pieces, results)

    def row(self, name: str, change: Change) -> dict[str, Any]:
        """Return a row of :func:`what_if`."""
        why_not = self.why_not(change)
        if why_not:
            return {"scenario": name, "why_not": why_not}
        kept = self.kept(change)
        moments = replayed(self.graph, kept, skew=change.skew)
        window = self.window_of(moments)
        ttft = self.ttft(moments, kept).select(pl.col("ttft_ns").round().cast(pl.Int64))
        return {
            "scenario": name,
            "window_ns": round(window),
            "gained_ns": round(self._unchanged - window),
            "lost_ns": round(window - self._useful),
            "ttft_p50_ns": ttft.select(nearest_rank(pl.col("ttft_ns"), 0.5)).item(),
            "ttft_mean_ns": ttft.select(pl.col("ttft_ns").mean().round().cast(pl.Int64)).item(),
            "why_not": "",
        }

    @cached_property
    def _unchanged(self) -> float:
        return self.window_of(replayed(self.graph))

    @cached_property
    def _useful(self) -> float:
        """Return the useful time of a device, mean of all."""
        gpu_time = self.results.gpu_time
        useful = gpu_time.filter(pl.col("state").cast(pl.String).is_in(USEFUL))["ns"].sum()
        return float(useful) / max(1, gpu_time["gpu"].n_unique())

    def why_not(self, change: Change) -> str:
        """Return why a change cannot be replayed; "" if it can."""
        results, pieces = self.results, self.pieces
        if results.launches.is_empty():
            return "no GPU operation was recorded whose launch is known"
        cpu = change.cores is not None or not change.shortage
        if cpu and not tells_shortage(results.thread_states):
            return "no scheduler events with wake-ups were recorded"
        if change.cores is not None and cores_had(results)[0] is None:
            return "how many cores the server had was not recorded"
        reasons = (
            (not change.tokenization, not pieces["tokenizes"].any(), "no tokenization was recorded"),
            (change.graphs, not pieces["launches"].any(), "no decode step was launched kernel by kernel"),
            (
                not change.skew,
                not results.collectives["matched"].any(),
                "no collective was seen on all its ranks",
            ),
            (not change.recorder, not pieces["records"].any(), "no time of a recorder was seen"),
        )
        return next((why for asked, absent, why in reasons if asked and absent), "")

    def window_of(self, moments: Floats) -> float:
        """Return how long the window is if the graph's nodes come at these moments, mean of the devices."""
        graph, window = self.graph, self.results.window.duration_ns
        gains = [
            (graph.observed[own] + graph.length[own]).max() - (moments[own] + graph.length[own]).max()
            for own in (graph.gpu == gpu for gpu in np.unique(graph.gpu[graph.gpu >= 0]))
        ]
        return window - float(np.mean(gains)) if gains else float(window)

    def kept(self, change: Change) -> Floats:
        """Return how much of each piece of host time a change leaves, in ns."""
        pieces = self.pieces
        length = pieces["dur_ns"].to_numpy().astype(np.float64)
        gone = np.zeros(len(length), bool)
        if not change.tokenization:
            gone |= pieces["tokenizes"].to_numpy()
        if not change.recorder:
            gone |= pieces["records"].to_numpy()
        share = np.ones(len(length))
        if change.cores is not None or not (change.shortage and change.tokenization):
            share = self._cpu_share(change)
        left = length * share
        left[gone] = 0
        if change.graphs:
            left[pieces["launches"].to_numpy()] = 0
            left[pieces["first_launch"].to_numpy()] = GRAPH_LAUNCH_NS
        return left

    def _cpu_share(self, change: Change) -> Floats:
        """Return the share of each piece that is left when CPUs are more or fewer.

        As with a fair scheduler: of the threads that wait at a moment, as many get a CPU as CPUs are added,
        or freed by tokenizers that are gone. With fewer CPUs those that ran share what is left, but for those
        that poll, which give way.
        """
        pieces = self.pieces
        waits = pieces["state"].is_in(WAITS_FOR_CPU).fill_null(value=False).to_numpy()
        runs = (pieces["state"] == "running").fill_null(value=False).to_numpy()
        share = np.ones(pieces.height)
        if not change.shortage:
            share[waits] = 0
        elif tells_shortage(self.results.thread_states):
            waiting, running = self._by_demand(change)
            share[waits] = waiting[waits]
            share[runs] = running[runs]
        return self._where_unknown(share)

    def _by_demand(self, change: Change) -> tuple[Floats, Floats]:
        """Return of each piece how much waiting and how much running is left, by the demand at its time."""
        demand, had = self.results.demand, cores_had(self.results)[0] or 0.0
        more = 0.0 if change.cores is None else change.cores - had
        at, length = (demand[name].to_numpy().astype(np.float64) for name in ("ts_ns", "dur_ns"))
        running, runnable = (demand[name].to_numpy().astype(np.float64) for name in ("running", "runnable"))
        middle = at + length / 2
        tokenizing = self.pieces.filter(pl.col("tokenizes") & (pl.col("state") == "running"))
        freed = np.zeros(len(at)) if change.tokenization else _at_once(tokenizing, middle)
        relieved = np.clip(more + freed, 0, runnable)
        left = 1 - relieved / np.maximum(runnable, 1)
        limit = np.inf if change.cores is None else max(change.cores, 0.1)
        polls = _at_once(self.results.spinning.filter(pl.col("kind") != "device_wait"), middle)
        stretched = np.maximum(1, (running - polls - freed) / limit) if more < 0 else np.ones(len(at))
        begin = self.pieces["ts_ns"].to_numpy()
        until = begin + self.pieces["dur_ns"].to_numpy()
        edges = np.append(at, at[-1:] + length[-1:])

        def over(values: Floats) -> Floats:
            sums = np.cumsum(np.append(0.0, values * length))
            low, high = (np.interp(moment, edges, sums) for moment in (begin, until))
            inside = np.clip(until, edges[0], edges[-1]) - np.clip(begin, edges[0], edges[-1])
            return np.where(inside > 0, (high - low) / np.maximum(inside, 1), 1.0)

        return over(left), over(stretched)

    def _where_unknown(self, share: Floats) -> Floats:
        """Let what a thread did in an unknown CPU state shrink as the same does in known ones."""
        unknown = pl.col("state").eq("unknown").fill_null(value=True)
        pieces = self.pieces.select("thread", "cause", "state", "dur_ns", share=share)
        known, length = pieces.filter(~unknown), pl.col("dur_ns")
        usual = known.group_by("thread", "cause").agg(
            usual=(length * pl.col("share")).sum() / length.sum(), known=length.sum()
        )
        whole = pieces.group_by("thread", "cause").agg(whole=length.sum())
        enough = usual.join(whole, on=["thread", "cause"], nulls_equal=True).filter(
            pl.col("known") >= ENOUGH * pl.col("whole")
        )
        both = pieces.join(
            enough, on=["thread", "cause"], how="left", nulls_equal=True, maintain_order="left"
        )
        left = pl.when(unknown).then(pl.col("usual").fill_nan(1.0).fill_null(1.0)).otherwise("share")
        found: Floats = both.select(left).to_series().to_numpy()
        return found

    def ttft(self, moments: Floats, kept: Floats) -> pl.DataFrame:
        """Return each request's time to first token: id, ttft_ns (Float64).

        What lies before the engine, and after the step, shrinks as the API server's work does; the rest as
        the first device's time.
        """
        requests = self.results.requests
        if requests.is_empty():
            return requests.select("id", pl.col("ttft_ns").cast(pl.Float64))
        before, back, sent = (
            requests.select(pl.sum_horizontal(pl.col(part).fill_null(0) for part in parts))
            .to_series()
            .to_numpy()
            for parts in (BEFORE_ENGINE, ("back_ns",), ("broadcast_ns",))
        )
        if self.results.ipc.height:  # the messages are in the graph
            sent = sent * 0
        first = self.graph.gpu == self.graph.gpu[self.graph.gpu >= 0].min()
        observed, came = self.graph.observed[first], np.maximum.accumulate(moments[first])
        begin, end = (requests[name].to_numpy() for name in ("arrived_ns", "first_token_ns"))
        start = self.results.window.start_ns
        # Beyond the first and the last operation time goes on as recorded.
        at_engine, at_end = (
            np.interp(at - start, observed, came - observed) + at for at in (begin + before, end - back)
        )
        host = (before + back + sent) * self._front(kept, begin, end - begin)
        return requests.select("id").with_columns(ttft_ns=np.maximum(at_end - at_engine - sent, 0) + host)

    def _front(self, kept: Floats, begin: Ints, length: Ints) -> Floats:
        """Return the share of the front end's work that is left in each of these stretches of time."""
        own = self.pieces["front"].to_numpy()
        at, whole = (self.pieces[name].to_numpy()[own] for name in ("ts_ns", "dur_ns"))
        edges = np.concatenate([at, at + whole])
        order = np.argsort(edges, kind="stable")
        steps = np.diff(edges[order], append=edges[order][-1:])

        def within(rate: Floats) -> Floats:
            """Return the sum over time of all pieces' rates."""
            level = np.cumsum(np.concatenate([rate, -rate])[order])
            sums = np.append(0.0, np.cumsum(level * steps))[:-1]
            low, high = (np.interp(moment, edges[order], sums) for moment in (begin, begin + length))
            inside: Floats = high - low
            return inside

        if not own.any():
            return np.ones(len(begin))
        recorded, left = within(np.ones(len(at))), within(kept[own] / np.maximum(whole, 1))
        share: Floats = np.where(recorded > 0, left / np.maximum(recorded, 1), 1.0)
        return share


def _at_once(rows: pl.DataFrame, moments: Floats) -> Floats:
    """Return how many of these stretches of time hold each moment."""
    begun, ended = (
        np.searchsorted(np.sort(values.to_numpy()), moments, side="right").astype(np.float64)
        for values in (rows["ts_ns"], rows["ts_ns"] + rows["dur_ns"])
    )
    return begun - ended


def _in_words(pieces: pl.DataFrame, results: Results) -> pl.DataFrame:
    """Return the pieces of host time with what they are to a change, one column each."""
    front = results.trace.threads.filter(pl.col("role") == ENTRANCE)["thread"]
    state = pl.col("state").cast(pl.String)
    works = pl.col("cause").is_not_null() & ~pl.col("waits") & (pl.col("cause") != "sync")
    named = pieces.with_columns(
        pl.col("launching", "waits").fill_null(value=False),
        state=state,
        tokenizes=(pl.col("cause") == "tokenization").fill_null(value=False),
        records=(pl.col("cause") == "profiler").fill_null(value=False),
        front=pl.col("thread").is_in(front.implode())
        & (works | state.is_in(["running", *WAITS_FOR_CPU])).fill_null(value=False),
    )
    launches = pl.col("launching") & pl.col("step").is_not_null()
    row = pl.int_range(pl.len())
    first = row == row.filter(launches).min().over("thread", "step")
    return named.with_columns(launches=launches, first_launch=launches & first.fill_null(value=False))


def _decode_steps(results: Results) -> pl.DataFrame:
    """Return the steps without a prompt in which no graph was launched: thread, ts_ns, dur_ns, step.

    Where no range names steps, they are what lies between two dequeues of a worker, or all the window.
    """
    named = results.step_tokens.filter(pl.col("prefill") == 0).select(
        "thread", "ts_ns", until=pl.col("ts_ns") + pl.col("dur_ns")
    )
    taken = results.ipc.filter((pl.col("kind") == "dequeue") & (pl.col("role") == "worker"))
    between = taken.select(
        "thread",
        ts_ns=pl.col("ts_ns") + pl.col("dur_ns"),
        until=pl.col("ts_ns").shift(-1).over("thread", order_by="ts_ns").fill_null(results.window.end_ns),
    )
    whole = (
        results.launches.select(thread="call_thread")
        .drop_nulls()
        .unique()
        .with_columns(ts_ns=pl.lit(results.window.start_ns), until=pl.lit(results.window.end_ns))
    )
    steps = named if results.step_tokens.height else between if between.height else whole
    graphs = results.launches.filter(pl.col("graph").is_not_null()).select(
        thread="call_thread", ts_ns="call_ts_ns"
    )
    numbered = steps.with_row_index("step").sort("ts_ns")
    by_graph = (
        graphs.drop_nulls()
        .sort("ts_ns")
        .join_asof(numbered, on="ts_ns", by="thread", check_sortedness=False)
        .filter(pl.col("ts_ns") < pl.col("until"))
    )
    left = numbered.join(by_graph, on="step", how="anti")
    return left.select("thread", "ts_ns", "step", dur_ns=pl.col("until") - pl.col("ts_ns")).filter(
        pl.col("dur_ns") > 0
    )
