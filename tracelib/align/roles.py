"""What part of the server each thread belongs to: API server, engine, worker of a rank, recorder, system.

A whole process takes the role of its main evidence: the user's map, then names (`VLLM::EngineCore`,
`worker_TP0`), then what it did (a process that tokenizes is an API server; one that dequeues broadcasts and
launches kernels is a worker), then launching kernels at all. The rules are data: `roles.toml` beside this
file.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from typing import Any

import polars as pl

from tracelib.align.hosts import is_generic
from tracelib.data import data
from tracelib.errors import BadParameter
from tracelib.schema import THREADS
from tracelib.trace import Trace
from tracelib.words import ROLES, SERVER

Process = tuple[str | None, int | None, int | None]  # host, pid; without a pid each thread stands for itself
Verdict = tuple[str | None, int | None]  # role, rank


@dataclass(frozen=True)
class _Rule:
    match: re.Pattern[str]
    role: str
    scope: str
    fallback: bool


@cache
def _data() -> dict[str, Any]:
    return data(__file__, "roles.toml")  # type: ignore[no-any-return]


@cache
def _rules() -> tuple[tuple[_Rule, ...], tuple[dict[str, Any], ...], re.Pattern[str]]:
    data = _data()
    names = tuple(
        _Rule(re.compile(rule["match"]), rule["role"], rule["scope"], rule.get("fallback", False))
        for rule in data["name"]
    )
    return names, tuple(data["annotation"]), re.compile(data["system"]["match"])


def by_name(name: str | None, scope: str, known: Collection[str] = ()) -> Verdict | None:
    """Return the role and rank that the rules of `scope` give a thread's or process's name, None if none do.

    A rule that is a fallback does not give a role that is `known` to be another process's.

    >>> by_name("VLLM::Worker_TP1", "process"), by_name("bash", "process")
    (('worker', 1), None)
    """
    for rule in _rules()[0]:
        match = rule.match.search(name) if name and rule.scope == scope else None
        if rule.fallback and rule.role in known:
            continue
        if match:
            ranks = (int(rank) for key, rank in match.groupdict().items() if key.startswith("rank") and rank)
            return rule.role, next(ranks, None)
    return None


def assign_roles(trace: Trace, roles: Mapping[str, str] | None = None) -> Trace:
    """Return the trace with `threads.role`, `threads.rank` and `gpus.rank` filled in.

    `roles` maps a glob or regular expression on a thread's name, its process's name or its process id to a
    role, or to "worker:3" for the worker of rank 3; it goes before every rule. Raises BadParameter if a role
    is none of :data:`tracelib.words.ROLES`, or a pattern is not a regular expression.
    """
    user_roles = {pattern: _role_and_rank(pattern, value) for pattern, value in (roles or {}).items()}
    ranks = _recorded_ranks(trace)
    evidence = _evidence(trace)
    processes: defaultdict[Process, list[dict[str, Any]]] = defaultdict(list)
    for row in trace.threads.iter_rows(named=True):
        processes[_process(row)].append(row)
    rows: list[dict[str, Any]] = []
    known = {role for name in _process_names(trace) if (role := _sure_role(name))}
    known |= {max(votes, key=votes.__getitem__)[0] for votes in evidence.values()}
    for process, members in processes.items():
        role, rank = _process_role(members, user_roles, evidence.get(process, Counter()), known)
        if role == "worker" and rank is None:
            rank = ranks.get(process)
        rows += [{**row, **_thread_role(row, role, rank, user_roles)} for row in members]
    threads = pl.DataFrame(rows, schema=THREADS).sort("thread")
    return trace.replace(threads=threads, gpus=_ranked_gpus(trace, threads))


def _process_names(trace: Trace) -> list[str]:
    names = trace.threads.select(pl.concat_list("name", "process").explode()).to_series()
    return names.drop_nulls().unique().to_list()


def _sure_role(name: str) -> str | None:
    """Return the role that a name proves, whatever other processes there are."""
    verdict = by_name(name, "process", SERVER)
    return verdict[0] if verdict else None


def _process(row: Mapping[str, Any]) -> Process:
    return row["host"], row["pid"], row["thread"] if row["pid"] is None else None


def _role_and_rank(pattern: str, value: str) -> Verdict:
    role, _, rank = value.partition(":")
    if role not in ROLES or (rank and not rank.isdigit()):
        raise BadParameter("roles", value, (*ROLES, "worker:<rank>"))
    try:
        re.compile(pattern)
    except re.error:
        if not any(mark in pattern for mark in "*?["):
            raise BadParameter("roles", pattern, ["a glob", "a regular expression"]) from None
    return role, int(rank) if rank else None


def _user_role(texts: Sequence[str | None], user_roles: Mapping[str, Verdict]) -> Verdict | None:
    for pattern, verdict in user_roles.items():
        if any(fnmatch(text, pattern) or _matches(pattern, text) for text in texts if text):
            return verdict
    return None


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # a glob such as `*worker`
        return False


def _process_role(
    members: list[dict[str, Any]],
    user_roles: Mapping[str, Verdict],
    evidence: Counter[tuple[str, int | None]],
    known: Collection[str],
) -> Verdict:
    first = members[0]
    main = [row["name"] for row in members if row["pid"] is not None and row["pid"] == row["tid"]]
    if user := _user_role([first["process"], *main, str(first["pid"])], user_roles):
        return user
    for name in (*main, first["process"]):
        if verdict := by_name(name, "process", known):
            return verdict
    votes = (
        Counter(verdict for row in members if (verdict := by_name(row["name"], "process", known))) or evidence
    )
    if votes:
        return max(votes, key=lambda verdict: (votes[verdict], -_order(verdict[0])))
    names = [name for name in (*main, first["process"], first["name"]) if name]
    if any(_rules()[2].search(name) or not is_generic(name) for name in names):
        return "system", None
    return None, None


def _order(role: str | None) -> int:
    """Return the order among equal evidence: what a name says of the last part of the server goes first."""
    return -SERVER.index(role) if role in SERVER else 1


def _thread_role(
    row: Mapping[str, Any], role: str | None, rank: int | None, user_roles: Mapping[str, Verdict]
) -> dict[str, str | int | None]:
    own = _user_role([row["name"]], user_roles) or by_name(row["name"], "thread")
    if own:
        return {"role": own[0], "rank": own[1] if own[1] is not None else (rank if own[0] == role else None)}
    return {"role": role, "rank": rank}


def parts_beside(trace: Trace, part: str) -> pl.Series:
    """Return the threads whose names, ranges or frames show that their process plays `part` beside its role.

    The part is "entrance" (an HTTP server: requests come in there) or "scheduler" (it needs no engine).
    """
    pattern = _data()[part]["match"]
    names = pl.col("name").cast(pl.String)
    ranges = (
        trace.slices.filter(pl.col("category").is_in(["python", "annotation"]))
        .select("thread", "name")
        .unique()
    )
    named = pl.concat_list("name", "process").list.eval(pl.element().str.contains(pattern)).list.any()
    threads = trace.threads.filter(named.fill_null(value=False))["thread"]
    return pl.concat([ranges.filter(names.str.contains(pattern))["thread"], threads]).unique()


def _launchers(trace: Trace) -> pl.DataFrame:
    """Return host, pid and rank (the file's, else the GPU's) of processes that launched GPU work."""
    hosts = trace.gpus.select("gpu", "host", gpu_rank="rank")
    ranks = trace.sources.select("source", source_rank="rank")
    pairs = trace.gpu_ops.select("source", "gpu", "pid").drop_nulls("pid").unique()
    joined = pairs.join(hosts, on="gpu").join(ranks, on="source")
    launchers = joined.select("host", "pid", rank=pl.coalesce("source_rank", "gpu_rank"))
    return launchers.unique().sort("host", "pid", "rank")


def _recorded_ranks(trace: Trace) -> dict[Process, int]:
    """Return the rank of each process for which the recorder wrote one."""
    ranks = _launchers(trace).drop_nulls("rank").group_by("host", "pid").agg(pl.col("rank").unique())
    return {(host, pid, None): own[0] for host, pid, own in ranks.iter_rows() if len(own) == 1}


def _evidence(trace: Trace) -> dict[Process, Counter[tuple[str, int | None]]]:
    """Return for each process how much its slices speak for each role."""
    gpu = {(host, pid, None) for host, pid, _ in _launchers(trace).iter_rows()}
    ranges = trace.slices.filter(pl.col("category").is_in(["annotation", "python"]))
    by_thread = ranges.select("thread", "name").unique()
    by_process = by_thread.join(trace.threads.select("thread", "host", "pid"), on="thread").drop_nulls("pid")
    distinct = by_process.select("host", "pid", pl.col("name").cast(pl.String)).unique()
    evidence: defaultdict[Process, Counter[tuple[str, int | None]]] = defaultdict(Counter)
    for rule in _rules()[1]:
        matching = distinct.filter(pl.col("name").str.contains(rule["match"]))
        for host, pid in matching.select("host", "pid").unique().iter_rows():
            process = (host, pid, None)
            if process in gpu and rule["role"] == "api_server":
                continue  # a script that tokenizes and launches is a worker that has no front end
            if process in gpu or not rule.get("needs_gpu"):
                evidence[process][rule["role"], None] += rule["weight"]
    for process in gpu:  # whoever launches kernels does a worker's part, if nothing says otherwise
        evidence[process]["worker", None] += 1
    return dict(evidence)


def _ranked_gpus(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return the GPUs with the rank of the one worker that drives each, where the recorder named none."""
    workers = threads.filter(pl.col("role") == "worker").select("host", "pid", worker_rank="rank")
    pairs = trace.gpu_ops.select("gpu", "pid").drop_nulls().unique()
    on_hosts = pairs.join(trace.gpus.select("gpu", "host"), on="gpu")
    driven = on_hosts.join(workers.drop_nulls().unique(), on=["host", "pid"], nulls_equal=True)
    ranks = driven.group_by("gpu").agg(pl.col("worker_rank").unique())
    sole = ranks.filter(pl.col("worker_rank").list.len() == 1).with_columns(
        pl.col("worker_rank").list.first()
    )
    joined = trace.gpus.join(sole, on="gpu", how="left").with_columns(rank=pl.coalesce("rank", "worker_rank"))
    return joined.select(trace.gpus.columns).sort("gpu")
