"""What will be recorded, decided beforehand: recipes of servers, commands to print, orders to the keeper."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tracelib.data import data
from tracelib.errors import BadParameter, MissingEvents
from tracelib.record import ftrace, perf
from tracelib.record.machine import Machine, pod_lines
from tracelib.record.processes import Thread, command_line

#: What can be left out by name (`--without`).
STEPS = ("perf", "ftrace", "gpu", "profiler")
#: How long a recording lasts unless somebody says otherwise.
USUAL_S = 10.0
#: perf ends by itself this long after the planned end, in case nobody stops it.
BACKSTOP_S = 60


@dataclass(frozen=True)
class Plan:
    """One recording. An empty `rung`, `tracefs` or `start_url` is not recorded; `left_out` says why."""

    folder: str
    seconds: float
    recipe: str
    cpus: int
    pids: tuple[int, ...] = ()
    pod: str = ""  # [NAMESPACE/]NAME, whose processes `pids` are
    command: tuple[str, ...] = ()
    rung: str = ""  # of perf
    tracefs: str = ""
    mount_tracefs: bool = False
    buffer_kb: int = 0
    gpu: bool = False
    start_url: str = ""
    stop_url: str = ""
    server_traces: str = ""  # where the server's profiler writes
    left_out: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # title, ticket, roles, requests, as in run.toml
    prefix: tuple[str, ...] = ()
    recorder: str = ""  # program and version

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values; `Plan(**values)` is its inverse."""
        return asdict(self)


def plan(
    here: Machine,
    *,
    folder: Path,
    recipe_name: str,
    seconds: float | None = None,
    pids: Sequence[int] = (),
    pod: str = "",
    command: str = "",
    server: str = "",
    server_traces: str = "",
    without: Sequence[str] = (),
    about: dict[str, Any] | None = None,
    recorder: str = "",
) -> Plan:
    """Return what this machine permits of what was asked for.

    Raises BadParameter if a flag's value cannot be used; MissingEvents if nothing that a report could be made
    of can be recorded here.
    """
    chosen = recipe(recipe_name)
    if seconds is None:
        seconds = chosen.seconds if server and "profiler" not in without else USUAL_S
    _check(folder, seconds, server, without, pids, command)
    left_out = dict.fromkeys(without, "not wanted")
    rung = None
    if "perf" not in without:
        rung, refused = _rung(here, pids, command)
        left_out |= {} if rung else {"perf": refused}
    reasons = {**_impossible(here, chosen, server), **left_out}
    left_out = {name: reasons[name] for name in STEPS if name in reasons}
    if {"perf", "ftrace", "profiler"} <= set(left_out):
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise MissingEvents("a recorder that this machine permits", [], f"root, or another machine ({why})")
    return Plan(
        folder=str(folder.absolute()),
        seconds=seconds,
        recipe=chosen.name,
        cpus=here.cpus_online,
        pids=tuple(pids),
        pod=pod,
        command=tuple(shlex.split(command)),
        rung=rung.name if rung else "",
        lacks={"perf": rung.lacks} if rung and rung.lacks else {},
        tracefs=str(here.tracefs or ftrace.PLACE) if "ftrace" not in left_out else "",
        mount_tracefs=here.mounts_tracefs,
        buffer_kb=ftrace.buffer_kb(here.cpus_online, here.available_kb),
        gpu="gpu" not in left_out,
        start_url=server.rstrip("/") + chosen.start if "profiler" not in left_out else "",
        stop_url=server.rstrip("/") + chosen.stop if "profiler" not in left_out else "",
        server_traces=server_traces,
        left_out=left_out,
        about=about or {},
        prefix=tuple(here.prefix),
        recorder=recorder,
    )


def lines(made: Plan) -> Iterator[str]:
    """Yield the exact commands, for a person who wants to run them by hand, and what is left out and why."""
    chosen = recipe(made.recipe)
    if chosen.server:
        yield f"# the server, for its own profiler ({chosen.note})"
        yield chosen.server.strip()
    if made.pod:
        yield from pod_lines(made.pod, made.start_url)
    if made.start_url:
        yield "# switch its profiler on, and off after the recording"
        yield f"curl -X POST {shlex.quote(made.start_url)}"
        yield f"curl -X POST {shlex.quote(made.stop_url)}"
    if made.rung:
        yield f"# perf: {made.rung}"
        if made.command:
            yield f"# while this runs: {shlex.join(made.command)}"
        yield shlex.join(
            perf.record_command(
                perf.rung_of(made.rung),
                cpus=made.cpus,
                pids=made.pids or ["PID"],
                seconds=made.seconds,
                output="perf.data",
            )
        )
        yield f"{shlex.join(perf.script_command('perf.data'))} > perf.txt 2> perf-messages.txt"
    if made.tracefs:
        if made.mount_tracefs:
            yield "mount -t tracefs nodev /sys/kernel/tracing"
        yield "# ftrace, in an instance of its own"
        yield from ftrace.shell_lines(Path(made.tracefs), made.buffer_kb, made.seconds, "$OLDPWD/ftrace.txt")
    for name, what in made.lacks.items():
        yield f"# {name}: {what}"
    for name, why in made.left_out.items():
        yield f"# without {name}: {why}"


def _impossible(here: Machine, chosen: Recipe, server: str) -> dict[str, str]:
    """Return what cannot be recorded here, and why; perf is tried instead."""
    reasons = {}
    if not (here.mounts_tracefs or here.tracefs_writable):
        closed = f"{here.tracefs} is not writable by this user (needs root)"
        reasons["ftrace"] = closed if here.tracefs else "no tracefs is mounted"
    if here.tools["nvidia-smi"] is None:
        reasons["gpu"] = "no nvidia-smi"
    if not chosen.start:
        reasons["profiler"] = f"recipe {chosen.name} has no switch for its profiler"
    elif not server:
        reasons["profiler"] = "no --server URL"
    return reasons


def _rung(here: Machine, pids: Sequence[int], command: str) -> tuple[perf.Rung | None, str]:
    if here.tools["perf"] is None:
        return None, "perf is not installed"
    watched = list(pids) or ([os.getpid()] if command else [])
    return perf.permitted(cpus=here.cpus_online, pids=watched, prefix=here.prefix)


def _check(
    folder: Path, seconds: float, server: str, without: Sequence[str], pids: Sequence[int], command: str
) -> None:
    if not 0 < seconds <= 600:
        raise BadParameter(
            "--seconds", seconds, ["more than 0, at most 600: a short recording under load tells more"]
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadParameter("--out", folder, ["a folder that does not exist yet, or is empty"])
    if server and not _is_url(server):
        allowed = [
            "http://HOST:PORT",
            "https://HOST:PORT (no user or password: every process here can read it)",
        ]
        raise BadParameter("--server", re.sub(r"(//).*@|(\?).*", r"\1\2", server), allowed)
    for name in without:
        if name not in STEPS:
            raise BadParameter("--without", name, STEPS)
    if command and (pids or server):
        raise BadParameter("--command", command, ["--command alone", "--pid or --server of a running server"])
    if command and not shlex.split(command):
        raise BadParameter("--command", command, ["a command line"])


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port is not False
    except ValueError:
        return False
    return whole and "@" not in parts.netloc and not (parts.query or parts.fragment)


@dataclass(frozen=True)
class Recipe:
    """A server; `processes`, `commands`: patterns of their names, or command lines.

    `start`, `stop`: paths of its profiler's switch.
    """

    name: str
    processes: str
    server: str
    note: str
    commands: str = ""
    start: str = ""
    stop: str = ""
    seconds: float = USUAL_S  # with its profiler


@cache
def _recipes() -> dict[str, Recipe]:
    return {name: Recipe(name, **table) for name, table in data(__file__, "recipes.toml").items()}


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes."""
    return tuple(_recipes())


def recipe(name: str) -> Recipe:
    """Return the recipe of this name.

    Raises BadParameter if there is none.
    """
    if name not in _recipes():
        raise BadParameter("--recipe", name, recipe_names())
    return _recipes()[name]


def processes_of(
    chosen: Recipe, threads: Iterable[Thread], started_as: Callable[[int], str] = command_line
) -> list[int]:
    """Return the processes whose main thread is named as the recipe says, or that were started so; sorted."""
    if not chosen.processes:
        return []
    main = [thread for thread in threads if thread.tid == thread.pid]
    named = {thread.pid for thread in main if re.search(chosen.processes, thread.name)}
    others = [thread.pid for thread in main if thread.pid not in named and chosen.commands]
    return sorted(named | {pid for pid in others if re.search(chosen.commands, started_as(pid))})
