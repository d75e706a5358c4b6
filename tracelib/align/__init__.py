"""One timeline of many files: `align` ties their clocks, joins their threads and gives the threads roles."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

import polars as pl

from tracelib.align.containers import ids_on_hosts, mapped, user_map
from tracelib.align.evidence import Evidence
from tracelib.align.hosts import Hosts, group_hosts
from tracelib.align.merge import merge
from tracelib.align.roles import assign_roles
from tracelib.align.ties import Remark, source_row, unmatched_offsets, with_clock_pairs, with_ftrace_clock
from tracelib.align.timeline import DEFAULT_MAX_ERROR_NS, Timeline, timeline
from tracelib.errors import BadParameter
from tracelib.schema import HEALTH
from tracelib.trace import Trace
from tracelib.words import share

#: Above this share of slices that begin while their thread is off the CPU, two clocks do not agree.
DISAGREE = 0.05


def align(
    traces: Sequence[Trace],
    *,
    offsets: Mapping[str, int] | None = None,
    max_error_ns: int = DEFAULT_MAX_ERROR_NS,
    roles: Mapping[str, str] | None = None,
    ftrace_clock: str | None = None,
    wall_offsets: Mapping[str, int] | None = None,
    pids: Mapping[str, Mapping[int, int]] | None = None,
) -> Trace:
    """Return one trace of `traces`, each of one file, on one timeline, threads joined and roles filled in.

    Parameters
    ----------
    traces
        What the readers return: source 0, local ids, times in the file's own clock.
    offsets
        The user's word on clocks: file name or glob -> ns to add to the file's own times to get wall time
        (or, if no file declares wall time, the common timeline). It goes before every declaration.
    max_error_ns
        A clock measured by anchors is accepted up to this estimated error; else the source stays untied.
    roles
        Pattern on a thread's or process's name or process id -> role ("worker", "worker:1" with a rank).
    ftrace_clock
        The `trace_clock` that ftrace files were recorded with; the text does not tell it.
    wall_offsets
        Name of a clock -> ns to add to it to get wall time, both read together on the traces' host. Ties
        the files that name this clock and declare nothing themselves.
    pids
        File name or glob -> process or thread id in that file -> id on the host; "*" means the files of
        recorders that live in a container. Without it, ids of a container are matched by proof from the
        threads' activity, or not at all.

    Returns
    -------
    Trace
        `sources.tied_by` says how each file was tied: declared, user, anchors, reference (its clock is the
        timeline), or untied. The threads and GPUs of an untied source are its own, under a host name that no
        other source has, and its times are still the file's: nothing of it meets another source, and no
        figure may mix them.

    Raises BadParameter if an offset names no file, a role or a clock does not exist, or `traces` is empty.
    """
    if not traces:
        raise BadParameter("traces", [], ["at least one trace"])
    clocked = with_clock_pairs(with_ftrace_clock(traces, ftrace_clock), wall_offsets or {})
    rows = [source_row(trace) for trace in clocked]
    files = [str(row["file"]) for row in rows]
    if stray := unmatched_offsets(files, offsets or {}):
        raise BadParameter("offsets", stray[0], files)
    maps = [user_map(file, row["format"], pids or {}) for file, row in zip(files, rows, strict=True)]
    user_ids = {index: ids for index, ids in enumerate(maps) if ids}
    clocked = _with_ids(clocked, user_ids)
    tied = timeline(clocked, offsets or {}, max_error_ns)
    clocked, hosts, remarks = _on_hosts(clocked, tied, user_ids)
    merged = merge(clocked, tied.ties, hosts.group, hosts.names)
    remarks += (_map_remark(clocked[index], index, ids) for index, ids in user_ids.items())
    return assign_roles(_with_remarks(merged, [*tied.remarks, *remarks]), roles)


def _on_hosts(
    traces: list[Trace], tied: Timeline, user_ids: Mapping[int, Mapping[int, int]]
) -> tuple[list[Trace], Hosts, list[Remark]]:
    """Return the traces with the ids of their hosts, as far as activity proves them, and who shares one."""
    apart = [tie.method == "untied" for tie in tied.ties]
    hosts = group_hosts(traces, apart, tied.off_share)
    ids, container_remarks = ids_on_hosts(traces, tied.ties, hosts.group, user_ids)
    if ids:
        traces = _with_ids(traces, ids)
        tied.evidence = Evidence(traces, tied.evidence.max_error_ns)
        hosts = group_hosts(traces, apart, tied.off_share)
    return traces, hosts, [*_disagreements(traces, tied, hosts.group), *hosts.remarks, *container_remarks]


def _with_ids(traces: Sequence[Trace], maps: Mapping[int, Mapping[int, int]]) -> list[Trace]:
    return [mapped(trace, maps[index]) if index in maps else trace for index, trace in enumerate(traces)]


def _map_remark(trace: Trace, index: int, ids: Mapping[int, int]) -> Remark:
    """Say how many of a source's active threads the user's map names; the others join nothing."""
    tids = trace.slices.join(trace.threads.select("thread", "tid"), on="thread")["tid"].unique()
    named = len(set(tids) & set(ids.values()))
    message = f"the map of ids that was given names {named} of its {tids.len()} active threads"
    return (index, "info", message, "") if named else (index, "warning", message, "check whose ids it holds")


def _disagreements(traces: Sequence[Trace], tied: Timeline, group: Sequence[int]) -> Iterator[Remark]:
    """Check tied sources of one host against each other's scheduler events, and say where they do not fit."""
    for index, other in permutations(range(len(traces)), 2):
        off_cpu = tied.off_share(index, other) if group[index] == group[other] else None
        if off_cpu is not None and off_cpu > DISAGREE:
            file = source_row(traces[other])["file"]
            message = (
                f"{share(off_cpu)} of its ranges begin while their thread is off the CPU in {file}: "
                "the clocks disagree"
            )
            yield index, "warning", message, "give the offset of one of them (--offset FILE=NS)"


def _with_remarks(trace: Trace, remarks: Sequence[Remark]) -> Trace:
    health = pl.concat([trace.health, pl.DataFrame(remarks, schema=HEALTH, orient="row")])
    return trace.replace(health=health.sort("source", maintain_order=True))
