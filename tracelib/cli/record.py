"""The commands for a machine that runs a server now: record it, or say whether its CPUs are short."""

import argparse
import json
from typing import Any

from tracelib import __version__
from tracelib.cli.flags import PART_FAILED, listed, options_of
from tracelib.errors import BadParameter
from tracelib.options import Options
from tracelib.words import plain


def record(flags: argparse.Namespace) -> int:
    """Say what this machine permits; record it with --go."""
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


def check(flags: argparse.Namespace) -> int:
    """Say whether CPUs are short."""
    from tracelib.record import check as cpus

    failing = listed(flags.fail_on, "--fail-on", cpus.STATES)
    if not 0 < flags.seconds <= 3600:
        raise BadParameter("--seconds", flags.seconds, ["more than 0, at most 3600"])
    if not 0 < flags.shortage <= 1:
        raise BadParameter("--shortage", flags.shortage, ["a share: more than 0, at most 1"])
    verdict = cpus.check(seconds=flags.seconds, pids=flags.pid, shortage=flags.shortage)
    if flags.json:
        print(json.dumps(verdict.as_json()))
    else:
        print("\n".join(map(plain, cpus.lines(verdict))))
    if verdict.state == "not_measured":
        return PART_FAILED
    return int(verdict.state in failing)
