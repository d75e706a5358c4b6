"""The commands for a machine that runs a server now: record it, or say whether its CPUs are short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib import __version__
from tracelib.cli.flags import PART_FAILED, add_options, listed, options_of
from tracelib.errors import BadParameter
from tracelib.words import plain

if TYPE_CHECKING:
    import argparse

    from tracelib.cli.flags import Command
    from tracelib.options import Options

_RECORD_HELP = """\
Record traces that answer the question: perf and ftrace (one clock, nothing thinned out), the kernel's
counters, GPU samples, and the server's own profiler where its URL is given. Without --go it says what this
machine permits and prints the exact commands.

examples:
  tracelib record --recipe vllm --server http://localhost:8000 --server-traces /abs/traces --out run1   # look
  tracelib record --recipe vllm --server http://localhost:8000 --server-traces /abs/traces --out run1 --go
  tracelib record --recipe generic --pid 4711 --seconds 5 --out run2 --go
  tracelib record --recipe generic --command 'python serve.py' --out run3 --go
  tracelib report run1

Nothing is left switched on, even if the recorder is killed. A command starts when all recorders run and
ends with the recording (SIGTERM to its process group, SIGKILL after 10 s).

exit status: 0 recorded as planned; 2 usage error, or nothing can be recorded here; 3 something is missing
(named), or it was stopped early."""

_CHECK_HELP = """\
Say in ten seconds, without tracing anything, whether this server is short of CPUs: pressure, run queue,
quota, threads that fill a core, and how busy the GPUs are meanwhile. Needs no rights beyond reading /proc.

examples:
  tracelib check                                 the whole machine (in a container: what /proc shows there)
  tracelib check --pid 4711                      one server: the process and all that descend from it
  tracelib check --json --seconds 30             for a program
  tracelib check > /dev/null || mail -s 'CPUs are short' ops < /dev/null

exit status: 0 no state named by --fail-on (default: throttled,cpu_shortage); 1 one of them; 2 usage error;
3 this machine does not count it.
states: throttled, cpu_shortage, idle, thread_saturated, enough_cpu, not_measured"""


def add_commands(command: Command) -> None:
    """Add record and check."""
    _add_record(command("record", "record traces that answer the question", _RECORD_HELP))
    _add_check(command("check", "say whether CPUs are short, now, without tracing", _CHECK_HELP))


def _add_record(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--recipe", default="generic", metavar="NAME", help="vllm, sglang, trtllm, torch or generic (default)"
    )
    command.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        help="process id of the server; can be repeated (default: found by the recipe)",
    )
    command.add_argument(
        "--command", default="", metavar="COMMAND", help="start and record this instead of a running server"
    )
    command.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="how long at most (default 10); a command can end sooner",
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a folder that does not exist yet, or is empty"
    )
    command.add_argument(
        "--server", default="", metavar="URL", help="the server's URL, to switch its own profiler"
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
        "--requests",
        default="",
        metavar="FILE",
        help="a request log that will lie in --out; kept in run.toml",
    )
    command.add_argument(
        "--requests-clock",
        default="realtime",
        metavar="CLOCK",
        help="the clock of that log (default realtime); kept in run.toml",
    )
    add_options(command, "record", "kept in run.toml")
    command.add_argument("--go", action="store_true", help="record (otherwise: say what would be done)")
    command.add_argument(
        "--finish", action="store_true", help="save and clear away what a killed recorder left in --out"
    )
    command.set_defaults(run=_record)


def _record(flags: argparse.Namespace) -> int:
    from tracelib.record import keeper, machine, plan
    from tracelib.record.processes import descendants, existing, threads

    if flags.finish:
        return keeper.finish(keeper.unfinished(flags.out))
    chosen = plan.recipe(flags.recipe)
    named = flags.pid or ([] if flags.command else plan.processes_of(chosen, threads().values()))
    pids = [*existing(named), *sorted(set(descendants(named)) - set(named))]
    here = machine.machine(pids)
    print("\n".join(["this machine", *map(plain, machine.lines(here))]))
    made = plan.plan(
        here,
        folder=flags.out,
        seconds=flags.seconds,
        recipe_name=flags.recipe,
        pids=pids,
        command=flags.command,
        server=flags.server,
        server_traces=flags.server_traces,
        without=listed(flags.without, "--without", plan.STEPS),
        about=_about(options_of(flags)),
        recorder=f"tracelib {__version__}",
    )
    print("\n".join(["", *map(plain, plan.lines(made))]))
    if chosen.processes and not (pids or flags.command or flags.server):
        _no_server(flags, chosen.processes)
    if not flags.go:
        print("\nNothing was recorded: add --go.")
        return 0
    return keeper.record(made)


def _no_server(flags: argparse.Namespace, processes: str) -> None:
    """Say before the recording, not after it, that there is nothing to record."""
    missing = f"a recipe whose server runs here (no process is named {processes}, as this one's)"
    if flags.go:
        raise BadParameter(
            "--recipe", flags.recipe, [missing, "--pid, --command or --server with it", "generic"]
        )
    print(f"\n--recipe {flags.recipe}: no process is named {processes}; start the server, or give --pid.")


def _about(options: Options) -> dict[str, Any]:
    log = {"file": options.requests, "clock": options.requests_clock} if options.requests else {}
    return {"title": options.title, "ticket": options.ticket, "roles": options.roles, "requests": log}


def _add_check(command: argparse.ArgumentParser) -> None:
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


def _check(flags: argparse.Namespace) -> int:
    from tracelib.record.check import STATES, check, lines

    failing = listed(flags.fail_on, "--fail-on", STATES)
    if not 0 < flags.seconds <= 3600:
        raise BadParameter("--seconds", flags.seconds, ["more than 0, at most 3600"])
    verdict = check(seconds=flags.seconds, pids=flags.pid, shortage=flags.shortage)
    if flags.json:
        print(json.dumps(verdict.as_json()))
    else:
        print("\n".join(map(plain, lines(verdict))))
    if verdict.state == "not_measured":
        return PART_FAILED
    return int(verdict.state in failing)
