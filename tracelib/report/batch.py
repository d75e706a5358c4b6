"""`tracelib batch`: one report per run, and an index over all of them, worst first.

A run that cannot be read does not stop the others: the index says which failed and why. What was done before
is kept while the traces' checksums, the parameters and tracelib's version are the same. The index and the
folders' names are redacted as the reports are; what is printed while it works is not.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from tracelib import __version__
from tracelib.errors import BadParameter, TraceError, UnknownFormat
from tracelib.findings import Document, figures, read
from tracelib.options import Options
from tracelib.report.pipeline import write_report
from tracelib.report.private import paths
from tracelib.report.redact import Redactor, current_user
from tracelib.report.sections.render import render
from tracelib.sources.archives import is_archive
from tracelib.sources.discovery import discover, recognised
from tracelib.sources.files import head, sha256
from tracelib.sources.programs import Scratch, end_with_parent, interrupts_held

SCHEMA = "tracelib.batch/1"
#: How each index shows that it was written here.
MARKS = {"index.json": f'"schema": "{SCHEMA}"', "index.html": '<meta name="generator" content="tracelib">'}

#: What a message quotes from a file.
_QUOTED = re.compile(r"(?<!\w)'[^'\n]+'(?!\w)|\"[^\"\n]+\"")


@dataclass(frozen=True)
class Entry:
    """One run in the index.

    Shares are of GPU time (the window, summed over the GPUs); `limits` and `firm` are the verdict's; None =
    not known; `error` "" = all went well.
    """

    name: str
    report: str | None = None
    state: str | None = None
    confidence: str | None = None
    sentence: str | None = None
    host_share: float | None = None
    shortage_share: float | None = None
    lost_share: float | None = None
    useful_share: float | None = None
    top_cause: str | None = None
    window_ns: int | None = None
    limits: tuple[str, ...] = ()
    firm: bool = True
    error: str = ""
    resumed: bool = False


def expanded(runs: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """Return the paths that `runs` names, and the files of unknown format that only a pattern names.

    A pattern (quoted, so that the shell left it alone) stands for all that match.

    Raises BadParameter if a pattern matches nothing, or nothing that could be a trace.
    """
    paths: list[Path] = []
    others: list[Path] = []
    for text in runs:
        path = Path(text).expanduser()
        if path.exists() or not set("*?[") & set(text):
            paths.append(path)
            continue
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        matches = sorted(anchor.glob(str(path.relative_to(anchor))))
        unknown = [path for path in matches if _is_other(path)]
        if len(unknown) == len(matches):
            raise BadParameter("run", text, ["a pattern that matches folders or traces"])
        paths += [path for path in matches if path not in unknown]
        others += unknown
    return list(dict.fromkeys(paths)), [path for path in dict.fromkeys(others) if path not in paths]


def _is_other(path: Path) -> bool:
    """Say whether nobody takes `path` for a trace, such as a README; an empty or closed file may be one."""
    try:
        if path.is_file():
            recognised(path)
    except UnknownFormat as error:
        return not error.reason and not is_archive(head(path))
    return False


def names(runs: Sequence[Path], redactor: Redactor) -> list[str]:
    """Return a folder's name for each run: its own, and those of its parents that tell it from the others.

    Runs whose names are the same once they are redacted are numbered.
    """
    parts = [path.resolve().parts for path in runs]
    for own in parts:
        redactor.text("/".join(own))  # which learns whose home it is
    made: list[str] = []
    for own in parts:
        depth = 1
        while depth < len(own) and sum(other[-depth:] == own[-depth:] for other in parts) > 1:
            depth += 1
        name = redactor.text("-".join(own[-depth:]).strip("/.").replace("/", "-"))
        made.append(_free(name.replace("/", "-").strip("/.") or "run", made))
    return made


def _free(name: str, taken: Sequence[str]) -> str:
    numbered = (f"{name}-{n}" for n in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def batch(
    runs: Sequence[Path],
    output: Path,
    options: Options,
    *,
    jobs: int = 1,
    timeout_s: int = 900,
    afresh: bool = False,
    done: Callable[[Entry], None] = lambda _: None,
) -> list[Entry]:
    """Write a report of each run to `output`/NAME and the index beside them; return the entries, worst first.

    `options` hold for every run but for `traces`; `afresh` = do again what was done before; `done` is called
    with each entry as it comes. The index is written after each, so that a batch that is stopped leaves one.

    Raises TraceError if the output folder cannot be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(
            f"{output}: cannot write there: {error.strerror}. Choose another folder with -o."
        ) from None
    _refuse_a_foreign_index(output)
    redactor = Redactor(current_user(), level=options.redact)
    named = names(runs, redactor)
    told = _told(options, redactor)
    earlier = {} if afresh else _earlier(output, told)
    entries: list[Entry] = []
    # Processes, not threads: running a notebook sets the environment and the filters of warnings.
    spawn = get_context("spawn")
    with ProcessPoolExecutor(max(1, jobs), mp_context=spawn, initializer=end_with_parent) as pool:
        with interrupts_held():  # the first of these starts the processes
            waiting = {
                pool.submit(_one, run, name, output, options, timeout_s, resume=name in earlier): name
                for run, name in zip(runs, named, strict=True)
            }
        try:
            for future in as_completed(waiting):
                entry = _outcome(future, waiting[future])
                entries.append(entry)
                _write(output, entries, told, redactor)
                done(entry)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                process.terminate()
            raise
    return worst_first(entries)


def _refuse_a_foreign_index(output: Path) -> None:
    for name, mark in MARKS.items():
        path = output / name
        if path.exists() and mark not in path.read_text(errors="replace")[:2000]:
            raise TraceError(f"{path}: tracelib did not write it. Choose another folder with -o.")


def _outcome(future: Any, name: str) -> Entry:
    try:
        entry: Entry = future.result()
    except BrokenProcessPool:
        return Entry(name, error="the process that made the report died; most often it ran out of memory")
    return entry


def _one(run: Path, name: str, output: Path, options: Options, timeout_s: int, *, resume: bool) -> Entry:
    """Return the run's entry; its own process calls this, so nothing may escape but the entry."""
    folder = output / name
    try:
        if resume and _same_files(folder, run):
            return entry_of(name, read((folder / "findings.json").read_bytes()), resumed=True)
        report = write_report(folder, replace(options, traces=[str(run)]), timeout_s=timeout_s)
    except (TraceError, OSError) as error:
        return Entry(name, error=str(error))
    failure = "" if report.failure is None else report.failure.one_line()
    if report.findings is None:
        return Entry(name, report=f"{name}/report.html", error=failure)
    return entry_of(name, report.findings, error=failure)


def _same_files(folder: Path, run: Path) -> bool:
    if not (folder / "findings.json").is_file() or not (folder / "report.html").is_file():
        return False
    made_of = {source.sha256 for source in read((folder / "findings.json").read_bytes()).sources}
    return made_of == {sha256(file.path) for file in discover([run]).traces}


def entry_of(name: str, findings: Document, *, error: str = "", resumed: bool = False) -> Entry:
    """Return the entry of a run whose report is in the folder `name`."""
    gpu_time = findings.window.duration_ns * len(figures.devices(findings))
    cpu_known = figures.known_cpu_state_ns(findings) and gpu_time
    causes = [row for row in figures.cause_rows(findings) if row.exposed_ns]
    useful = figures.mean_of([device.useful_share for device in findings.devices or ()])
    return Entry(
        name,
        report=f"{name}/report.html",
        state=findings.verdict.state,
        confidence=findings.verdict.confidence,
        sentence=findings.verdict.sentence,
        host_share=figures.mean_of(figures.exposed_host_shares(findings)),
        shortage_share=figures.cpu_shortage_ns(findings) / gpu_time if cpu_known else None,
        lost_share=figures.mean_of(figures.lost_shares(findings)),
        useful_share=useful,
        top_cause=causes[0].cause if causes else None,
        window_ns=findings.window.duration_ns,
        limits=tuple(findings.verdict.limits),
        firm=findings.verdict.firm,
        error=error,
        resumed=resumed,
    )


def worst_first(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries by what the host cost the GPUs, largest first; then the unknown, then failures."""
    return sorted(
        entries,
        key=lambda e: (
            e.state is None,
            e.host_share is None,
            -(e.host_share or 0),
            -(e.lost_share or 0),
            e.name,
        ),
    )


def _told(options: Options, redactor: Redactor) -> dict[str, Any]:
    """Return the parameters as the index tells them, and by what they are known as the same again."""
    given = options.taken_by("batch")
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return {"parameters": redactor.parameters(given), "parameters_sha256": digest}


def _earlier(output: Path, told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runs in the index in `output`, if the same tracelib made it with the same parameters."""
    try:
        index = json.loads((output / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # none, or one that was cut short: everything is done again
    same = isinstance(index, dict) and {"tool": _tool(), **told}.items() <= index.items()
    return {row["name"]: row for row in index["runs"] if not row["error"]} if same else {}


def _tool() -> dict[str, str]:
    return {"name": "tracelib", "version": __version__}


def _clean(error: str, redactor: Redactor) -> str:
    """Return an error redacted; of what it quotes from a file, free text goes too."""
    if redactor.level == "off":
        return error
    text = redactor.text(_QUOTED.sub(lambda each: _quoted(each[0], redactor), error))
    return paths(text) if redactor.level == "strict" else text


def _quoted(text: str, redactor: Redactor) -> str:
    spaced = text.replace("_", " ")  # a key of TOML may be a sentence
    clean = redactor.text(spaced, recorded=True)
    return text if clean == spaced else clean


def _write(output: Path, entries: Iterable[Entry], told: Mapping[str, Any], redactor: Redactor) -> None:
    rows = [replace(row, error=_clean(row.error, redactor)) for row in worst_first(entries)]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    index = {
        "schema": SCHEMA,
        "tool": _tool(),
        "generated_utc": now,
        **told,
        "runs": [{name: value for name, value in asdict(row).items() if name != "resumed"} for row in rows],
    }
    with Scratch(output) as folder:
        for name, text in (
            ("index.json", json.dumps(index, indent=1, ensure_ascii=False, allow_nan=False) + "\n"),
            ("index.html", render("batch", index=index)),
        ):
            half = Path(folder) / name
            half.write_text(text, encoding="utf-8")
            half.replace(output / name)
