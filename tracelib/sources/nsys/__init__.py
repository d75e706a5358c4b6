"""NVIDIA Nsight Systems: exports to SQLite, Parquet, Arrow; reports through `nsys export`. See README.md.

The format of reports is not published and changes with every version; NVIDIA's own exporter is the one reader
there is, and reads reports of older versions, not of newer ones.
"""

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracelib.errors import BadTrace
from tracelib.sources import programs
from tracelib.sources.files import head as first_bytes
from tracelib.sources.format import Format
from tracelib.sources.nsys.tables import (
    ARROW,
    PARQUET,
    SQLITE,
    Directory,
    Tables,
    is_table_of_directory,
    part_of_directory,
    tables_of,
)
from tracelib.sources.programs import Scratch
from tracelib.trace import Trace
from tracelib.words import counted

#: An export that takes longer hangs: a report of gigabytes takes minutes.
SECONDS = 3600
MAGIC = b"NVIDIA Tegra Profiler Report"
#: A report's exports are named after it: run.sqlite, run_pqtdir/, run_arwdir/.
REPORTS, DATABASE, DIRECTORIES = (".nsys-rep", ".qdrep"), ".sqlite", ("_pqtdir", "_arwdir")
#: Tables that only nsys's export has; their definitions stand in the file's first pages.
_TABLES = re.compile(
    rb"StringIds|TARGET_INFO_|META_DATA_EXPORT|EXPORT_META_DATA|CUPTI_ACTIVITY_KIND_|ENUM_NSYS_|ENUM_CUDA_"
)
#: Kind of the first page when it lists where the definitions are instead of holding them; at byte 100.
_DEFINITIONS_ELSEWHERE = b"\x05"
_DEFINITION = b"CREATE TABLE"
_STATS_HEADERS = (b"Time (%),Total Time (ns)", b"Start (ns),Duration (ns)")


def sniff(head: bytes, name: str) -> bool:
    """Say whether a file that starts with `head` is an export, a report or a summary of Nsight Systems."""
    if head.startswith(SQLITE):
        elsewhere = head[100:101] == _DEFINITIONS_ELSEWHERE and _DEFINITION not in head
        return elsewhere or len(set(_TABLES.findall(head))) >= 2
    return head.startswith((MAGIC, *_STATS_HEADERS)) or is_table_of_directory(head, name)


def _program(head: bytes) -> str | None:
    return "nsys" if head.startswith(MAGIC) else None


def _files(path: Path, head: bytes) -> list[Path]:
    return tables_of(path) if is_table_of_directory(head, path.name) else [path]


def read(path: Path) -> Trace:
    """Read the export or report at `path`.

    Raises BadTrace if it is not an export of nsys, or one without events (`nsys stats`, a recipe); it cannot
    be opened as a database; a report without an `nsys` that could export it.
    """
    from tracelib.sources.nsys.database import open_database
    from tracelib.sources.nsys.reader import trace_of

    head = first_bytes(path)
    if head.startswith(MAGIC):
        with exported_report(path) as export, open_database(export) as database:
            database.files = [path]
            return trace_of(_checked(database, path), path)
    if is_table_of_directory(head, path.name):
        return trace_of(_checked(Directory(path), path), path)
    if not head.startswith(SQLITE):
        raise BadTrace(
            path, "nsys", "", _what_it_is(head), advice="Give the .nsys-rep or its export to SQLite."
        )
    with open_database(path) as database:
        return trace_of(_checked(database, path), path)


def _checked(tables: Tables, path: Path) -> Tables:
    """Return `tables` if they are those of nsys: any SQLite file can be opened."""
    if not any(_TABLES.match(name.encode()) for name in tables.tables):
        reason = f"it holds {counted(len(tables.tables), 'table')}, none of Nsight Systems"
        raise BadTrace(path, "nsys", "the schema", reason, excerpt=", ".join(tables.tables))
    return tables


def _what_it_is(head: bytes) -> str:
    if head.startswith(_STATS_HEADERS):
        return "a summary by `nsys stats`: totals per name, no events"
    if head.startswith((PARQUET, ARROW)):
        return "a table on its own, as nsys's recipes write it, not an export's directory with its StringIds"
    return "neither an export nor a report of Nsight Systems"


def export_of(report: Path, files: Iterable[Path]) -> Path | None:
    """Return the one of `files` that is named as the report's export and not older, if there is one."""
    if report.suffix not in REPORTS:
        return None
    names = {report.with_suffix(DATABASE), *(report.with_name(report.stem + end) for end in DIRECTORIES)}
    exports = (file for file in files if file in names or file.parent in names)
    changed = report.stat().st_mtime
    return next((file for file in exports if file.stat().st_mtime >= changed), None)


@contextlib.contextmanager
def exported_report(path: Path) -> Iterator[Path]:
    """Export the report at `path` into a private temporary folder, which is removed afterwards.

    Raises BadTrace if no `nsys` is installed, or it cannot export the report.
    """
    by_hand = (
        f" Run: nsys export --type=sqlite --output={path.stem}.sqlite {path.name}, and give the .sqlite file."
    )
    nsys = shutil.which("nsys")
    if nsys is None:
        reason = "a report of Nsight Systems needs its own exporter, and no `nsys` is installed here"
        raise BadTrace(
            path, "nsys", "", reason, advice=f"{by_hand} (where nsys is, of the recorder's version or newer)"
        )
    with Scratch() as folder:
        output = Path(folder) / "export.sqlite"
        command = [
            nsys,
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            f"--output={output}",
            str(path.resolve()),
        ]
        errors, words = Path(folder) / "errors.txt", Path(folder) / "words.txt"
        failure = _failure(command, errors, words) or _flaw(output)
        if failure:
            output_text = next((text for file in (errors, words) if (text := _text(file))), "")
            raise BadTrace(
                path, "nsys", "", failure, excerpt=output_text, advice=f"{by_hand} (with a newer nsys)"
            )
        yield output


def _text(file: Path) -> str:
    return file.read_text(errors="replace").strip() if file.exists() else ""


def _failure(command: list[str], errors: Path, words: Path) -> str:
    """Run `command`, its output going to `errors` and `words`, and return why it failed, "" if it did not."""
    with errors.open("wb") as error, words.open("wb") as out:
        status, why = programs.run(command, out, error, SECONDS)
    return f"`nsys export` failed with status {status}{why and f': {why}'}" if status else ""


def _flaw(output: Path) -> str:
    """Return what is wrong with the file that was to be written, "" if it is a database."""
    if not output.is_file():
        return "`nsys export` failed with status 0: it wrote nothing"
    with output.open("rb") as file:
        return "" if file.read(len(SQLITE)) == SQLITE else "`nsys export` wrote no database"


FORMAT = Format(
    name="nsys",
    sniff=sniff,
    read=read,
    scope="session",
    thread_name_rank=2,
    program=_program,
    files=_files,
    export_among=export_of,
    advice_for_part=part_of_directory,
)
