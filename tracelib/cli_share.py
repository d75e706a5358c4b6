"""The commands that carry a run elsewhere: into other viewers, out of the house, onto a ticket, many at once."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.cli_flags import PART_FAILED, pair
from tracelib.errors import BadParameter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Command = Callable[[str, str, str], argparse.ArgumentParser]
    AddLoading = Callable[[argparse.ArgumentParser], None]
    Loading = Callable[[argparse.Namespace], dict[str, Any]]

__all__ = ["add_sharing"]

FORMATS = ("perfetto", "archive", "speedscope", "chrome")

_EXPORT_HELP = """\
Write a run for another viewer, all files on one timeline, what tracelib found as tracks of their own.

  perfetto     one .pftrace for https://ui.perfetto.dev (drag it there) or trace_processor
  archive      the recorded files themselves, not redacted, in a TAR with a manifest that Perfetto 58 and later merge by
  speedscope   CPU samples and threads for https://www.speedscope.app
  chrome       the JSON of chrome://tracing

examples:
  tracelib export traces/ --to perfetto -o run.pftrace
  tracelib export traces/ --to perfetto --window 1.5:2     only what overlaps these seconds: minutes of trace open slowly"""


_BATCH_HELP = """\
Write a report of each run, and an index over all of them, worst first: index.html to read and sort, index.json for programs.
A run that fails is named and does not stop the others. Run again, it does only what is new or has changed.

examples:
  tracelib batch runs/* -o reports -j 4
  tracelib batch 'captures/*/traces' -o reports        a quoted pattern

exit status: 0 every run has its report; 2 usage error; 3 a run failed, in whole or in part (named in the index)."""


_REDACT_HELP = """\
Write a copy of a trace to give away, in its own format, with the same events at the same times: home directories, user and host
names, addresses, keys, environment variables, arguments and prompt-like texts are replaced. Kineto JSON, perf script and ftrace
text, nsys SQLite; compressed where OUT ends in .gz.

example:
  tracelib redact worker_TP0.pt.trace.json.gz -o clean.pt.trace.json.gz"""


_ATTACH_HELP = """\
Put a finished report onto a ticket: the summary as a comment in that system's markup, the files attached. Credentials come from
the environment only. What a system does not take through its API is printed as a step to do by hand.

  jira:OPS-42                JIRA_URL, JIRA_TOKEN, on Jira Cloud also JIRA_USER
  github:owner/repository#7  GITHUB_TOKEN (GITHUB_API_URL for an Enterprise server)
  gitlab:group/project#7     GITLAB_TOKEN (GITLAB_URL for a server of your own)
  slack:#channel             SLACK_BOT_TOKEN
  file:DIRECTORY             a folder, for any other system

examples:
  tracelib attach reports/INC-42 --to jira:OPS-42 --dry-run     exactly what would be sent
  tracelib attach reports/INC-42 --to jira:OPS-42"""


def add_sharing(command: Command, add_loading: AddLoading, loading: Loading) -> None:
    """Add the commands by `command(name, summary, text)`.

    `add_loading` adds the flags by which traces are read, `loading` returns what they say as `tracelib.load` takes it.
    """
    _add_export(command, add_loading, loading)
    _add_batch(command)
    _add_redact(command)
    _add_attach(command)


def _add_export(command: Command, add_loading: AddLoading, loading: Loading) -> None:
    export = command("export", "write a run for Perfetto, speedscope or Chrome", _EXPORT_HELP)
    add_loading(export)
    export.add_argument("--to", required=True, choices=FORMATS, help="which viewer")
    export.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: NAME and the format's ending, here)",
    )
    export.add_argument(
        "--window",
        default="",
        metavar="FROM:TO",
        help="in seconds after the first common GPU operation; only what overlaps it is written",
    )
    export.add_argument(
        "--no-redact", action="store_true", help="keep names, paths, addresses and keys as recorded"
    )
    export.set_defaults(run=partial(_export, loading=loading))


def _export(options: argparse.Namespace, loading: Loading) -> int:
    from tracelib import export
    from tracelib.analyses.results import analyse
    from tracelib.findings import diagnose
    from tracelib.loading import load
    from tracelib.report import name_of, redact
    from tracelib.report.inputs import seconds
    from tracelib.sources import trace_files

    window = seconds(options.window)
    if window and options.to == "archive":
        raise BadParameter(
            "--window", options.window, ["nothing with --to archive: it holds the files as they are"]
        )
    name = name_of(options.traces[:1])
    target = options.output or Path(name + export.FORMATS[options.to])
    _refuse_inputs(target, trace_files(options.traces)[0])
    run = load(options.traces, **loading(options))
    if options.to == "archive":
        for left in export.write_archive(run, trace_files(options.traces)[0], target):
            print(f"left out: {left}", file=sys.stderr)
    else:
        run = run if options.no_redact else redact.trace(run)[0]
        results = analyse(run, window_seconds=window)
        results = export.within(results) if window else results
        write = {
            "perfetto": export.write_perfetto,
            "speedscope": export.write_speedscope,
            "chrome": export.write_chrome,
        }
        write[options.to](results, diagnose(results, title=name), target)
    print(target)
    return 0


def _refuse_inputs(target: Path, files: list[Path]) -> None:
    if any(target.exists() and target.samefile(path) for path in files):
        raise BadParameter("-o", target, ["a file that is none of the traces"])


def _add_batch(command: Command) -> None:
    batch = command("batch", "write reports of many runs and an index", _BATCH_HELP)
    batch.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder or file, or a quoted pattern of these"
    )
    batch.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="for the reports and the index (default: reports)",
    )
    batch.add_argument(
        "-j", "--jobs", type=int, default=1, metavar="N", help="reports made at a time (default 1)"
    )
    batch.add_argument(
        "--window",
        default="",
        metavar="FROM:TO",
        help="in seconds after each run's first common GPU operation",
    )
    batch.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="PATTERN=ROLE",
        help="as in tracelib report, for every run",
    )
    batch.add_argument("--afresh", action="store_true", help="do again what was done before")
    batch.add_argument(
        "--no-redact", action="store_true", help="keep names, paths, addresses and keys as recorded"
    )
    batch.add_argument(
        "--timeout",
        type=int,
        default=900,
        metavar="S",
        help="time limit of each step in seconds (default 900)",
    )
    batch.set_defaults(run=_batch)


def _batch(options: argparse.Namespace) -> int:
    from tracelib.report.batch import batch, expanded
    from tracelib.report.inputs import seconds
    from tracelib.report.text import plain

    if options.jobs < 1:
        raise BadParameter("-j", options.jobs, ["a whole number from 1"])
    seconds(options.window)  # a wrong one is told before anything starts
    runs, others = expanded(options.runs)
    for path in others:
        print(plain(f"left out: {path} (of no known format)"), file=sys.stderr)
    roles = dict(pair(text, "--role", "PATTERN=ROLE") for text in options.role)
    parameters = {"window": options.window, "roles": roles, "redact": not options.no_redact}
    entries = batch(
        runs,
        options.output,
        parameters,
        jobs=options.jobs,
        timeout_s=options.timeout,
        afresh=options.afresh,
        done=lambda e: print(
            plain(f"{e.name}: {e.error or e.state}{' (done before)' if e.resumed else ''}"), file=sys.stderr
        ),
    )
    failed = [entry.name for entry in entries if entry.error]
    if failed:
        print(plain(f"failed: {', '.join(failed)}"), file=sys.stderr)
    print(options.output / "index.html")
    return PART_FAILED if failed else 0


def _add_redact(command: Command) -> None:
    redact = command("redact", "write a copy of a trace to give away", _REDACT_HELP)
    redact.add_argument("file", type=Path, metavar="FILE", help="a trace file")
    redact.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT",
        help="file to write, which must not exist yet",
    )
    redact.set_defaults(run=_redact)


def _redact(options: argparse.Namespace) -> int:
    from tracelib.report.clean import clean

    redactor = clean(options.file, options.output)
    print(redactor.summary() or "Nothing was found that needs to be removed.", file=sys.stderr)
    print(options.output)
    return 0


def _add_attach(command: Command) -> None:
    attach = command("attach", "put a finished report onto a ticket", _ATTACH_HELP)
    attach.add_argument("report", type=Path, metavar="REPORT", help="a report's folder")
    attach.add_argument("--to", required=True, metavar="TICKET", help="such as jira:OPS-42")
    attach.add_argument(
        "--dry-run", action="store_true", help="print what would be sent; ask no server, need no credentials"
    )
    attach.set_defaults(run=_attach)


def _attach(options: argparse.Namespace) -> int:
    from tracelib.report.tickets import attach, planned

    for line in (planned if options.dry_run else attach)(options.report, options.to):
        print(line)
    return 0
