"""What the run would have been with one thing changed, by replaying it (docs/numbers.md, "What-if replay").

A change says how much of each piece of host time it leaves; :mod:`tracelib.analyses.replay` says what follows
from that for all that depends on it.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.capacity import cores_had
from tracelib.analyses.dependencies import graph_of
from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.quantiles import nearest_rank
from tracelib.analyses.replay import (
    LAUNCHING,
    POLLING,
    SCENARIOS,
    TOKENIZATION,
    Change,
    Floats,
    Graph,
    Ints,
    Load,
    replayed,
    work_name,
)
from tracelib.analyses.replicas import replicas
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import WAITS_FOR_CPU, as_where_known, at_once, over_demand, tells_shortage
from tracelib.analyses.steps import decode_steps
from tracelib.analyses.upstream import ENTRANCE

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

AT_CORES = pl.Schema({"cores": pl.Int64(), **{n: t for n, t in WHAT_IF.items() if n != "scenario"}})

UNCHANGED = "unchanged"
#: What launching a graph costs the host (NVIDIA, "Constant time launch for straight-line CUDA graphs", 2024:
#: some microseconds, and some ns for each node), and the framework's replay around it.
GRAPH_LAUNCH_NS = 20_000.0
#: Time before a request comes to the engine.
BEFORE_ENGINE = ("before_tokenize_ns", "tokenize_ns", "api_server_ns")


def what_if(
    results: Results, changes: Mapping[str, Change] = SCENARIOS, *, closed_loop: bool | None = None
) -> pl.DataFrame:
    """Return what each scenario would have made of the run, the unchanged run first.

    `closed_loop`: the clients wait for an answer before they ask again, so requests come earlier where
    answers do; else they come at the moments at which they came. None = as the request log shows it, which
    without a log means the latter.

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


def at_cores(results: Results, estimates: pl.DataFrame) -> pl.DataFrame:
    """Return what the numbers of cores that estimates name would have made of the run, in rising order.

    Takes the frame :func:`tracelib.analyses.capacity.capacity`; parts of cores are rounded up, and means left
    out. One row per number: `cores` (Int64), then the columns of :func:`what_if` but for `scenario`.
    """
    named = estimates.filter(~pl.col("estimate").str.ends_with("mean"))["cores"].drop_nulls().ceil()
    numbers = named.cast(pl.Int64).filter(named > 0).unique().sort().to_list()
    replay = Replay(results) if numbers else None
    rows = [replay.row("", Change(cores=number)) | {"cores": number} for number in numbers] if replay else []
    return pl.DataFrame([{name: row.get(name) for name in AT_CORES} for row in rows], schema=AT_CORES)


def load_words(load: Load, *, closed_loop: bool | None = None) -> str:
    """Return how requests come in a replay, why, and what that means; `closed_loop` as of :func:`what_if`."""
    if closed_loop or (closed_loop is None and load.closed):
        said = "Requests follow answers in the replay"
        then = (
            "they come earlier where answers do. Each step keeps its prompts, though: a faster server is "
            "asked more often and forms other steps, so the time to first token may move by more, or less"
        )
    else:
        said = "Requests come at their recorded moments in the replay"
        then = (
            "a faster server waits for them, so its window hardly changes, and its time to first token does"
        )
    return f"{said} ({load.why}): {then}."


class Gain(NamedTuple):
    """How long the same work takes with a change, and by how much less; the replay's own error; ns.

    The median time to first token without and with the change is None where no request is known.
    """

    window_ns: int
    gained_ns: int
    error_ns: int
    ttft_before_ns: int | None
    ttft_ns: int | None


class Replay:
    """A run that can be replayed with changes: its graph is made once."""

    def __init__(self, results: Results, *, closed_loop: bool | None = None) -> None:
        self.results = results
        self.closed_loop = results.load.closed if closed_loop is None else closed_loop
        frames = ("launches", "collectives", "host_activity", "thread_states", "ipc")
        self.graph: Graph = graph_of(
            results.trace,
            results.window,
            **{name: getattr(results, name) for name in frames},
            replicas=replicas(results.trace, results.ipc, results.collectives),
            steps=decode_steps(results.step_tokens, results.ipc, results.launches, results.window),
        )
        self.pieces = _in_words(self.graph.pieces, results)
        self._unchanged: dict[bool, Floats] = {}

    def row(self, name: str, change: Change) -> dict[str, Any]:
        """Return a row of :func:`what_if`."""
        why_not = self.why_not(change)
        if why_not:
            return {"scenario": name, "why_not": why_not}
        kept = self.kept(change)
        moments = self.moments(change, kept)
        window = self.window_of(moments)
        ttft = self.ttft(moments, kept)
        return {
            "scenario": name,
            "window_ns": round(window),
            "gained_ns": round(self.window_of(self.unchanged()) - window),
            "lost_ns": round(window - self._useful),
            "ttft_p50_ns": _p50(ttft),
            "ttft_mean_ns": ttft.select(pl.col("ttft_ns").mean().round().cast(pl.Int64)).item(),
            "why_not": "",
        }

    def moments(self, change: Change, kept: Floats, *, follows: bool | None = None) -> Floats:
        """Return when each node of the graph comes; `follows`: after answers (None = as the clients do)."""
        after = self.closed_loop if follows is None else follows
        return replayed(self.graph, kept, skew=change.skew, follows=after)

    def unchanged(self, *, follows: bool | None = None) -> Floats:
        """Return :meth:`moments` as they were."""
        after = self.closed_loop if follows is None else follows
        if after not in self._unchanged:
            self._unchanged[after] = replayed(self.graph, follows=after)
        return self._unchanged[after]

    def gain(self, change: Change) -> Gain:
        """Return what a change gives back of the time for the same work, and of the time to first token.

        The work is done as soon as can be, requests coming as long after answers as recorded: under an open
        load a server that is done sooner has time for more of them. For the time to first token they come as
        the clients send them.
        """
        kept = self.kept(change)
        soon = self.moments(change, kept, follows=True)
        before, after = self.window_of(self.unchanged(follows=True)), self.window_of(soon)
        error = abs(before - self.results.window.duration_ns)
        first_tokens: list[int | None] = [None, None]
        if self.results.requests.height:
            whole = self.pieces["dur_ns"].to_numpy().astype(np.float64)
            sent = soon if self.closed_loop else self.moments(change, kept)
            first_tokens = [_p50(self.ttft(*each)) for each in ((self.unchanged(), whole), (sent, kept))]
        return Gain(round(after), round(before - after), round(error), *first_tokens)

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
        cpu = change.cores is not None or change.lacking or (change.apart and not change.gone)
        if cpu and not tells_shortage(results.thread_states):
            return "no scheduler events with wake-ups were recorded"
        if change.cores is not None and cores_had(results)[0] is None:
            return "how many cores the server had was not recorded"
        absent = [name for name in change.work if not self._of((name,)).any()]
        reasons = (
            (bool(absent), f"no time was recorded of: {', '.join(work_name(name) for name in absent)}"),
            (change.graphs and not pieces["launches"].any(), "no decode step was launched kernel by kernel"),
            (
                not change.skew and not results.collectives["matched"].any(),
                "no collective was seen on all its ranks",
            ),
        )
        return next((why for missing, why in reasons if missing), "")

    def _of(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which pieces are work of these causes, sub-causes or :data:`LAUNCHING`."""
        named = pl.col("cause").is_in(names) | pl.col("part").is_in(names)
        launching = pl.col("launching") if LAUNCHING in names else pl.lit(value=False)
        work = (named.fill_null(value=False) | launching) & ~pl.col("waits")
        return self.pieces.select(work).to_series().to_numpy()

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
        left = pieces["dur_ns"].to_numpy().astype(np.float64)
        if change.cores is not None or change.lacking or change.apart:
            left *= self._cpu_share(change)
        gone = self._of(change.work)
        left[gone] *= 0 if change.apart else self._waiting[gone]
        if change.graphs:
            left[pieces["launches"].to_numpy()] = 0
            left[pieces["first_launch"].to_numpy()] = GRAPH_LAUNCH_NS
        return left

    @cached_property
    def _waiting(self) -> Floats:
        """Return the share of each piece in which its thread lacked a CPU.

        Work that is gone leaves that: others still have the CPUs, and more of them would give it back.
        """
        waits = self.pieces["state"].is_in(WAITS_FOR_CPU).fill_null(value=False).to_numpy()
        found: Floats = 1 - as_where_known(self.pieces, np.where(waits, 0.0, 1.0))
        return found

    def _cpu_share(self, change: Change) -> Floats:
        """Return the share of each piece that is left when CPUs are more or fewer."""
        pieces, lacking = self.pieces, change.lacking
        share = np.ones(pieces.height)
        if lacking:
            share[pieces["state"].is_in(lacking).fill_null(value=False).to_numpy()] = 0
        elif tells_shortage(self.results.thread_states):
            share = self._by_demand(change)
        return as_where_known(pieces, share)

    def _by_demand(self, change: Change) -> Floats:
        """Return the share of each piece that is left, by the demand for CPUs at its time.

        As with a fair scheduler: of the threads that wait at a moment, as many get a CPU as CPUs are added,
        or freed by work that has its own. With fewer CPUs those that ran share what is left, but for those
        that poll, which give way.
        """
        demand, pieces, had = self.results.demand, self.pieces, cores_had(self.results)[0] or 0.0
        more = 0.0 if change.cores is None else change.cores - had
        at, length, running, runnable = (
            demand[name].to_numpy().astype(np.float64) for name in ("ts_ns", "dur_ns", "running", "runnable")
        )
        middle = at + length / 2
        spinning = self.results.spinning
        polls = at_once(spinning.filter(pl.col("kind") != "device_wait"), middle)
        freed = np.zeros(len(at))
        if TOKENIZATION in change.apart:
            freed += at_once(pieces.filter(pl.col("tokenizes") & (pl.col("state") == "running")), middle)
        if POLLING in change.apart:
            freed += at_once(spinning, middle)
        left = 1 - np.clip(more + freed, 0, runnable) / np.maximum(runnable, 1)
        limit = np.inf if change.cores is None else max(change.cores, 0.1)
        stretched = np.maximum(1, (running - polls - freed) / limit) if more < 0 else np.ones(len(at))
        waits, runs = (
            pieces["state"].is_in(states).fill_null(value=False).to_numpy()
            for states in (WAITS_FOR_CPU, ["running"])
        )
        share = np.ones(pieces.height)
        for which, of in ((waits, left), (runs, stretched)):
            share[which] = over_demand(demand, of, pieces)[which]
        return share

    def ttft(self, moments: Floats, kept: Floats) -> pl.DataFrame:
        """Return each request's time to first token: id, ttft_ns (Float64).

        What lies before the engine, and after the step, shrinks as the API server's work does; the rest as
        the first device's time: what it computed for the request remains.
        """
        requests = self.results.requests
        if requests.is_empty():
            return requests.select("id", pl.col("ttft_ns").cast(pl.Float64))
        before, back, sent, own = (
            requests.select(pl.sum_horizontal(pl.col(part).fill_null(0) for part in parts))
            .to_series()
            .to_numpy()
            for parts in (BEFORE_ENGINE, ("back_ns",), ("broadcast_ns",), ("gpu_useful_ns",))
        )
        if self.results.ipc.height:  # the messages are in the graph
            sent = sent * 0
        first = self.graph.gpu == self.graph.gpu[self.graph.gpu >= 0].min()
        observed, came = self.graph.observed[first], np.maximum.accumulate(moments[first])
        begin, end = (requests[name].to_numpy() for name in ("arrived_ns", "first_token_ns"))
        left = self._front(kept, begin, end - begin)
        start = self.results.window.start_ns
        # Beyond the first and the last operation time goes on as recorded.
        at_engine, at_end = (
            np.interp(at - start, observed, came - observed) + at for at in (begin + before, end - back)
        )
        inside, recorded = np.maximum(at_end - at_engine - sent, own), end - back - begin - before - sent
        if (kept <= self.pieces["dur_ns"].to_numpy()).all():  # nothing takes longer
            inside = np.minimum(inside, recorded)
        return requests.select("id").with_columns(ttft_ns=inside + (before + back + sent) * left)

    def _front(self, kept: Floats, begin: Ints, length: Ints) -> Floats:
        """Return the share of the front end's work that is left in each of these stretches of time.

        Where none of it was recorded, it is that of all that was.
        """
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

        if not whole.sum():
            return np.ones(len(begin))
        recorded, left = within(np.ones(len(at))), within(kept[own] / np.maximum(whole, 1))
        usual = kept[own].sum() / whole.sum()
        share: Floats = np.where(recorded > 0, left / np.maximum(recorded, 1), usual)
        return share


def _p50(ttft: pl.DataFrame) -> int | None:
    value = ttft.select(nearest_rank(pl.col("ttft_ns"), 0.5)).item()
    return None if value is None else round(value)


def _in_words(pieces: pl.DataFrame, results: Results) -> pl.DataFrame:
    """Return the pieces of host time with what they are to a change, one column each."""
    front = results.trace.threads.filter(pl.col("role") == ENTRANCE)["thread"]
    state = pl.col("state").cast(pl.String)
    works = pl.col("cause").is_not_null() & ~pl.col("waits") & (pl.col("cause") != "sync")
    named = pieces.with_columns(
        pl.col("launching", "waits").fill_null(value=False),
        state=state,
        tokenizes=(pl.col("cause") == TOKENIZATION).fill_null(value=False),
        front=pl.col("thread").is_in(front.implode())
        & (works | state.is_in(["running", *WAITS_FOR_CPU])).fill_null(value=False),
    )
    launches = pl.col("launching") & pl.col("step").is_not_null()
    row = pl.int_range(pl.len())
    first = row == row.filter(launches).min().over("thread", "step")
    return named.with_columns(launches=launches, first_launch=launches & first.fill_null(value=False))
