"""The lanes of the picture: what each part of the server was doing, from the request's arrival down to the GPUs.

The same lanes serve the interactive timeline, the detail around a finding and the SVG overview. From top to bottom they
follow a request: tokenizers, engine, its enqueue; then for each rank its dequeue, the CPU state of the thread that
launches, the GPU's state, and to what the GPU's lost time is charged. Colours of causes are the same in every lane: the
colour in a "lost to" lane names the host lane that holds the GPU up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracelib.charts.bins import occupancy
from tracelib.charts.names import gpu_names, launch_threads, thread_names
from tracelib.charts.theme import PALETTES, look, share
from tracelib.intervals import clip, union

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tracelib.analyses.results import Results

__all__ = ["DEVICES", "Lane", "lanes", "shown_devices"]

#: A picture with more devices than this shows those that lost most.
DEVICES = 8
LEAST = 0.15


@dataclass(frozen=True)
class Lane:
    """One strip of the picture: `pieces` (`ts_ns`, `dur_ns`, `state`) never overlap; `headline` is its figure in words."""

    label: str
    group: str
    palette: str
    pieces: pl.DataFrame
    headline: str

    def share_of(self, *states: str, window_ns: int) -> float:
        """Return the share of the window that the lane spends in `states`."""
        spent = int(self.pieces.filter(pl.col("state").is_in(states))["dur_ns"].sum())
        return spent / window_ns

    def states(self) -> list[str]:
        """Return the states that occur, in the palette's order, useful ones first."""
        found = set(self.pieces["state"].unique().to_list())
        return [s for s in PALETTES[self.palette] if s in found] + sorted(found - set(PALETTES[self.palette]))

    def heights(self, borders: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return a row per state and a column per bin: how high the state stands in the strip (1 = the whole bin).

        A lane of one state shows even the shortest event, at :data:`LEAST` of the strip: an enqueue takes microseconds.
        """
        shares = occupancy(self.pieces, self.states(), borders)
        return np.where(shares > 0, np.maximum(shares, LEAST), 0) if len(shares) == 1 else shares


def shown_devices(results: Results, limit: int = DEVICES) -> list[int]:
    """Return the GPUs to draw, in their own order: all of them, or the `limit` that lost most time."""
    lost = results.lost.group_by("gpu").agg(ns=pl.col("dur_ns").sum())
    every = results.gpu_states.select("gpu").unique().join(lost, on="gpu", how="left")
    worst = every.sort(pl.col("ns").fill_null(0), "gpu", descending=[True, False]).head(limit)
    return sorted(worst["gpu"].to_list())


def lanes(results: Results) -> tuple[Lane, ...]:
    """Return the lanes for which the run holds events; where only threads were recorded, those that wanted a CPU most."""
    made = [*_server_lanes(results), *_device_lanes(results)]
    told = tuple(lane for lane in made if not lane.pieces.is_empty())
    return told or tuple(_wanting_lanes(results))


def _wanting_lanes(results: Results) -> Iterator[Lane]:
    states = clip(results.thread_states, results.window.start_ns, results.window.end_ns)
    wanted = states.filter(pl.col("state").is_in(["running", "runnable", "throttled"]))
    most = (
        wanted.group_by("thread")
        .agg(ns=pl.col("dur_ns").sum())
        .sort("ns", "thread", descending=[True, False])
    )
    names = thread_names(results)
    for thread in most["thread"].head(DEVICES):
        yield _cpu_lane(results, thread, names.get(thread, "thread"), "threads")


def _pieces(results: Results, frame: pl.DataFrame, state: pl.Expr) -> pl.DataFrame:
    window = results.window
    cut = clip(frame, window.start_ns, window.end_ns)
    return cut.select("ts_ns", "dur_ns", state=state.cast(pl.String)).sort("ts_ns")


def _together(results: Results, frame: pl.DataFrame, state: str) -> pl.DataFrame:
    """Return the time in which at least one row of `frame` is open, as one state."""
    whole = union(frame.select("ts_ns", "dur_ns", lane=pl.lit(0)), "lane")
    return _pieces(results, whole, pl.lit(state))


def _server_lanes(results: Results) -> Iterator[Lane]:
    length = results.window.duration_ns
    roles = results.trace.threads.select("thread", "role")
    doing = results.host_activity.join(roles, on="thread", how="left")
    tokenizing = _together(
        results,
        doing.filter((pl.col("cause") == "tokenization") & pl.col("role").ne_missing(pl.lit("worker"))),
        "tokenization",
    )
    yield Lane(
        "tokenizers", "server", "cause", tokenizing, f"busy {share(int(tokenizing['dur_ns'].sum()) / length)}"
    )
    engine = _pieces(results, _loop(doing.filter(pl.col("role") == "engine")), _doing())
    yield Lane("engine", "server", "cause", engine, _top_cause(engine, length))
    sent = results.ipc.filter((pl.col("role") == "engine") & pl.col("kind").is_in(["enqueue", "send"]))
    enqueue = _together(results, sent, "ipc")
    yield Lane(
        "enqueue", "server", "cause", enqueue, f"sending {share(int(enqueue['dur_ns'].sum()) / length)}"
    )


def _doing() -> pl.Expr:
    """Return the cause, with waiting for another process apart from work in IPC: who waits holds nobody up."""
    waits = (pl.col("cause") == "ipc") & (pl.col("sub_cause") == "wait")
    return pl.when(waits).then(pl.lit("ipc_wait")).otherwise(_cause())


def _cause() -> pl.Expr:
    return pl.col("cause").cast(pl.String).fill_null("other")


def _loop(activity: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the thread that does most besides waiting: an engine's other threads sleep in a futex."""
    works = pl.col("dur_ns").filter(pl.col("cause").ne_missing(pl.lit("ipc"))).sum()
    total = activity.group_by("thread").agg(works.alias("works"), ns=pl.col("dur_ns").sum())
    first = total.sort("works", "ns", "thread", descending=[True, True, False])["thread"].head(1)
    return activity.filter(pl.col("thread").is_in(first.implode()))


def _top_cause(pieces: pl.DataFrame, length_ns: int) -> str:
    total = (
        pieces.group_by("state").agg(ns=pl.col("dur_ns").sum()).sort("ns", "state", descending=[True, False])
    )
    if total.is_empty():
        return ""
    return f"{look('cause', total['state'][0]).label} {share(total['ns'][0] / length_ns)}"


def _device_lanes(results: Results) -> Iterator[Lane]:
    names, launching = gpu_names(results), launch_threads(results)
    for gpu in shown_devices(results):
        group = names.get(gpu, f"GPU #{gpu}")
        if gpu in launching:
            yield from _thread_lanes(results, launching[gpu], group)
        yield _gpu_lane(results, gpu, group)
        yield _lost_lane(results, gpu, group)


def _thread_lanes(results: Results, thread: int, group: str) -> Iterator[Lane]:
    length = results.window.duration_ns
    received = results.ipc.filter((pl.col("thread") == thread) & pl.col("kind").is_in(["dequeue", "recv"]))
    dequeue = _together(results, received, "ipc_wait")
    yield Lane("dequeue", group, "cause", dequeue, f"waiting {share(int(dequeue['dur_ns'].sum()) / length)}")
    yield _cpu_lane(results, thread, "launch thread", group)


def _cpu_lane(results: Results, thread: int, label: str, group: str) -> Lane:
    length = results.window.duration_ns
    states = _pieces(results, results.thread_states.filter(pl.col("thread") == thread), pl.col("state"))
    lane = Lane(label, group, "cpu_state", states, "")
    known = 1 - lane.share_of("unknown", window_ns=length)
    ready, stopped = (lane.share_of(state, window_ns=length) for state in ("runnable", "throttled"))
    told = not states.filter(pl.col("state").is_in(["runnable", "throttled", "blocked"])).is_empty()
    lacks = f"wants a CPU {share(ready / known)}" if known else ""
    if stopped:
        lacks = f"stopped by quota {share(stopped / known)}" + (f", {lacks}" if ready / known >= 0.01 else "")
    words = lacks if told else f"runs {share(known)}, else unknown"
    return Lane(label, group, "cpu_state", states, words)


def _gpu_lane(results: Results, gpu: int, group: str) -> Lane:
    length = results.window.duration_ns
    states = _pieces(results, results.gpu_states.filter(pl.col("gpu") == gpu), pl.col("state"))
    lane = Lane("GPU", group, "gpu_state", states, "")
    useful = lane.share_of("compute", "copy", "collective_transfer", window_ns=length)
    idle = lane.share_of("idle", window_ns=length)
    return Lane("GPU", group, "gpu_state", states, f"useful {share(useful)}, busy {share(1 - idle)}")


def _lost_lane(results: Results, gpu: int, group: str) -> Lane:
    lost = _pieces(results, results.lost.filter(pl.col("gpu") == gpu), _cause())
    return Lane("lost to", group, "cause", lost, _top_cause(lost, results.window.duration_ns))
