"""The command line: declares flags and calls one function each."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib import __version__
from tracelib.cli_flags import BROKEN_PIPE, PART_FAILED, USAGE_ERROR, listed, offsets, one_line, pair
from tracelib.cli_record import add_recording
from tracelib.cli_share import add_sharing
from tracelib.errors import BadParameter, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

#: How often a person sees how far a large file has been read.
SHOWN_EVERY_S = 0.3
VERDICTS = ("cpu_bound", "not_cpu_bound", "mixed", "no_load", "insufficient")

_REPORT_HELP = """\
Write the root-cause report of one run: report.html, summary.md, findings.json, overview.png and the executed notebook.

examples:
  tracelib report traces/                        every trace below a folder, report in reports/traces
  tracelib report w0.pt.trace.json.gz w1.pt.trace.json.gz perf.txt -o reports/INC-42 --ticket INC-42
  tracelib report traces/ --window 1.5:4         only from 1.5 s to 4 s after the first common GPU operation
  tracelib report traces/ --ftrace-clock mono    say what ftrace's text does not
  tracelib report traces/ --role 'my_server.*=api_server'
  tracelib report traces/ --fail-on cpu_bound    exit status 1 on that verdict, for CI

exit status: 0 report written, whatever the verdict; 1 verdict named by --fail-on; 2 the input cannot be used;
3 report written, but a part of the notebook failed (named at the top of the page)."""

_INSPECT_HELP = """\
Say what is in trace files, in seconds and without a notebook: formats, recorders, clocks and how they are tied, spans,
counts, who plays which role, and what is wrong with them.

example:
  tracelib inspect traces/"""

_NOTEBOOKS_HELP = """\
The notebooks that come with tracelib.

examples:
  tracelib notebooks list
  tracelib notebooks copy root_cause my.ipynb    a copy to change; or: papermill tracelib://root_cause.ipynb out.ipynb -p traces ..."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: errors are one line on stderr and status 2."""
    options = _parser().parse_args(arguments)
    if getattr(options, "no_cache", False):
        os.environ["TRACELIB_CACHE"] = "off"  # the report's notebook runs in a process of its own
    try:
        status: int = options.run(options)
    except BrokenPipeError:  # who reads the output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (TraceError, OSError) as error:
        if options.debug:
            raise
        print(f"tracelib: {one_line(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        # The notebook's task, left behind, would report its dead kernel when the process ends.
        logging.getLogger("asyncio").disabled = True
        print("tracelib: stopped; nothing was written", file=sys.stderr)
        return 130
    return status


class _Version(argparse.Action):
    """Prints the version, and whether the compiled pass is there, which is asked for only here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tracelib.sources.torch_profiler.native import available

        slow = "without the compiled pass, several times slower: install again where a C compiler (cc) is"
        how = "by the compiled pass" if available() else slow
        print(f"tracelib {__version__}\nPyTorch traces are read {how}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tracelib",
        description="Why is a multi-GPU LLM server slow while its GPUs are not busy? Answers from the traces you have.",
        epilog="tracelib COMMAND --help teaches each command with examples.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version, and how PyTorch traces are read"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_report(commands)
    _add_inspect(commands)
    _add_notebooks(commands)
    command = partial(_command, commands)
    add_recording(command)
    add_sharing(command, _add_loading, _loading)
    return parser


def _command(commands: Any, name: str, summary: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    return command


def _add_loading(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "traces", nargs="+", metavar="TRACE", help="a trace file, or a folder (every trace below it)"
    )
    command.add_argument(
        "--offset",
        action="append",
        default=[],
        metavar="FILE=NS",
        help="ns to add to the clock of a file (name or pattern) that does not say how it is tied",
    )
    command.add_argument(
        "--role",
        action="append",
        default=[],
        metavar="PATTERN=ROLE",
        help="threads or processes of this name are an api_server, engine or worker",
    )
    command.add_argument(
        "--pid-map",
        default="",
        metavar="FILE",
        help="lines of INSIDE OUTSIDE: process and thread ids of a container's traces, and the host's (or what grep NSpid /proc/*/task/*/status prints)",
    )
    command.add_argument(
        "--ftrace-clock",
        default="",
        metavar="CLOCK",
        help="the clock that ftrace used (mono, boot, ...); its text does not say",
    )
    command.add_argument(
        "--no-cache",
        action="store_true",
        help="read the files again, and keep nothing of them for the next time",
    )


def _add_report(commands: Any) -> None:
    command = _command(commands, "report", "write the root-cause report of a run", _REPORT_HELP)
    _add_loading(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the report's folder (default: reports/NAME)"
    )
    command.add_argument("--title", default="", help="of the report (default: the names of the traces)")
    command.add_argument(
        "--ticket", default="", metavar="ID", help="the incident's id, shown in the report and the comment"
    )
    command.add_argument(
        "--window", default="", metavar="FROM:TO", help="in seconds after the first common GPU operation"
    )
    command.add_argument(
        "--window-of",
        default="",
        metavar="PATTERN",
        help="window from the first to the last annotation of this name, such as 'step[[]DECODE*'",
    )
    command.add_argument(
        "--requests",
        default="",
        metavar="FILE",
        help="a request log: JSON lines with id, arrived, tokenize_start, tokenize_end, first_token in ns",
    )
    command.add_argument(
        "--requests-offset",
        type=int,
        default=0,
        metavar="NS",
        help="ns to add to the request log's times to get wall time",
    )
    command.add_argument(
        "--requests-clock",
        default="",
        metavar="CLOCK",
        help="the clock of the request log: realtime (default), or monotonic, ... where a trace or run.toml ties it",
    )
    command.add_argument(
        "--mean-input-tokens",
        type=float,
        default=0.0,
        metavar="N",
        help="mean length of a request's input, where no request log counts it",
    )
    command.add_argument(
        "--cpu-stat",
        action="append",
        default=[],
        metavar="FILE",
        help="the cgroup's cpu.stat: give it twice, before and after the run (found in a folder as cpu.stat.before, cpu.stat.after)",
    )
    command.add_argument(
        "--rules", default="", metavar="FILE", help="rules of your own (TOML), which come before tracelib's"
    )
    command.add_argument(
        "--cpu-bound",
        type=float,
        default=0.15,
        metavar="SHARE",
        help="share of the window that host causes must exceed for the verdict (default 0.15)",
    )
    command.add_argument(
        "--no-redact", action="store_true", help="keep names, paths, addresses and keys as recorded"
    )
    command.add_argument(
        "--fail-on",
        default="",
        metavar="VERDICTS",
        help=f"comma-separated verdicts that give exit status 1: {', '.join(VERDICTS)}",
    )
    command.add_argument(
        "--timeout",
        type=int,
        default=900,
        metavar="S",
        help="time limit of each step in seconds (default 900)",
    )
    command.set_defaults(run=_report)


def _add_inspect(commands: Any) -> None:
    command = _command(commands, "inspect", "say what is in trace files, in seconds", _INSPECT_HELP)
    _add_loading(command)
    command.set_defaults(run=_inspect)


def _add_notebooks(commands: Any) -> None:
    command = _command(commands, "notebooks", "list or copy the notebooks", _NOTEBOOKS_HELP)
    command.add_argument("action", choices=["list", "copy"])
    command.add_argument("name", nargs="?", default="", help="of a notebook, for copy")
    command.add_argument("target", nargs="?", type=Path, help="file to write (default: NAME.ipynb here)")
    command.set_defaults(run=_notebooks)


def _report(options: argparse.Namespace) -> int:
    from tracelib.report import name_of, write_report
    from tracelib.report.pipeline import can_draw
    from tracelib.sources import trace_files
    from tracelib.words import counted

    failing = listed(options.fail_on, "--fail-on", VERDICTS)
    trace_files(options.traces)  # a wrong path is told at once, before a kernel starts
    folder = options.output or default_folder(options.ticket or name_of(options.traces[:1]).split(".")[0])
    print(f"tracelib: reading {counted(len(options.traces), 'path')}, writing {folder} ...", file=sys.stderr)
    report = write_report(
        folder, _parameters(options), timeout_s=options.timeout, redacted=not options.no_redact
    )
    if report.findings is not None:
        verdict = report.findings["verdict"]
        print(f"{verdict['state']} ({verdict['confidence']} confidence): {one_line(verdict['sentence'])}")
        errors = [row["message"] for row in report.findings["health"] if row["level"] == "error"]
        if errors:
            more = f" ({len(errors) - 1} more under Trace health in the report)" if len(errors) > 1 else ""
            print(f"tracelib: parts of the recording are lost: {one_line(errors[0])}{more}", file=sys.stderr)
    print(f"report: {(folder / 'report.html').resolve()}")
    if not can_draw():
        print(
            "tracelib: no overview.png beside it: that takes the package resvg-py (pip install resvg-py)",
            file=sys.stderr,
        )
    if report.failure is not None:
        print(f"tracelib: a part failed: {one_line(report.failure.one_line())}", file=sys.stderr)
        return PART_FAILED
    return int(report.findings is not None and report.findings["verdict"]["state"] in failing)


def default_folder(name: str) -> Path:
    """Return `reports/NAME` with nothing in NAME that a path or a shell would take for its own."""
    return Path("reports") / (re.sub(r"[^\w.-]+", "-", name).strip(".-") or "report")


def _parameters(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "traces": [str(path) for path in options.traces],
        "title": options.title,
        "ticket": options.ticket,
        "window": options.window,
        "window_of": options.window_of,
        "offsets": offsets(options.offset),
        "roles": dict(pair(text, "--role") for text in options.role),
        "ftrace_clock": options.ftrace_clock,
        "pid_map": options.pid_map,
        "requests": options.requests,
        "requests_offset": options.requests_offset,
        "requests_clock": options.requests_clock,
        "cpu_stat": list(options.cpu_stat),
        "mean_input_tokens": options.mean_input_tokens,
        "rules": options.rules,
        "cpu_bound": options.cpu_bound,
        "redact": not options.no_redact,
    }


def _inspect(options: argparse.Namespace) -> int:
    from tracelib.loading import load
    from tracelib.sources.files import watched

    with watched(_show_share()):
        trace = load(options.traces, **_loading(options))
    print("\n".join(one_line(line) for line in str(trace).split("\n")))
    return 0


def _show_share() -> Callable[[Path, float], None]:
    """Return what shows a person at a terminal how far each file has been read; nobody else is shown anything."""
    shown = time.monotonic()

    def show(path: Path, share: float) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - shown > SHOWN_EVERY_S:
            shown = time.monotonic()
            print(f"\r{share:4.0%} of {one_line(path.name)}\x1b[K", end="\r", file=sys.stderr, flush=True)

    return show


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags of :func:`_add_loading` say, as `tracelib.load` takes it."""
    return {
        "offsets": offsets(options.offset),
        "roles": dict(pair(text, "--role") for text in options.role),
        "ftrace_clock": options.ftrace_clock or None,
        "pid_map": options.pid_map or None,
        "progress": lambda name: print(f"reading {one_line(name)}", file=sys.stderr),
    }


def _notebooks(options: argparse.Namespace) -> int:
    from tracelib.report.notebooks import notebook, notebooks

    if options.action == "list":
        for name, path in notebooks().items():
            print(f"{name}\t{path}")
        return 0
    source = notebook(options.name)
    target = options.target or Path(f"{source.stem}.ipynb")
    if target.exists():
        raise BadParameter("target", target, ["a file that does not exist yet"])
    target.write_bytes(source.read_bytes())
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
