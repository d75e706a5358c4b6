"""The commands for a machine that runs a server now: record it, or say whether its CPUs are short."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib import __version__
from tracelib.cli.flags import PART_FAILED, listed, options_of, whole
from tracelib.errors import BadParameter, BadTrace
from tracelib.options import Options, regular
from tracelib.words import SERVER, counted, plain

if TYPE_CHECKING:
    from tracelib.record.check import Verdict


def record(flags: argparse.Namespace) -> int:
    """Say what this machine permits; record it with --go."""
    from tracelib.record import keeper, machine, plan
    from tracelib.record.processes import descendants, existing, threads

    if flags.finish:
        return keeper.finish(keeper.unfinished(flags.out))
    chosen = plan.recipe(flags.recipe)
    if flags.pod and (flags.pid or flags.command):
        raise BadParameter("--pod", flags.pod, ["--pod alone", "--pid or --command"])
    if flags.pod:
        named = machine.pod_processes(flags.pod)
    else:
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
        pod=flags.pod,
        command=flags.command,
        server=flags.server,
        server_traces=flags.server_traces,
        without=listed(flags.without, "--without", plan.STEPS),
        about=_about(options_of(flags), flags.out),
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


def _about(options: Options, folder: Path) -> dict[str, Any]:
    log = _log(options, folder) if options.requests else {}
    return {"title": options.title, "ticket": options.ticket, "roles": options.roles, "requests": log}


def _log(options: Options, folder: Path) -> dict[str, str]:
    """Return the request log as the plan keeps it: one that lies elsewhere is copied at the end.

    What cannot be opened is an error at once. What cannot be understood is only said: a log may begin with
    lines that tell of no request.
    """
    path, clock = Path(options.requests), {"clock": options.requests_clock} if options.requests_clock else {}
    inside = path.absolute().is_relative_to(folder.absolute())
    if inside or not (path.is_absolute() or path.exists()):
        return {"file": str(path.absolute().relative_to(folder.absolute()) if inside else path), **clock}
    try:
        with regular(path, "--requests", sys.maxsize).open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        lies = "the name of one that will lie in --out"
        raise BadParameter("--requests", path, [f"a log that can be read ({error.strerror})", lies]) from None
    try:
        said = "nothing is in it yet" if empty else _read(path)
    except BadTrace as error:
        said = f"no request can be read yet: {error}"
    print(plain(f"request log: {path}: {said}"))
    return {"file": f"request-log{''.join(path.suffixes[-2:])}", "grows_at": str(path.absolute()), **clock}


def _read(path: Path) -> str:
    from tracelib.sources.request_logs import read_request_log

    log = read_request_log(path)
    return f"{log.form}, clock {log.clock}, {counted(log.rows.height, 'request')} with a first token so far"


def check(flags: argparse.Namespace) -> int:
    """Say whether CPUs are short; to Prometheus, if it is to know."""
    from tracelib.record import check as cpus
    from tracelib.record.exporter import exposition

    failing = listed(flags.fail_on, "--fail-on", cpus.STATES)
    measure = _measure(flags)
    if flags.serve:
        return _serve(flags, measure)
    verdict = measure()
    if flags.prometheus is not None:
        with whole(flags.prometheus, follow=False) as made:
            made.write_text(exposition(verdict), encoding="utf-8")
    if flags.json:
        print(json.dumps(verdict.as_json()))
    else:
        print("\n".join(map(plain, cpus.lines(verdict))))
    if verdict.state == "not_measured":
        return PART_FAILED
    return int(verdict.state in failing)


def _measure(flags: argparse.Namespace) -> Callable[[], Verdict]:
    """Return what watches for as long as the flags say; a recipe's server is looked for each time."""
    from tracelib.record.check import check
    from tracelib.record.plan import processes_of, recipe
    from tracelib.record.processes import alive, existing, mark, threads

    if not 0 < flags.seconds <= 3600:
        raise BadParameter("--seconds", flags.seconds, ["more than 0, at most 3600"])
    if not 0 < flags.shortage <= 1:
        raise BadParameter("--shortage", flags.shortage, ["a share: more than 0, at most 1"])
    if flags.pid and flags.recipe:
        raise BadParameter("--recipe", flags.recipe, ["--pid or --recipe, not both"])
    chosen = recipe(flags.recipe) if flags.recipe else None
    if chosen and not chosen.processes:
        raise BadParameter("--recipe", flags.recipe, ["a recipe that knows its server's processes", "--pid"])
    marked = [mark(pid) for pid in existing(flags.pid or ())]
    role_of = _role_of if flags.serve or flags.prometheus else None

    def measure() -> Verdict:
        pids = [each["pid"] for each in marked if alive(each)] if marked else None
        if chosen:
            pids = processes_of(chosen, threads().values())
        return check(seconds=flags.seconds, pids=pids, shortage=flags.shortage, role_of=role_of)

    return measure


def _role_of(pid: int, name: str) -> str | None:
    """Return the role of a process as a report gives it: by its name, else its command line."""
    from tracelib.align.roles import by_name
    from tracelib.record.processes import command_line

    verdict = by_name(name, "process") or by_name(command_line(pid), "process")
    return verdict[0] if verdict and verdict[0] in SERVER else None


def _serve(flags: argparse.Namespace, measure: Callable[[], Verdict]) -> int:
    from tracelib.record.exporter import address, serve

    if flags.json or flags.prometheus:
        raise BadParameter("--serve", flags.serve, ["without --json and --prometheus, which look once"])
    serve(address(flags.serve), measure, lambda url: print(f"serving {url}", file=sys.stderr, flush=True))
    return 0
