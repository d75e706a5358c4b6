"""The process that owns everything which could outlive a recording.

`tracelib record` starts it in a session of its own and holds the other end of its standard input: when that
end closes, for whatever reason, the recording is ended and saved. If the keeper itself is killed, the kernel
ends perf (a signal on its parent's death) and switches ftrace off (a trigger on its owner's exit), and
`tracelib record` starts a second keeper that saves and clears away. It gets its orders as one line of JSON.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tracelib.errors import BadParameter
from tracelib.record import ftrace, gpu, perf
from tracelib.record.folder import OWN_FILES, Counters, take_log, write_recording
from tracelib.record.machine import MOUNT
from tracelib.record.plan import BACKSTOP_S, Plan
from tracelib.record.processes import Workload, alive, mark
from tracelib.record.profiler import Profiler

COMPLETE, PARTLY = 0, 3
POLL_S = 0.05
STDIN = 0
#: Runs this very package: isolated (`-I`), since a recorder may be root in a folder that others can write.
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import tracelib; sys.path.append(sys.path.pop(0)); "
    "from tracelib.record.keeper import main; sys.exit(main())"
)
PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
#: End a recording early.
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

    Raises BadParameter if there is none.
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
        [*prefix, sys.executable, "-I", "-c", START, str(PACKAGE_FOLDER)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as keeper:
        assert keeper.stdin is not None
        orders = keeper.stdin

        def stop(*_: object) -> None:
            orders.close()

        orders.write(json.dumps(job).encode() + b"\n")
        orders.flush()
        before = {number: signal.signal(number, stop) for number in SIGNALS}
        try:
            return keeper.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def main() -> int:
    """Do what the line on standard input says: `{"plan": {...}}` or `{"finish": FOLDER}`."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(STDIN, 65536)
        if not byte:
            return COMPLETE  # whoever started us was killed before it gave orders
        line += byte
    job = json.loads(line)
    saved = tomllib.loads((Path(job["finish"]) / "recording.toml").read_text()) if "finish" in job else None
    if saved and alive(saved["keeper"]):
        say(f"{job['finish']} is still being recorded by process {saved['keeper']['pid']}")
        return PARTLY
    made = Plan(**(saved["plan"] if saved else job["plan"]))
    if made.mount_tracefs:
        subprocess.run(MOUNT, check=True)
    place = ftrace.tracefs()
    for left in ftrace.instances_left(place) if made.tracefs and place else ():
        if saved is None or str(left) not in str(saved["steps"]):
            _tidy(left)
    keeper = Keeper(made)
    return keeper.record() if saved is None else keeper.finish(saved)


def _tidy(left: Path) -> None:
    """Remove an instance whose owner was killed; one that resists must not keep us from recording."""
    try:
        ftrace.remove(left)
    except OSError as error:
        why = f"{error.strerror}; rmdir {left}"
        say(f"an ftrace instance whose owner was killed stays (it traces nothing): {why}")
    else:
        say(f"removed an ftrace instance whose owner was killed: {left.name}")


class Keeper:
    """Carries out one plan."""

    def __init__(self, made: Plan) -> None:
        self.made, self.folder = made, Path(made.folder)
        self.steps = planned(made)
        self.workload = Workload(made.command) if made.command else None
        self.states: dict[str, str] = dict.fromkeys(made.left_out, "left out")
        self.notes: dict[str, str] = dict(made.left_out)
        self.stopped = ""

    def record(self) -> int:
        """Record, and save whatever happens; return COMPLETE or PARTLY."""
        for number in SIGNALS:
            signal.signal(number, self._stop_early)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        pids = [self.workload.hold()] if self.workload else list(self.made.pids)
        counters = Counters(self.folder, self.made.cpus, pids, self.made.about)
        counters.take("before")
        self._log("recording")
        try:
            for step in self.steps:
                if isinstance(step, perf.Perf):
                    step.pids = pids
                self._begin(step)
            if self.workload:
                self._attempt("command", self.workload.release, "recording")
            say(f"recording for {self.made.seconds:g} s into {self.folder}")
            self._wait()
        finally:
            self._end(counters)
        return self._conclude(counters)

    def finish(self, saved: dict[str, Any]) -> int:
        """Save and clear away what a keeper that was killed has left."""
        self.stopped = "the recorder was killed"
        rows = {row["name"]: row for row in saved["steps"]}
        for step in self.steps:
            step.handle.update(rows.get(step.name, {}).get("handle", {}))
        if self.workload:
            self.workload.handle.update(rows.get("command", {}).get("handle", {}))
        self.states = {name: row["state"] for name, row in rows.items()}
        self.notes = {name: row["note"] for name, row in rows.items()}
        self._end(None)
        return self._conclude(None)

    def _stop_early(self, number: int, _: object) -> None:
        self.stopped = signal.Signals(number).name

    def _wait(self) -> None:
        """Wait for the planned end, the command's end, or the word to stop."""
        end = time.monotonic() + self.made.seconds
        while (left := end - time.monotonic()) > 0 and not self.stopped:
            if self.workload and self.workload.over():
                return
            if select.select([STDIN], [], [], min(POLL_S, left))[0]:
                self.stopped = "stopped early"

    def _end(self, counters: Counters | None) -> None:
        """Stop all recorders at once, then save, then clear away; a failure of one stops no other.

        The counters come first: a server's profiler stops only when its traces are written, minutes later.
        """
        if counters:
            self._attempt("counters", functools.partial(counters.take, "after"))
        begun = [step for step in self.steps if self.states.get(step.name, "planned") != "planned"]
        for step in reversed(begun):
            self._attempt(step.name, step.stop)
        if self.workload:
            self._attempt("command", self.workload.end, "recorded")
        self._log("saving")
        say("saving ...")
        for step in begun:
            if self.states[step.name] != "failed":
                self._attempt(step.name, step.save, "recorded")
        for step in begun:
            self._attempt(step.name, step.close)

    def _conclude(self, counters: Counters | None) -> int:
        """Write how it went; a folder in which nothing was recorded is not left behind.

        The request log comes last: requests that were under way have ended by then.
        """
        self._attempt("requests", functools.partial(take_log, self.folder, self.made.about))
        if counters:
            counters.write_run()
        state = self.stopped or "complete"
        self._log(state if state == "complete" else f"stopped early: {state}")
        failed = {name: self.notes[name] for name, state in self.states.items() if state == "failed"}
        for name, why in failed.items():
            say(f"{name} failed: {why}")
        if not any(self.states.get(step.name) == "recorded" for step in self.steps if step.name != "gpu"):
            clear(self.folder)
            say("nothing was recorded")
            return PARTLY
        return PARTLY if failed or self.stopped else COMPLETE

    def _begin(self, step: Step) -> None:
        """Start a step; write down first that it is about to start, since we can be killed in between."""
        self.states[step.name] = "starting"
        self._log("recording")
        self._attempt(step.name, step.start, "recording")

    def _attempt(self, name: str, action: Callable[[], str | None], then: str = "") -> None:
        """Do one thing of one step; the step's state notes an error of the machine, and the others go on."""
        try:
            note = action()
        except (OSError, subprocess.SubprocessError) as error:
            if self.states.get(name) != "failed":  # the first reason is the one that helps
                self.states[name], self.notes[name] = "failed", str(error)
        else:
            if then and self.states.get(name) != "failed":
                self.states[name] = then
            if note:
                self.notes[name] = note
        self._log("recording")

    def _log(self, state: str) -> None:
        owned: list[Step | Workload] = [*self.steps, *([self.workload] if self.workload else [])]
        handles = {each.name: each.handle for each in owned}
        names = [*handles, *(name for name in self.states if name not in handles)]
        steps = [
            {
                "name": name,
                "state": self.states.get(name, "planned"),
                "note": self.notes.get(name, self.made.lacks.get(name, "")),
                "handle": handles.get(name, {}),
            }
            for name in names
        ]
        content = {"state": state, "keeper": mark(os.getpid()), "steps": steps, "plan": self.made.as_json()}
        try:
            write_recording(self.folder, content)
        except OSError as error:  # a full disk must not keep us from switching things off
            say(f"recording.toml cannot be written: {error}")


def clear(folder: Path) -> None:
    """Remove our files from a folder in which nothing was recorded, and the folder if it is then empty."""
    for pattern in OWN_FILES:
        for path in folder.glob(pattern):
            path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def say(text: str) -> None:
    """Tell whoever watches; if nobody does any more, the recording must still be saved."""
    try:
        sys.stderr.write(f"tracelib: {text}\n")
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Step(Protocol):
    """One recorder."""

    name: str
    handle: dict[str, Any]

    def start(self) -> None:
        """Begin to record, or raise OSError."""

    def stop(self) -> None:
        """Stop recording at once."""

    def save(self) -> str:
        """Write what was recorded to the folder; return a note on it, if any."""

    def close(self) -> None:
        """Leave nothing behind."""


def planned(made: Plan) -> list[Step]:
    """Return a plan's steps as they start: the slowest first, so that all cover the same time."""
    folder, steps = Path(made.folder), list[Step]()
    if made.start_url:
        steps.append(Profiler(folder, made.start_url, made.stop_url, made.server_traces))
    if made.rung:
        steps.append(perf.Perf(folder, made.rung, made.cpus, made.seconds + BACKSTOP_S))
    if made.tracefs:
        steps.append(ftrace.Ftrace(folder, Path(made.tracefs), made.buffer_kb))
    if made.gpu:
        steps.append(gpu.Gpu(folder))
    return steps
