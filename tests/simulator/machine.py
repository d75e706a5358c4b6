"""The parts of a simulated server: threads that live on CPUs, GPU streams, and the clock that both share.

A thread's life is a list of stretches without gap. Each knows, because the simulator made it so, what the
thread was at, whether it had a CPU, and, where it waited for another thread, for which one. Nothing here
reads a trace.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

US, MS = 1_000, 1_000_000

#: Cause and sub-cause, in the words of tracelib's ledger.
Cause = tuple[str, str | None]


@dataclass(frozen=True)
class Stretch:
    """What a thread did between two moments."""

    begin: int
    end: int
    cause: Cause
    cpu: str  # running, runnable, throttled, blocked
    stack: str  # what a sample finds, a key of `perf.STACKS`
    asks: Thread | None = None  # it waits for what this thread does


@dataclass(frozen=True)
class Slice:
    """An interval that a profiler records."""

    begin: int
    end: int
    name: str
    category: str
    correlation: int | None = None


@dataclass
class Thread:
    """A host thread with its own CPU; `stops` are the times when a quota keeps the server off its CPUs."""

    name: str
    pid: int
    tid: int
    cpu: int
    stops: list[tuple[int, int]] = field(default_factory=list, repr=False)
    now: int = 0
    life: list[Stretch] = field(default_factory=list, repr=False)
    slices: list[Slice] = field(default_factory=list, repr=False)

    def run(self, ns: int, cause: Cause, stack: str) -> None:
        """Compute for `ns` of CPU time; a quota makes it take longer."""
        while ns > 0:
            self._stopped(cause, stack, None)
            here = min(ns, self._next_stop() - self.now)
            self._live(self.now + here, cause, "running", stack)
            ns -= here

    def spin(self, until: int, cause: Cause, stack: str, asks: Thread | None = None) -> None:
        """Poll until `until`; a quota may make it notice later, and then it is itself what is late."""
        while self.now < until:
            self._stopped(cause, stack, asks, until)
            self._live(min(max(until, self.now), self._next_stop()), cause, "running", stack, asks)
        self._stopped(cause, stack, None)

    def sleep(self, until: int, cause: Cause, asks: Thread | None = None) -> None:
        """Sleep until `until`, and until the quota lets it run again."""
        self._live(max(until, self.now), cause, "blocked", "asleep", asks)
        self._stopped(cause, "asleep", None)

    def preempted(self, ns: int, cause: Cause, by: Thread, doing: Cause, stack: str) -> None:
        """Be ready for `ns` while `by` has the CPU, a scheduler's slice at a time."""
        until = self.now + ns
        by.sleep(self.now, doing)
        while self.now < until:
            self._live(min(until, self.now + 4 * MS), cause, "runnable", "asleep")
            by._live(self.now, doing, "running", stack)
            self.run(5 * US, cause, "dispatch")
            if self.now < until:
                by._live(self.now, doing, "runnable", stack)

    @contextmanager
    def slice(self, name: str, category: str, correlation: int | None = None) -> Iterator[None]:
        """Record what happens inside as one slice."""
        begin = self.now
        yield
        self.slices.append(Slice(begin, self.now, name, category, correlation))

    def _live(self, until: int, cause: Cause, cpu: str, stack: str, asks: Thread | None = None) -> None:
        if until > self.now:
            self.life.append(Stretch(self.now, until, cause, cpu, stack, asks))
            self.now = until

    def _next_stop(self) -> int:
        return min((begin for begin, _ in self.stops if begin > self.now), default=2**62)

    def _stopped(self, cause: Cause, stack: str, asks: Thread | None, until: int | None = None) -> None:
        """Sit out a stop of the quota that is on; what it waited for is over at `until`."""
        for begin, end in self.stops:
            if begin <= self.now < end:
                if asks is not None and until is not None:
                    self._live(min(until, end), cause, "throttled", stack, asks)
                self._live(end, cause, "throttled", stack)


@dataclass(frozen=True)
class Launch:
    """A call that puts an operation on a GPU."""

    thread: Thread
    begin: int
    end: int
    correlation: int


@dataclass(frozen=True)
class Op:
    """An operation as it ran on a GPU; of a collective, `met` is when the last rank had come."""

    begin: int
    end: int
    name: str
    kind: str  # kernel, memcpy
    launch: Launch
    met: int | None = None


@dataclass
class Gpu:
    """One stream of one GPU."""

    rank: int
    ops: list[Op] = field(default_factory=list, repr=False)

    def ready(self, launch: Launch, latency: int, gap: int) -> int:
        """Return when an operation can start: launched, and the one before it done."""
        before = self.ops[-1].end + gap if self.ops else 0
        return max(before, launch.end + latency)
