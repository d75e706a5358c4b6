"""The commands that carry a run elsewhere: into other viewers, to other people, onto a ticket."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.cli.flags import add_options, options_of
from tracelib.errors import BadParameter
from tracelib.export import FORMATS
from tracelib.options import name_of, seconds

if TYPE_CHECKING:
    import argparse

    from tracelib.cli.flags import Command

_EXPORT_HELP = """\
Write a run for another viewer, all files on one timeline, with tracks of what tracelib found.

  perfetto     one .pftrace for https://ui.perfetto.dev (drag it there) or trace_processor
  archive      the recorded files themselves, not redacted, in a TAR that Perfetto 58 and later merge
  speedscope   CPU samples and threads for https://www.speedscope.app
  chrome       the JSON of chrome://tracing

examples:
  tracelib export traces/ --to perfetto -o run.pftrace
  tracelib export traces/ --to perfetto --window 1.5:2     only what overlaps these seconds"""


_REDACT_HELP = """\
Write a copy of a trace to give away, in its own format, with the same events at the same times: home
directories, user and host names, addresses, keys, environment variables, arguments and prompt-like texts are
replaced. Takes Kineto JSON, perf script and ftrace text, nsys SQLite; compresses where OUT ends in .gz.

example:
  tracelib redact worker_TP0.pt.trace.json.gz -o clean.pt.trace.json.gz"""


_ATTACH_HELP = """\
Put a finished report onto a ticket: the summary as a comment in that system's markup, the files attached.
Credentials come from the environment only. What a system's API does not take is printed as a step to do by
hand.

  jira:OPS-42                JIRA_URL, JIRA_TOKEN, on Jira Cloud also JIRA_USER
  github:owner/repository#7  GITHUB_TOKEN (GITHUB_API_URL for an Enterprise server)
  gitlab:group/project#7     GITLAB_TOKEN (GITLAB_URL for a server of your own)
  slack:#channel             SLACK_BOT_TOKEN
  file:DIRECTORY             a folder, for any other system

examples:
  tracelib attach reports/INC-42 --to jira:OPS-42 --dry-run     exactly what would be sent
  tracelib attach reports/INC-42 --to jira:OPS-42"""


def add_commands(command: Command) -> None:
    """Add export, redact and attach."""
    _add_export(command("export", "write a run for Perfetto, speedscope or Chrome", _EXPORT_HELP))
    _add_redact(command("redact", "write a copy of a trace to give away", _REDACT_HELP))
    _add_attach(command("attach", "put a finished report onto a ticket", _ATTACH_HELP))


def _add_export(command: argparse.ArgumentParser) -> None:
    add_options(command, "export")
    command.add_argument("--to", required=True, choices=[*FORMATS], help="which viewer")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: NAME and the format's ending, here)",
    )
    command.set_defaults(run=_export)


def _export(flags: argparse.Namespace) -> int:
    from tracelib.analyses.results import analyse
    from tracelib.export.archive import write_archive
    from tracelib.export.chrome import write_chrome
    from tracelib.export.perfetto import write_perfetto
    from tracelib.export.speedscope import write_speedscope
    from tracelib.export.tracks import in_window
    from tracelib.findings import diagnose
    from tracelib.loading import load
    from tracelib.report import redact
    from tracelib.sources.discovery import discover

    options = options_of(flags)
    window = seconds(options.window)
    if window and flags.to == "archive":
        raise BadParameter(
            "--window", options.window, ["no window with --to archive, which holds the files as they are"]
        )
    name = name_of(options.traces[:1])
    target = flags.output or Path(name + FORMATS[flags.to])
    discovery = discover(options.traces)
    files = [file.path for file in discovery.traces]
    _refuse_inputs(target, files)
    run = load(discovery, **options.arguments_of(load))
    if flags.to == "archive":
        for left in write_archive(run, files, target):
            print(f"left out: {left}", file=sys.stderr)
    else:
        run = redact.trace(run)[0] if options.redact else run
        results = analyse(run, window_seconds=window)
        results = in_window(results) if window else results
        write = {"perfetto": write_perfetto, "speedscope": write_speedscope, "chrome": write_chrome}
        write[flags.to](results, diagnose(results, title=name), target)
    print(target)
    return 0


def _refuse_inputs(target: Path, files: list[Path]) -> None:
    if any(target.exists() and target.samefile(path) for path in files):
        raise BadParameter("-o", target, ["a file that is not one of the traces"])


def _add_redact(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="a trace file")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT",
        help="file to write, which must not exist yet",
    )
    command.set_defaults(run=_redact)


def _redact(flags: argparse.Namespace) -> int:
    from tracelib.report.redacted_copy import redacted_copy

    redactor = redacted_copy(flags.file, flags.output)
    print(redactor.summary() or "Nothing was found that needs to be removed.", file=sys.stderr)
    print(flags.output)
    return 0


def _add_attach(command: argparse.ArgumentParser) -> None:
    command.add_argument("report", type=Path, metavar="REPORT", help="a report's folder")
    command.add_argument("--to", required=True, metavar="TICKET", help="such as jira:OPS-42")
    command.add_argument(
        "--dry-run", action="store_true", help="print what would be sent; ask no server, need no credentials"
    )
    command.set_defaults(run=_attach)


def _attach(flags: argparse.Namespace) -> int:
    from tracelib.report.tickets import attach, planned

    for line in (planned if flags.dry_run else attach)(flags.report, flags.to):
        print(line)
    return 0
