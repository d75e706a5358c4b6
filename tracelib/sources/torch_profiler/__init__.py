"""Traces of the PyTorch Profiler (Kineto), and the Chrome JSON traces of others.

README.md says what is in them, how to record them well, and what is lost at worst.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracelib.errors import BadTrace
from tracelib.schema import SOURCES
from tracelib.sources.files import sha256
from tracelib.sources.torch_profiler import frames
from tracelib.sources.torch_profiler.document import rank_of
from tracelib.sources.torch_profiler.health import health
from tracelib.sources.torch_profiler.pairs import paired
from tracelib.sources.torch_profiler.reader import content
from tracelib.trace import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from tracelib.sources.torch_profiler.reader import Content

__all__ = ["read", "sniff"]

#: 2001 in ns since the epoch: a time beyond is wall time, one before counts from a boot or a start of its own.
EPOCH_LIKE_NS = 10**18

_BARE_LIST = re.compile(rb'\[\s*\{[^{}]*?"ph"\s*:\s*"')
_KINETO_KEYS = re.compile(rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|displayTimeUnit)"\s*:')


def sniff(head: bytes, name: str) -> bool:  # noqa: ARG001  (the content decides)
    """Say whether a file that starts with `head` is a Chrome JSON trace: `{… "traceEvents"` or a list of events.

    >>> sniff(b'{"schemaVersion": 1, "traceEvents": [', "x"), sniff(b'[{"name": "a", "ph": "X"', "x")
    (True, True)
    >>> sniff(b'{"nodes": []}', "trace.json"), sniff(b"[[1, 2]]", "x.json"), sniff(b"", "trace.json")
    (False, False, False)
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"{"):
        return b'"traceEvents"' in text or (len(head) >= 1 << 16 and bool(_KINETO_KEYS.search(text)))
    return bool(_BARE_LIST.match(text))


def read(path: Path) -> Trace:
    """Return the trace in the file at `path`: slices, gpu_ops, counters, threads, gpus, its source and its health.

    Times are ns since the epoch where the file has a time base or counts from the epoch (clock "realtime"), else of
    the file's own clock ("unknown").

    Raises
    ------
    BadTrace
        The file has no list of events, or not one event in it can be read.

    """
    found = content(path)
    _check(path, found)
    batch, doc = found.batch, found.document
    extra, odd = paired(batch.marks)
    batch.spans = pl.concat([batch.spans, extra]) if extra.height else batch.spans
    batch.remarks.update(odd)
    base = doc.integer("baseTimeNanoseconds") or 0
    wall = base > 0 or _epoch_like(batch.spans) or _epoch_like(batch.gpu)
    if wall:
        _drop_timeless(found)
    rank, rank_from = rank_of(doc, path.name)
    called = frames.launches(batch.spans)
    hosted = frames.on_threads(batch.spans, called)
    threads = frames.threads(hosted.filter("hosted"), batch, doc.host)
    made = {
        "slices": frames.slices(hosted, threads, base),
        "gpu_ops": frames.gpu_ops(batch.gpu, called, base),
        "counters": frames.counters(batch, base),
        "threads": threads,
        "gpus": frames.gpus(batch.gpu, doc.host, rank, doc.device_names),
    }
    made["sources"] = _source(path, found, made, rank, wall=wall)
    made["health"] = health(found, made, base, rank_from, wall=wall)
    return Trace.of(made)


def _check(path: Path, found: Content) -> None:
    if sum(found.batch.tally.values()) - found.batch.tally["", "None"] > 0:
        return
    lost = found.batch.skipped_bytes
    reason = f"none of its events can be read ({lost} bytes)" if lost else "its list of events is empty"
    raise BadTrace(
        path, "torch_profiler", "the list of traceEvents", found.damage or reason,
        advice="Record again, and wait for the profiler to finish writing.",
    )  # fmt: skip


def _epoch_like(rows: pl.DataFrame) -> bool:
    middle = rows["ts"].median()
    return isinstance(middle, (int, float)) and middle > EPOCH_LIKE_NS


def _drop_timeless(found: Content) -> None:
    """Leave out work of a GPU at time 0, which the profiler writes when it knows no time (kineto#109)."""
    batch = found.batch
    timed = batch.gpu.filter(pl.col("ts") != 0)
    if lost := batch.gpu.height - timed.height:
        batch.remarks["GPU work at time 0: left out"] += lost
        batch.gpu = timed


def _source(
    path: Path, found: Content, made: dict[str, pl.DataFrame], rank: int | None, *, wall: bool
) -> pl.DataFrame:
    starts = [frame["ts_ns"].min() for frame in made.values() if "ts_ns" in frame.columns]
    ends = [(made[name]["ts_ns"] + made[name]["dur_ns"]).max() for name in ("slices", "gpu_ops")]
    ends.append(made["counters"]["ts_ns"].max())
    remarks = found.batch.remarks
    lost = sum(
        count for remark, count in remarks.items() if remark.endswith("left out") or remark.startswith("lost")
    )
    row = {
        "source": 0, "file": path.name, "sha256": sha256(path), "bytes": path.stat().st_size, "format": "torch_profiler",
        "recorder": found.document.recorder, "host": found.document.host, "rank": rank,
        "clock": "realtime" if wall else "unknown", "wall_offset_ns": 0 if wall else None,
        "first_ns": min((t for t in starts if isinstance(t, int)), default=None),
        "last_ns": max((t for t in ends if isinstance(t, int)), default=None),
        "lost_declared": 0, "lost_detected": lost,
        "skipped_bytes": found.lost_bytes + found.batch.skipped_bytes,
    }  # fmt: skip
    return pl.DataFrame([{**dict.fromkeys(SOURCES), **row}], schema=SOURCES)
