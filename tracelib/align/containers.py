"""Threads of a container: its recorder wrote the ids of its own pid namespace, the host's recorders those of the host.

A map from the user is applied as it is. Without one, a process is taken for a host's only if its threads'
activity proves it: each time that the host's thread was off the CPU, the container's did nothing, far more
often than by chance, and of no other thread is that so. Ids are never matched by likeness, order or guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.align import activity
from tracelib.align.clocks import source_row
from tracelib.align.hosts import bare_name, compatible, is_generic, same_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tracelib.align.clocks import Tie
    from tracelib.trace import Trace

#: Formats whose recorder lives in the process that it records, hence in its container.
IN_CONTAINERS = ("torch_profiler", "nsys")
#: Shifts at which a container's moments surely do not belong to the host's absences: what they meet there is
#: chance.
DECOYS_NS = (53_000_011, -53_000_011, 137_000_003, -137_000_003, 411_000_017, -411_000_017)
#: Absences that chance alone would contradict; fewer prove nothing.
PROVEN = 12
#: Of those, the share that may be contradicted (profilers cut what is open when they start and stop).
CLEAN = 0.05
#: Another thread that cannot be told apart: so many absences that chance would contradict, so few of them
#: contradicted.
RIVAL, RIVAL_CLEAN = 5, 0.2

#: A process or thread id inside -> on the host.
Ids = dict[int, int]


@dataclass(frozen=True)
class Proof:
    """That a thread in a container is a thread of the host: never active while off, `expected` times if it were not."""

    pid: int
    tid: int
    host_pid: int
    host_tid: int
    absences: int
    expected: float
    contradicted: int


def user_map(file: str, format_: str, pids: Mapping[str, Mapping[int, int]]) -> Ids:
    """Return the ids that the user gives for a file; those for all files mean recorders inside containers only."""
    found: Ids = {}
    for glob, ids in sorted(pids.items(), key=lambda item: item[0] != "*"):
        if (format_ in IN_CONTAINERS) if glob == "*" else (file == glob or fnmatch(file, glob)):
            found |= ids
    return found


def mapped(trace: Trace, ids: Mapping[int, int]) -> Trace:
    """Return the trace with process and thread ids replaced; those that `ids` does not hold stay."""
    columns = [pl.col(name).replace(dict(ids)) for name in ("pid", "tid")]
    return trace.replace(
        threads=trace.threads.with_columns(columns),
        gpu_ops=trace.gpu_ops.with_columns(pl.col("pid").replace(dict(ids))),
    )


def proofs(trace: Trace, host: Iterable[Trace]) -> list[Proof]:
    """Return what the activity of a container's threads proves, of all traces of one host whose clocks are tied to it.

    Both sides must be on one timeline already. A thread has at most one proof; of several recorders the
    strongest counts.
    """
    moments = _by_thread(trace, activity.moments(trace).sort("tid", "at"), "at")
    best: dict[int, Proof] = {}
    for other in host:
        if other.sched.is_empty():
            continue
        absences = _by_thread(other, activity.absences(other), "left", "came")
        for own, (at,) in moments.items():
            found = _proof(own, at, absences, _names(trace), _names(other))
            if found is not None and (own[1] not in best or found.expected > best[own[1]].expected):
                best[own[1]] = found
    return list(best.values())


#: Process and thread id.
Thread = tuple[int, int]


def _by_thread(trace: Trace, rows: pl.DataFrame, *columns: str) -> dict[Thread, list[NDArray[np.int64]]]:
    """Return columns of `rows` per thread whose process is known; a thread id that two processes claim is left out."""
    known = trace.threads.filter(pl.col("pid").is_not_null() & (pl.col("tid") > 0))
    sole = known.group_by("tid").agg(pl.col("pid").unique()).filter(pl.col("pid").list.len() == 1)
    pids = dict(sole.select("tid", pl.col("pid").list.first()).iter_rows())
    return {
        (pids[tid], tid): [part[column].to_numpy() for column in columns]
        for (tid,), part in rows.group_by("tid", maintain_order=True)
        if tid in pids
    }


def _names(trace: Trace) -> dict[int, str | None]:
    return {tid: bare_name(name) for tid, name in trace.threads.select("tid", "name").iter_rows()}


def _proof(
    own: Thread,
    at: NDArray[np.int64],
    absences: Mapping[Thread, list[NDArray[np.int64]]],
    names: Mapping[int, str | None],
    host_names: Mapping[int, str | None],
) -> Proof | None:
    """Return the proof for one thread, None if no thread of the host, or more than one, stands the test."""
    held: list[Proof] = []
    for (pid, tid), (left, came) in absences.items():
        count, expected, contradicted = _alibi(at, left, came)
        if expected >= RIVAL and contradicted <= RIVAL_CLEAN * expected:
            held.append(Proof(*own, pid, tid, count, expected, contradicted))
    fitting = [proof for proof in held if compatible(names.get(own[1]), host_names.get(proof.host_tid))]
    sure = [
        proof
        for proof in fitting
        if proof.expected >= PROVEN and proof.contradicted <= CLEAN * proof.expected
    ]
    return sure[0] if len(sure) == 1 == len(fitting) else None


def _alibi(at: NDArray[np.int64], left: NDArray[np.int64], came: NDArray[np.int64]) -> tuple[int, float, int]:
    """Return how many absences lie among the moments, how many chance would contradict, and how many are contradicted."""
    begin, end = left + activity.SLACK_NS, came - activity.SLACK_NS
    inside = (end > begin) & (begin > at[0]) & (end < at[-1])
    begin, end = begin[inside], end[inside]

    def hit(shift: int) -> int:
        return int((np.searchsorted(at, end + shift) > np.searchsorted(at, begin + shift)).sum())

    return len(begin), float(np.mean([hit(shift) for shift in DECOYS_NS])), hit(0)


def ids_of(trace: Trace, host: Iterable[Trace], found: Iterable[Proof]) -> Ids:
    """Return the map that the proofs allow: processes by their proven threads, other threads by a name of their own.

    Empty if proofs of one process name two of the host's, or two processes claim one.
    """
    proven = list(found)
    pids = {(proof.pid, proof.host_pid) for proof in proven}
    if len({inside for inside, _ in pids}) < len(pids) or len({outside for _, outside in pids}) < len(pids):
        return {}
    ids = {**dict(pids), **{proof.tid: proof.host_tid for proof in proven}}
    if len(set(ids.values())) < len(ids):
        return {}
    theirs = pl.concat([other.threads.select("pid", "tid", "name") for other in host]).unique()
    for inside, outside in pids:
        named = _sole_names(trace.threads.filter(pl.col("pid") == inside))
        for name, tid in _sole_names(theirs.filter(pl.col("pid") == outside)).items():
            own = next((mine for said, mine in named.items() if same_name(said, name)), None)
            if own is not None and own not in ids and tid not in ids.values():
                ids[own] = tid
    return ids


def _sole_names(threads: pl.DataFrame) -> dict[str, int]:
    """Return the thread of each name that tells something and that one thread alone has."""
    tids: dict[str, set[int]] = {}
    for name, tid in threads.select("name", "tid").iter_rows():
        bare = bare_name(name)
        if bare is not None and not is_generic(bare):
            tids.setdefault(bare, set()).add(tid)
    return {name: next(iter(found)) for name, found in tids.items() if len(found) == 1}


def on_hosts(
    traces: Sequence[Trace], ties: Sequence[Tie], group: Sequence[int], given: Collection[int]
) -> tuple[dict[int, Ids], list[Remark]]:
    """Return the maps of the sources whose ids are found on no other source's host but whose activity is, and remarks.

    `given` are the sources for which the user gave a map: nothing is looked for there.
    """
    found: dict[int, tuple[Ids, list[Proof]]] = {}
    remarks: list[Remark] = []
    hosts = {
        at
        for at, trace, tie in zip(group, traces, ties, strict=True)
        if trace.sched.height and tie.method != "untied"
    }
    for index, trace in enumerate(traces):
        alone = list(group).count(group[index]) == 1 and group[index] not in hosts
        if not alone or not _may_be_inside(trace, ties[index]) or index in given or not hosts:
            continue
        own = _on_timeline(trace, ties[index])
        maps = [
            _map_on(
                own,
                [_on_timeline(t, tie) for t, tie, at in zip(traces, ties, group, strict=True) if at == host],
            )
            for host in hosts
        ]
        known = [(ids, proven) for ids, proven in maps if ids]
        if len(known) == 1:
            found[index] = known[0]
        else:
            remarks.append((index, "warning", UNKNOWN, FIX))
    twice = {index for index in found for other in found if _claim_one(found[index][1], found[other][1])}
    remarks += [
        (index, "warning", TWICE, FIX) if index in twice else (index, "info", _said(proven), "")
        for index, (_, proven) in found.items()
    ]
    return {index: ids for index, (ids, _) in found.items() if index not in twice}, remarks


def _claim_one(proven: Sequence[Proof], others: Sequence[Proof]) -> bool:
    """Say whether processes of different ids inside are proven to be one process of the host, which cannot be."""
    pids = {proof.host_pid: proof.pid for proof in proven}
    return any(pids.get(proof.host_pid, proof.pid) != proof.pid for proof in others)


#: (source, level, message, fix)
Remark = tuple[int | None, str, str, str]
UNKNOWN = (
    "its process and thread ids are those of no thread that another source saw (another container, or another host), and "
    "its threads' activity does not prove which they are: it is kept apart"
)
TWICE = (
    "another file's threads fit the same process of the host as its own do, under other ids: it is kept apart"
)
FIX = (
    "give a map of the ids (--pid-map FILE, or [pids] in run.toml), if it ran in a container of the same host"
)


def _may_be_inside(trace: Trace, tie: Tie) -> bool:
    row = source_row(trace)
    return (
        row["format"] in IN_CONTAINERS
        and row["host"] is None
        and tie.method != "untied"
        and trace.slices.height > 0
    )


def _map_on(own: Trace, host: Sequence[Trace]) -> tuple[Ids, list[Proof]]:
    proven = proofs(own, host)
    return ids_of(own, host, proven), proven


def _on_timeline(trace: Trace, tie: Tie) -> Trace:
    """Return the trace with the times moved that :func:`proofs` looks at; ends of slices need no more than their drift."""
    frames = {
        name: getattr(trace, name).with_columns(ts_ns=tie.moved(pl.col("ts_ns")))
        for name in ("slices", "sched", "samples")
    }
    return trace.replace(**frames)


def _said(proven: Sequence[Proof]) -> str:
    one = max(proven, key=lambda proof: proof.expected)
    return (
        f"its ids are those of another pid namespace (a container): thread {one.tid} of process {one.pid} is the host's {one.host_tid} of "
        f"{one.host_pid}, which was off the CPU {one.absences} times, {one.contradicted} of them while this one did something; by chance "
        f"it would be {one.expected:.0f}"
    )
