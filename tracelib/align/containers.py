"""Threads of a container: its recorder wrote the ids of its own pid namespace, not those of the host.

A map from the user is applied as it is. Without one, a process is taken for a host's only if its threads'
activity proves it: each time that the host's thread was off the CPU, the container's did nothing, far more
often than by chance, and of no other thread is that so. Ids are never matched by likeness, order or guess.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.align import activity
from tracelib.align.hosts import bare_name, compatible, is_generic, same_name
from tracelib.align.ties import Remark, Tie, source_row
from tracelib.sources import format_named
from tracelib.trace import Trace

Ints = NDArray[np.int64]
#: A process or thread id inside -> on the host.
Ids = dict[int, int]
#: Process and thread id.
Thread = tuple[int, int]

#: Shifts at which a container's moments surely miss the host's absences: what they meet is chance.
DECOYS_NS = (53_000_011, -53_000_011, 137_000_003, -137_000_003, 411_000_017, -411_000_017)
#: Absences that chance alone would contradict; fewer prove nothing.
PROVEN = 12
#: Of those, the share that may be contradicted (profilers cut what is open when they start and stop).
CLEAN = 0.05
#: A rival that fits as well: so many absences that chance would contradict, so few contradicted.
RIVAL, RIVAL_CLEAN = 5, 0.2

UNKNOWN = (
    "its process and thread ids are those of no thread that another source saw (another container, or "
    "another host), and its threads' activity does not prove which they are: it is kept apart"
)
TWICE = (
    "another file's threads fit the same process of the host as its own, under other ids: it is kept apart"
)
FIX = (
    "give a map of the ids (--pid-map FILE, or [pids] in run.toml), if it ran in a container of the same host"
)


@dataclass(frozen=True)
class Proof:
    """That a thread in a container is a thread of the host.

    Of that one's `absences` from the CPU, it contradicts `contradicted`; by chance it would be `expected`.
    """

    pid: int
    tid: int
    host_pid: int
    host_tid: int
    absences: int
    expected: float
    contradicted: int


def in_container(format_: str) -> bool:
    """Say whether recorders of that format live with what they record, hence in its container."""
    return format_named(format_).scope != "machine"


def user_map(file: str, format_: str, pids: Mapping[str, Mapping[int, int]]) -> Ids:
    """Return the ids that the user gives for a file; those for "*" mean recorders inside containers only."""
    ids: Ids = {}
    for glob, given in sorted(pids.items(), key=lambda item: item[0] != "*"):
        if in_container(format_) if glob == "*" else (file == glob or fnmatch(file, glob)):
            ids |= given
    return ids


def mapped(trace: Trace, ids: Mapping[int, int]) -> Trace:
    """Return the trace with process and thread ids replaced; those that `ids` does not hold stay."""
    columns = [pl.col(name).replace(dict(ids)) for name in ("pid", "tid")]
    return trace.replace(
        threads=trace.threads.with_columns(columns),
        gpu_ops=trace.gpu_ops.with_columns(pl.col("pid").replace(dict(ids))),
    )


def ids_on_hosts(
    traces: Sequence[Trace], ties: Sequence[Tie], group: Sequence[int], given: Collection[int]
) -> tuple[dict[int, Ids], list[Remark]]:
    """Return the maps of sources whose ids no other source has but whose activity a host proves, and remarks.

    `given` are the sources for which the user gave a map: they are left alone.
    """
    proven: dict[int, tuple[Ids, list[Proof]]] = {}
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
        fitting = [(ids, proofs) for ids, proofs in maps if ids]
        if len(fitting) == 1:
            proven[index] = fitting[0]
        else:
            remarks.append((index, "warning", UNKNOWN, FIX))
    twice = {one for one in proven for other in proven if _claim_one(proven[one][1], proven[other][1])}
    remarks += [
        (index, "warning", TWICE, FIX) if index in twice else (index, "info", _proven_by(proofs), "")
        for index, (_, proofs) in proven.items()
    ]
    return {index: ids for index, (ids, _) in proven.items() if index not in twice}, remarks


def _may_be_inside(trace: Trace, tie: Tie) -> bool:
    row = source_row(trace)
    inside = in_container(row["format"]) and row["host"] is None
    return inside and tie.method != "untied" and trace.slices.height > 0


def _on_timeline(trace: Trace, tie: Tie) -> Trace:
    """Return the trace with the times moved that :func:`_proofs` looks at; ends of slices only drift."""
    frames = {
        name: getattr(trace, name).with_columns(ts_ns=tie.moved(pl.col("ts_ns")))
        for name in ("slices", "sched", "samples")
    }
    return trace.replace(**frames)


def _map_on(own: Trace, host: Sequence[Trace]) -> tuple[Ids, list[Proof]]:
    proofs = _proofs(own, host)
    return _ids_of(own, host, proofs), proofs


def _claim_one(proofs: Sequence[Proof], others: Sequence[Proof]) -> bool:
    """Say whether processes of different ids inside seem to be one process of the host, which cannot be."""
    pids = {proof.host_pid: proof.pid for proof in proofs}
    return any(pids.get(proof.host_pid, proof.pid) != proof.pid for proof in others)


def _proven_by(proofs: Sequence[Proof]) -> str:
    one = max(proofs, key=lambda proof: proof.expected)
    return (
        f"its ids are those of another pid namespace (a container): thread {one.tid} of process {one.pid} is "
        f"the host's {one.host_tid} of {one.host_pid}, which was off the CPU {one.absences} times, "
        f"{one.contradicted} of them while this one did something; by chance it would be {one.expected:.0f}"
    )


def _proofs(trace: Trace, host: Iterable[Trace]) -> list[Proof]:
    """Return what the activity of a container's threads proves, of all traces of one host.

    Both sides must be on one timeline. A thread has at most one proof; of several recorders the strongest.
    """
    moments = _by_thread(trace, activity.moments(trace).sort("tid", "at"), "at")
    best: dict[int, Proof] = {}
    for other in host:
        if other.sched.is_empty():
            continue
        absences = _by_thread(other, activity.absences(other), "left", "came")
        for own, (at,) in moments.items():
            proof = _proof(own, at, absences, _names(trace), _names(other))
            if proof is not None and (own[1] not in best or proof.expected > best[own[1]].expected):
                best[own[1]] = proof
    return list(best.values())


def _by_thread(trace: Trace, rows: pl.DataFrame, *columns: str) -> dict[Thread, list[Ints]]:
    """Return columns of `rows` per thread whose process is known and whose id no other process has."""
    threads = trace.threads.filter(pl.col("pid").is_not_null() & (pl.col("tid") > 0))
    sole = threads.group_by("tid").agg(pl.col("pid").unique()).filter(pl.col("pid").list.len() == 1)
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
    at: Ints,
    absences: Mapping[Thread, list[Ints]],
    names: Mapping[int, str | None],
    host_names: Mapping[int, str | None],
) -> Proof | None:
    """Return the proof for one thread, None if no thread of the host, or more than one, stands the test."""
    rivals = []
    for (pid, tid), (left, came) in absences.items():
        count, expected, contradicted = _alibi(at, left, came)
        if expected >= RIVAL and contradicted <= RIVAL_CLEAN * expected:
            rivals.append(Proof(*own, pid, tid, count, expected, contradicted))
    fitting = [proof for proof in rivals if compatible(names.get(own[1]), host_names.get(proof.host_tid))]
    sure = [
        proof
        for proof in fitting
        if proof.expected >= PROVEN and proof.contradicted <= CLEAN * proof.expected
    ]
    return sure[0] if len(sure) == 1 == len(fitting) else None


def _alibi(at: Ints, left: Ints, came: Ints) -> tuple[int, float, int]:
    """Return how many absences lie among the moments, how many chance would contradict, and how many are."""
    begin, end = left + activity.SLACK_NS, came - activity.SLACK_NS
    inside = (end > begin) & (begin > at[0]) & (end < at[-1])
    begin, end = begin[inside], end[inside]

    def hit(shift: int) -> int:
        return int((np.searchsorted(at, end + shift) > np.searchsorted(at, begin + shift)).sum())

    return len(begin), float(np.mean([hit(shift) for shift in DECOYS_NS])), hit(0)


def _ids_of(trace: Trace, host: Iterable[Trace], proofs: Sequence[Proof]) -> Ids:
    """Return the map that the proofs allow: processes by proven threads, other threads by names of their own.

    Empty if proofs of one process name two of the host's, or two processes claim one.
    """
    pids = {(proof.pid, proof.host_pid) for proof in proofs}
    if len({inside for inside, _ in pids}) < len(pids) or len({outside for _, outside in pids}) < len(pids):
        return {}
    ids = {**dict(pids), **{proof.tid: proof.host_tid for proof in proofs}}
    if len(set(ids.values())) < len(ids):
        return {}
    theirs = pl.concat([other.threads.select("pid", "tid", "name") for other in host]).unique()
    for inside, outside in pids:
        own_names = _sole_names(trace.threads.filter(pl.col("pid") == inside))
        for name, tid in _sole_names(theirs.filter(pl.col("pid") == outside)).items():
            own = next((mine for own_name, mine in own_names.items() if same_name(own_name, name)), None)
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
    return {name: next(iter(same)) for name, same in tids.items() if len(same) == 1}
