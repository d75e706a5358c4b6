"""Recordings on another clock: what a hidden offset and a drifting oscillator make of a file."""

from functools import cache

import polars as pl

from tracelib.schema import empty
from tracelib.sources.discovery import recognised

TIMED = ("slices", "gpu_ops", "samples", "sched", "counters")


@cache
def read(path, name=None):
    """Return the trace in a file, its source named (the loader does that otherwise)."""
    trace = recognised(path).read()
    return trace.replace(sources=trace.sources.with_columns(file=pl.lit(name or path.name)))


def moved(trace, shift_ns, ppm=0):
    """Return `trace` as recorded by a clock off by `shift_ns`, `ppm` fast, that declares what it declared."""
    frames = {name: getattr(trace, name) for name in TIMED if getattr(trace, name).height}
    start = min(frame["ts_ns"].min() for frame in frames.values())

    def at(time):
        return time + shift_ns + (time - start) * ppm // 1_000_000

    for name, frame in frames.items():
        begin = at(pl.col("ts_ns"))
        columns = {"ts_ns": begin}
        if "dur_ns" in frame.columns:
            columns["dur_ns"] = at(pl.col("ts_ns") + pl.col("dur_ns")) - begin
        frames[name] = frame.with_columns(**columns)
    recorded = [at(pl.col(name)) for name in ("recorded_from_ns", "recorded_to_ns")]
    return trace.replace(sources=trace.sources.with_columns(recorded), **frames)


def shifted(trace, shift_ns, ppm=0):
    """Return `trace` as recorded by a clock off by `shift_ns`, `ppm` fast, that says nothing of itself."""
    trace = moved(trace, shift_ns, ppm)
    hidden = trace.sources.with_columns(
        clock=pl.lit("unknown"), wall_offset_ns=pl.lit(None, pl.Int64), first_ns=None, last_ns=None
    )
    return trace.replace(sources=hidden.match_to_schema(trace.sources.schema))


def only(trace, name, format_, *frames):
    """Return what a second recorder that writes only these `frames` would have seen."""
    gone = {
        frame: empty(frame)
        for frame in (*TIMED, "stacks")
        if frame not in frames and not (frame == "stacks" and "samples" in frames)
    }
    said = trace.sources.with_columns(file=pl.lit(name), format=pl.lit(format_))
    return trace.replace(sources=said, **gone)


def furthest(straight, bent, source):
    """Return by how much at most the times of a source differ between two timelines, in ns."""
    worst = 0
    for name in ("slices", "gpu_ops", "samples", "sched"):
        one, other = (getattr(trace, name).filter(pl.col("source") == source) for trace in (straight, bent))
        if one.height:
            worst = max(worst, (one["ts_ns"].sort() - other["ts_ns"].sort()).abs().max())
    return worst
