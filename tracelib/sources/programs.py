"""Programs that readers need (nsys, perf, trace-cmd), and temporary folders: none outlives its process.

A folder goes with its process, also on SIGTERM and SIGHUP; what one that was killed outright has left goes
when the next folder is made. Each is locked while its process lives (flock(2), which the kernel undoes at its
holder's death): that holds across containers, whose process ids differ.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import parent_process, resource_tracker
from pathlib import Path
from typing import IO, Any

#: Statuses as a shell gives them: stopped by a timeout, could not be started.
STOPPED, NOT_STARTED = 124, 126
PREFIX, HIDDEN = "tracelib-scratch-", ".tracelib-scratch-"
_OURS = re.compile(rf"\.?{PREFIX}\w{{8}}")
#: A folder younger than this may not be locked yet.
YOUNG_S = 2.0
#: A disk with fewer bytes free than this is the one that a failed write found full.
NEARLY_FULL = 1 << 20


def run(
    command: Sequence[str],
    out: IO[bytes],
    errors: IO[bytes],
    seconds: int,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run `command` and return its exit status, and why it did not end by itself ("" if it did).

    What it says goes to the files `out` and `errors`, not into pipes: a program that it left behind would
    keep those open. All that it started is ended with it.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        return NOT_STARTED, f"it cannot be started ({error.strerror})"
    try:
        return process.wait(seconds), ""
    except subprocess.TimeoutExpired:
        return STOPPED, f"stopped after {seconds} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder; with a `parent` a hidden one in there."""

    def __init__(self, parent: Path | None = None) -> None:
        sweep(Path(parent or tempfile.gettempdir()))
        super().__init__(prefix=HIDDEN if parent else PREFIX, dir=parent)
        self._lock = _lock(Path(self.name))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove the folder; an error that its disk is full says where, which the system does not."""
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            with contextlib.suppress(OSError):
                if shutil.disk_usage(self.name).free < NEARLY_FULL:
                    error.filename = str(Path(self.name).parent)
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder, if it is still there."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None
        with contextlib.suppress(FileNotFoundError):  # it was renamed
            super().cleanup()


def sweep(parent: Path) -> None:
    """Remove from `parent` the folders of this user's processes that were killed."""
    for folder in parent.glob(f"*{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            old = time.time() - status.st_ctime > YOUNG_S
            if not _OURS.fullmatch(folder.name) or status.st_uid != os.geteuid() or not old:
                continue
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the folder's lock, None where another has it or there are no locks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, so that it clears away; the number is told."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupted)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from worker processes that start meanwhile: modules load there before a line of ours."""
    resource_tracker.ensure_running()  # else starting it lets Ctrl-C through again
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def deaf_at_exit() -> None:
    """Let nothing interrupt this process while it ends: first of all that is done then (`atexit`)."""
    atexit.unregister(_deaf)
    atexit.register(_deaf)


def _deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def end_with_parent() -> None:
    """Let a worker process end as on SIGTERM, or when its parent is gone; Ctrl-C is the parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_after_parent, daemon=True).start()
    end_on_signals()  # last: what is raised while a pool sets up its worker is printed


def _end_after_parent() -> None:
    if parent := parent_process():
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupted(number: int, _: Any) -> None:
    if parent_process() is not None:  # a worker ends without a word
        raise SystemExit(128 + number)
    raise KeyboardInterrupt(number)
