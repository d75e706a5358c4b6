"""Which sources were recorded on one host, and which of their thread names are the same.

perf and nsys write their host's name; Kineto and ftrace texts do not. A source without one is put on
another's host only if the threads prove it: process and thread ids that agree, names that do not contradict,
and, where scheduler events exist, no host slice that begins while its thread is provably off the CPU. Process
ids alone prove nothing: they repeat on every host and in every container.

Recorders write one thread's name differently: the kernel cuts it (the comm) to 15 bytes and gives a new
thread the name of its creator until it is renamed; PyTorch's profiler writes "thread 767 (python3)", the
process's name for each thread.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracelib.align.evidence import processes
from tracelib.align.ties import Remark, source_row
from tracelib.sources import format_named
from tracelib.trace import Trace
from tracelib.words import share

Rows = Sequence[Mapping[str, Any]]  # of `sources`, one per trace
#: pid, tid, name, process, number of events
Identity = tuple[int | None, int, str | None, str | None, int]

#: Share of a source's own threads that must be found on a host before the source is put there.
ENOUGH = 0.8
#: Short-lived processes change their name between two recorders' looks; more contradictions are not chance.
CLASHES = 0.1
#: Above this share of slices that begin while their thread is off the CPU (in truth none does), the ids are
#: another machine's, or the clock is wrong.
IMPOSSIBLE = 0.02
#: So many files that claim a process's id are named.
SHOWN = 3
#: The kernel cuts a thread's name to so many bytes.
COMM_BYTES = 15
KINETO_THREAD = re.compile(r"^(?:thread|stream) -?\d+(?: \((.*)\))?$", re.DOTALL)
#: Names that an interpreter gives to whatever it runs: they tell nothing about the thread.
GENERIC = re.compile(
    r"^(?:python[\d.]*|pypy[\d.]*|pt_main_thread|ld-linux.*|main|<\.\.\.>|Thread-\d+.*|MainThread|\d*)$"
)


@dataclass
class Hosts:
    """Which sources share a host: `group[i]` of source i, `names[g]` of group g, and what there is to say."""

    group: list[int] = field(default_factory=list)
    names: list[str | None] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)

    def add(self, name: str | None) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def members(self, group: int) -> list[int]:
        return [source for source, at in enumerate(self.group) if at == group]

    def remark(self, source: int, level: str, message: str) -> None:
        self.remarks.append((source, level, message, ""))


def group_hosts(
    traces: Sequence[Trace], apart: Sequence[bool], off_share: Callable[[int, int], float | None]
) -> Hosts:
    """Return which of `traces` share a host.

    `apart[i]` keeps source i by itself (its clock is not tied, so nothing may join it). `off_share(i, j)` is
    the share of source i's slices that begin while source j's scheduler events say their thread is off the
    CPU, None if unknown.
    """
    hosts = Hosts([-1] * len(traces))
    rows = [source_row(trace) for trace in traces]
    for index, row in enumerate(rows):
        if row["host"] is not None and not apart[index]:
            new = row["host"] not in hosts.names
            hosts.group[index] = hosts.add(row["host"]) if new else hosts.names.index(row["host"])
    identities = [_identities(trace) for trace in traces]
    ids = [processes(trace) for trace in traces]
    holders, seen = _by_id(ids), _by_id([{row[1] for row in own} for own in identities])
    # Those that see most threads first: ftrace sees every process, a Kineto file only its own.
    unnamed = [i for i in range(len(traces)) if hosts.group[i] < 0 and not apart[i]]
    for index in sorted(unnamed, key=lambda i: -len(identities[i])):
        met = {at for row in identities[index] for at in seen[row[1]]}
        groups = sorted({hosts.group[at] for at in met} - {-1})
        rivals = _rivals(index, rows, {at for pid in ids[index] for at in holders[pid]})
        hosts.group[index] = _place(
            index, groups, hosts, identities, off_share, str(rows[index]["file"]), rivals
        )
    for index, alone in enumerate(apart):
        if alone:
            hosts.group[index] = hosts.add(f"{rows[index]['host'] or 'host'} (untied: {rows[index]['file']})")
    _name_rivals(hosts, rows, ids)
    return hosts


def _by_id(ids: Sequence[set[int]]) -> defaultdict[int, list[int]]:
    """Return which sources hold each id, in their order."""
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for source, own in enumerate(ids):
        for each in own:
            holders[each].append(source)
    return holders


def _name_rivals(hosts: Hosts, rows: Rows, ids: Sequence[set[int]]) -> None:
    """Name unnamed hosts where two of them hold the same process id, so that (host, pid) stays a key."""
    unnamed = [source for source, group in enumerate(hosts.group) if hosts.names[group] is None]
    groups = {pid: {hosts.group[at] for at in own if at in set(unnamed)} for pid, own in _by_id(ids).items()}
    rivals = {group for of in groups.values() if len(of) > 1 for group in of}
    for source in reversed(unnamed):  # a host is called after its first file
        if hosts.group[source] in rivals:
            hosts.names[hosts.group[source]] = f"host of {rows[source]['file']}"


def _rivals(index: int, rows: Rows, alike: Iterable[int]) -> list[str]:
    """Return files of the same recorder, none of which names its host, that hold a process with the same id.

    `alike` are the sources that hold one. Of PyTorch's profiler, one process writes several files one after
    the other, never two at a time, and keeps its rank. An nsys session may be any node's: ids and names
    repeat on every node that runs the same image.
    """
    own = rows[index]
    scope = format_named(own["format"]).scope
    if scope == "machine":
        return []
    rivals = []
    for other in (rows[at] for at in sorted(alike) if at != index):
        if other["format"] != own["format"]:
            continue
        if scope == "session" or other["rank"] != own["rank"] or _overlap(own, other):
            rivals.append(str(other["file"]))
    return rivals


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether both cover a common moment of wall time; if that is unknown, they may."""
    spans = [(row["first_ns"], row["last_ns"], row["wall_offset_ns"]) for row in (one, other)]
    if any(None in span for span in spans):
        return True
    return bool(
        max(first + offset for first, _, offset in spans) < min(last + offset for _, last, offset in spans)
    )


def _identities(trace: Trace) -> list[Identity]:
    """Return who did something in a trace, and how much: threads count by their work."""
    seen = [trace.slices["thread"], trace.samples["thread"], trace.sched["next"], trace.sched["prev"]]
    events = pl.concat(seen).drop_nulls().rename("thread").value_counts()
    threads = trace.threads.join(events, on="thread").filter(pl.col("tid") > 0).sort("thread")
    columns = threads.select("pid", "tid", "name", "process", "count").iter_rows()
    return [
        (pid, tid, bare_name(name), bare_name(process), count) for pid, tid, name, process, count in columns
    ]


def _place(
    index: int,
    groups: Sequence[int],
    hosts: Hosts,
    identities: Sequence[list[Identity]],
    off_share: Callable[[int, int], float | None],
    file: str,
    rivals: Sequence[str],
) -> int:
    """Return the group of source `index`: a host whose threads its own agree with, else one of its own.

    `groups` are the hosts on which a thread has an id that one of its own has. `rivals` are files that claim
    the same process ids for other processes: then ids and names are not enough, and only the activity of the
    threads decides.
    """
    fitting: list[int] = []
    for group in groups:
        members = hosts.members(group)
        theirs = [row for other in members for row in identities[other]]
        met, clashes = _agreement(identities[index], theirs)
        parts = [off_share(*pair) for other in members for pair in ((index, other), (other, index))]
        off = [part for part in parts if part is not None]
        proven = bool(off) or not rivals
        if met < ENOUGH or clashes > CLASHES or not proven:
            continue
        if max(off, default=0.0) <= IMPOSSIBLE:
            fitting.append(group)
        else:
            name = hosts.names[group] or "another source's host"
            message = (
                f"{share(max(off))} of its ranges begin while their thread is off the CPU on {name}: "
                "its clock is wrong, "
                "or its ids are another machine's; it is kept apart"
            )
            hosts.remark(index, "warning", message)
    if len(fitting) == 1:
        name = hosts.names[fitting[0]] or "another source's host"
        message = f"{file} names no host; its process and thread ids agree with {name}, so it is put there"
        hosts.remark(index, "info", message)
        return fitting[0]
    if rivals:
        more = f" and {len(rivals) - SHOWN} more" if len(rivals) > SHOWN else ""
        files = ", ".join(rivals[:SHOWN]) + more
        message = (
            f"{file} and {files} hold different processes of one id, and no source proves where each ran; "
            f"{file} is kept apart"
        )
        hosts.remark(index, "warning", message)
    if fitting:
        names = ", ".join(str(hosts.names[group]) for group in fitting)
        message = f"{file} names no host and its thread ids fit several ({names}); it is kept apart"
        hosts.remark(index, "warning", message)
    return hosts.add(None)


def _agreement(own: Sequence[Identity], theirs: Sequence[Identity]) -> tuple[float, float]:
    """Return the shares of a source's events on threads that the other side knows, and contradicts."""
    by_tid: dict[int, list[Identity]] = {}
    for row in theirs:
        by_tid.setdefault(row[1], []).append(row)
    mains = {row[0]: row[2] for row in (*own, *theirs) if row[0] == row[1]}
    met = clashes = total = 0
    for pid, tid, name, process, count in own:
        same = [row for row in by_tid.get(tid, ()) if pid is None or row[0] is None or row[0] == pid]
        inherited = (process, mains.get(pid) if pid else None)
        fits = [row for row in same if compatible(name, row[2], (*inherited, row[3]))]
        total += count
        met += count * bool(fits)
        clashes += count * bool(same and not fits)
    return met / max(1, total), clashes / max(1, total)


def bare_name(name: str | None) -> str | None:
    """Return the name without what a recorder wrapped round it, None if nothing is left.

    >>> bare_name("thread 767 (python3)"), bare_name("tokenizer"), bare_name("thread 12")
    ('python3', 'tokenizer', None)
    """
    if name is None:
        return None
    match = KINETO_THREAD.match(name)
    return (match[1] if match else name.strip()) or None


def is_generic(name: str | None) -> bool:
    """Say whether the name could be any thread's."""
    return name is None or GENERIC.match(name) is not None


def same_name(one: str, other: str) -> bool:
    """Say whether both can be one name, one of them cut to the kernel's 15 bytes."""
    if one.startswith("kworker/") and other.startswith("kworker/"):  # its name changes with the work it does
        return re.split(r"[-+]", one)[0] == re.split(r"[-+]", other)[0]
    short, long = sorted((one.encode(), other.encode()), key=len)
    return short == long or (len(short) == COMM_BYTES and long.startswith(short))


def compatible(one: str | None, other: str | None, inherited: Iterable[str | None] = ()) -> bool:
    """Say whether two recorders' names for a thread do not contradict each other.

    `inherited` are names of the process: a thread carries its creator's name until it is renamed.
    """
    if one is None or other is None or is_generic(one) or is_generic(other) or same_name(one, other):
        return True
    return any(same_name(name, parent) for parent in inherited if parent for name in (one, other))


def best_name(names: Iterable[str | None], inherited: Iterable[str | None] = ()) -> str | None:
    """Return the name that says most: own before inherited before generic, whole before cut."""
    given = [name for name in names if name]
    if not given:
        return None
    parents = [name for name in inherited if name]
    telling = [name for name in given if not is_generic(name)]
    own = [name for name in telling if not any(same_name(name, parent) for parent in parents)]
    chosen = (own or telling or given)[0]
    return max((name for name in given if same_name(name, chosen)), key=len)
