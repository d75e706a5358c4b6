"""A run as a graph of what had to come before what, and how long it takes with other lengths.

Nodes are moments, and an edge says that one comes a certain time after another
(:mod:`tracelib.analyses.dependencies` finds them). A node comes as soon as all its edges allow: the longest
path, as in Daydream (USENIX ATC 2020) and dPRO (MLSys 2022).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.scheduling import WAITS_FOR_CPU
from tracelib.analyses.window import Window
from tracelib.errors import BadParameter
from tracelib.words import CAUSES, cause_name, duration, share, sub_cause_name

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Kinds of nodes, in the order in which they come at one moment.
ORIGIN, CALL, BEGIN, SENT, START, MET, END, RELEASED = range(8)
#: Fewer requests than FEWEST do not show how they come. MOST of them come soon after an answer; where that
#: soon is at most CLOSED of the time, the clients wait for answers, and from OPEN on they do not.
FEWEST, MOST, CLOSED, OPEN = 10, 0.8, 0.4, 0.6
#: Nodes that are turned into Python's numbers at a time.
PART = 2**18
NEVER = -(2.0**60)
TOKENIZATION, POLLING, LAUNCHING = "tokenization", "polling", "launching"


class Edges(NamedTuple):
    """For each node one that comes before it, and how long before.

    `before` is that node's number (-1 = none). The time is `fixed` ns and, of the host thread's time between
    `since` and `until` (places on the line of `Graph.pieces`), as much as a change leaves.
    """

    before: Ints
    fixed: Ints
    since: Ints
    until: Ints


class Graph(NamedTuple):
    """A run's nodes in the order of time, and what each waits for."""

    observed: Ints  # ns since the begin of the window
    earliest: Floats  # not before this moment, as recorded: a request that came from outside
    answered: Ints  # nodes of those before which an answer went out: a client may have waited for it
    gpu: Ints  # -1 = a moment of a host thread
    kind: Ints
    length: Ints  # of starts: how long the operation runs; of others 0
    order: Edges  # what came before on the thread or stream
    cause: Edges  # launch, message, operation waited for, last rank
    cross: Edges  # operation on another stream
    pieces: pl.DataFrame  # what each host thread did: thread, ts_ns, dur_ns, place, cause, …
    left_out: int  # edges that would lead back in time


def replayed(graph: Graph, kept: Floats | None = None, *, skew: bool = True, follows: bool = False) -> Floats:
    """Return when each node of the graph comes, in ns since the begin of the window.

    `kept` is how much of each row of `graph.pieces` a change leaves, in ns (None = all, as recorded). Without
    `skew` no rank waits for another in a collective. `follows`: a request comes as long after the last answer
    before it as recorded, as from a client that waits for it; else at its recorded moment.
    """
    leaves = _Line(graph.pieces, kept)
    ends = (graph.kind == END) & (not skew)
    free, earliest = ends.copy(), graph.earliest.copy()
    if follows:
        earliest[graph.answered] = NEVER
    else:
        free[graph.answered] = True
    edges = []
    for each in (graph.order, graph.cause, graph.cross):
        before = np.where(free, -1, each.before) if each is graph.cause else each.before
        length = each.fixed + leaves.between(each.since, each.until)
        edges.append(
            (before, length + np.where(ends, graph.cause.fixed, 0) if each is graph.order else length)
        )
    return _longest(edges, earliest)


def _longest(edges: list[tuple[Ints, Floats]], earliest: Floats) -> Floats:
    """Return the length of the longest path to each node; edges come from nodes before it."""
    moments = [NEVER] * (len(earliest) + 1)  # the last one is that of edge -1
    for begin in range(0, len(earliest), PART):
        part = slice(begin, begin + PART)
        columns = [values[part].tolist() for pair in edges for values in pair]
        rows = zip(earliest[part].tolist(), *columns, strict=True)
        for node, (moment, a, x, b, y, c, z) in enumerate(rows, begin):
            # Not by max(): the calls would take as long as all the rest.
            first, second, third = moments[a] + x, moments[b] + y, moments[c] + z
            first = second if second > first else first  # noqa: FURB136
            first = third if third > first else first  # noqa: FURB136
            moments[node] = first if first > moment else moment  # noqa: FURB136
    return np.array(moments[:-1])


class _Line:
    """How much of the host threads' time a change leaves, thread behind thread."""

    def __init__(self, pieces: pl.DataFrame, kept: Floats | None) -> None:
        place, length = pieces["place"].to_numpy(), pieces["dur_ns"].to_numpy()
        self.places = np.append(place, place[-1:] + length[-1:]).astype(np.float64)
        self.sums = np.cumsum(np.append(0.0, length if kept is None else kept))

    def between(self, since: Ints, until: Ints) -> Floats:
        if len(self.places) < 2:
            return np.zeros(len(since))
        low, high = (np.interp(at, self.places, self.sums) for at in (since, until))
        left: Floats = np.maximum(high - low, 0.0)
        return left


class Builder:
    """Nodes and edges as they are found, before they are put in the order of time."""

    def __init__(self, window: Window, threads: dict[int, int]) -> None:
        self.window, self.threads = window, threads
        self.columns: list[tuple[Ints, ...]] = []
        self.edges: dict[str, list[tuple[Ints, Ints, Ints, Ints, Ints]]] = {
            name: [] for name in ("order", "cause", "cross")
        }
        self.count = 0
        self.floors: list[tuple[Ints, Ints]] = []
        self.answered: list[Ints] = []
        self.add(ORIGIN, None, np.zeros(1, np.int64))

    def add(
        self,
        kind: int,
        thread: pl.Series | None,
        moments: pl.Series | Ints,
        gpu: Ints | None = None,
        length: Ints | None = None,
    ) -> Ints:
        """Add nodes at `moments` (from the window's begin); return their numbers."""
        at = np.asarray(moments, np.int64)
        none = np.full(len(at), -1)
        own = none if thread is None else self.line(thread)
        filled = np.full(len(at), kind)
        self.columns.append(
            (at, filled, own, none if gpu is None else gpu, at * 0 if length is None else length)
        )
        self.count += len(at)
        return np.arange(self.count - len(at), self.count)

    def line(self, thread: pl.Series) -> Ints:
        """Return the number of each thread on the line."""
        names = np.fromiter(self.threads, np.int64, len(self.threads))  # in order
        return np.searchsorted(names, thread.to_numpy())

    def place(self, line: Ints, moments: Ints) -> Ints:
        """Return the places of moments of threads, those outside the window at its edges."""
        return line * self.window.duration_ns + np.clip(moments, 0, self.window.duration_ns)

    def edge(
        self, name: str, after: Ints, before: Ints, fixed: Ints, span: tuple[Ints, Ints] | None = None
    ) -> None:
        """Add edges from nodes `before` to nodes `after`; `span` = the host's time in them."""
        since, until = span or (after * 0, after * 0)
        known = before >= 0
        self.edges[name].append(
            tuple(values[known] for values in (after, before, fixed, since, until))  # type: ignore[arg-type]
        )

    def graph(self, pieces: pl.DataFrame) -> Graph:
        """Return the graph, in the order of time."""
        at, kind, line, gpu, length = (np.concatenate(parts) for parts in zip(*self.columns, strict=True))
        sorted_by = np.lexsort((kind, at))
        place = np.empty(self.count, np.int64)
        place[sorted_by] = np.arange(self.count)
        edges, left_out = {}, 0
        for name, parts in self.edges.items():
            edges[name], lost = self._edges(parts, place)
            left_out += lost
        at, kind, line, gpu, length = (values[sorted_by] for values in (at, kind, line, gpu, length))
        order = self._program_order(edges["order"], at, line)
        earliest = np.full(self.count, NEVER)
        earliest[0] = 0.0
        for nodes, moments in self.floors:
            earliest[place[nodes]] = moments
        answered = place[np.concatenate([np.zeros(0, np.int64), *self.answered])]
        causes = edges["cause"], edges["cross"]
        return Graph(at, earliest, answered, gpu, kind, length, order, *causes, pieces, left_out)

    def _edges(self, parts: list[tuple[Ints, Ints, Ints, Ints, Ints]], place: Ints) -> tuple[Edges, int]:
        columns = [np.zeros(self.count, np.int64) for _ in range(4)]
        columns[0] -= 1
        left_out = 0
        for after, before, *lengths in parts:
            to, origin = place[after], place[before]
            fits = origin < to
            left_out += int((~fits).sum())
            for column, values in zip(columns, (origin, *lengths), strict=True):
                column[to[fits]] = values[fits]
        return Edges(*columns), left_out

    def _program_order(self, order: Edges, at: Ints, line: Ints) -> Edges:
        """Return `order` with each host node after the one before it on its thread."""
        on_host = np.flatnonzero(line >= 0)
        chain = on_host[np.argsort(line[on_host], kind="stable")]
        first = np.append(True, line[chain[1:]] != line[chain[:-1]])[: len(chain)]
        before = np.where(first, 0, np.append(0, chain[:-1])[: len(chain)])
        open_ = order.before[chain] == -1
        given, chained = order.since[chain] > 0, self.place(line[chain], at[chain])
        began = self.place(line[chain], np.where(first, 0, at[before]))
        order.before[chain] = np.where(open_, before, order.before[chain])
        order.since[chain] = np.where(given, order.since[chain], began)
        order.until[chain] = chained
        return order


# -------------------- what is changed
@dataclass(frozen=True)
class Change:
    """What is changed.

    `cores`: how many the server has (None = as many as it had). `gone`: causes and sub-causes of host time
    that are gone, :data:`LAUNCHING` (launch calls, and the framework between them), and CPU states in which
    nothing waits any longer. `apart`: what has CPUs of its own, of :data:`TOKENIZATION`, :data:`POLLING`.
    `graphs`: decode steps are launched by one graph each. `skew`: False = no rank waits for another one.
    """

    cores: float | None = None
    gone: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    graphs: bool = False
    skew: bool = True

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the CPU states in which nothing waits any longer."""
        return tuple(state for state in WAITS_FOR_CPU if state in self.gone)

    @property
    def work(self) -> tuple[str, ...]:
        """Return what of `gone` is work."""
        return tuple(name for name in self.gone if name not in WAITS_FOR_CPU)


#: The scenarios that are replayed unless others are asked for.
SCENARIOS: Mapping[str, Change] = {
    "no CPU shortage": Change(gone=WAITS_FOR_CPU),
    "tokenization elsewhere": Change(gone=(TOKENIZATION,), apart=(TOKENIZATION,)),
    "decode by graphs": Change(graphs=True),
    "no skew": Change(skew=False),
    "no recorder": Change(gone=("profiler",)),
}
#: What a person can take away, by its word.
WITHOUT = dict(
    zip(("shortage", TOKENIZATION, "launches", "skew", "recorder"), SCENARIOS.values(), strict=True)
)


def scenarios(cores: float = 0, without: Sequence[str] = ()) -> Mapping[str, Change]:
    """Return the scenario of so many cores (0 = as many as there were) and without all that is named.

    Without either: each of :data:`SCENARIOS` by itself. Raises BadParameter if a word is not in
    :data:`WITHOUT`.
    """
    change = Change(cores=cores or None)
    for word in without:
        if word not in WITHOUT:
            raise BadParameter("without", word, WITHOUT)
        change = _both(change, WITHOUT[word])
    if change == Change():
        return SCENARIOS
    parts = [f"{cores:g} cores"] * bool(cores) + [f"no {word}" for word in without]
    return {", ".join(parts): change}


def _both(one: Change, other: Change) -> Change:
    return Change(
        one.cores or other.cores,
        one.gone + other.gone,
        one.apart + other.apart,
        one.graphs or other.graphs,
        one.skew and other.skew,
    )


def work_name(name: str) -> str:
    """Return what a cause, a sub-cause or :data:`LAUNCHING` is called.

    >>> work_name("gc"), work_name("jit_compile"), work_name(LAUNCHING)
    ('garbage collection', 'run-time compilation', 'launching')
    """
    return cause_name(name) if name in CAUSES else sub_cause_name(name)


def change_words(change: Change) -> str:
    """Return what is replayed, in words that follow "replayed".

    >>> change_words(Change(gone=("runnable",)))
    'with no thread waiting for a CPU'
    >>> change_words(Change(gone=("gc", "throttled"), graphs=True))
    'with no thread stopped by a quota, without garbage collection, with decode steps launched by graphs'
    """
    states = {
        "runnable": "with no thread waiting for a CPU",
        "throttled": "with no thread stopped by a quota",
    }
    own = {TOKENIZATION: "with tokenizers on CPUs of their own", POLLING: "with pollers that give way"}
    said = [
        *([f"with {change.cores:g} cores"] if change.cores is not None else []),
        *(states[state] for state in change.lacking),
        *(f"without {work_name(name)}" for name in change.work),
        *(own[name] for name in change.apart if name not in change.gone),
        *(["with decode steps launched by graphs"] if change.graphs else []),
        *([] if change.skew else ["with no rank waiting for another"]),
    ]
    return ", ".join(said)


# -------------------- how requests come
class Load(NamedTuple):
    """Whether clients wait for an answer before they ask again, and what shows it."""

    closed: bool = False
    known: bool = False
    why: str = "no request log says when answers ended, so how requests come is not known"


def load_of(requests_log: pl.DataFrame | None) -> Load:
    """Return how the requests of a log (:mod:`tracelib.sources.request_logs`) come.

    In a closed loop they come right after the ends of answers. What is right after follows from the requests
    themselves: the time since the last answer that four of five do not exceed. Requests that do not care for
    answers come within that time as often as it is within that time of one.
    """
    if requests_log is None or not requests_log.get_column("finished", default=pl.Series()).count():
        return Load()
    came, ended = (np.sort(requests_log[name].drop_nulls().to_numpy()) for name in ("arrived", "finished"))
    came = came[came > ended[0]]
    if len(came) < FEWEST:
        return Load(why=f"{len(came)} requests after the first answer do not show how requests come")
    since = np.sort(came - ended[np.searchsorted(ended, came, side="right") - 1])
    soon = int(since[int(np.ceil(MOST * len(since))) - 1])
    after = np.diff(ended[ended <= came[-1]], append=came[-1])
    chance = float(np.minimum(after, soon).sum()) / max(1, int(came[-1] - ended[0]))
    seen = (
        f"{share(MOST)} of {len(came)} requests came within {duration(soon)} of the end of an answer, and "
        f"{share(chance)} of the time is so near to one"
    )
    if chance <= CLOSED:
        return Load(closed=True, known=True, why=f"clients wait for an answer before they ask again: {seen}")
    if chance >= OPEN:
        return Load(known=True, why=f"requests come whether or not answers do: {seen}")
    return Load(why=f"whether clients wait for answers does not show: {seen}")
