"""The commands that read runs here: a report of one, reports of many, a look at the files, the notebooks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.cli.flags import PART_FAILED, add_options, listed, options_of
from tracelib.errors import BadParameter
from tracelib.options import name_of, seconds
from tracelib.words import VERDICTS, counted, plain

if TYPE_CHECKING:
    import argparse

    from tracelib.cli.flags import Command
    from tracelib.report.batch import Entry

_REPORT_HELP = """\
Write the root-cause report of one run: report.html, summary.md, findings.json, overview.png and the executed
notebook.

examples:
  tracelib report traces/                        every trace below a folder, report in reports/traces
  tracelib report w0.pt.trace.json.gz w1.pt.trace.json.gz perf.txt -o reports/INC-42 --ticket INC-42
  tracelib report traces/ --window 1.5:4         only from 1.5 s to 4 s after the first common GPU operation
  tracelib report traces/ --ftrace-clock mono    say what ftrace's text does not
  tracelib report traces/ --role 'my_server.*=api_server'
  tracelib report traces/ --fail-on cpu_bound    exit status 1 on that verdict, for CI

exit status: 0 report written, whatever the verdict; 1 verdict named by --fail-on; 2 the input cannot be used;
3 report written, but a part of the notebook failed (named at the top of the page)."""

_BATCH_HELP = """\
Write a report of each run, and an index of all of them, worst first: index.html to read and sort, index.json
for programs. A run that fails is named and does not stop the others. Run again, it does only what is new or
has changed.

examples:
  tracelib batch runs/* -o reports -j 4
  tracelib batch 'captures/*/traces' -o reports        a quoted pattern

exit status: 0 every run has its report; 2 usage error; 3 a run failed, in whole or in part (the index says
which)."""

_INSPECT_HELP = """\
Say what is in trace files, in seconds and without a notebook: formats, recorders, clocks and how they are
tied, spans, counts, who plays which role, and what is wrong with them.

example:
  tracelib inspect traces/"""

_NOTEBOOKS_HELP = """\
The notebooks that come with tracelib.

examples:
  tracelib notebooks list
  tracelib notebooks copy root_cause my.ipynb    a copy to change
  papermill tracelib://root_cause.ipynb out.ipynb -p traces traces/    run one
  papermill tracelib://root_cause.ipynb --help-notebook                its parameters"""


def add_commands(command: Command) -> None:
    """Add report, batch, inspect and notebooks."""
    _add_report(command("report", "write the root-cause report of a run", _REPORT_HELP))
    _add_inspect(command("inspect", "say what is in trace files, in seconds", _INSPECT_HELP))
    _add_notebooks(command("notebooks", "list or copy the notebooks", _NOTEBOOKS_HELP))
    _add_batch(command("batch", "write reports of many runs and an index", _BATCH_HELP))


def _add_report(command: argparse.ArgumentParser) -> None:
    add_options(command, "report")
    command.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="the report's folder (default: reports/NAME)"
    )
    command.add_argument(
        "--fail-on",
        default="",
        metavar="VERDICTS",
        help=f"comma-separated verdicts that give exit status 1: {', '.join(VERDICTS)}",
    )
    _add_timeout(command)
    command.set_defaults(run=_report)


def _add_timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout",
        type=int,
        default=900,
        metavar="S",
        help="time limit of each step in seconds (default 900)",
    )


def _report(flags: argparse.Namespace) -> int:
    from tracelib.report import write_report
    from tracelib.report.notebook_cells import can_draw
    from tracelib.sources.discovery import discover

    options = options_of(flags)
    failing = listed(flags.fail_on, "--fail-on", VERDICTS)
    discover(options.traces)  # a wrong path is reported at once, before a kernel starts
    folder = flags.output or default_folder(options.ticket or name_of(options.traces[:1]).split(".")[0])
    print(f"tracelib: reading {counted(len(options.traces), 'path')}, writing {folder} ...", file=sys.stderr)
    report = write_report(folder, options, timeout_s=flags.timeout)
    verdict = report.findings.verdict if report.findings else None
    if report.findings and verdict:
        if report.findings.requests:
            print(plain(report.findings.requests.sentence))
        print(f"{verdict.state} ({verdict.confidence} confidence): {plain(verdict.sentence)}")
        errors = [row.message for row in report.findings.health if row.level == "error"]
        if errors:
            more = f" ({len(errors) - 1} more under Trace health in the report)" if len(errors) > 1 else ""
            print(f"tracelib: parts of the recording are lost: {plain(errors[0])}{more}", file=sys.stderr)
    print(f"report: {(folder / 'report.html').resolve()}")
    if not can_draw():
        print(
            "tracelib: no overview.png: it takes the package resvg-py (pip install resvg-py)", file=sys.stderr
        )
    if report.failure is not None:
        print(f"tracelib: a part failed: {plain(report.failure.one_line())}", file=sys.stderr)
        return PART_FAILED
    return int(verdict is not None and verdict.state in failing)


def default_folder(name: str) -> Path:
    """Return `reports/NAME` with nothing in NAME that means something to a path or a shell."""
    return Path("reports") / (re.sub(r"[^\w.-]+", "-", name).strip(".-") or "report")


def _add_batch(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run's folder or file, or a quoted pattern of these"
    )
    add_options(command, "batch", "for every run")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="folder of the reports and the index (default: reports)",
    )
    command.add_argument(
        "-j", "--jobs", type=int, default=1, metavar="N", help="reports made at a time (default 1)"
    )
    command.add_argument("--afresh", action="store_true", help="do everything again, even what is done")
    _add_timeout(command)
    command.set_defaults(run=_batch)


def _batch(flags: argparse.Namespace) -> int:
    from tracelib.report.batch import batch, expanded

    if flags.jobs < 1:
        raise BadParameter("-j", flags.jobs, ["a whole number from 1"])
    options = options_of(flags)
    seconds(options.window)  # a wrong one is reported before anything starts
    runs, others = expanded(flags.runs)
    for path in others:
        print(plain(f"left out: {path} (of no known format)"), file=sys.stderr)
    entries = batch(
        runs,
        flags.output,
        options,
        jobs=flags.jobs,
        timeout_s=flags.timeout,
        afresh=flags.afresh,
        done=_print_entry,
    )
    failed = [entry.name for entry in entries if entry.error]
    if failed:
        print(plain(f"failed: {', '.join(failed)}"), file=sys.stderr)
    print(flags.output / "index.html")
    return PART_FAILED if failed else 0


def _print_entry(entry: Entry) -> None:
    before = " (done before)" if entry.resumed else ""
    print(plain(f"{entry.name}: {entry.error or entry.state}{before}"), file=sys.stderr)


def _add_inspect(command: argparse.ArgumentParser) -> None:
    add_options(command, "inspect")
    command.set_defaults(run=_inspect)


def _inspect(flags: argparse.Namespace) -> int:
    from tracelib.loading import load

    options = options_of(flags)
    trace = load(options.traces, **options.arguments_of(load))
    print("\n".join(plain(line) for line in str(trace).split("\n")))
    return 0


def _add_notebooks(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=["list", "copy"])
    command.add_argument("name", nargs="?", default="", help="which notebook to copy")
    command.add_argument("target", nargs="?", type=Path, help="file to write (default: NAME.ipynb here)")
    command.set_defaults(run=_notebooks)


def _notebooks(flags: argparse.Namespace) -> int:
    from tracelib.report.notebooks import notebook, notebooks

    if flags.action == "list":
        for name, path in notebooks().items():
            print(f"{name}\t{path}")
        return 0
    source = notebook(flags.name)
    target = flags.target or Path(f"{source.stem}.ipynb")
    if target.exists():
        raise BadParameter("target", target, ["a file that does not exist yet"])
    target.write_bytes(source.read_bytes())
    print(target)
    return 0
