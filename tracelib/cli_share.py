"""The commands that carry a run elsewhere: into other viewers, out of the house, onto a ticket, many at once."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.errors import BadParameter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Command = Callable[[str, str, str], argparse.ArgumentParser]
    AddLoading = Callable[[argparse.ArgumentParser], None]
    Loading = Callable[[argparse.Namespace], dict[str, Any]]

__all__ = ["add_sharing"]

PART_FAILED = 3
FORMATS = ("perfetto", "archive", "speedscope", "chrome")

_EXPORT_HELP = """\
Write a run for another viewer, all files on one timeline, what tracelib found as tracks of their own.

  perfetto     one .pftrace for https://ui.perfetto.dev (drag it there) or trace_processor
  archive      the recorded files themselves, not redacted, in a TAR with a manifest that Perfetto 58 and later merge by
  speedscope   CPU samples and threads for https://www.speedscope.app
  chrome       the JSON of chrome://tracing

example:
  tracelib export traces/ --to perfetto -o run.pftrace"""


def add_sharing(command: Command, add_loading: AddLoading, loading: Loading) -> None:
    """Add the commands by `command(name, summary, text)`.

    `add_loading` adds the flags by which traces are read, `loading` returns what they say as `tracelib.load` takes it.
    """
    _add_export(command, add_loading, loading)


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
        "--no-redact", action="store_true", help="keep names, paths, addresses and keys as recorded"
    )
    export.set_defaults(run=partial(_export, loading=loading))


def _export(options: argparse.Namespace, loading: Loading) -> int:
    from tracelib import export
    from tracelib.analyses.results import analyse
    from tracelib.findings import diagnose
    from tracelib.loading import load
    from tracelib.report import name_of, redact
    from tracelib.sources import trace_files

    name = name_of(options.traces[:1])
    target = options.output or Path(name + export.FORMATS[options.to])
    _refuse_inputs(target, trace_files(options.traces)[0])
    run = load(options.traces, **loading(options))
    if options.to == "archive":
        for left in export.write_archive(run, trace_files(options.traces)[0], target):
            print(f"left out: {left}", file=sys.stderr)
    else:
        run = run if options.no_redact else redact.trace(run)[0]
        results = analyse(run)
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
