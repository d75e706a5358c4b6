"""One timeline of many files: `align` ties their clocks, joins their threads and gives the threads roles."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import polars as pl

from tracelib.align.clocks import Evidence, source_row, unmatched_offsets, with_clock_pairs, with_ftrace_clock
from tracelib.align.containers import mapped, on_hosts, user_map
from tracelib.align.hosts import group_hosts
from tracelib.align.merge import merge
from tracelib.align.roles import assign_roles
from tracelib.align.timeline import DEFAULT_MAX_ERROR_NS, timeline
from tracelib.errors import BadParameter
from tracelib.schema import FRAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelib.align.timeline import Timeline
    from tracelib.trace import Trace

__all__ = ["align"]


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
        The user's word on clocks: file name or glob -> ns to add to the file's own times to get wall time (or, if no
        file declares wall time, to get the common timeline). It goes before every declaration.
    max_error_ns
        A clock measured by anchors is accepted if its estimated error is at most this; else the source stays untied.
    roles
        Pattern on a thread's or process's name or process id -> role ("worker", "worker:1" with a rank).
    ftrace_clock
        The `trace_clock` that ftrace files were recorded with; the text does not tell it.
    wall_offsets
        Name of a clock -> ns to add to it to get wall time, as somebody read both together on the traces' host: ties the
        files that name this clock and declare nothing themselves.
    pids
        File name or glob -> process or thread id in that file -> id on the host; "*" means the files of recorders that live
        in a container. Without it, ids of a container are matched by proof from the threads' activity, or not at all.

    Returns
    -------
    Trace
        `sources.tied_by` says how each file was tied: declared, user, anchors, reference (its clock is the timeline),
        or untied. The threads and GPUs of an untied source are its own, under a host name that no other source has, and
        its times are still the file's: nothing of it meets another source, and no figure may mix them.

    Raises
    ------
    BadParameter
        An offset names no file, a role or a clock does not exist, or there is no trace.

    """
    if not traces:
        raise BadParameter("traces", [], ["at least one trace"])
    clocked = with_clock_pairs(with_ftrace_clock(traces, ftrace_clock), wall_offsets or {})
    names = [str(source_row(trace)["file"]) for trace in clocked]
    stray = unmatched_offsets(names, offsets or {})
    if stray:
        raise BadParameter("offsets", stray[0], names)
    given = {
        index: ids
        for index, (trace, name) in enumerate(zip(clocked, names, strict=True))
        if (ids := user_map(name, source_row(trace)["format"], pids or {}))
    }
    clocked = _with_ids(clocked, given)
    tied = timeline(clocked, offsets or {}, max_error_ns)
    apart = [tie.method == "untied" for tie in tied.ties]
    hosts = group_hosts(clocked, apart, tied.off_share)
    found, inside = on_hosts(clocked, tied.ties, hosts.group, given)
    if found:
        clocked = _with_ids(clocked, found)
        tied.evidence = Evidence(clocked)
        hosts = group_hosts(clocked, apart, tied.off_share)
    merged = merge(clocked, tied.ties, hosts.group, hosts.names)
    remarks = [
        *tied.remarks,
        *_disagreements(clocked, tied, hosts.group),
        *((source, level, message, "") for source, level, message in hosts.remarks),
        *inside,
        *(_map_remark(clocked[index], index, ids) for index, ids in given.items()),
    ]
    return assign_roles(_with_remarks(merged, remarks), roles)


def _with_ids(traces: Sequence[Trace], maps: Mapping[int, Mapping[int, int]]) -> list[Trace]:
    return [mapped(trace, maps[index]) if index in maps else trace for index, trace in enumerate(traces)]


def _map_remark(trace: Trace, index: int, ids: Mapping[int, int]) -> tuple[int, str, str, str]:
    """Say how many of a source's active threads the user's map names; the others join nothing."""
    tids = trace.slices.join(trace.threads.select("thread", "tid"), on="thread")["tid"].unique()
    known = len(set(tids) & set(ids.values()))
    said = f"the map of ids that was given names {known} of its {tids.len()} active threads"
    return (index, "info", said, "") if known else (index, "warning", said, "check whose ids the map holds")


#: Above this share of slices that begin while their thread is off the CPU, two clocks do not agree.
DISAGREE = 0.05


def _disagreements(
    traces: Sequence[Trace], tied: Timeline, group: Sequence[int]
) -> list[tuple[int | None, str, str, str]]:
    """Check tied sources of one host against each other's scheduler events, and say where they do not fit."""
    out: list[tuple[int | None, str, str, str]] = []
    for index, other in permutations(range(len(traces)), 2):
        share = tied.off_share(index, other) if group[index] == group[other] else None
        if share is not None and share > DISAGREE:
            file = str(source_row(traces[other])["file"])
            said = f"{100 * share:.0f} % of its ranges begin while {file} has their thread off the CPU: the clocks disagree"
            out.append((index, "warning", said, "give the offset of one of them (--offset FILE=NS)"))
    return out


def _with_remarks(trace: Trace, remarks: Sequence[tuple[int | None, str, str, str]]) -> Trace:
    rows = [dict(zip(("source", "level", "message", "fix"), remark, strict=True)) for remark in remarks]
    health = pl.concat([trace.health, pl.DataFrame(rows, schema=FRAMES["health"])])
    return trace.replace(health=health.sort("source", maintain_order=True))
