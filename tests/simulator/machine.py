"""The parts of a simulated server: threads that live on CPUs, GPU streams, and the clock that both share.

A thread's life is a list of stretches without gap: whether it had a CPU, and what a sample would find.
Nothing here knows a cause, and nothing reads a trace.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Stretch:
    """What a thread did between two moments."""

    begin: int
    end: int
    cpu: str  # running, runnable, throttled, blocked
    stack: str  # what a sample finds, a key of `perf.STACKS`


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
    """A host thread with a CPU of its own; `stops` are when a quota keeps the server off its CPUs."""

    name: str
    pid: int
    tid: int
    cpu: int
    process: str
    stops: list[tuple[int, int]] = field(default_factory=list, repr=False)
    now: int = 0
    life: list[Stretch] = field(default_factory=list, repr=False)
    slices: list[Slice] = field(default_factory=list, repr=False)

    def run(self, ns: int, stack: str) -> None:
        """Compute for `ns` of CPU time; a quota makes it take longer."""
        while ns > 0:
            self._stopped(stack)
            here = min(ns, self._next_stop() - self.now)
            self._live(self.now + here, "running", stack)
            ns -= here

    def spin(self, until: int, stack: str) -> None:
        """Poll until `until`; a quota may make it notice later."""
        while self.now < until:
            self._stopped(stack)
            self._live(min(until, self._next_stop()), "running", stack)
        self._stopped(stack)

    def sleep(self, until: int) -> None:
        """Sleep until `until`, and until the quota lets it run again."""
        self._live(until, "blocked", "asleep")
        self._stopped("asleep")

    def block(self, until: int) -> None:
        """Go to sleep until `until`."""
        if until > self.now + 2 * US:
            self.run(2 * US, "python")
        self.sleep(until)

    def preempted(self, ns: int, by: Thread, stack: str) -> None:
        """Be ready for `ns` while `by` has the CPU, a scheduler's slice at a time."""
        until = self.now + ns
        by.sleep(self.now)
        while self.now < until:
            self._live(min(until, self.now + 4 * MS), "runnable", "asleep")
            by._live(self.now, "running", stack)
            self.run(5 * US, "dispatch")
            if self.now < until:
                by._live(self.now, "runnable", stack)

    @contextmanager
    def slice(self, name: str, category: str, correlation: int | None = None) -> Iterator[None]:
        """Record what happens inside as one slice."""
        begin = self.now
        yield
        self.slices.append(Slice(begin, self.now, name, category, correlation))

    def _live(self, until: int, cpu: str, stack: str) -> None:
        if until > self.now:
            self.life.append(Stretch(self.now, until, cpu, stack))
            self.now = until

    def _next_stop(self) -> int:
        return min((begin for begin, _ in self.stops if begin > self.now), default=2**62)

    def _stopped(self, stack: str) -> None:
        """Sit out a stop of the quota that is on."""
        for begin, end in self.stops:
            if begin <= self.now < end:
                self._live(end, "throttled", stack)


@dataclass(frozen=True)
class Launch:
    """A call that puts an operation on a GPU."""

    begin: int
    end: int
    correlation: int


@dataclass(frozen=True)
class Op:
    """An operation as it ran on a GPU in a step; `met` is when the last rank it needs had come."""

    step: int
    begin: int
    end: int
    name: str
    launch: Launch
    met: int | None = None

    @property
    def useful(self) -> int:
        """Length in ns, without the time in which it waited for other ranks."""
        return self.end - max(self.begin, self.met or 0)


@dataclass
class Gpu:
    """One stream of one GPU."""

    rank: int
    ops: list[Op] = field(default_factory=list, repr=False)

    def ready(self, launch: Launch, latency: int, gap: int) -> int:
        """Return when an operation can start: launched, and the one before it done."""
        before = self.ops[-1].end + gap if self.ops else 0
        return max(before, launch.end + latency)
