"""The commands that read runs here: a report of one, of many, a look at the files, cores, the notebooks."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelib.cli.compare import page
from tracelib.cli.flags import PART_FAILED, listed, options_of, positive
from tracelib.errors import BadParameter, with_extra
from tracelib.options import Options, name_of, seconds
from tracelib.words import NOT_KNOWN, VERDICTS, counted, plain, share

if TYPE_CHECKING:
    import polars as pl

    from tracelib.report.batch import Entry


def report(flags: argparse.Namespace) -> int:
    """Write the report of one run."""
    from tracelib.report.notebooks import Kernel
    from tracelib.sources.discovery import discover
    from tracelib.sources.torch_profiler.native import available, how_read

    options = options_of(flags)
    failing = listed(flags.fail_on, "--fail-on", VERDICTS)
    seconds(options.window)
    positive(flags.timeout, "--timeout")
    discover(options.traces)  # a wrong path is reported at once, before a kernel starts
    folder = flags.output or default_folder(options.ticket or name_of(options.traces[:1]).split(".")[0])
    print(f"tracelib: reading {counted(len(options.traces), 'path')}, writing {folder} ...", file=sys.stderr)
    with Kernel() as kernel:  # which loads its libraries while this process loads its own
        from tracelib.report.notebook_cells import can_draw
        from tracelib.report.pipeline import write_report

        written = write_report(folder, options, timeout_s=flags.timeout, kernel=kernel)
    verdict = written.findings.verdict if written.findings else None
    if written.findings and verdict:
        if written.findings.requests:
            print(plain(written.findings.requests.sentence))
        print(f"{verdict.state} ({verdict.confidence} confidence): {plain(verdict.sentence)}")
        errors = [row.message for row in written.findings.health if row.level == "error"]
        if errors:
            more = f" ({len(errors) - 1} more under Trace health in the report)" if len(errors) > 1 else ""
            print(f"tracelib: parts of the recording are lost: {plain(errors[0])}{more}", file=sys.stderr)
    print(f"report: {(folder / 'report.html').resolve()}")
    if not available():
        print(f"tracelib: {how_read()}", file=sys.stderr)
    if not can_draw():
        extra = with_extra("image")
        print(f"tracelib: no overview.png: it takes the extra image ({extra})", file=sys.stderr)
    if written.failure is not None:
        print(f"tracelib: a part failed: {plain(written.failure.one_line())}", file=sys.stderr)
        return PART_FAILED
    return int(verdict is not None and verdict.state in failing)


def default_folder(name: str) -> Path:
    """Return `reports/NAME` with nothing in NAME that means something to a path or a shell."""
    return Path("reports") / (re.sub(r"[^\w.-]+", "-", name).strip(".-") or "report")


def batch(flags: argparse.Namespace) -> int:
    """Write the reports of many runs and their index."""
    from tracelib.report import batch as reports

    options = options_of(flags)
    seconds(options.window)  # a wrong one is reported before anything starts
    runs, others = reports.expanded(flags.runs)
    for path in others:
        print(plain(f"left out: {path} (of no known format)"), file=sys.stderr)
    entries = reports.batch(
        runs,
        flags.output,
        options,
        jobs=positive(flags.jobs, "-j"),
        timeout_s=positive(flags.timeout, "--timeout"),
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


def inspect(flags: argparse.Namespace) -> int:
    """Print what is in trace files."""
    from tracelib.loading import load

    options = options_of(flags)
    trace = load(options.traces, **options.arguments_of(load))
    print("\n".join(plain(line) for line in str(trace).split("\n")))
    return 0


def capacity(flags: argparse.Namespace) -> int:
    """Recommend a number of cores, with its evidence and what is not known of it."""
    from tracelib.analyses import capacity as cores
    from tracelib.analyses.whatif import at_cores, load_words
    from tracelib.charts.capacity import at_cores_words
    from tracelib.report import opened

    options = options_of(flags)
    results, _ = opened(options)
    advised = cores.recommendation(results)
    estimates, curve = cores.capacity(results), cores.demand_curve(results)
    replayed = at_cores(results, estimates)
    if flags.json:
        frames = {"estimates": estimates, "demand_curve": curve, "replay": replayed}
        told = {"recommended_cores": advised.cores, "why": advised.why, "unknown": advised.unknown}
        told["load"] = results.load.why
        print(json.dumps(told | {name: frame.to_dicts() for name, frame in frames.items()}))
    else:
        number = "no number can be recommended" if advised.cores is None else f"{advised.cores} cores"
        print(f"recommended: {number}, because {plain(advised.why)}")
        print("\n".join(_cores_tables(estimates, curve, replayed)))
        print(f"{plain(at_cores_words(replayed))} {plain(load_words(results.load))}")
        print("\n".join(["not known:", *(f"- {plain(text)}" for text in advised.unknown)]))
    if flags.output is not None and not page("capacity", flags.output, partial(_capacity, options)):
        return PART_FAILED
    return PART_FAILED if advised.cores is None else 0


def _cores_tables(estimates: pl.DataFrame, curve: pl.DataFrame, replayed: pl.DataFrame) -> Iterator[str]:
    from tracelib.charts.capacity import at_cores_table
    from tracelib.trace import text_table

    rows = [
        [
            plain(row["estimate"]),
            NOT_KNOWN if row["cores"] is None else f"{row['cores']:.3g}",
            plain(row["why_not"] or row["source"]),
        ]
        for row in estimates.iter_rows(named=True)
    ]
    yield text_table(["estimate", "cores", "whose figure, or why it is not known"], rows)
    if curve.height:
        shares = [[str(n), share(over), share(unmet)] for n, over, unmet in curve.iter_rows()]
        yield text_table(["cores", "time in which more were wanted", "demand above them"], shares)
    if replayed.height:
        head, *body = at_cores_table(replayed)
        yield text_table(head, body)


def _capacity(options: Options, named: Callable[[str], str]) -> dict[str, Any]:
    return options.with_files(named).taken_by("capacity")


def notebooks(flags: argparse.Namespace) -> int:
    """List the notebooks, or copy one."""
    from tracelib.report.notebooks import notebook
    from tracelib.report.notebooks import notebooks as shipped

    if flags.action == "list":
        for name, path in shipped().items():
            print(f"{name}\t{path}")
        return 0
    source = notebook(flags.name)
    target = flags.target or Path(f"{source.stem}.ipynb")
    if target.exists():
        raise BadParameter("target", target, ["a file that does not exist yet"])
    target.write_bytes(source.read_bytes())
    print(target)
    return 0
