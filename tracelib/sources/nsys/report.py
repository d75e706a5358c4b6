"""Reports as `nsys profile` writes them (.nsys-rep, before 2021.4 .qdrep), by way of an installed `nsys export`.

Their format is not published and changes with every version; NVIDIA's own exporter is the one reader there is, and reads
reports of older versions, not of newer ones.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tracelib.errors import BadTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAGIC", "exported_report"]

MAGIC = b"NVIDIA Tegra Profiler Report"


@contextlib.contextmanager
def exported_report(path: Path) -> Iterator[Path]:
    """Export the report at `path` into a private temporary folder, which is removed afterwards.

    Raises
    ------
    BadTrace
        No `nsys` is installed, or it cannot export the report.

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
    with tempfile.TemporaryDirectory(prefix="tracelib-nsys-") as folder:
        output = Path(folder) / "export.sqlite"
        command = [
            nsys,
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            f"--output={output}",
            str(path.resolve()),
        ]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode or not output.is_file():
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            reason = f"`nsys export` failed with status {done.returncode}"
            raise BadTrace(path, "nsys", "", reason, excerpt=said, advice=f"{by_hand} (with a newer nsys)")
        yield output
