"""How a profiler's clock compares to the scheduler's by when threads were busy, to a millisecond.

A thread does things while it runs: what a profiler saw it begin and end rises and falls with its time on a
CPU, as switches or mere samples tell it. The shift at which all threads' two histories go together best is
the one between the clocks, if no other does nearly as well. It needs neither a header nor a thread that was
provably off.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracelib.align.anchors import Fit
from tracelib.schema import IDLE
from tracelib.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: The histories' steps; a long run has wider ones.
STEP_NS, STEPS = 200_000, 1 << 20
#: A thread of which either side saw less than this tells nothing.
ENOUGH = 30
#: The best shift stands out of all by so many deviations, and another reaches less than this part of it.
DEVIATIONS, RIVAL = 8, 0.7
#: Shifts this near are the same answer.
NEAR_NS = 8_000_000


def on_cpu(trace: Trace) -> pl.DataFrame:
    """Return when threads ran, by switches: tid, begin, end. It lasts to the next switch of the CPU."""
    switches = trace.sched.filter(pl.col("event") == "switch").sort("cpu", "ts_ns")
    runs = switches.select(
        thread="next", begin="ts_ns", end=pl.col("ts_ns").shift(-1).over("cpu")
    ).drop_nulls()
    return _named(trace, runs.filter(pl.col("thread") != IDLE))


def sampled(trace: Trace) -> pl.DataFrame:
    """Return when threads ran, by samples: tid, begin, end. One stands for a step."""
    return _named(trace, trace.samples.select("thread", begin="ts_ns", end=pl.col("ts_ns") + STEP_NS))


def _named(trace: Trace, runs: pl.DataFrame) -> pl.DataFrame:
    return runs.join(trace.threads.select("thread", "tid"), on="thread").select("tid", "begin", "end")


def rhythm_fit(ran: pl.DataFrame, did: pl.DataFrame) -> Fit | None:
    """Return how the clock of `did` (`tid`, `at`) maps to that of `ran` (`tid`, `begin`, `end`), or None."""
    if ran.is_empty() or did.is_empty():
        return None
    zero, start = int(ran["begin"].min()), int(did["at"].min())  # type: ignore[arg-type]
    spans = int(ran["end"].max()) - zero, int(did["at"].max()) - start  # type: ignore[arg-type]
    step = max(STEP_NS, sum(spans) // STEPS)
    sizes = [span // step + 2 for span in spans]
    total, events = _together(ran, did, (zero, start), sizes, step)
    if total is None:
        return None
    best = int(np.argmax(total))
    near = _around(best, max(1, NEAR_NS // step), len(total))
    outside = np.ones(len(total), dtype=bool)
    outside[near] = False
    stands_out = total[best] > DEVIATIONS * total.std()
    if not stands_out or not outside.any() or total[outside].max() > RIVAL * total[best]:
        return None
    lag = best if best < sizes[0] else best - len(total)
    error = step * (1 + int((total[near] > RIVAL * total[best]).sum()))
    return Fit(zero - start + lag * step, 0, start + spans[1] // 2, events, error // 2, error, error)


def _around(best: int, reach: int, size: int) -> Ints:
    return np.unique(np.arange(best - reach, best + reach + 1) % size)


def _together(
    ran: pl.DataFrame, did: pl.DataFrame, starts: tuple[int, int], sizes: list[int], step: int
) -> tuple[Floats | None, int]:
    """Return how well the two histories of all threads go together at each shift, and by how many events."""
    length = 1 << sum(sizes).bit_length()
    total, events = np.zeros(length), 0
    for tid in sorted(set(ran["tid"].unique()) & set(did["tid"].unique())):
        runs, at = ran.filter(pl.col("tid") == tid), did.filter(pl.col("tid") == tid)["at"].to_numpy()
        if min(runs.height, len(at)) < ENOUGH:
            continue
        busy = _share_of_steps(runs, starts[0], sizes[0], step)
        active = np.zeros(sizes[1])
        active[(at - starts[1]) // step] = 1
        scale = float(busy.std() * active.std()) * min(sizes) ** 0.5
        if scale:
            spectra = [np.fft.rfft(history - history.mean(), length) for history in (busy, active)]
            total += np.fft.irfft(spectra[0] * np.conj(spectra[1]), length) / scale
            events += len(at)
    return (total if events else None), events


def _share_of_steps(runs: pl.DataFrame, start: int, size: int, step: int) -> Floats:
    """Return which share of each step the thread ran, at most all of it."""
    edges = [(runs[name].to_numpy() - start) / step for name in ("begin", "end")]
    # The integral of the time run, at whole steps: what began before, less what ended before.
    at = np.arange(size + 1)
    until = [_integral(np.sort(edge), at) for edge in edges]
    return np.minimum(np.diff(until[0] - until[1]), 1.0)


def _integral(edges: Floats, at: Ints) -> Floats:
    """Return the sum over `edges` of how far each lies before a step, for every step."""
    before = np.searchsorted(edges, at)
    sums: Floats = np.concatenate([[0.0], np.cumsum(edges)])
    return np.asarray(before * at - sums[before])
