"""The lanes of the picture: what each part of the server did, from the request's arrival down to the GPUs.

The same lanes serve the interactive timeline, the detail around a finding and the SVG overview. From top to
bottom they follow a request: tokenizers, engine, its enqueue; then for each rank its dequeue, the CPU state
of the thread that launches, the GPU's state, and to what the GPU's lost time is charged. Colours of causes
are the same in every lane: the colour in a "lost to" lane names the host lane that holds the GPU up.
"""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.analyses.gpu_time import USEFUL
from tracelib.analyses.host_activity import AWAITS_MESSAGE
from tracelib.analyses.results import Results
from tracelib.analyses.scheduling import OFF_CPU, WAITS_FOR_CPU
from tracelib.analyses.window import WHOLE, recorded_ns
from tracelib.charts.phrases import gpu_names, launch_threads, thread_names
from tracelib.charts.theme import PALETTES
from tracelib.intervals import clip, union
from tracelib.intervals.cover import state_shares
from tracelib.words import cause_name, counted, share

#: A picture with more devices than this shows those that lost most.
DEVICES = 8
LEAST_HEIGHT = 0.15


@dataclass(frozen=True)
class Lane:
    """One strip of the picture: `pieces` (`ts_ns`, `dur_ns`, `state`) never overlap.

    `palette` is the one of :mod:`tracelib.charts.theme` for its states, `headline` its figure in words.
    """

    label: str
    group: str
    palette: str
    pieces: pl.DataFrame
    headline: str

    def states(self) -> list[str]:
        """Return the states that occur, in the palette's order, useful ones first."""
        return self._states

    @functools.cached_property
    def _states(self) -> list[str]:
        present = set(self.pieces["state"].unique().to_list())
        listed = [state for state in PALETTES[self.palette] if state in present]
        return listed + sorted(present - set(listed))

    def heights(self, borders: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return a row per state and a column per bin: the state's height in the strip (1 = the whole bin).

        A lane of one state shows even the shortest event, at :data:`LEAST_HEIGHT` of the strip: an enqueue
        takes microseconds.
        """
        shares = state_shares(self.pieces, self.states(), borders)
        return np.where(shares > 0, np.maximum(shares, LEAST_HEIGHT), 0) if len(shares) == 1 else shares


def shown_devices(results: Results, limit: int = DEVICES) -> list[int]:
    """Return the GPUs to draw, in their own order: all of them, or the `limit` that lost most time."""
    lost = results.lost.group_by("gpu").agg(ns=pl.col("dur_ns").sum())
    every = results.gpu_states.select("gpu").unique().join(lost, on="gpu", how="left")
    worst = every.sort(pl.col("ns").fill_null(0), "gpu", descending=[True, False]).head(limit)
    return sorted(worst["gpu"].to_list())


def not_shown(results: Results) -> str:
    """Say how many GPUs a picture leaves out that draws :func:`shown_devices`; "" if none."""
    every = results.gpu_states["gpu"].n_unique()
    left = f"{counted(every - DEVICES, 'GPU')} {'is' if every - DEVICES == 1 else 'are'} not drawn"
    return "" if every <= DEVICES else f" Of {every} GPUs the {DEVICES} that lost most are drawn; {left}."


def lanes(results: Results) -> tuple[Lane, ...]:
    """Return the lanes for which the run holds events.

    Where no GPU was recorded, the threads that wanted a CPU most stand in its place.
    """
    if results not in _DRAWN:
        threads = _busiest_thread_lanes(results) if results.gpu_states.is_empty() else ()
        every = [*_server_lanes(results), *_device_lanes(results), *threads]
        _DRAWN[results] = tuple(lane for lane in every if not lane.pieces.is_empty())
    return _DRAWN[results]


#: The lanes of results that are still in use: a page, its PNG and what its script zooms into show the same.
_DRAWN: WeakKeyDictionary[Results, tuple[Lane, ...]] = WeakKeyDictionary()


def legend(rows: Iterable[Lane]) -> list[tuple[str, str]]:
    """Return palette and state of everything that occurs in `rows`, in the order of the legend."""
    present = {(lane.palette, state): None for lane in rows for state in lane.states()}
    return sorted(present, key=lambda entry: [*PALETTES].index(entry[0]))


def time_in(results: Results, pieces: pl.DataFrame, *states: str) -> float:
    """Return the share of the window that `pieces` spend in `states`."""
    spent = int(pieces.filter(pl.col("state").is_in(states))["dur_ns"].sum())
    return spent / results.window.duration_ns


def _busiest_thread_lanes(results: Results) -> Iterator[Lane]:
    states = clip(results.thread_states, results.window.start_ns, results.window.end_ns)
    wanted = states.filter(pl.col("state").is_in(["running", *WAITS_FOR_CPU]))
    most = (
        wanted.group_by("thread")
        .agg(ns=pl.col("dur_ns").sum())
        .sort("ns", "thread", descending=[True, False])
    )
    names = thread_names(results)
    for thread in most["thread"].head(DEVICES):
        yield _cpu_lane(results, thread, names.get(thread, "thread"), "CPU")


def _pieces(results: Results, frame: pl.DataFrame, state: pl.Expr) -> pl.DataFrame:
    window = results.window
    cut = clip(frame, window.start_ns, window.end_ns)
    return cut.select("ts_ns", "dur_ns", state=state.cast(pl.String)).sort("ts_ns")


def _one_state_lane(
    results: Results, label: str, group: str, events: pl.DataFrame, state: str, verb: str
) -> Lane:
    """Return the time in which at least one of `events` is open, as one state."""
    whole = union(events.select("ts_ns", "dur_ns", lane=pl.lit(0)), "lane")
    pieces = _pieces(results, whole, pl.lit(state))
    told = _part(results, int(pieces["dur_ns"].sum()), _recorded(results, events["thread"]))
    return Lane(label, group, "cause", pieces, f"{verb} {told}")


def _recorded(results: Results, threads: pl.Series) -> int:
    """Return for how long it is known what `threads` did, as far as the files say.

    Samples tell of every thread, slices of those of their own file.
    """
    trace, window = results.trace, results.window
    files = trace.slices.filter(pl.col("thread").is_in(threads.unique().implode()))["source"].unique()
    slices = [trace.slices.filter(pl.col("source") == file) for file in files]
    told = recorded_ns([trace.samples, *slices], window)
    return told if 0 < told < WHOLE * window.duration_ns else window.duration_ns


def _part(results: Results, ns: int, told: int) -> str:
    """Return a share of the recorded time, which is named unless it is the window."""
    window = results.window.duration_ns
    return share(ns / told) + ("" if told == window else f" ({share(told / window)} seen)")


def _server_lanes(results: Results) -> Iterator[Lane]:
    roles = results.trace.threads.select("thread", "role")
    doing = results.host_activity.join(roles, on="thread", how="left")
    not_worker = pl.col("role").ne_missing(pl.lit("worker"))
    tokenizing = doing.filter((pl.col("cause") == "tokenization") & not_worker)
    yield _one_state_lane(results, "tokenizers", "server", tokenizing, "tokenization", "busy")
    loop = _main_loop(doing.filter(pl.col("role") == "engine"))
    engine = _pieces(results, loop, _cause_or_wait())
    yield Lane(
        "engine", "server", "cause", engine, _top_cause(results, engine, _recorded(results, loop["thread"]))
    )
    sent = results.ipc.filter((pl.col("role") == "engine") & pl.col("kind").is_in(["enqueue", "send"]))
    yield _one_state_lane(results, "enqueue", "server", sent, "ipc", "sending")


def _cause_or_wait() -> pl.Expr:
    """Return the cause, with waiting for messages apart from work on them: who waits holds nobody up."""
    return pl.when(AWAITS_MESSAGE).then(pl.lit("ipc_wait")).otherwise(_cause())


def _cause() -> pl.Expr:
    return pl.col("cause").cast(pl.String).fill_null("other")


def _main_loop(activity: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the thread that does most besides waiting: an engine's others sleep in a futex."""
    works = pl.col("dur_ns").filter(pl.col("cause").ne_missing(pl.lit("ipc"))).sum()
    total = activity.group_by("thread").agg(works.alias("works"), ns=pl.col("dur_ns").sum())
    first = total.sort("works", "ns", "thread", descending=[True, True, False])["thread"].head(1)
    return activity.filter(pl.col("thread").is_in(first.implode()))


def _top_cause(results: Results, pieces: pl.DataFrame, told: int) -> str:
    total = pieces.group_by("state").agg(ns=pl.col("dur_ns").sum())
    if total.is_empty():
        return ""
    cause, ns = total.sort("ns", "state", descending=[True, False]).row(0)
    return f"{cause_name(cause)} {_part(results, ns, told)}"


def _device_lanes(results: Results) -> Iterator[Lane]:
    names, launching = gpu_names(results), launch_threads(results)
    for gpu in shown_devices(results):
        group = names.get(gpu, f"GPU #{gpu}")
        if gpu in launching:
            yield _dequeue_lane(results, launching[gpu], group)
            yield _cpu_lane(results, launching[gpu], "launch thread", group)
        yield _gpu_lane(results, gpu, group)
        lost = _pieces(results, results.lost.filter(pl.col("gpu") == gpu), _cause())
        yield Lane("lost to", group, "cause", lost, _top_cause(results, lost, results.window.duration_ns))


def _dequeue_lane(results: Results, thread: int, group: str) -> Lane:
    received = results.ipc.filter((pl.col("thread") == thread) & pl.col("kind").is_in(["dequeue", "recv"]))
    return _one_state_lane(results, "dequeue", group, received, "ipc_wait", "waiting")


def _cpu_lane(results: Results, thread: int, label: str, group: str) -> Lane:
    states = _pieces(results, results.thread_states.filter(pl.col("thread") == thread), pl.col("state"))
    return Lane(label, group, "cpu_state", states, _cpu_headline(results, states))


def _cpu_headline(results: Results, states: pl.DataFrame) -> str:
    known = 1 - time_in(results, states, "unknown")
    if states.filter(pl.col("state").is_in(OFF_CPU)).is_empty():
        return f"runs {share(known)}, else unknown"
    ready, stopped = (time_in(results, states, state) for state in WAITS_FOR_CPU)
    wants = f"wants a CPU {share(ready / known)}" if known else ""
    if not stopped:
        return wants
    return f"stopped by quota {share(stopped / known)}" + (f", {wants}" if ready / known >= 0.01 else "")


def _gpu_lane(results: Results, gpu: int, group: str) -> Lane:
    states = _pieces(results, results.gpu_states.filter(pl.col("gpu") == gpu), pl.col("state"))
    useful, idle = time_in(results, states, *USEFUL), time_in(results, states, "idle")
    return Lane("GPU", group, "gpu_state", states, f"useful {share(useful)}, busy {share(1 - idle)}")
