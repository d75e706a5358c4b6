"""The simulator's own bookkeeping: what held each GPU up, and for how long.

It follows who waited for whom as the simulator played it, thread by thread. It reads no trace and none of
tracelib's code; only the words for causes are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulator.machine import Cause, Gpu, Op, Stretch, Thread

LATENCY: Cause = ("kernel_launch", "latency")
IMBALANCE: Cause = ("imbalance", None)


@dataclass(frozen=True)
class Piece:
    """A stretch of lost time of one GPU."""

    rank: int
    begin: int
    end: int
    lost: str  # idle, collective_wait
    cause: Cause
    cpu: str


@dataclass(frozen=True)
class Truth:
    """What held the GPUs up in `[start, end)`, piece by piece."""

    start: int
    end: int
    ranks: int
    pieces: tuple[Piece, ...]

    @property
    def duration(self) -> int:
        """Length of the window in ns."""
        return self.end - self.start

    def by_cause(self, rank: int | None = None) -> Counter[Cause]:
        """Return lost ns by cause, of one GPU or of all together."""
        spent: Counter[Cause] = Counter()
        for piece in self.pieces:
            if rank in (None, piece.rank):
                spent[piece.cause] += piece.end - piece.begin
        return spent

    def by_cpu(self, rank: int | None = None) -> Counter[str]:
        """Return lost ns by the CPU state of the thread that held the GPU up."""
        spent: Counter[str] = Counter()
        for piece in self.pieces:
            if rank in (None, piece.rank):
                spent[piece.cpu] += piece.end - piece.begin
        return spent

    def share(self, cause: Cause) -> float:
        """Return what a cause took of the window, mean over the GPUs."""
        return self.by_cause()[cause] / (self.duration * self.ranks)


def truth(gpus: Sequence[Gpu]) -> Truth:
    """Return what held `gpus` up while all of them had begun and none had ended."""
    start = max(gpu.ops[0].begin for gpu in gpus)
    end = min(gpu.ops[-1].end for gpu in gpus)
    idle = {gpu.rank: list(_idle(gpu)) for gpu in gpus}
    pieces = [*(piece for rank in idle.values() for piece in rank), *_waits(gpus, idle)]
    cut = [p for piece in pieces if (p := _clipped(piece, start, end, piece.rank, piece.lost))]
    return Truth(start, end, len(gpus), tuple(cut))


def _clipped(piece: Piece, begin: int, end: int, rank: int, lost: str) -> Piece | None:
    first, last = max(piece.begin, begin), min(piece.end, end)
    return Piece(rank, first, last, lost, piece.cause, piece.cpu) if first < last else None


def _idle(gpu: Gpu) -> Iterator[Piece]:
    """Until the launch call returned it was its thread, or whom that waited for; then the device itself."""
    for before, op in pairwise(gpu.ops):
        returned = min(max(op.launch.end, before.end), op.begin)
        for begin, end, cause, cpu in held_up(op.launch.thread, before.end, returned):
            yield Piece(gpu.rank, begin, end, "idle", cause, cpu)
        for begin, end, stretch in _lived(op.launch.thread, returned, op.begin):
            yield Piece(gpu.rank, begin, end, "idle", LATENCY, stretch.cpu)


def held_up(thread: Thread, begin: int, end: int) -> Iterator[tuple[int, int, Cause, str]]:
    """Return who held things up, seen from `thread`: itself, or the thread that it waits for then."""
    for first, last, stretch in _lived(thread, begin, end):
        if stretch.asks is not None:
            yield from held_up(stretch.asks, first, last)
        else:
            yield first, last, stretch.cause, stretch.cpu


def _lived(thread: Thread, begin: int, end: int) -> Iterator[tuple[int, int, Stretch]]:
    at = max(0, bisect_right(thread.life, begin, key=lambda s: s.begin) - 1)
    while at < len(thread.life) and thread.life[at].begin < end:
        stretch = thread.life[at]
        first, last = max(begin, stretch.begin), min(end, stretch.end)
        if first < last:
            yield first, last, stretch
        at += 1


def _waits(gpus: Sequence[Gpu], idle: dict[int, list[Piece]]) -> Iterator[Piece]:
    """A rank waits in a collective for the last one to come: its computing, or what held that up."""
    for group in zip(*([op for op in gpu.ops if op.met is not None] for gpu in gpus), strict=True):
        last = max(range(len(gpus)), key=lambda n: (group[n].begin, n))
        for gpu, op in zip(gpus, group, strict=True):
            yield from _wait(gpu.rank, op, gpus[last], idle[gpus[last].rank])


def _wait(rank: int, op: Op, straggler: Gpu, straggler_idle: list[Piece]) -> Iterator[Piece]:
    until = min(op.met or op.begin, op.end)
    at = max(0, bisect_right(straggler_idle, op.begin, key=lambda p: p.begin) - 1)
    while at < len(straggler_idle) and straggler_idle[at].begin < until:
        piece = _clipped(straggler_idle[at], op.begin, until, rank, "collective_wait")
        if piece:
            yield piece
        at += 1
    first = bisect_right(straggler.ops, op.begin, key=lambda o: o.begin) - 1
    for other in straggler.ops[max(0, first) :]:
        if other.begin >= until:
            return
        begin, end = max(other.begin, op.begin), min(other.end, until)
        if begin < end:
            yield Piece(rank, begin, end, "collective_wait", IMBALANCE, "unknown")
