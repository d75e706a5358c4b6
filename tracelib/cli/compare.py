"""What changed from one run to others (`compare`), and what a change would have given back (`whatif`)."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelib.cli.flags import PART_FAILED, options_of, whole
from tracelib.errors import BadParameter, BadTrace
from tracelib.words import counted, plain

if TYPE_CHECKING:
    import polars as pl

    from tracelib.analyses.replay import Load


#: How a file begins that `--save` wrote.
BASELINE = "tracelib.baseline/1"
_SAVE_AGAIN = "Make it anew with tracelib compare RUN --save FILE."
GATE = re.compile(r"(?P<figure>\w+)\s*(?P<side>[<>])\s*(?P<bound>[+-]?\d+(\.\d+)?)\s*%")


class Bound(NamedTuple):
    """How far a figure may change, relative to the first run."""

    text: str
    figure: str
    side: str
    bound: float


def compare(flags: argparse.Namespace) -> int:
    """Say what changed from one run to others."""
    from tracelib.analyses.comparison import changes
    from tracelib.charts.comparison import loads_compared, side_by_side, what_changed
    from tracelib.charts.gpus import kernels_in_words
    from tracelib.trace import text_table

    bounds = [_bound(text) for text in flags.fail_on]
    given = _parameters(flags)
    print(f"tracelib: reading {counted(len(given['labels']), 'run')} ...", file=sys.stderr)
    figures, by_kernel, loads = _figures(given)
    changed = changes(figures)
    crossed = [line for bound in bounds for line in _crossed(bound, figures, changed)]
    if flags.json:
        frames = {"figures": figures, "changes": changed, "kernels": by_kernel}
        told = {"loads": {run: load._asdict() for run, load in loads.items()}, "crossed": crossed}
        print(json.dumps({name: frame.to_dicts() for name, frame in frames.items()} | told))
    else:
        for line in what_changed(changed):
            print(plain(line))
        for frame in (side_by_side(figures), *([kernels_in_words(by_kernel)] if by_kernel.height else [])):
            print(text_table(frame.columns, [[plain(cell) for cell in row] for row in frame.rows()]))
        print("\n".join(plain(line) for line in loads_compared(loads)))
    for line in crossed:
        print(f"tracelib: {line}", file=sys.stderr)
    if flags.save is not None:
        _save(figures, flags.save)
    failed = flags.output is not None and not page("compare", flags.output, partial(_shown, given))
    return PART_FAILED if failed else int(bool(crossed))


def _parameters(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the runs and their logs by label, as compare.ipynb takes them; and baselines."""
    if len(flags.runs) < 2 and flags.save is None:
        raise BadParameter("RUN", " ".join(flags.runs), ["two runs or more, the old one first"])
    names = [*flags.label, *(Path(run).resolve().name for run in flags.runs[len(flags.label) :])]
    if len(flags.label) > len(flags.runs):
        raise BadParameter("--label", flags.label[-1], [f"at most {len(flags.runs)}, one for each run"])
    labels = names if len(set(names)) == len(names) else [f"{n}: {name}" for n, name in enumerate(names, 1)]
    paths = dict(zip(labels, (Path(run).resolve() for run in flags.runs), strict=True))
    kept = {label: path for label, path in paths.items() if _is_baseline(path)}
    runs = {label: str(path) for label, path in paths.items() if label not in kept}
    if flags.requests and len(flags.requests) != len(runs):
        raise BadParameter("--requests", f"{len(flags.requests)} given", [f"{len(runs)}, one for each run"])
    if kept and flags.output is not None:
        raise BadParameter("-o", flags.output, ["the traces of every run: a baseline has none to draw"])
    logs = dict(zip(runs, (str(Path(log).resolve()) for log in flags.requests), strict=False))
    return {"runs": runs, "requests": logs, "baselines": kept, "labels": labels}


def _shown(given: dict[str, Any], named: Callable[[str], str]) -> dict[str, Any]:
    """Return the parameters of compare.ipynb, labels redacted: a run's folder may be named after a person."""
    from tracelib.report.redact import Redactor, current_user

    redactor = Redactor(current_user())
    for path in given["runs"].values():
        redactor.text(path)  # which learns whose home it is
    clean = [redactor.text(label) for label in given["runs"]]
    if len(set(clean)) < len(clean):
        clean = [f"{n}: {label}" for n, label in enumerate(clean, 1)]
    labels = dict(zip(given["runs"], clean, strict=True))
    return {
        name: {labels[label]: named(path) for label, path in given[name].items()}
        for name in ("runs", "requests")
    }


def _is_baseline(path: Path) -> bool:
    """Say whether it is one by how it begins: a trace may be JSON too, and large."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(BASELINE) + 20).lstrip().startswith(f'{{"schema": "{BASELINE}"'.encode())


def _figures(given: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Load]]:
    """Return the figures of all runs in their order, how kernels changed, and how requests came.

    A baseline's figures are as saved, the others' computed; a baseline tells nothing of kernels and requests.
    """
    import polars as pl

    from tracelib.analyses.comparison import comparison, kernel_changes, kernels, with_zeros
    from tracelib.options import compared
    from tracelib.report.notebook_cells import opened_runs

    traces = {name: given[name] for name in ("runs", "requests")}
    runs = opened_runs(compared(traces)) if given["runs"] else {}
    saved = [_read(path, label) for label, path in given["baselines"].items()]
    order = pl.DataFrame({"run": given["labels"]})
    each = pl.concat([comparison(runs), *saved])
    figures = with_zeros(order.join(each, on="run", maintain_order="left_right"))
    return figures, kernel_changes(kernels(runs)), {run: results.load for run, results in runs.items()}


def _read(path: Path, label: str) -> pl.DataFrame:
    import polars as pl

    from tracelib.analyses.comparison import COMPARISON

    try:
        rows = [{"run": label, **row} for row in json.loads(path.read_bytes())["figures"]]
        return pl.DataFrame(rows, schema=COMPARISON)
    except (ValueError, KeyError, TypeError, RecursionError, pl.exceptions.PolarsError) as error:
        raise BadTrace(path, "baseline", "", str(error).split("\n")[0], advice=_SAVE_AGAIN) from None


def _save(figures: pl.DataFrame, path: Path) -> None:
    """Write the figures of the last run as a baseline for later ones."""
    last = figures.filter(figures["run"] == figures["run"].last()).drop("run")
    rows = ",\n".join(json.dumps(row) for row in last.to_dicts())
    with whole(path) as made:
        made.write_text(f'{{"schema": "{BASELINE}", "figures": [\n{rows}\n]}}\n', encoding="utf-8")
    print(f"baseline: {path.resolve()}", file=sys.stderr)


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


def whatif(flags: argparse.Namespace) -> int:
    """Say what a change would have given back."""
    from tracelib.analyses.replay import scenarios
    from tracelib.analyses.whatif import load_words, what_if
    from tracelib.charts.capacity import gains_table, what_if_chart
    from tracelib.report.notebook_cells import opened
    from tracelib.trace import text_table

    options, without = options_of(flags), flags.without or []
    if not 0 <= flags.cores < math.inf:
        raise BadParameter("--cores", flags.cores, ["a number from 0"])
    changes = scenarios(flags.cores, without)
    print(f"tracelib: reading {counted(len(options.traces), 'path')} ...", file=sys.stderr)
    results, _ = opened(options)
    closed = flags.closed_loop or None
    replayed = what_if(results, changes, closed_loop=closed)
    if flags.json:
        told = {"window_ns": results.window.duration_ns, "load": results.load._asdict()}
        print(json.dumps(told | {"scenarios": replayed.to_dicts()}))
    else:
        chart = what_if_chart(replayed)
        if chart is not None:
            print(plain(chart.layout.meta["sentence"]))
        head, *rows = gains_table(replayed)
        print(text_table(head, rows))
        print(load_words(results.load, closed_loop=closed))
    if flags.output is None:
        return 0
    more = {"cores": flags.cores, "without": without, "closed_loop": flags.closed_loop}
    worked = page("what_if", flags.output, lambda named: options.with_files(named).taken_by("whatif") | more)
    return 0 if worked else PART_FAILED


def page(name: str, folder: Path, parameters: Callable[[Callable[[str], str]], dict[str, Any]]) -> bool:
    """Run the notebook NAME and write its page NAME.html into `folder`; return whether it worked.

    `parameters` makes the notebook's parameters with a function that names a file as a report does: without
    where on this machine it lies. What was typed is redacted as `redact` among them says.
    """
    from tracelib.report.bundle import whole_folder
    from tracelib.report.exporter import TraceReport
    from tracelib.report.notebooks import notebook
    from tracelib.report.pipeline import portable, tidy
    from tracelib.report.redact import Redactor, current_user
    from tracelib.report.run import run_notebook, write_notebook

    with whole_folder(folder) as made:
        moved = parameters(lambda path: portable(path, made))
        given = {key: value for key, value in moved.items() if value}
        ran = run_notebook(notebook(name), made / f"{name}.ipynb", given, working_directory=made)
        redactor = Redactor(current_user(), level=given.get("redact", "strict"))
        node = tidy(ran.notebook, folder, redactor, {})
        write_notebook(node, made / f"{name}.ipynb")
        html, _ = TraceReport().from_notebook_node(node)  # type: ignore[no-untyped-call]
        (made / f"{name}.html").write_text(html, encoding="utf-8")
    if ran.failure is not None:
        print(f"tracelib: a part failed: {plain(ran.failure.one_line())}", file=sys.stderr)
    print(f"page: {(folder / f'{name}.html').resolve()}")
    return ran.failure is None
