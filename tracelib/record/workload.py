"""The command that is recorded: held back until every recorder runs, and ended with the recording."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracelib.record.children import alive, child, mark

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Workload"]

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

        Raises
        ------
        OSError
            It ended by itself, with an error.

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
