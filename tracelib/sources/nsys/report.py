"""Reports of `nsys profile` (.nsys-rep, before 2021.4 .qdrep), by way of an installed `nsys export`.

Their format is not published and changes with every version; NVIDIA's own exporter is the one reader there
is, and reads reports of older versions, not of newer ones.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tracelib.errors import BadTrace
from tracelib.sources import programs
from tracelib.sources.nsys.tables import SQLITE
from tracelib.sources.programs import Scratch

#: An export that takes longer hangs: a report of gigabytes takes minutes.
SECONDS = 3600
MAGIC = b"NVIDIA Tegra Profiler Report"
#: A report's exports are named after it: run.sqlite, run_pqtdir/, run_arwdir/.
REPORTS, DATABASE, DIRECTORIES = (".nsys-rep", ".qdrep"), ".sqlite", ("_pqtdir", "_arwdir")


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
