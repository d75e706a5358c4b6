"""The commands that carry a run elsewhere: to other viewers and people, onto a ticket, into monitoring."""

import argparse
import sys
from pathlib import Path

from tracelib.cli.flags import options_of, whole
from tracelib.errors import BadParameter
from tracelib.export import ENDINGS
from tracelib.options import name_of, seconds


def export(flags: argparse.Namespace) -> int:
    """Write a run for another viewer."""
    from tracelib.analyses.results import analyse
    from tracelib.export.archive import write_archive
    from tracelib.export.perfetto import write_perfetto
    from tracelib.export.tracks import in_window
    from tracelib.export.viewers import write_chrome, write_speedscope
    from tracelib.findings import diagnose
    from tracelib.loading import load
    from tracelib.report.redact import trace as redacted
    from tracelib.report.redacted_copy import copies
    from tracelib.sources.discovery import discover

    options = options_of(flags)
    window = seconds(options.window)
    if window and flags.to == "archive":
        raise BadParameter(
            "--window", options.window, ["no window with --to archive, which holds whole files"]
        )
    name = name_of(options.traces[:1])
    target = flags.output or Path(name + ENDINGS[flags.to])
    discovery = discover(options.traces)
    files = [file.path for file in discovery.traces]
    if any(target.exists() and target.samefile(path) for path in files):
        raise BadParameter("-o", target, ["a file that is not one of the traces"])
    run = load(discovery, **options.arguments_of(load))
    named = run.sources["file"]
    run = redacted(run, options.redact)[0]
    with whole(target) as made:
        if flags.to == "archive":
            names = dict(zip(named, run.sources["file"], strict=True))
            with copies(files, names, options.redact) as (packed, why):
                for left in [*why, *write_archive(run, packed, made)]:
                    print(f"left out: {left}", file=sys.stderr)
        else:
            results = analyse(run, window_seconds=window)
            results = in_window(results) if window else results
            write = {"perfetto": write_perfetto, "speedscope": write_speedscope, "chrome": write_chrome}
            write[flags.to](results, diagnose(results, title=name), made)
    print(target)
    return 0


def redact(flags: argparse.Namespace) -> int:
    """Write a redacted copy of a trace."""
    from tracelib.report.redacted_copy import redacted_copy

    redactor = redacted_copy(flags.file, flags.output, flags.level)
    print(redactor.summary() or "Nothing was found that needs to be removed.", file=sys.stderr)
    print(flags.output)
    return 0


def attach(flags: argparse.Namespace) -> int:
    """Put a report onto a ticket, or say what would be sent."""
    from tracelib.report import tickets

    for line in (tickets.planned if flags.dry_run else tickets.attach)(flags.report, flags.to, flags.level):
        print(line)
    return 0


def monitor(flags: argparse.Namespace) -> int:
    """Write Prometheus rules and a Grafana board that watch for what was found."""
    from tracelib.report.monitoring import board, report_of, rules

    folder, panels = flags.prometheus_rules, flags.grafana
    if folder is None and panels is None:
        raise BadParameter("monitor", "", ["--prometheus-rules DIR", "--grafana FILE", "both"])
    if not flags.runbooks.isprintable():
        raise BadParameter("--runbooks", flags.runbooks, ["a URL without control characters"])
    report = flags.report and report_of(flags.report)
    files = {panels: board(report, flags.runbooks)} if panels else {}
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files |= {folder / name: text for name, text in rules(report, flags.runbooks).items()}
    for path, text in files.items():
        with whole(path) as made:
            made.write_text(text, encoding="utf-8")
        print(path)
    return 0
