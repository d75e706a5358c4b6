"""`tracelib compare`: what changed from one run to others."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelib.cli.flags import PART_FAILED
from tracelib.errors import BadParameter
from tracelib.words import counted, plain

if TYPE_CHECKING:
    import polars as pl


GATE = re.compile(r"(?P<figure>\w+)\s*(?P<side>[<>])\s*(?P<bound>[+-]?\d+(\.\d+)?)\s*%")


class Bound(NamedTuple):
    """How far a figure may change, relative to the first run."""

    text: str
    figure: str
    side: str
    bound: float


def compare(flags: argparse.Namespace) -> int:
    """Say what changed from one run to others."""
    from tracelib.analyses.comparison import changes, comparison
    from tracelib.charts.comparison import side_by_side, what_changed
    from tracelib.options import compared
    from tracelib.report.notebook_cells import opened_runs
    from tracelib.trace import text_table

    bounds = [_bound(text) for text in flags.fail_on]
    given = _parameters(flags)
    print(f"tracelib: reading {counted(len(given['runs']), 'run')} ...", file=sys.stderr)
    figures = comparison(opened_runs(compared(given)))
    changed = changes(figures)
    crossed = [line for bound in bounds for line in _crossed(bound, figures, changed)]
    if flags.json:
        print(json.dumps({"figures": figures.to_dicts(), "changes": changed.to_dicts(), "crossed": crossed}))
    else:
        for line in what_changed(changed):
            print(plain(line))
        frame = side_by_side(figures)
        print(text_table(frame.columns, [[plain(cell) for cell in row] for row in frame.rows()]))
    for line in crossed:
        print(f"tracelib: {line}", file=sys.stderr)
    failed = flags.output is not None and not _page(flags.output, given)
    return PART_FAILED if failed else int(bool(crossed))


def _parameters(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the runs and their logs by label, as compare.ipynb takes them."""
    if len(flags.runs) < 2:
        raise BadParameter("RUN", " ".join(flags.runs), ["two runs or more, the old one first"])
    names = [*flags.label, *(Path(run).resolve().name for run in flags.runs[len(flags.label) :])]
    if len(flags.label) > len(flags.runs):
        raise BadParameter("--label", flags.label[-1], [f"at most {len(flags.runs)}, one for each run"])
    labels = names if len(set(names)) == len(names) else [f"{n}: {name}" for n, name in enumerate(names, 1)]
    if flags.requests and len(flags.requests) != len(labels):
        raise BadParameter("--requests", f"{len(flags.requests)} given", [f"{len(labels)}, one for each run"])
    logs = dict(zip(labels, (str(Path(log).resolve()) for log in flags.requests), strict=False))
    return {
        "runs": dict(zip(labels, (str(Path(run).resolve()) for run in flags.runs), strict=True)),
        "requests": logs,
    }


def _bound(text: str) -> Bound:
    found = GATE.fullmatch(text.strip())
    if not found:
        raise BadParameter(
            "--fail-on", text, ["FIGURE>+N% (it may not grow by more)", "FIGURE<-N% (nor fall by more)"]
        )
    return Bound(text.strip(), found["figure"].lower(), found["side"], float(found["bound"]) / 100)


def _crossed(bound: Bound, figures: pl.DataFrame, changed: pl.DataFrame) -> list[str]:
    """Return a line for each run in which the figure changed beyond the bound, and beyond noise."""
    names = {name.lower().replace(" ", "_"): name for name in figures["figure"].unique(maintain_order=True)}
    if bound.figure not in names:
        raise BadParameter("--fail-on", bound.figure, names)
    lines = []
    runs = figures["run"].unique(maintain_order=True).to_list()[1:]
    rows = {row["run"]: row for row in changed.to_dicts() if row["figure"] == names[bound.figure]}
    for run in runs:
        if run not in rows:
            raise BadParameter(
                "--fail-on", bound.figure, [f"a figure that every run tells; not {plain(run)}"]
            )
        row = rows[run]
        relative = row["relative"]
        if relative is None:
            relative = float("inf") if row["change"] > 0 else 0.0
        beyond = relative > bound.bound if bound.side == ">" else relative < bound.bound
        if beyond and row["beyond_noise"] is not False:
            lines.append(
                f"{plain(run)}: {bound.figure} changed by {relative:+.0%}, and {bound.text} is not allowed"
            )
    return lines


def _page(folder: Path, given: dict[str, Any]) -> bool:
    """Run compare.ipynb and write its page; return whether it worked."""
    from tracelib.report.bundle import whole_folder
    from tracelib.report.exporter import TraceReport
    from tracelib.report.notebooks import notebook
    from tracelib.report.run import run_notebook

    parameters = {name: value for name, value in given.items() if value}
    with whole_folder(folder) as made:
        ran = run_notebook(notebook("compare"), made / "compare.ipynb", parameters)
        page, _ = TraceReport().from_notebook_node(ran.notebook)  # type: ignore[no-untyped-call]
        (made / "compare.html").write_text(page, encoding="utf-8")
    if ran.failure is not None:
        print(f"tracelib: a part failed: {plain(ran.failure.one_line())}", file=sys.stderr)
    print(f"page: {(folder / 'compare.html').resolve()}")
    return ran.failure is None
