"""The commands for a machine that runs a server now: record it, or say whether its CPUs are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib import __version__
from tracelib.cli_flags import PART_FAILED, listed, one_line, pair
from tracelib.errors import BadParameter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Command = Callable[[str, str, str], argparse.ArgumentParser]

__all__ = ["add_recording"]

_RECORD_HELP = """\
Record traces that answer the question: perf and ftrace (one clock, nothing thinned out), the kernel's counters, GPU samples, and
the server's own profiler where its URL is given. Without --go it says what this machine permits and prints the exact commands.

examples:
  tracelib record --recipe vllm --server http://localhost:8000 --server-traces /abs/traces --out run1        # look first
  tracelib record --recipe vllm --server http://localhost:8000 --server-traces /abs/traces --out run1 --go
  tracelib record --recipe generic --pid 4711 --seconds 5 --out run2 --go
  tracelib record --recipe generic --command 'python serve.py' --out run3 --go
  tracelib report run1

Nothing is left switched on, also if the recorder is killed. A command is started when all recorders run; it is ended (SIGTERM to
its process group, SIGKILL after 10 s) with the recording.

exit status: 0 recorded as planned; 2 usage error, or nothing can be recorded here; 3 something is missing (named), or it was
stopped early."""

_CHECK_HELP = """\
Say in ten seconds, without tracing anything, whether this server is short of CPUs: pressure, run queue, quota, threads that
fill a core, and how busy the GPUs are meanwhile. Needs no rights beyond reading /proc.

examples:
  tracelib check                                 the whole machine (in a container: what /proc shows there)
  tracelib check --pid 4711                      one server: the process and all that descend from it
  tracelib check --json --seconds 30             for a program
  tracelib check > /dev/null || mail -s 'CPUs are short' ops < /dev/null

exit status: 0 no state named by --fail-on (default: throttled,cpu_shortage); 1 one of them; 2 usage error;
3 this machine does not tell. States: throttled, cpu_shortage, idle, thread_saturated, enough_cpu, not_measured."""


def add_recording(command: Command) -> None:
    """Add the commands by `command(name, summary, text)`."""
    _add_record(command)
    _add_check(command)


def _add_record(command_of: Command) -> None:
    command = command_of("record", "record traces that answer the question", _RECORD_HELP)
    command.add_argument(
        "--recipe", default="generic", metavar="NAME", help="vllm, sglang, trtllm, torch or generic (default)"
    )
    command.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        help="of the server; can be repeated (default: found by the recipe)",
    )
    command.add_argument(
        "--command", default="", metavar="COMMAND", help="start and record this instead of a running server"
    )
    command.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="at most (default 10); a command can end sooner",
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet, or is empty"
    )
    command.add_argument(
        "--server", default="", metavar="URL", help="of the server, to switch its own profiler"
    )
    command.add_argument(
        "--server-traces",
        default="",
        metavar="DIR",
        help="where the server's profiler writes; copied to --out",
    )
    command.add_argument(
        "--without",
        default="",
        metavar="NAMES",
        help="leave out: perf, ftrace, gpu, profiler (comma-separated)",
    )
    command.add_argument(
        "--requests", default="", metavar="FILE", help="request log in --out, named in run.toml"
    )
    command.add_argument(
        "--requests-clock", default="realtime", metavar="CLOCK", help="of that log (default realtime)"
    )
    command.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="PATTERN=ROLE",
        help="as in tracelib report; kept in run.toml",
    )
    command.add_argument("--title", default="", help="kept in run.toml")
    command.add_argument("--ticket", default="", metavar="ID", help="kept in run.toml")
    command.add_argument("--go", action="store_true", help="record (otherwise: say what would be done)")
    command.add_argument(
        "--finish", action="store_true", help="save and clear away what killed recorders have left in --out"
    )
    command.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> int:
    from tracelib.record import machine, plan, recipes, recorder
    from tracelib.record.proc import descendants, existing, threads

    if options.finish:
        return recorder.finish(recorder.unfinished(options.out))
    chosen = recipes.recipe(options.recipe)
    named = options.pid or ([] if options.command else recipes.processes_of(chosen, threads().values()))
    pids = [*existing(named), *sorted(set(descendants(named)) - set(named))]
    found = machine.machine(pids)
    print("\n".join(["this machine", *map(one_line, machine.lines(found))]))
    made = plan.plan(
        found,
        folder=options.out,
        seconds=options.seconds,
        recipe_name=options.recipe,
        pids=pids,
        command=options.command,
        server=options.server,
        server_traces=options.server_traces,
        without=listed(options.without, "--without", plan.STEPS),
        about=_about(options),
        recorder=f"tracelib {__version__}",
    )
    print("\n".join(["", *map(one_line, plan.lines(made))]))
    if chosen.processes and not (pids or options.command or options.server):
        _no_server(options, chosen.processes)
    if not options.go:
        print("\nNothing was recorded: add --go.")
        return 0
    return recorder.record(made)


def _no_server(options: argparse.Namespace, processes: str) -> None:
    """Say before the recording, not after it, that there is nobody to record."""
    missing = f"a recipe whose server runs here (no process is named {processes}, as this one's)"
    if options.go:
        raise BadParameter(
            "--recipe", options.recipe, [missing, "--pid, --command or --server beside it", "generic"]
        )
    print(f"\n--recipe {options.recipe}: no process is named {processes}; start the server, or give --pid.")


def _about(options: argparse.Namespace) -> dict[str, Any]:
    log = {"file": options.requests, "clock": options.requests_clock} if options.requests else {}
    roles = dict(pair(text, "--role") for text in options.role)
    return {"title": options.title, "ticket": options.ticket, "roles": roles, "requests": log}


def _add_check(command_of: Command) -> None:
    command = command_of("check", "say whether CPUs are short, now, without tracing", _CHECK_HELP)
    command.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="how long to watch (default 10)"
    )
    command.add_argument(
        "--pid",
        type=int,
        action="append",
        metavar="PID",
        help="only this process and its descendants; can be repeated",
    )
    command.add_argument(
        "--shortage",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="pressure from which CPUs count as short (default 0.1)",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--fail-on", default="throttled,cpu_shortage", metavar="STATES", help="states that give exit status 1"
    )
    command.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from tracelib.record.check import check
    from tracelib.record.verdict import STATES, lines

    failing = listed(options.fail_on, "--fail-on", STATES)
    if not 0 < options.seconds <= 3600:
        raise BadParameter("--seconds", options.seconds, ["more than 0, at most 3600"])
    verdict = check(seconds=options.seconds, pids=options.pid, shortage=options.shortage)
    if options.json:
        print(json.dumps(verdict.as_json()))
    else:
        print("\n".join(map(one_line, lines(verdict))))
    if verdict.state == "not_measured":
        return PART_FAILED
    return int(verdict.state in failing)
