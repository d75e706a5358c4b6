"""`tracelib record --go`: starts the keeper, waits for it, and has its work finished if it was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tracelib.errors import BadParameter
from tracelib.record.keeper import COMPLETE, PARTLY, clear
from tracelib.record.plan import Plan

__all__ = ["finish", "record", "unfinished"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def record(made: Plan) -> int:
    """Carry out a plan; return 0 (complete) or 3 (something is missing, and named).

    SIGINT, SIGTERM and SIGHUP end the recording early; it is saved.
    """
    status = _kept({"plan": made.as_json()}, made.prefix)
    if status in (COMPLETE, PARTLY):
        return status
    if not (Path(made.folder) / "recording.toml").exists():  # it was killed before it had begun
        clear(Path(made.folder))
        return PARTLY
    sys.stderr.write(f"tracelib: the recorder was killed (status {status}); saving what it recorded\n")
    return finish(made)


def finish(made: Plan) -> int:
    """Save and clear away what killed recorders have left of this plan."""
    _kept({"finish": made.folder}, made.prefix)
    return PARTLY


def unfinished(folder: Path) -> Plan:
    """Return the plan of a recording that was begun in this folder.

    Raises
    ------
    BadParameter
        There is none.

    """
    path = folder / "recording.toml"
    if not path.is_file():
        raise BadParameter(
            "--out", folder, ["a folder with the recording.toml of a recorder that was killed"]
        )
    return Plan(**tomllib.loads(path.read_text())["plan"])


def _kept(job: dict[str, Any], prefix: tuple[str, ...]) -> int:
    """Run a keeper in a session of its own; the signals that would end us end its recording instead."""
    with subprocess.Popen(
        [*prefix, sys.executable, "-m", "tracelib.record.keeper"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        told = keeper.stdin

        def stop(*_: object) -> None:
            told.close()

        told.write(json.dumps(job).encode() + b"\n")
        told.flush()
        before = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            return keeper.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
