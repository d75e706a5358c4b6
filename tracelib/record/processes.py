"""What the kernel counts of each thread, and processes of our own that must not stay behind."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracelib.errors import BadParameter

PROC = Path("/proc")
#: Fields of /proc/PID/stat behind the name, counted from the state (proc_pid_stat(5): fields 3, 4 and 22).
STATE, PARENT, START = 0, 1, 19
DEAD, RUNNABLE = "ZX", "R"


@dataclass(frozen=True)
class Thread:
    """One thread's counters since it began, in ns, from /proc/PID/task/TID/schedstat.

    `wait_ns` is the kernel's run delay: the time in which it was on a run queue and not on a CPU. The time
    for which a quota stopped it is part of that, but a wait is counted only when it ends. `start` (clock
    ticks since boot) tells two threads of one id apart. `yields` counts how often it gave up its CPU by
    itself (to sleep, mostly); it is read of threads that are runnable at this moment, and None for the
    others.
    """

    pid: int
    tid: int
    name: str
    start: int
    run_ns: int
    wait_ns: int
    yields: int | None = None


def threads(pids: Iterable[int] | None = None, proc: Path = PROC) -> dict[int, Thread]:
    """Return the threads of `pids` (default: of every process that /proc shows) by thread id.

    Threads that end while this reads are left out: they have no counters any more.
    """
    by_id: dict[int, Thread] = {}
    for pid in _all_pids(proc) if pids is None else pids:
        for tid in _numbers(proc / str(pid) / "task"):
            thread = _thread(proc / str(pid) / "task" / str(tid), pid, tid)
            if thread is not None:
                by_id[tid] = thread
    return by_id


def descendants(pids: Iterable[int], proc: Path = PROC) -> list[int]:
    """Return those of `pids` that exist, and all processes that descend from them, sorted."""
    parents = {pid: _parent(proc / str(pid)) for pid in _all_pids(proc)}
    family = set(pids) & set(parents)
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sorted(family)


def existing(pids: Iterable[int], proc: Path = PROC) -> list[int]:
    """Return `pids`.

    Raises BadParameter if one of them is not a running process.
    """
    ids = list(pids)
    for pid in ids:
        if start_time(pid, proc) is None:
            raise BadParameter("--pid", pid, ["ids of running processes"])
    return ids


def allowed_cpus(tids: Iterable[int]) -> set[int]:
    """Return the CPUs that at least one of the threads may run on."""
    allowed: set[int] = set()
    for tid in tids:
        try:
            allowed |= os.sched_getaffinity(tid)
        except ProcessLookupError:
            continue  # it has ended: it runs nowhere
    return allowed


def start_time(pid: int, proc: Path = PROC) -> int | None:
    """Return when the process began in clock ticks since boot, None if it does not exist (or is a zombie)."""
    fields = _stat(proc / str(pid))
    return None if fields is None or fields[1][STATE] in DEAD else int(fields[1][START])


def command_line(pid: int, proc: Path = PROC) -> str:
    """Return what the process was started as, arguments apart by blanks; "" if that cannot be read."""
    return (text(proc / str(pid) / "cmdline") or "").replace("\0", " ").strip()


def outside_ids(pids: Iterable[int], proc: Path = PROC) -> dict[int, int]:
    """Return id inside a container -> id here, for every thread that has two.

    From `NSpid` of /proc/PID/task/TID/status (Linux 4.1). Ids that several containers use are left out: a map
    of them would be a guess.
    """
    pairs = [pair for pid in pids for pair in _nested_ids(proc / str(pid) / "task")]
    uses: dict[int, set[int]] = {}
    for inside, outside in pairs:
        uses.setdefault(inside, set()).add(outside)
    return {inside: outside.pop() for inside, outside in sorted(uses.items()) if len(outside) == 1}


def _nested_ids(tasks: Path) -> Iterator[tuple[int, int]]:
    for tid in _numbers(tasks):
        status = text(tasks / str(tid) / "status") or ""
        line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
        ids = [int(word) for word in line.split()[1:]]
        if len(ids) > 1:
            yield ids[-1], ids[0]


def _all_pids(proc: Path) -> list[int]:
    return _numbers(proc)


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return []


def _parent(folder: Path) -> int | None:
    fields = _stat(folder)
    return None if fields is None else int(fields[1][PARENT])


def _thread(folder: Path, pid: int, tid: int) -> Thread | None:
    fields, counters = _stat(folder), text(folder / "schedstat")
    if fields is None or counters is None or fields[1][STATE] in DEAD:
        return None
    run_ns, wait_ns, _ = counters.split()
    yields = _yields(folder) if fields[1][STATE] == RUNNABLE else None
    return Thread(pid, tid, fields[0], int(fields[1][START]), int(run_ns), int(wait_ns), yields)


def _yields(folder: Path) -> int | None:
    lines = (text(folder / "status") or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches:")), None)


def _stat(folder: Path) -> tuple[str, list[str]] | None:
    """Return the name and the fields after it; a name may hold brackets, so the last one ends it."""
    stat = text(folder / "stat")
    if not stat:
        return None
    begin, end = stat.index("("), stat.rindex(")")
    return stat[begin + 1 : end], stat[end + 2 :].split()


def text(path: Path) -> str | None:
    """Return the text of a file of the kernel; None if it is not there, not counted, or not for this user."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


PR_SET_PDEATHSIG = 1  # prctl(2)
POLL_S = 0.05


def child(command: Sequence[str], *, death: signal.Signals, **popen: Any) -> subprocess.Popen[bytes]:
    """Start a program that the kernel sends `death` when this process dies, however it dies.

    The caller must be a process with one thread: the signal comes when the *thread* that started the program
    ends.
    """
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, death)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), signal.SIGKILL)

    return subprocess.Popen(command, preexec_fn=tie, **popen)  # noqa: PLW1509  (one thread, see above)


def mark(pid: int) -> dict[str, int]:
    """Return what distinguishes this process from a later one of the same id: its id and when it began."""
    return {"pid": pid, "start": start_time(pid) or 0}


def alive(marked: dict[str, int]) -> bool:
    """Say whether exactly that process still runs."""
    return bool(marked) and start_time(marked["pid"]) == marked["start"]


def ended(marked: dict[str, int], *signals: signal.Signals, patience_s: float = 10.0) -> bool:
    """Send the signals, one after the other, until the process has ended; say whether it has."""
    for number in signals:
        if not alive(marked):
            return True
        try:
            os.kill(marked["pid"], number)
        except ProcessLookupError:
            return True
        limit = time.monotonic() + patience_s
        while alive(marked) and time.monotonic() < limit:
            time.sleep(POLL_S)
    return not alive(marked)


#: A shell waits for one line, then becomes the command: its process id is known before it does anything.
GATE = ('read go && exec "$@" < /dev/null', "tracelib-gate")
PATIENCE_S = 10.0


@dataclass
class Workload:
    """A command in a process group of its own; it gets SIGTERM if its parent dies."""

    command: Sequence[str]
    name: str = "command"
    handle: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def hold(self) -> int:
        """Start the gate and return the id that the command will have."""
        self._process = child(
            ["sh", "-c", *GATE, *self.command],
            death=signal.SIGTERM,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self.handle.update(mark(self._process.pid))
        return self._process.pid

    def release(self) -> None:
        """Let the command begin."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"go\n")
            self._process.stdin.close()
        except BrokenPipeError as error:
            raise OSError("the command was ended before it began") from error

    def over(self) -> bool:
        """Say whether the command has ended by itself."""
        return not alive(self.handle)

    def end(self) -> str:
        """End what still runs of its process group; return how the command ended.

        Raises OSError if it ended by itself, with an error.
        """
        by_us = not self.over()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not _signalled(self.handle.get("pid", 0), number):
                break
            limit = time.monotonic() + PATIENCE_S
            while alive(self.handle) and time.monotonic() < limit:
                time.sleep(0.05)
        status = self._process.wait() if self._process is not None else None
        if by_us or status is None:
            return "ended with the recording"
        if status:
            raise OSError(f"the command ended with status {status}")
        return "ended by itself"


def _signalled(group: int, number: signal.Signals) -> bool:
    """Signal a process group; say whether there was anybody in it."""
    if group <= 1:
        return False
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
