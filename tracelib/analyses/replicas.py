"""Which processes serve the same requests: a server's replicas, by proof (docs/numbers.md, "Ledger 2").

Workers whose collectives meet are of one replica, whatever host they are on. Its engine is the one whose
number in the processes' names is theirs (`EngineCore_DP1`, `Worker_DP1_TP0`), else the one on their hosts,
else the one whose messages they take. A front end serves all replicas for which nothing tells it apart: of
several servers on one host each has its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import polars as pl

from tracelib.analyses.ipc import thread_processes
from tracelib.trace import Trace
from tracelib.words import SERVER

REPLICAS = pl.Schema({"thread": pl.Int32(), "replica": pl.Int32()})
#: An engine sent what workers took if its messages came so many times closer before than any other engine's.
CLOSER = 2


def replicas(trace: Trace, ipc: pl.DataFrame, whole_collectives: pl.DataFrame) -> pl.DataFrame:
    """Return which threads belong to which replica.

    Takes the frames of the analyses of those names.

    One row per thread and replica: `thread`, `replica` (Int32). All threads are of replica 0 where there is
    only one; else a front end's threads can be of several, and threads that are not part of the server of
    none. Sorted.
    """
    processes = _processes(trace)
    teams = _teams(trace, processes, whole_collectives)
    engines = {team: _engines(team, processes, ipc) for team in teams}
    joined = _joined(engines, processes)
    if len(joined) < 2:
        return trace.threads.select("thread", replica=pl.lit(0, pl.Int32)).sort("thread")
    rows: set[tuple[int, int]] = set()
    for number, (team, of_team) in enumerate(joined):
        near = of_team or team
        front = _narrowed(
            _of(processes, "api_server"), (_same_number(near, processes), _same_host(near, processes))
        )
        if (
            1 < len(_of(processes, "engine")) <= len(front)
        ):  # several servers, each with a front end of its own
            front = _narrowed(front, (_sent(front, of_team, processes, ipc, ("send", "recv")),))
        own = processes.filter(pl.col("process").is_in([*team, *of_team, *front]))
        rows |= {(thread, number) for thread in own["thread"]}
    return pl.DataFrame(sorted(rows), schema=REPLICAS, orient="row")


def _processes(trace: Trace) -> pl.DataFrame:
    """Return the server's threads with a number of their process, and its replica's number if named."""
    number = pl.concat_str("name", "process", separator=" ", ignore_nulls=True).str.extract(r"DP_?(\d+)")
    named = trace.threads.with_columns(named=number.cast(pl.Int64)).drop("process")
    threads = named.join(thread_processes(trace), on="thread", maintain_order="left")
    numbered = threads.with_columns(number=pl.col("named").max().over("process"))
    return numbered.filter(pl.col("role").is_in(SERVER)).select(
        "thread", "host", "pid", "role", "rank", "process", "number"
    )


def _of(processes: pl.DataFrame, role: str) -> list[int]:
    return processes.filter(pl.col("role") == role)["process"].unique().sort().to_list()


def _teams(trace: Trace, processes: pl.DataFrame, collectives: pl.DataFrame) -> list[tuple[int, ...]]:
    """Return the worker processes, those together whose GPUs met in a collective."""
    workers = _of(processes, "worker")
    hosts = trace.gpus.select("gpu", "host")
    pairs = trace.gpu_ops.select("gpu", "pid").drop_nulls().unique().join(hosts, on="gpu")
    named = processes.select("host", "pid", "process", "number").unique()
    drives = pairs.join(named, on=["host", "pid"], nulls_equal=True).select("gpu", "process", "number")
    met = collectives.drop_nulls("event").join(
        drives, on="gpu"
    )  # experts' collectives join replicas: names part them
    groups = (
        met.group_by("event", "number").agg(pl.col("process").unique().sort())["process"].unique().to_list()
    )
    return _merged([*((worker,) for worker in workers), *(set(group) & set(workers) for group in groups)])


def _merged(sets: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    """Return the unions of sets that share a member."""
    out: list[set[int]] = []
    for members in sets:
        joined = set(members)
        apart = [other for other in out if not other & joined]
        out = [*apart, joined.union(*(other for other in out if other & joined))]
    return sorted(tuple(sorted(members)) for members in out if members)


def _engines(team: tuple[int, ...], processes: pl.DataFrame, ipc: pl.DataFrame) -> tuple[int, ...]:
    tests = (_same_number(team, processes), _same_host(team, processes))
    left = _narrowed(_of(processes, "engine"), tests)
    return tuple(left if len(left) < 2 else _narrowed(left, (_sent(left, team, processes, ipc),)))


def _narrowed(candidates: list[int], tests: Sequence[Callable[[int], bool]]) -> list[int]:
    """Return those that pass; a test that none passes proves nothing."""
    for test in tests:
        candidates = [candidate for candidate in candidates if test(candidate)] or candidates
    return candidates


def _values(column: str, own: Iterable[int], processes: pl.DataFrame) -> set[object]:
    return set(processes.filter(pl.col("process").is_in(list(own)))[column].drop_nulls())


def _same_number(team: Iterable[int], processes: pl.DataFrame) -> Callable[[int], bool]:
    numbers = _values("number", team, processes)
    return lambda other: bool(numbers & _values("number", [other], processes))


def _same_host(team: Iterable[int], processes: pl.DataFrame) -> Callable[[int], bool]:
    hosts = _values("host", team, processes)
    return lambda other: bool(hosts & _values("host", [other], processes))


def _sent(
    engines: list[int],
    team: Iterable[int],
    processes: pl.DataFrame,
    ipc: pl.DataFrame,
    kinds: tuple[str, str] = ("enqueue", "dequeue"),
) -> Callable[[int], bool]:
    """Return a test of which process's messages came shortest before the ends of those that the team took."""
    ranges = ipc.join(processes.select("thread", "process"), on="thread")
    taken = ranges.filter((pl.col("kind") == kinds[1]) & pl.col("process").is_in(list(team)))
    ends = taken.select(end=pl.col("ts_ns") + pl.col("dur_ns")).sort("end")
    far = float("inf")
    lags: dict[int, float] = {}
    for engine in engines:
        sent = ranges.filter((pl.col("kind") == kinds[0]) & (pl.col("process") == engine)).sort("ts_ns")
        before = ends.join_asof(sent.select("ts_ns"), left_on="end", right_on="ts_ns", coalesce=False)
        lag = before.select((pl.col("end") - pl.col("ts_ns")).median()).item()
        lags[engine] = far if lag is None else float(lag)
    first, second = sorted(lags.values())[:2]
    return lambda engine: first * CLOSER < second and lags[engine] == first


def _joined(
    engines: dict[tuple[int, ...], tuple[int, ...]], processes: pl.DataFrame
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return replicas as (workers, engines): teams of one engine are one, as are ranks without one."""
    by_engine: defaultdict[object, list[tuple[int, ...]]] = defaultdict(list)
    for team, own in engines.items():
        number = frozenset(_values("number", team, processes)), frozenset(_values("host", team, processes))
        ranked = len(_values("rank", team, processes)) == len(team)
        by_engine[own if len(own) == 1 else (number if not own and ranked else team)].append(team)
    out: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for teams in by_engine.values():
        members = tuple(member for team in teams for member in team)
        once = engines[teams[0]] or len(_values("rank", members, processes)) == len(members)
        out += [(part, engines[teams[0]]) for part in ([members] if once else teams)]
    return out
